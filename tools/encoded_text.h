#pragma once
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/convert/convert.h"

namespace twofour {

/// What encoding cost all matrices together, and with `each` one by one; lines that end.
std::string encoded_text(const Plan& plan, const std::vector<EncodedResult>& results, bool each);
/// The same of one matrix, as fields of its module.
Json encoded_to_json(const Plan& plan, const EncodedResult& result);

}  // namespace twofour
