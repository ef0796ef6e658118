#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "formats/naming.h"
#include "formats/weight_dialect.h"
#include "lib/lint/config/checks.h"
#include "lib/lint/config/layer_tensors.h"
#include "lib/source/config/model_config.h"

// Checks of properties that decoders of every family have. Layers of one kind have the same parts
// with the same sizes. All layers read and write one residual stream, which is as wide as the embedding.

namespace twofour {
namespace {

constexpr size_t kLeastLayers = 3;
/// Upper limit of sizes. No size of a model is larger, and twice the product of two sizes does not overflow.
constexpr int64_t kLargestSize = int64_t{1} << 30;

std::string_view block_of_part(std::string_view name) { return name.substr(0, name.find('.')); }

/// Two sizes that must be equal. They are the rows or columns of parts with these last names.
struct SameSize {
  std::string_view a, b;
  bool rows_a, rows_b;
};
constexpr SameSize kSameSizes[] = {
    {"k_proj", "v_proj", true, true},
    {"q_proj", "o_proj", true, false},
    {"gate_proj", "up_proj", true, true},
    {"up_proj", "down_proj", true, false},
    {"w1", "w3", true, true},
    {"w3", "w2", true, false},
    {"q_norm", "k_norm", true, true},
};

/// Parts of the names of embeddings that are not for text.
constexpr std::string_view kAside[] = {"pos",   "type",  "vis", "audio", "image", "patch",    "speech",
                                       "video", "tower", "mtp", "ngram", "ple",   "per_layer"};

/// A key that states a size of parts with this name. It does so in every family that has both.
struct SizeOfPart {
  std::string_view part;
  bool rows;
  const char* key;
};
constexpr SizeOfPart kSizesOfParts[] = {
    {"self_attn.kv_a_layernorm", true, "kv_lora_rank"},
    {"self_attn.q_a_layernorm", true, "q_lora_rank"},
    {"self_attn.kv_b_proj", false, "kv_lora_rank"},
    {"self_attn.q_b_proj", false, "q_lora_rank"},
    {"mlp.experts.0.gate_proj", true, "moe_intermediate_size"},
    {"mlp.experts.0.up_proj", true, "moe_intermediate_size"},
    {"block_sparse_moe.experts.0.w1", true, "moe_intermediate_size"},
    {"block_sparse_moe.experts.0.gate_proj", true, "moe_intermediate_size"},
    {"mlp.shared_expert.gate_proj", true, "shared_expert_intermediate_size"},
    {"linear_attn.A_log", true, "linear_num_value_heads"},
};

class CommonShapes {
 public:
  CommonShapes(const LintInput& s, const ModelFacts& model, LintReporter& reporter)
      : s_(s), model_(model), reporter_(reporter) {}

  void run() {
    const std::vector<LayerGroup> groups = find_layer_groups(s_, *model_.coded);
    if (groups.empty() || groups[0].is_draft() || groups[0].is_aside()) return;
    main_ = &groups[0];
    outer_ = find_outer_parts(s_, *model_.coded);
    find_width();
    check_layer_count();
    check_embedding();
    check_routers();
    check_biases();
    if (main_->layers.size() < kLeastLayers) return;
    check_odd_layers();
    check_heads();
    check_sizes();
  }

 private:
  /// Returns a number in the language model's config.
  std::optional<int64_t> stated(const char* key) const {
    std::optional<int64_t> found;
    for (const Json* configured : model_settings(s_.config, key)) {
      const int64_t value = configured->is_number_integer() ? configured->get<int64_t>() : 0;
      if (value > 0 && value <= kLargestSize) found = value;
    }
    return found;
  }
  std::string full_name(const LayerTensors& layer, const std::string& part) const {
    return fmt::format("{}.{}.{}", main_->container, layer.layer, part);
  }
  std::string described(const LayerPart& part) const {
    const TensorInfo& t = s_.tensors[part.tensor];
    return describe(t);
  }
  void add_key(const char* key, int64_t expected, const LayerPart& part, int64_t found) {
    reporter_.add("config-shape", {"config.json", key}, "expected {} as {} has {}, found {}", expected,
                  s_.tensors[part.tensor].name, described(part), found);
  }

