#pragma once
#include <cstdint>
#include <string_view>

#include "formats/layouts/layouts.h"
#include "kernels/device/isa.h"
#include "kernels/moe/sparse_moe.h"

namespace twofour::cpu {

/// Experts in host memory, stored as in an artifact. They need no alignment.
struct Experts {
  std::string_view layout;                ///< name of a layout in formats/layouts/layouts.h
  Shape shape{};                          ///< k is a multiple of 16
  const uint8_t* parts[kMostParts] = {};  ///< the parts of the layout
  const float* global_scale = nullptr;    ///< [E], multipliers
};

/// The routed experts of a layer.
struct Moe : MoeOptions {
  Experts w13;  ///< [E, 2I or I, H]
  Experts w2;   ///< [E, H, I]
};

/// Computes out[m] = sum over t of topk_weights[m,t] * w2[e] act(w13[e] hidden[m]), like moe_reference of
/// kernels/moe/moe.h, but in float32. Weights are decoded and multiplied as they are read. Values between the
/// multiplications stay in float32. Up to 64 tokens that share an expert read it once. Pointers in `tokens`
/// refer to host memory; `tokens.error` is not used. Results do not depend on the number of threads or the
/// instruction set. Throws Error on shapes that disagree and on ids outside of the map or the experts.
void moe(const Moe& layer, const cuda::MoeTokens& tokens, Isa isa = best_isa());

/// Computes out[r] = w[ids[r]] x[r]. x [rows, K] and out [rows, N] are of `type`. Sums are in float32 as in
/// moe(). If w13 is gated, its gate rows come before its up rows. Throws Error on impossible shapes and on
/// ids outside of the experts.
void multiply(const Experts& w, int64_t rows, cuda::Float type, const void* x, const int32_t* ids, void* out,
              Isa isa = best_isa());

}  // namespace twofour::cpu
