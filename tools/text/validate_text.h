#pragma once
#include <vector>

#include "formats/json.h"
#include "lib/prove/validate/validate.h"

namespace twofour {

/// Orders differences of one kind that follow each other: layer 2 before layer 10.
void sort_differences(Findings& differences);

/// Prints differences. Those of one kind at names that differ only in numbers share a line, unless `all` are
/// asked for or there are few.
void print_differences(const Findings& differences, bool all);

/// Prints what each mend of a repaired artifact changed.
void print_mends(const std::vector<ProvenMend>& mends, bool all);
Json mends_to_json(const std::vector<ProvenMend>& mends);

}  // namespace twofour
