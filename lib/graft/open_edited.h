#pragma once
#include <filesystem>

#include "lib/recipe/artifact/edit.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The prefix of the donor's file names in a list of both sources' files.
inline constexpr const char* kDonorPrefix = "donor:";

/// Opens a checkpoint for editing. Throws Error on an artifact in a layout, and if its twofour.json is
/// damaged.
Checkpoint open_editable(const std::filesystem::path& path, Io io = Io::kCached);

/// Opens the result of an edit as a checkpoint. The tensors are read from the files of the source and, for a
/// graft, of the donor. The config describes the result. Throws Error if a pattern matches nothing, if
/// modules do not fit, if the edit leaves no valid model, and if the config's dialect cannot describe the
/// result.
Checkpoint open_edited(const std::filesystem::path& source, const std::filesystem::path& donor,
                       const Edit& edit, Io io = Io::kCached);

}  // namespace twofour
