#pragma once
#include <filesystem>

#include "lib/recipe/artifact/edit.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The prefix of the donor's file names if both sources are listed.
inline constexpr const char* kDonorPrefix = "donor:";

/// Opens a checkpoint for editing. Throws Error on an artifact in a layout, and if its twofour.json is
/// damaged.
Checkpoint open_editable(const std::filesystem::path& path, Io io = Io::kCached);

/// Opens the result of an edit of a source and, for a graft, a donor, as a checkpoint: its tensors are read
/// from their files, and its config describes the result. Throws Error on patterns that match nothing, on
/// modules that do not fit, on edits that leave no valid model, and if the config's dialect cannot describe
/// the result.
Checkpoint open_edited(const std::filesystem::path& source, const std::filesystem::path& donor,
                       const Edit& edit, Io io = Io::kCached);

}  // namespace twofour
