#pragma once
#include <filesystem>
#include <vector>

#include "lib/base/findings/finding.h"
#include "lib/lint/rules/rules.h"
#include "lib/repair/repair.h"

namespace twofour {

/// The result of a repair, before it is written.
struct Repaired {
  Checkpoint checkpoint;           ///< reads from the files of the source and of the donor
  std::vector<MendRecord> mends;   ///< the mends that were made, in the order of mends()
  Findings unmended;               ///< findings in headers that no mend removes
  std::vector<LintFinding> found;  ///< findings of lint by headers about the source
};

/// Opens a checkpoint as `settings` mend it. `donor` is empty or a checkpoint of the same model. Reads
/// headers, configs and small scales, and all bytes only of tensors that are there twice or that are folded.
/// The same sources and settings give the same result. Throws Error on a source that cannot be read as a
/// checkpoint (a damaged header, an unfinished output, an artifact in a layout), on tensors of one name with
/// different bytes, and on a donor of another structure.
Repaired open_repaired(const std::filesystem::path& source, const std::filesystem::path& donor,
                       const RepairSettings& settings, Io io = Io::kCached);

}  // namespace twofour
