#include <span>

#include "lib/recipe/artifact/recipe_file.h"

namespace twofour {

std::span<const ShippedRecipe> shipped_recipes() {
  static constexpr ShippedRecipe all[] = {
      {"nvfp4-experts", R"(# Routed experts to NVFP4 (weight-only), the rest as it is
format: 1
rules:
  - match: experts
    to: nvfp4
)"},
      {"nvfp4-experts-and-mtp",
       R"(# Routed experts to NVFP4, those of layers that predict further tokens among them
# vLLM takes the draft's experts of DeepSeek-V4 for NVFP4 wherever the others are.
format: 1
rules:
  - match: experts
    to: nvfp4
    draft_experts: cast
)"},
      {"nvfp4-all", R"(# Every linear to NVFP4 but embeddings, heads, routers and vision towers
format: 1
rules:
  - match: "*"
    to: nvfp4
)"},
      {"w4a4-experts",
       R"(# Routed experts to NVFP4 with input scales of 1.0, for kernels that quantize activations to FP4
# As ModelOpt with a constant amax of 2688 writes them; no calibration data is needed.
format: 1
rules:
  - match: experts
    to: nvfp4
    input_scale: constant=1.0
)"},
      {"w4a16", R"(# NVFP4 modules lose their input scales, so that engines keep activations in 16 bits
format: 1
rules:
  - match: "*"
    to: keep
    input_scale: none
)"},
      {"fp8-attention-nvfp4-experts",
       R"(# Attention to FP8 with a scale a row, routed experts to NVFP4, the rest as it is
format: 1
rules:
  - match: [attention, linear-attention]
    to: fp8
    granularity: row
  - match: experts
    to: nvfp4
)"},
      {"deepseek-v4-nvfp4",
       R"(# DeepSeek-V4: routed experts from MXFP4 to NVFP4 without loss, the rest byte for byte
# Refuses a checkpoint of which a block cannot be cast exactly. Experts of the draft stay MXFP4, as in NVIDIA's
# exports; nvfp4-experts-and-mtp casts them, too.
format: 1
rules:
  - match: experts
    to: nvfp4
    exact: strict
    input_scale: constant=1.0
)"},
      {"mxfp4-to-fp8",
       R"(# DeepSeek-V4: routed experts from MXFP4 to FP8 in blocks of 128x128, those of the draft, too
# With F32 scales throughout, as the Base models have them.
format: 1
rules:
  - match: experts
    draft_experts: cast
    to: fp8
    granularity: block
    block: 128x128
    scale_dtype: f32
)"},
      {"mxfp4-to-mxfp8", R"(# Routed experts from MXFP4 to MXFP8, which is always exact
format: 1
rules:
  - match: experts
    to: mxfp8
)"},
      {"bf16", R"(# Every quantized module to BF16
format: 1
rules:
  - match: "*"
    to: bf16
)"},
      {"modelopt", R"(# ModelOpt's names and configuration; every module keeps its format and values
format: 1
dialect: modelopt
rules:
  - match: "*"
    to: keep
)"},
      {"compressed-tensors",
       R"(# compressed-tensors' names and configuration; every module keeps its format and values
format: 1
dialect: compressed-tensors
rules:
  - match: "*"
    to: keep
)"},
      {"pruned-experts", R"(# Routed experts in NVFP4 pruned to 2:4 by magnitude, in their own dialect
format: 1
rules:
  - match: experts
    to: keep
    pattern: "2:4"
    method: magnitude
)"},
      {"nvfp4-pruned-experts", R"(# Routed experts pruned to 2:4 by magnitude, then quantized to NVFP4
format: 1
rules:
  - match: experts
    to: nvfp4
    pattern: "2:4"
    method: magnitude
)"},
      {"v7-experts", R"(# Routed experts to v7 (2:4-pruned NVFP4, 3.5 bits a weight), the rest as it is
format: 1
rules:
  - match: experts
    to: v7
)"},
      {"v7-packed-experts",
       R"(# Routed experts to v7-packed (2:4-pruned NVFP4, 4 bits a weight), the rest as it is
format: 1
rules:
  - match: experts
    to: v7-packed
)"},
      {"g8-experts", R"(# Routed experts to g8 (dense NVFP4, gate and up rows interleaved), the rest as it is
format: 1
rules:
  - match: experts
    to: g8
)"},
  };
  return all;
}

}  // namespace twofour
