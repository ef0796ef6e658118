#pragma once
#include <mutex>

#include "formats/json.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The configs in the folder of a single file. They are read when they are first requested, since a file that
/// is not a checkpoint, such as statistics, may lie beside any config.
struct Checkpoint::Beside {
  std::once_flag once;
  Json config, hf_quant_config;
};

}  // namespace twofour
