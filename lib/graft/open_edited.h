#pragma once
#include <filesystem>

#include "lib/artifact/edit.h"
#include "lib/checkpoint/checkpoint.h"

namespace twofour {

/// What the names of the donor's files begin with where both sources are listed.
inline constexpr const char* kDonorPrefix = "donor:";

/// Opens a checkpoint that an edit may start from. Throws Error on an artifact in a layout and where its
/// twofour.json is damaged.
Checkpoint open_editable(const std::filesystem::path& path, Io io = Io::kCached);

/// Opens what an edit makes of a source and, for a graft, a donor, as a checkpoint: its tensors are read from
/// their files, its config says what it has. Throws Error on patterns that match nothing, on what does not
/// fit, on edits that leave no sound model and where the config's dialect has no words for the result.
Checkpoint open_edited(const std::filesystem::path& source, const std::filesystem::path& donor,
                       const Edit& edit, Io io = Io::kCached);

}  // namespace twofour
