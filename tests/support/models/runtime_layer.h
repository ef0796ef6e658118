#pragma once
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "formats/atom.h"
#include "formats/half.h"
#include "kernels/moe/moe.h"
#include "lib/run/runtime/artifact.h"
#include "lib/run/runtime/layer.h"
#include "lib/run/runtime/tokens.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/nvfp4_values.h"

namespace twofour {

/// The layouts that layers run from.
inline constexpr const char* kLayouts[] = {"v7", "v7-packed", "g8"};

/// Tokens of a layer that a model runs so.
inline MoeInput input_of(const Tokens& tokens, const LayerOptions& options) {
  MoeInput input = tokens.input();
  input.expert_map = options.expert_map;
  input.weight_on_input = options.weight_on_input;
  input.limit = static_cast<double>(options.limit);
  return input;
}

/// A checkpoint of one MoE layer with a router, converted to a layout, and the layer's weights as its source
/// tells them: pruned quad by quad where the layout is 2:4.
struct ConvertedLayer {
  static constexpr const char* kName = "model.layers.3.mlp.experts";
  Scratch scratch;
  std::string layout;
  int64_t e, i, h;
  bool gated;
  ExpertSet experts;

  ConvertedLayer(const std::string& to, int64_t e_, int64_t i_, int64_t h_, bool gated_ = true,
                 const std::string& config = R"({"model_type": "mixtral", "num_experts_per_tok": 2})")
      : layout(to), e(e_), i(i_), h(h_), gated(gated_), experts(random_experts(e, i, h)) {
    Tensors tensors;
    const std::string block = kName;
    for (auto* matrices : {&experts.gate, &experts.up, &experts.down})
      for (Nvfp4Matrix& m : *matrices) tame(m);
    if (gated) {
      add_experts(tensors, block, experts);
    } else {
      for (size_t n = 0; n < experts.up.size(); ++n) {
        const std::string expert = block + "." + std::to_string(n);
        add_modelopt(tensors, expert + ".up_proj", experts.up[n]);
        add_modelopt(tensors, expert + ".down_proj", experts.down[n]);
      }
    }
    TensorData gate{"model.layers.3.mlp.gate.weight", DType::kBF16, {e, h}, {}};
    std::mt19937 random(5);
    for (int64_t n = 0; n < e * h; ++n) {
      const uint16_t bits = bf16_from_float(static_cast<float>(random() % 2048) / 1024.0f - 1.0f);
      gate.bytes.push_back(static_cast<uint8_t>(bits));
      gate.bytes.push_back(static_cast<uint8_t>(bits >> 8));
    }
    tensors.push_back(std::move(gate));
    write_checkpoint(source(), {tensors}, config);
    OneRule recipe;
    recipe.to = layout;
    convert(source(), path(), recipe);
  }

  std::filesystem::path source() const { return scratch / "source"; }
  std::filesystem::path path() const { return scratch / "artifact"; }
  std::filesystem::path shard() const { return path() / "model-00001-of-00001.safetensors"; }

  WeightRows w13() const {
    return rows(gated ? 2 * i : i, h, [this](int64_t expert, int64_t n) {
      const auto at = static_cast<size_t>(expert);
      return !gated || n >= i ? Row{&experts.up[at], gated ? n - i : n} : Row{&experts.gate[at], n};
    });
  }
  WeightRows w2() const {
    return rows(h, i, [this](int64_t expert, int64_t n) {
      return Row{&experts.down[static_cast<size_t>(expert)], n};
    });
  }

 private:
  /// Block scales as models have them, zero and small ones among them: sums stay within FP16, and no few of
  /// their terms make up the whole.
  static void tame(Nvfp4Matrix& m) {
    for (uint8_t& scale : m.scales)
      scale = static_cast<uint8_t>(scale % 64 == 0 ? scale / 64 * 8 : 0x20 + scale % 24);
  }

  struct Row {
    const Nvfp4Matrix* matrix;
    int64_t n;
  };

  template <class F>
  WeightRows rows(int64_t n, int64_t k, F find) const {
    auto expert = std::make_shared<int64_t>(0);
    return {e, n, k, [expert](int64_t which) { *expert = which; },
            [this, expert, find](int64_t row, std::span<double> out) {
              const Row r = find(*expert, row);
              for (size_t g = 0; g < out.size() / kGroup; ++g) {
                const size_t at = static_cast<size_t>(r.n) * (out.size() / kGroup) + g;
                DenseGroup group;
                std::copy_n(&r.matrix->codes[8 * at], 8, group.codes);
                group.scale = r.matrix->scales[at];
                if (layout != "g8") group = expand(prune(group));
                for (size_t j = 0; j < kGroup; ++j)
                  out[g * kGroup + j] = weight_of(group, static_cast<int64_t>(j), r.matrix->global);
              }
            }};
  }
};

/// Tokens [M, H].
inline std::vector<float> random_hidden(int64_t m, int64_t h) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 0.3f);
  std::vector<float> hidden(static_cast<size_t>(m * h));
  for (float& x : hidden) x = normal(random);
  return hidden;
}

/// The artifact of `made` with terms of its router beside gate.weight, float32 vectors, and another config.
inline RuntimeArtifact with_terms(const ConvertedLayer& made,
                                  const std::vector<std::pair<std::string, std::vector<float>>>& terms,
                                  const std::string& config) {
  Tensors tensors;
  for (const auto& [name, values] : terms) {
    TensorData t{"model.layers.3.mlp." + name, DType::kF32, {static_cast<int64_t>(values.size())}, {}};
    t.bytes.resize(values.size() * sizeof(float));
    std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
    tensors.push_back(std::move(t));
  }
  for (const auto& [of, t] : read_tensors(made.source())) tensors.push_back({of, t.dtype, t.shape, t.bytes});
  write_checkpoint(made.scratch / "with-terms", {tensors}, config);
  OneRule recipe;
  recipe.to = "v7";
  convert(made.scratch / "with-terms", made.scratch / "converted", recipe);
  return RuntimeArtifact::open(made.scratch / "converted");
}

}  // namespace twofour
