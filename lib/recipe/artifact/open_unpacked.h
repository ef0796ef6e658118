#pragma once
#include <cstdint>
#include <filesystem>

#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The way to unpack weights from an artifact's layout. kFast uses loops that are specific to the layout.
/// kReference reads byte by byte by the layout's map, so that a proof shares no code with the conversion that
/// it proves.
enum class ReadPath { kFast, kReference };

/// Buffer sizes for reading an artifact. Tests use other sizes.
struct ViewLimits {
  uint64_t load = 1u << 20;        ///< bytes of the artifact that are unpacked at once
  uint64_t tile = 4u << 20;        ///< bytes of a tensor that are cached for small reads
  uint64_t reference = 32u << 20;  ///< atoms that the reference path caches
};

/// Opens a checkpoint as Checkpoint::open does. For an artifact in a layout, returns the tensors and the
/// config of the checkpoint that the artifact was made from. Reads unpack the weights as far as the layout
/// preserves them; everything else is unchanged. Throws Error if twofour.json does not match the artifact.
/// read() throws Error on metadata that are not two ascending positions, on padding that is not zero and on
/// copies that differ.
Checkpoint open_source(const std::filesystem::path& path, ReadPath how = ReadPath::kFast,
                       const ViewLimits& limits = {}, Io io = Io::kCached,
                       ZeroPoints zero_points = ZeroPoints::kAsStated);
/// The same for a checkpoint that is open.
Checkpoint unpacked(Checkpoint stored, ReadPath how = ReadPath::kFast, const ViewLimits& limits = {});

}  // namespace twofour
