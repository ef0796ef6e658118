#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/threads/progress.h"

namespace twofour {

/// Options of `synth`, which writes a checkpoint with the names, shapes and config of a known model. Its
/// weights are drawn from a heavy-tailed distribution and quantized properly. The same options give the same
/// bytes on any machine.
struct SynthOptions {
  std::string shape = "tiny";              ///< one of synth_shapes()
  std::string dialect;                     ///< one of synth_dialects(); the shape's default if empty
  std::optional<int64_t> layers, experts;  ///< nullopt: the model's own
  int64_t vocab = 1024;
  bool small = false;  ///< divides sizes, also in config.json, to get megabytes
  uint64_t seed = 0;
  uint64_t max_shard_size = 5'000'000'000;  ///< bytes of data in a file; a larger tensor has its own file
  int jobs = 1;
  bool dry_run = false;       ///< only plan, and write nothing
  bool headers_only = false;  ///< write holes in place of weights, see write_headers()
};

struct SynthResult {
  std::string dialect;  ///< the chosen dialect
  uint64_t bytes = 0;   ///< bytes of tensor data
  size_t tensors = 0, shards = 0;
  std::vector<std::pair<std::string, uint64_t>> files{};  ///< weight files with their sizes
};

/// The names that `shape` may have.
std::vector<std::string> synth_shapes();

/// The names that `dialect` may have, for any shape or for `shape`. The default is the first.
std::vector<std::string> synth_dialects();
std::vector<std::string> synth_dialects(const std::string& shape);

/// The smallest number of experts in a layer of `shape`, which is the number that its router chooses. 0 for a
/// dense model.
int64_t synth_least_experts(const std::string& shape);
/// The largest number of experts in a layer, for any shape.
inline constexpr int kSynthMostExperts = 10'000;

/// Writes the checkpoint into `directory`, which must be absent or empty. Throws Error on unknown names, if
/// there are fewer experts than the router chooses, and on I/O errors. After an error, nothing that looks
/// like a checkpoint remains.
SynthResult synth(const std::filesystem::path& directory, const SynthOptions& options, Progress& progress);

}  // namespace twofour