  /// Finds the width of the residual stream. It is the embedding's width if most norms of layers have it,
  /// too.
  void find_width() {
    for (const auto& [name, part] : outer_) {
      if (!is_table_name(name) || part.k <= 0) continue;
      const bool aside = std::any_of(std::begin(kAside), std::end(kAside),
                                     [&](std::string_view word) { return name.find(word) != name.npos; });
      if (aside) continue;
      if (embedding_ == nullptr || part.n > embedding_->n) embedding_ = &part;
    }
    if (embedding_ == nullptr) return;
    size_t norms = 0, same = 0;
    for (const LayerTensors& layer : main_->layers) {
      for (const auto& [name, part] : layer.parts) {
        if (name.find('.') != name.npos || name.find("norm") == name.npos || part.k >= 0) continue;
        ++norms;
        same += part.n == embedding_->k ? 1 : 0;
      }
    }
    if (norms > 0 && 2 * same > norms) width_ = embedding_->k;
  }

  void check_layer_count() {
    const auto layers = stated("num_hidden_layers");
    const int64_t last = main_->layers.back().layer;
    bool has_drafts = false;
    for (const auto& [name, part] : main_->layers.back().parts)
      has_drafts = has_drafts || name == "eh_proj" || name == "hnorm" || name == "enorm";
    if (!layers || last < *layers || has_drafts) return;
    reporter_.add("layers-extra", {"config.json", "num_hidden_layers"},
                  "expected {} (tensors of {}.{}), found {}", last + 1, main_->container, last, *layers);
  }

  void check_embedding() {
    if (embedding_ == nullptr) return;
    const auto width = stated("hidden_size"), rows = stated("vocab_size");
    if (width && width_ > 0 && *width != width_) add_key("hidden_size", width_, *embedding_, *width);
    if (rows && *rows != embedding_->n) {
      const int64_t more = embedding_->n - *rows;
      const bool padded = more > 0 && more < 1024 && more < embedding_->n / 4;
      const int64_t found = embedding_->n;
      if (padded && found % 8 == 0) {
        reporter_.add("padded-vocabulary", {"config.json", "vocab_size"}, "expected {} (as in {}), found {}",
                      found, s_.tensors[embedding_->tensor].name, *rows);
      } else {
        add_key("vocab_size", found, *embedding_, *rows);
      }
    }
    for (const auto& [name, part] : outer_) {
      if (!is_model_head(name) || part.k <= 0) continue;
      const bool odd_rows = part.n != embedding_->n, odd_width = width_ > 0 && part.k != width_;
      if (!odd_rows && !odd_width) continue;
      reporter_.add("config-shape", s_.at(part.tensor), "expected [{}, {}] (as in the embedding), found {}",
                    embedding_->n, width_ > 0 ? width_ : part.k, described(part));
    }
  }

  /// Checks that the inputs of routers are as wide as the residual stream.
  void check_routers() {
    if (width_ <= 0) return;
    for (const LayerTensors& layer : main_->layers) {
      for (const auto& [name, part] : layer.parts) {
        const std::string_view leaf = leaf_of(name);
        const std::string experts = name.substr(0, name.size() - leaf.size()) + "experts";
        const auto at = layer.parts.lower_bound(experts);
        const bool beside_experts = at != layer.parts.end() && at->first.starts_with(experts);
        if ((leaf != "gate" && leaf != "router") || !beside_experts || part.k <= 0 || part.k == width_)
          continue;
        reporter_.add("config-shape", s_.at(part.tensor, full_name(layer, name)),
                      "expected {} columns (as in the embedding), found {}", width_, described(part));
      }
    }
  }

