#include "lib/source/model/model_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/device/check.h"
#include "lib/source/model/compressed_shape.h"
#include "lib/source/model/one_block_shape.h"
#include "lib/source/model/parameters.h"
#include "lib/source/model/rope.h"
#include "lib/source/model/router_rule.h"
#include "lib/source/model/settings.h"

namespace twofour {
namespace {

class ShapeReader {
 public:
  ShapeReader(const Settings& settings, const FamilyTraits& traits, const std::string& model_type)
      : s_(settings), traits_(traits) {
    m_.family = model_type;
  }

  ModelShape read() {
    m_.layers = count("num_hidden_layers", kMostLayers);
    m_.hidden = count("hidden_size");
    m_.vocabulary = count("vocab_size");
    m_.positions =
        s_.has("max_position_embeddings") ? s_.count("max_position_embeddings") : traits_.positions;
    m_.epsilon = s_.positive(traits_.one_block ? "layer_norm_epsilon" : "rms_norm_eps", traits_.epsilon);
    m_.is_tied = s_.has_tied_head();
    m_.norms_add_one = s_.sizes().family().norms_add_one;
    if (traits_.one_block) {
      read_one_block_shape(s_, m_);
      if (std::find(m_.sparse.begin(), m_.sparse.end(), true) != m_.sparse.end()) read_router();
      return std::move(m_);
    }
    read_gate();
    if (traits_.compressed) {
      read_compressed_shape(s_, m_);
      m_.windows.assign(static_cast<size_t>(m_.layers), m_.compressed.window);
      read_router();
      return std::move(m_);
    }
    read_mixers();
    read_attention();
    read_windows();
    read_feed_forward();
    return std::move(m_);
  }

 private:
  int64_t count(const char* key, int64_t most = kMostSize) const { return limited_count(s_, key, most); }

  void read_gate() {
    if (traits_.gemma) return read_gemma();
    const std::string act = s_.text("hidden_act");
    if (!act.empty() && act != "silu" && act != "swish") s_.refuse("hidden_act", "silu");
    if (s_.sizes().family().clamps_gates) {
      constexpr double kLimit = 7;  // transformers and vLLM take it with every config
      if (s_.positive("swiglu_limit", kLimit) != kLimit) s_.refuse("swiglu_limit", "7");
      m_.gate = {1.702f, 1.0f, static_cast<float>(kLimit)};
    } else if (traits_.compressed) {
      m_.gate.limit = static_cast<float>(s_.positive("swiglu_limit", 10.0));
    } else if (s_.positive("swiglu_limit", 0, true) > 0) {
      s_.refuse("swiglu_limit", fmt::format("none for {}", m_.family));
    }
  }

  void read_gemma() {
    const std::string act = s_.text("hidden_activation");
    if (!act.empty() && act != "gelu_pytorch_tanh") s_.refuse("hidden_activation", "gelu_pytorch_tanh");
    for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
      if (s_.sizes().stated(key) != nullptr) s_.refuse(key, "null");
    }
    if (s_.yes("use_bidirectional_attention", false)) s_.refuse("use_bidirectional_attention", "false");
    m_.gate.is_gelu = true;
    // transformers has the factor in the type of the embedding. Here that is float32.
    m_.embedding_scale = std::sqrt(static_cast<double>(m_.hidden));
    m_.has_norms_behind = true;
  }

