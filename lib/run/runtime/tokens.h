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

/// The experts per token according to a config.json. Two if it has no such number.
int64_t experts_per_token(const Json& config, int64_t experts);

/// Draws activations and routing from a seed. Activations are nearly normal (sums of uniform draws). Each
/// token has random distinct experts, with weights that sum to 1.
Tokens draw_tokens(int64_t m, int64_t h, int64_t experts, int64_t topk, uint64_t seed);

/// Two functions that convert numbers to bytes of a type, rounded to the nearest, ties to even, and back.
std::vector<uint8_t> to_float_bytes(std::span<const float> values, cuda::Float type);
std::vector<float> from_float_bytes(std::span<const uint8_t> bytes, cuda::Float type);

/// Activations and routing from a safetensors file.
struct ActivationFile {
  cuda::Float type = cuda::Float::f32;  ///< the type of hidden in the file
  int64_t m = 0;
  int64_t topk = 0;            ///< 0 if the file has no ids
  std::vector<float> hidden;   ///< [M, H]
  std::vector<int32_t> ids;    ///< [M, topk]
  std::vector<float> weights;  ///< [M, topk]
};

/// Reads `hidden` F32, BF16 or F16 [M, H]. The file may also have both `topk_ids` I32 and `topk_weights` F32,
/// [M, T]. Throws Error if it has only one of them, if it has other tensors, types or shapes, or if H is not
/// the layer's H.
ActivationFile read_activation_file(const std::filesystem::path& path, const LayerInfo& layer);

/// A key in a file's metadata that marks the output of a run.
inline constexpr const char* kOutputMark = "twofour.run";
/// True if write_output_file() wrote the file.
bool is_output_file(const std::filesystem::path& path);

/// Writes `output` [M, H] as a safetensors file, either completely or not at all.
void write_output_file(const std::filesystem::path& path, std::span<const float> output, int64_t h,
                       cuda::Float type);

/// A warning if numbers of an output [M, H] are NaN or infinite in the type that is written. It gives their
/// count and the first one.
Findings find_not_finite(const std::filesystem::path& path, std::span<const float> output, int64_t h,
                         cuda::Float type);

}  // namespace twofour
