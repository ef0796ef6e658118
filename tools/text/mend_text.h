#pragma once
#include <string>

#include "formats/json.h"
#include "lib/repair/repair.h"

namespace twofour {

/// What a mend changed, as in the document of `repair --json`.
Json mend_json(const MendRecord& mend);
/// The same in one line: "reciprocals (suspicious-scale): 1 tensor, ...; 4 B".
std::string mend_text(const MendRecord& mend);

}  // namespace twofour