  /// Checks that a bias has one number for each row.
  void check_biases() {
    for (const LayerTensors& layer : main_->layers) {
      for (const auto& [name, part] : layer.parts) {
        if (!name.ends_with(".bias") || part.k >= 0) continue;
        const auto at = layer.parts.find(name.substr(0, name.size() - 5));
        if (at == layer.parts.end() || at->second.k <= 0 || at->second.n == part.n) continue;
        reporter_.add("config-shape", s_.at(part.tensor, full_name(layer, name)),
                      "expected [{}] as the rows of its weights, found {}", at->second.n, described(part));
      }
    }
  }

  /// Returns the type of a layer. Layers of different types may have different sizes. If a config lists no
  /// types, as in many families, the layer's parts of attention or MLP show its type.
  std::string type_of(int64_t layer) const {
    for (const Json* types : model_settings(s_.config, "layer_types")) {
      if (types->is_array() && static_cast<size_t>(layer) < types->size() &&
          (*types)[static_cast<size_t>(layer)].is_string())
        return (*types)[static_cast<size_t>(layer)].get<std::string>();
    }
    return "";
  }

  /// Returns the parts of a layer that belong together, such as "self_attn.k_proj self_attn.q_proj ", by the
  /// first part of their names.
  static std::map<std::string_view, std::string> blocks_of(const LayerTensors& layer) {
    std::map<std::string_view, std::string> blocks;
    for (const auto& [name, part] : layer.parts) blocks[block_of_part(name)] += name + " ";
    return blocks;
  }

  void check_odd_layers() {
    struct Sizes {
      std::map<std::pair<int64_t, int64_t>, std::vector<const LayerTensors*>> layers;
      size_t count = 0;
    };
    std::map<std::array<std::string, 3>, Sizes> all;  // by layer type, parts of the block, and name
    for (const LayerTensors& layer : main_->layers) {
      const std::string type = type_of(layer.layer);
      const auto blocks = blocks_of(layer);
      for (const auto& [name, part] : layer.parts) {
        if (part.n < 0) continue;
        Sizes& sizes = all[{type, blocks.at(block_of_part(name)), name}];
        sizes.layers[{part.n, part.k}].push_back(&layer);
        ++sizes.count;
      }
    }
    for (const auto& [key, sizes] : all) {
      if (sizes.layers.size() < 2) continue;
      const std::string& name = key[2];
      const auto most = std::max_element(sizes.layers.begin(), sizes.layers.end(),
                                         [](auto& a, auto& b) { return a.second.size() < b.second.size(); });
      if (most->second.size() * 3 < sizes.count * 2) continue;
      for (const auto& [size, layers] : sizes.layers) {
        if (size == most->first) continue;
        for (const LayerTensors* layer : layers) {
          if (contradicts(*layer, name, most->first)) report_odd(*layer, name, most->first);
        }
      }
    }
  }
  /// True if a part whose size differs from that in most layers does not fit the other parts of its own
  /// layer, either.
  bool contradicts(const LayerTensors& layer, const std::string& name,
                   std::pair<int64_t, int64_t> usual) const {
    const LayerPart& part = layer.parts.at(name);
    const auto leaves_stream = [&](int64_t own, int64_t other) {
      return width_ > 0 && other == width_ && own != width_;
    };
    if (leaves_stream(part.n, usual.first) || leaves_stream(part.k, usual.second)) return true;
    const std::string_view leaf = leaf_of(name);
    const std::string parent = name.substr(0, name.size() - leaf.size());
    for (const SameSize& same : kSameSizes) {
      for (const bool first : {true, false}) {
        if (leaf != (first ? same.a : same.b)) continue;
        const bool rows = first ? same.rows_a : same.rows_b, other_rows = first ? same.rows_b : same.rows_a;
        const int64_t own = rows ? part.n : part.k, own_usual = rows ? usual.first : usual.second;
        const auto at = layer.parts.find(fmt::format("{}{}", parent, first ? same.b : same.a));
        if (at == layer.parts.end() || own == own_usual) continue;
        const int64_t other = other_rows ? at->second.n : at->second.k;
        if (other == own_usual) return true;
      }
    }
    return false;
  }
  void report_odd(const LayerTensors& layer, const std::string& name, std::pair<int64_t, int64_t> usual) {
    const LayerPart& part = layer.parts.at(name);
    const std::string shape = usual.second >= 0 ? fmt::format("[{}, {}]", usual.first, usual.second)
                                                : fmt::format("[{}]", usual.first);
    const std::string found =
        part.k >= 0 ? fmt::format("[{}, {}]", part.n, part.k) : fmt::format("[{}]", part.n);
    reporter_.add("config-shape", s_.at(part.tensor, full_name(layer, name)),
                  "expected {} (as in other layers), found {}", shape, found);
  }

