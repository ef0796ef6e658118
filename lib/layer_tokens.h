#pragma once
#include <cstdint>
#include <vector>

#include "formats/json.h"
#include "kernels/moe/moe.h"
#include "lib/validate/validate.h"

namespace twofour {

/// Activations and routing of one layer.
struct Tokens {
  std::vector<float> hidden, weights;
  std::vector<int32_t> ids;
  int64_t m, h, topk;

  MoeInput input() const;
  int64_t experts_used() const;
};

/// Experts a token goes to, as a config.json says; two where it doesn't.
int64_t experts_per_token(const Json& config, int64_t experts);

/// Seeded: about normal activations (a sum of uniform draws), random distinct experts, weights that add up
/// to 1.
Tokens draw_tokens(int64_t m, int64_t h, int64_t experts, int64_t topk, uint64_t seed);

/// Sets the layer's cosine and relative error of `ours` to `dense`.
void compare_outputs(const std::vector<double>& dense, const std::vector<double>& ours, LayerReport& layer);

}  // namespace twofour
