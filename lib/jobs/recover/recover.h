#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/threads/progress.h"
#include "lib/recipe/settings/recovery.h"
#include "lib/run/decoder/decoder.h"

namespace twofour {

/// The inputs of recovery.
struct RecoverInput {
  const std::filesystem::path& source;
  const std::filesystem::path& artifact;  ///< the same model as it was compressed
  const std::filesystem::path& work;      ///< a folder for the state of a run that resumes
  const std::vector<std::vector<int32_t>>& windows;
  int64_t passes;
  ZeroPoints zero_points = ZeroPoints::kAsStated;
};

/// Names in the work folder.
inline constexpr const char* kRecoveryState = "recovery.state";
inline constexpr const char* kRecoveryStreams = "streams-recovery";
inline constexpr const char* kRecoveryReference = "streams-reference";

/// Tunes the norms and global scales of an artifact, so that the mean KL(source || artifact) of the next
/// token's probabilities falls. It goes `passes` times over the windows by Adam, on the CPU, and measures the
/// held-out windows after each pass. It stops after two passes without a smaller loss, and returns the values
/// with the smallest, which are none if the loss did not fall. The state is kept after each pass; a run that
/// resumes goes on there. The number of threads does not change results. Throws Interrupted, and Error if
/// logits are not finite.
Recovery recover(const RecoverInput& input, Progress& progress);

/// Number of windows that are held out of `windows`: the last eighth, at least one.
int64_t held_out_windows(int64_t windows);
/// Throws Error if a model has no backward pass, or if there are fewer than two windows.
void check_recovery(const Decoder& model, const std::vector<std::vector<int32_t>>& windows);

/// Bytes of memory that recovery of a model needs beside mapped weights, and bytes of its files in the work
/// folder beside the artifact.
uint64_t recovery_memory(const Decoder& model, const std::vector<std::vector<int32_t>>& windows);
uint64_t recovery_file_bytes(const Decoder& model, const std::vector<std::vector<int32_t>>& windows);

}  // namespace twofour