  /// Checks the sizes of heads. All layers must agree, and queries, keys and values must have separate
  /// linears.
  void check_heads() {
    const LayerPart *q = nullptr, *k = nullptr;
    for (const LayerTensors& layer : main_->layers) {
      for (const auto& [name, part] : layer.parts) {
        const LayerPart** of = name == "self_attn.q_proj" ? &q : name == "self_attn.k_proj" ? &k : nullptr;
        if (of == nullptr) continue;
        if (*of != nullptr && !(**of == part)) return;
        *of = &part;
      }
    }
    const auto heads = stated("num_attention_heads"), width = stated("hidden_size");
    auto groups = stated("num_key_value_heads"), dim = stated("head_dim");
    if (q == nullptr || k == nullptr || q->n <= 0 || k->n <= 0 || !heads || !width) return;
    if (!groups) groups = heads;
    if (!dim && *width % *heads == 0) dim = *width / *heads;
    if (!dim || stated("kv_lora_rank") || stated("global_head_dim") || stated("num_global_key_value_heads"))
      return;
    const bool fits_q = q->n == *heads * *dim || q->n == 2 * *heads * *dim, fits_k = k->n == *groups * *dim;
    if (fits_q && !fits_k && k->n % *dim == 0) {
      add_key("num_key_value_heads", k->n / *dim, *k, *groups);
    } else if (!fits_q && fits_k && q->n % *dim == 0) {
      add_key("num_attention_heads", q->n / *dim, *q, *heads);
    } else if (!fits_q && !fits_k && q->n % *heads == 0 && k->n % *groups == 0 &&
               q->n / *heads == k->n / *groups) {
      add_key("head_dim", q->n / *heads, *q, *dim);
    }
  }

  void check_sizes() {
    std::set<std::string_view> reported;
    for (const SizeOfPart& size : kSizesOfParts) {
      const auto configured = stated(size.key);
      if (!configured || reported.contains(size.key)) continue;
      const LayerPart* first = nullptr;
      bool alike = true;
      for (const LayerTensors& layer : main_->layers) {
        const auto at = layer.parts.find(std::string(size.part));
        if (at == layer.parts.end()) continue;
        if (first == nullptr) first = &at->second;
        alike = alike && at->second == *first;
      }
      if (first == nullptr || !alike) continue;
      const int64_t found = size.rows ? first->n : first->k;
      if (found <= 0 || found == *configured) continue;
      reported.insert(size.key);
      add_key(size.key, found, *first, *configured);
    }
  }

  const LintInput& s_;
  const ModelFacts& model_;
  LintReporter& reporter_;
  const LayerGroup* main_ = nullptr;
  std::map<std::string, LayerPart> outer_;
  const LayerPart* embedding_ = nullptr;
  int64_t width_ = 0;
};

}  // namespace

void lint_common_shapes(const LintInput& s, const ModelFacts& model, LintReporter& reporter) {
  if (!s.is_directory || s.lacks_files || !s.config.is_object() || !s.layout.empty()) return;
  if (model.is_held) return;
  CommonShapes(s, model, reporter).run();
}

}  // namespace twofour
