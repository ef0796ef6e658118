#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "formats/json.h"
#include "kernels/device/stream.h"
#include "kernels/moe/moe.h"
#include "lib/base/findings/finding.h"
#include "lib/run/runtime/layer.h"

namespace twofour {

/// Activations and routing of one layer.
struct Tokens {
  std::vector<float> hidden, weights;
  std::vector<int32_t> ids;
  int64_t m, h, topk;

  MoeInput input() const;
  int64_t experts_used() const;
};

/// Experts per token by a config.json; two if it does not state them.
int64_t experts_per_token(const Json& config, int64_t experts);

/// Draws by a seed: nearly normal activations (a sum of uniform draws), random distinct experts, weights that
/// add up to 1.
Tokens draw_tokens(int64_t m, int64_t h, int64_t experts, int64_t topk, uint64_t seed);

/// Converts numbers to bytes of a type, rounded to nearest, ties to even, and back.
std::vector<uint8_t> to_float_bytes(std::span<const float> values, cuda::Float type);
std::vector<float> from_float_bytes(std::span<const uint8_t> bytes, cuda::Float type);

/// Activations and routing from a safetensors file.
struct ActivationFile {
  cuda::Float type = cuda::Float::f32;  ///< of hidden in the file
  int64_t m = 0;
  int64_t topk = 0;            ///< 0: without ids
  std::vector<float> hidden;   ///< [M, H]
  std::vector<int32_t> ids;    ///< [M, topk]
  std::vector<float> weights;  ///< [M, topk]
};

/// Reads `hidden` F32, BF16 or F16 [M, H] and, both or neither, `topk_ids` I32 and `topk_weights` F32 [M, T].
/// Throws Error on anything else, on another H than the layer's and on other tensors.
ActivationFile read_activation_file(const std::filesystem::path& path, const LayerInfo& layer);

/// Marks a run's output in a file's metadata.
inline constexpr const char* kOutputMark = "twofour.run";
/// True if write_output_file() wrote the file.
bool is_output_file(const std::filesystem::path& path);

/// Writes `output` [M, H] as a complete safetensors file or not at all.
void write_output_file(const std::filesystem::path& path, std::span<const float> output, int64_t h,
                       cuda::Float type);

/// A warning if numbers of an output [M, H] are NaN or infinite in the type that is written: their count, and
/// the first of them.
Findings find_not_finite(const std::filesystem::path& path, std::span<const float> output, int64_t h,
                         cuda::Float type);

}  // namespace twofour