  void read_mixers() {
    const LayerClasses& classes = s_.sizes().family().mixer;
    m_.mixers.assign(static_cast<size_t>(m_.layers), Mixer::kAttention);
    if (classes.of == nullptr) return;
    const Json* types = s_.sizes().stated("layer_types");
    const std::string expected = fmt::format("{} layers, each linear_attention or full_attention", m_.layers);
    if (types != nullptr && (!types->is_array() || static_cast<int64_t>(types->size()) != m_.layers))
      s_.refuse("layer_types", expected);
    if (types == nullptr && s_.has("full_attention_interval")) s_.count("full_attention_interval");
    for (int64_t layer = 0; layer < m_.layers; ++layer) {
      const std::string_view configured = s_.sizes().text("layer_types", layer),
                             kind = s_.sizes().mixer(layer);
      const bool is_known = kind == "linear_attention" || kind == "full_attention";
      // A window, or a sparse-attention indexer, would make it another layer.
      if (!is_known || (types != nullptr && configured != kind && configured != "attention"))
        s_.refuse("layer_types", expected);
      if (kind == "linear_attention") m_.mixers[static_cast<size_t>(layer)] = Mixer::kDelta;
    }
    const auto delta = std::find(m_.mixers.begin(), m_.mixers.end(), Mixer::kDelta);
    if (delta != m_.mixers.end()) read_delta(delta - m_.mixers.begin());
  }
  void read_delta(int64_t layer) {
    DeltaShape& d = m_.delta;
    d.key_heads = count("linear_num_key_heads", kMostHeadSize);
    d.value_heads = count("linear_num_value_heads", kMostHeadSize);
    d.key_size = count("linear_key_head_dim", kMostHeadSize);
    d.value_size = count("linear_value_head_dim", kMostHeadSize);
    d.kernel = count("linear_conv_kernel_dim", kMostHeadSize);
    if (d.value_heads % d.key_heads != 0)
      s_.refuse("linear_num_value_heads", fmt::format("a multiple of the {} key heads", d.key_heads));
    d.by_key_head = find_parameter(s_.sizes(), "model.layers.#.linear_attn.in_proj_qkvz", layer).has_value();
    // Structures grow with these products.
    if (d.channels() > kMostSize || d.window() > kMostSize || d.recurrent() > kMostSize)
      s_.refuse("linear_num_value_heads", fmt::format("heads with states of at most {} numbers", kMostSize));
  }
  /// The first layer with attention; -1: there is none.
  int64_t attention_layer() const {
    const auto found = std::find(m_.mixers.begin(), m_.mixers.end(), Mixer::kAttention);
    return found == m_.mixers.end() ? -1 : found - m_.mixers.begin();
  }

  void read_attention() {
    AttentionShape& a = m_.attention;
    const int64_t layer = attention_layer();
    a.heads = count("num_attention_heads", kMostHeadSize);
    int64_t rotated = 0;
    if (find_parameter(s_.sizes(), "model.layers.#.self_attn.kv_b_proj", layer)) {
      a.kv_heads = a.heads;
      a.kv_rank = count("kv_lora_rank");
      a.q_rank = s_.sizes().number("q_lora_rank").value_or(0);
      a.rotated_from = count("qk_nope_head_dim", kMostHeadSize);
      rotated = count("qk_rope_head_dim", kMostHeadSize);
      a.head_size = a.rotated_from + rotated;
      a.value_size = count("v_head_dim", kMostHeadSize);
    } else {
      a.kv_heads = s_.count("num_key_value_heads");
      a.head_size = a.value_size = rotated = count("head_dim", kMostHeadSize);
    }
    if (a.heads % a.kv_heads != 0)
      s_.refuse("num_key_value_heads", fmt::format("a divisor of the {} heads", a.heads));
    a.scale = 1.0 / std::sqrt(traits_.gemma ? s_.positive("query_pre_attn_scalar", 256)
                                            : static_cast<double>(a.head_size));
    if (const auto norm = find_parameter(s_.sizes(), "model.layers.#.self_attn.q_norm", layer))
      a.norm = norm->n == a.head_size ? HeadNorm::kEach : HeadNorm::kAll;
    a.has_sinks = find_parameter(s_.sizes(), "model.layers.#.self_attn.sinks", layer).has_value();
    const auto queries = find_parameter(s_.sizes(), "model.layers.#.self_attn.q_proj", layer);
    a.has_gate = queries && a.kv_rank == 0 && queries->n == 2 * a.heads * a.head_size;
    a.clip = s_.positive("clip_qkv", 0);
    if (a.clip > 0 && !traits_.clips_qkv) s_.refuse("clip_qkv", fmt::format("none for {}", m_.family));
    if (traits_.window_theta > 0) {
      read_window_ropes(s_, traits_, m_.positions, a);
    } else {
      read_rope(s_, traits_, rotated, m_.positions, a);
    }
  }

