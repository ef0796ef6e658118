#pragma once
#include <string>
#include <vector>

#include "lib/write/plan/plan.h"

namespace twofour {

/// Distributes the tensors over files in natural order, so that a layer stays together, and fixes the header
/// of each file. Within a file, tensors are in the order of is_stored_before(). `format` is the number format
/// or the layout that the headers state; empty: none. Throws Error if two tensors have one name.
void lay_out_files(Plan& plan, const std::string& format, std::vector<OutputTensor> outputs);

}  // namespace twofour
