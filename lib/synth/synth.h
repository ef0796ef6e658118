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
  std::string dialect;                     ///< one of synth_dialects(); empty: the shape's default
  std::optional<int64_t> layers, experts;  ///< by default the model's own
  int64_t vocab = 1024;
  bool small = false;  ///< every size divided, so that a checkpoint takes megabytes; config.json has them
  uint64_t seed = 0;
  uint64_t max_shard_size = 5'000'000'000;  ///< bytes of data in a file, unless one tensor alone is larger
  int jobs = 1;
  bool dry_run = false;       ///< plan only, write nothing
  bool headers_only = false;  ///< holes in place of weights: see write_headers() in plan.h
};

struct SynthResult {
  std::string dialect;  ///< the chosen one
  uint64_t bytes = 0;   ///< of tensor data
  size_t tensors = 0, shards = 0;
  std::vector<std::pair<std::string, uint64_t>> files{};  ///< weight files with their sizes
};

/// The names that `shape` may have.
std::vector<std::string> synth_shapes();

/// The names that `dialect` may have, for any shape or for one, the default first.
std::vector<std::string> synth_dialects();
std::vector<std::string> synth_dialects(const std::string& shape);

/// The smallest number of experts in a layer of `shape`, which is the number that its router picks; 0: a
/// dense model.
int64_t synth_least_experts(const std::string& shape);
/// The largest number, for any shape.
inline constexpr int kSynthMostExperts = 10'000;

/// Writes the checkpoint into `directory`, which must be absent or empty. Throws Error on unknown names, on
/// experts fewer than the router picks and on I/O errors; then it leaves nothing that looks like a
/// checkpoint.
SynthResult synth(const std::filesystem::path& directory, const SynthOptions& options, Progress& progress);

}  // namespace twofour