  void read_windows() {
    m_.windows.assign(static_cast<size_t>(m_.layers), 0);
    if (traits_.windows == WindowRule::kNone) return;
    const bool asks = traits_.windows == WindowRule::kAll ||
                      traits_.windows == WindowRule::kAllOrConfigured ||
                      traits_.windows == WindowRule::kAlternate || traits_.windows == WindowRule::kPattern;
    if (!asks && !s_.yes("use_sliding_window", false)) return expect_no_windows();
    if (s_.has("sliding_window") && s_.sizes().stated("sliding_window") == nullptr) return;
    const int64_t window = s_.has("sliding_window") ? s_.count("sliding_window") : traits_.window;
    const int64_t least = s_.has("max_window_layers") ? s_.count("max_window_layers", 0) : 28;
    for (int64_t layer = 0; layer < m_.layers; ++layer) {
      if (is_windowed(layer, least)) m_.windows[static_cast<size_t>(layer)] = window;
    }
  }
  /// Throws Error if layer_types gives a layer a window that use_sliding_window forbids.
  void expect_no_windows() const {
    const bool is_list = traits_.windows != WindowRule::kIfUsed && s_.sizes().is_list("layer_types");
    for (int64_t layer = 0; is_list && layer < m_.layers; ++layer) {
      if (s_.sizes().text("layer_types", layer) == "sliding_attention")
        s_.refuse("use_sliding_window", "true, because layer_types has sliding_attention");
    }
  }
  bool is_windowed(int64_t layer, int64_t most) const {
    if (traits_.windows == WindowRule::kAll || traits_.windows == WindowRule::kIfUsed) return true;
    if (s_.sizes().is_list("layer_types")) {
      const std::string_view type = s_.sizes().text("layer_types", layer);
      if (type != "sliding_attention" && type != "full_attention")
        s_.refuse("layer_types", "sliding_attention or full_attention for each layer");
      return type == "sliding_attention";
    }
    if (traits_.windows == WindowRule::kAllOrConfigured) return true;
    if (traits_.windows == WindowRule::kPattern)
      return (layer + 1) % (s_.has("sliding_window_pattern") ? s_.count("sliding_window_pattern") : 6) != 0;
    if (traits_.windows == WindowRule::kFrom) return layer >= most;
    return layer % 2 == 0 && (traits_.windows == WindowRule::kAlternate || layer < most);
  }

  void read_feed_forward() {
    const FamilyShapes& family = s_.sizes().family();
    const bool may_route = *family.experts.count != '\0';
    for (int64_t layer = 0; layer < m_.layers; ++layer) {
      const std::string_view kind = s_.sizes().mlp(layer);
      if (!kind.empty() && kind != "dense" && kind != "sparse")
        s_.refuse(family.mlp.keys, "dense or sparse for each layer");
      m_.sparse.push_back(may_route && kind != "dense");
    }
    const auto first = std::find(m_.sparse.begin(), m_.sparse.end(), true);
    if (std::find(m_.sparse.begin(), m_.sparse.end(), false) != m_.sparse.end())
      m_.width = count("intermediate_size");
    if (first != m_.sparse.end()) read_experts(first - m_.sparse.begin());
  }
  void read_experts(int64_t layer) {
    read_router();
    const bool own = find_parameter(s_.sizes(), "model.layers.#.mlp.experts.#.gate_proj", layer) &&
                     s_.sizes().number("moe_intermediate_size");
    m_.expert_width = count(own ? "moe_intermediate_size" : "intermediate_size");
    for (const char* shared :
         {"model.layers.#.mlp.shared_expert.gate_proj", "model.layers.#.mlp.shared_experts.gate_proj"}) {
      if (const auto found = find_parameter(s_.sizes(), shared, layer)) m_.shared_width = found->n;
    }
    m_.has_shared_gate =
        find_parameter(s_.sizes(), "model.layers.#.mlp.shared_expert_gate", layer).has_value();
  }
  void read_router() {
    const FamilyShapes& family = s_.sizes().family();
    m_.experts = count(family.experts.count);
    m_.top_k = count(family.experts.per_token);
    if (m_.top_k > m_.experts)
      s_.refuse(family.experts.per_token, fmt::format("at most the {} experts", m_.experts));
    const FamilyRouter* router = find_family_router(m_.family);
    check(router != nullptr, "every family with experts has a router");
    m_.router = read_router_rule(*router, s_, m_.experts, m_.top_k);
  }

  const Settings& s_;
  const FamilyTraits& traits_;
  ModelShape m_;
};

}  // namespace

ModelShape read_model_shape(const Settings& settings, const std::string& model_type) {
  const FamilyTraits* traits = find_family_traits(model_type);
  if (traits == nullptr)
    settings.refuse("model_type", fmt::format("one that can be run ({})", decoder_families()));
  return ShapeReader(settings, *traits, model_type).read();
}

}  // namespace twofour
