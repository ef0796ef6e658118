#pragma once
#include <cstdint>
#include <string_view>

#include "formats/layouts/layouts.h"
#include "kernels/device/isa.h"
#include "kernels/moe/sparse_moe.h"

namespace twofour::cpu {

/// Experts as an artifact stores them, in host memory at any alignment.
struct Experts {
  std::string_view layout;                ///< a name of formats/layouts/layouts.h
  Shape shape{};                          ///< k a multiple of 16
  const uint8_t* parts[kMostParts] = {};  ///< as many as the layout has
  const float* global_scale = nullptr;    ///< [E], multipliers
};

/// The routed experts of a layer.
struct Moe : MoeOptions {
  Experts w13;  ///< [E, 2I or I, H]
  Experts w2;   ///< [E, H, I]
};

/// out[m] = sum over t of topk_weights[m,t] * w2[e] act(w13[e] hidden[m]), as moe_reference of
/// kernels/moe/moe.h, in float32: decoded weights are multiplied as they are read, and values between the
/// multiplications stay float32. Tokens that share an expert read it once, up to 64 of them. Pointers of
/// `tokens` are to host memory; its `error` is not used. Results don't depend on threads or instruction set.
/// Throws Error on shapes that disagree and on ids outside of the map or the experts.
void moe(const Moe& layer, const cuda::MoeTokens& tokens, Isa isa = best_isa());

/// out[r] = w[ids[r]] x[r], x [rows, K] and out [rows, N] of `type`, in float32 sums as moe(). Rows of a
/// gated w13 are gate then up. Throws Error on impossible shapes and on ids outside of the experts.
void multiply(const Experts& w, int64_t rows, cuda::Float type, const void* x, const int32_t* ids, void* out,
              Isa isa = best_isa());

}  // namespace twofour::cpu
