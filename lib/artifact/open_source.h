#pragma once
#include <cstdint>
#include <filesystem>

#include "lib/checkpoint/checkpoint.h"

namespace twofour {

/// How weights come back from an artifact's layout: by loops made for it, or byte by byte through the
/// layout's map, so that a proof shares no code with the conversion that it proves.
enum class ReadPath { kFast, kReference };

/// Buffers that reading an artifact takes at a time. Other figures than these serve tests.
struct ViewLimits {
  uint64_t load = 1u << 20;        ///< bytes of the artifact that are taken apart at once
  uint64_t tile = 4u << 20;        ///< bytes of a tensor that are kept where little is asked for at a time
  uint64_t reference = 32u << 20;  ///< atoms that the reference path keeps
};

/// Opens a checkpoint as Checkpoint::open does, but an artifact in a layout shows the tensors and the config
/// of the checkpoint that it was made from, unpacked as they are read: weights as far as the layout kept
/// them, all else as it was. Throws Error where twofour.json doesn't fit the artifact; read() throws on
/// metadata that is no two places in order, on padding that is not zero and on copies that differ.
Checkpoint open_source(const std::filesystem::path& path, ReadPath how = ReadPath::kFast,
                       const ViewLimits& limits = {}, Io io = Io::kCached,
                       ZeroPoints zero_points = ZeroPoints::kAsStated);

}  // namespace twofour
