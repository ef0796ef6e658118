#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <iterator>
#include <set>

#include "formats/families/family.h"
#include "formats/module_names.h"
#include "formats/module_roles.h"
#include "lib/lint/family/family_tensors.h"
#include "lib/lint/settings/checks.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

/// A setting whose text the classes of models look up in a table. Source: transformers 5.17, activations.py,
/// modeling_rope_utils.py, the routers of deepseek_v2, deepseek_v3 and deepseek_v4.
struct Choice {
  const char* key;
  std::initializer_list<const char*> texts;
};
const Choice kChoices[] = {
    {"scoring_func", {"softmax", "sigmoid", "sqrtsoftplus"}},
    {"topk_method", {"greedy", "group_limited_greedy", "noaux_tc", "gready"}},
};
/// The texts for the activations of a family. Source: transformers 5.17, the defaults of configuration_*.py,
/// which checkpoints of these families repeat.
struct ActivationTexts {
  FamilyActivations activations;
  std::initializer_list<const char*> texts;
};
const ActivationTexts kActivationTexts[] = {
    {FamilyActivations::kSilu, {"silu", "swish"}},
    {FamilyActivations::kSiluOrRelu, {"silu", "swish", "relu", "relu2"}},
    {FamilyActivations::kGelu, {"gelu_pytorch_tanh", "gelu", "gelu_new", "gelu_fast", "gelu_python_tanh"}},
};
/// The kinds of layers. Source: transformers 5.17, configuration_utils.py. Earlier names are included.
constexpr std::string_view kLayerKinds[] = {"full_attention",
                                            "sliding_attention",
                                            "chunked_attention",
                                            "window_attention",
                                            "compressed_sparse_attention",
                                            "heavily_compressed_attention",
                                            "minimax_m3_sparse",
                                            "conv",
                                            "moe",
                                            "hybrid",
                                            "hybrid_sliding",
                                            "deepseek_sparse_attention",
                                            "qwen_sparse_attention",
                                            "linear_attention",
                                            "mamba",
                                            "attention",
                                            "sparse",
                                            "dense"};

/// Parts that the names of settings have if their value is a number or a boolean.
constexpr std::string_view kOfNumbers[] = {
    "window", "layers",     "multiplier", "scaling", "scalar",  "softcapping", "epsilon",    "_eps",
    "_size",  "embeddings", "bias",       "_dim",    "heads",   "norm",        "interleave", "_prob",
    "factor", "theta",      "_rank",      "_limit",  "dropout", "num_",        "use_",       "experts"};

bool is_number_or_switch(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return true;
  return text == "true" || text == "false" || text == "True" || text == "False";
}

class Choices : public SettingLint {
 public:
  using SettingLint::SettingLint;

  void run() {
    if (model_) check_activations();
    for (const Choice& choice : kChoices) {
      const Json* value = configured(choice.key);
      if (value != nullptr && !is_one_of(*value, choice.texts))
        odd(choice.key, fmt::format("one of {}", fmt::join(choice.texts, ", ")), *value);
    }
    check_nulls();
    check_layer_kinds();
    check_routing();
    check_texts();
    check_ratios();
    check_indexers();
    check_width();
    check_tower_heads();
  }

 private:
  static bool is_one_of(const Json& value, const auto& texts) {
    return std::any_of(std::begin(texts), std::end(texts), [&](const auto& text) { return value == text; });
  }

  /// Checks the activations of known families. Other families have functions of their own. Source:
  /// transformers 5.17, activations.py.
  void check_activations() {
    constexpr std::string_view kFunctions[] = {"gelu",          "gelu_10",     "gelu_fast",
                                               "gelu_new",      "gelu_python", "gelu_pytorch_tanh",
                                               "laplace",       "linear",      "gelu_python_tanh",
                                               "gelu_accurate", "leaky_relu",  "mish",
                                               "relu",          "quick_gelu",  "relu2",
                                               "relu6",         "sigmoid",     "silu",
                                               "swish",         "tanh",        "prelu",
                                               "xielu",         "swigluoai",   "situ",
                                               "hardswish",     "sqrtsoftplus"};
    for (const char* key : {"hidden_act", "hidden_activation", "mlp_hidden_act", "mamba_hidden_act"}) {
      const Json* value = configured(key);
      if (value != nullptr && !is_one_of(*value, kFunctions))
        odd(key, "an activation that loaders know", *value);
      else if (value != nullptr)
        check_family_activation(key, *value);
    }
  }

  void check_family_activation(const char* key, const Json& value) {
    for (const ActivationTexts& row : kActivationTexts) {
      if (model_->family->activations != row.activations || is_one_of(value, row.texts)) continue;
      odd(key, fmt::format("{} (as in all models of {})", *row.texts.begin(), model_->model_type), value);
    }
  }

  /// Reports null in settings that model classes use as a number or a text.
  void check_nulls() {
    if (!model_) return;
    for (const char* key : {"hidden_act", "rms_norm_eps", "norm_epsilon", "hidden_size", "num_hidden_layers",
                            "num_attention_heads", "vocab_size", "embedding_multiplier",
                            "residual_multiplier", "attention_multiplier", "logits_scaling"}) {
      const auto at = config_->find(key);
      if (at != config_->end() && at->is_null()) odd(key, "a value or no such key", *at);
    }
  }

  /// Checks the kinds of layers. A model with its own code may have kinds of its own.
  void check_layer_kinds() {
    if (!model_ || s_.config.contains("auto_map")) return;
    const Json* list = configured("layer_types");
    if (list == nullptr) return;
    if (!list->is_array()) return odd("layer_types", "a list", *list);
    const auto unknown = std::find_if(list->begin(), list->end(),
                                      [&](const Json& kind) { return !is_one_of(kind, kLayerKinds); });
    if (unknown != list->end()) odd("layer_types", "kinds of layers that loaders know", *unknown);
    const auto window = config_->find("sliding_window");
    if (window != config_->end() && window->is_null() &&
        std::ranges::find(*list, "sliding_attention") != list->end())
      reporter_.add("impossible-setting", {"config.json", "sliding_window"},
                    "expected a number of tokens, because layer_types has sliding_attention, found null");
  }

  /// Checks the settings of routers. A bias for the choice of experts belongs to a router with sigmoid
  /// scores. Source: vLLM, models/deepseek_v2.py.
  void check_routing() {
    const Json *method = configured("topk_method"), *score = configured("scoring_func");
    const bool other_method = method != nullptr && *method != "noaux_tc";
    const bool other_score =
        method != nullptr && *method == "noaux_tc" && score != nullptr && *score == "softmax";
    if (!other_method && !other_score) return;
    const auto bias = std::find_if(s_.tensors.begin(), s_.tensors.end(), [](const TensorInfo& t) {
      return t.name.ends_with(".mlp.gate.e_score_correction_bias");
    });
    if (bias == s_.tensors.end()) return;
    reporter_.add("impossible-setting", {"config.json", other_method ? "topk_method" : "scoring_func"},
                  "expected {}, because {} is stored, found {}", other_method ? "noaux_tc" : "sigmoid",
                  bias->name, quoted_setting(other_method ? *method : *score));
  }

  /// Checks DeepSeek-V4's list of compression ratios. The ratio of each layer is compared with the height of
  /// its compressor's table. A ratio of 0 means that the layer has no compressor.
  void check_ratios() {
    const Json* ratios = configured("compress_ratios");
    if (s_.is_part || ratios == nullptr || !ratios->is_array()) return;
    for (size_t i = 0; i < ratios->size(); ++i) {
      const Json& ratio = (*ratios)[i];
      const auto table = s_.find(fmt::format("layers.{}.attn.compressor.ape", i));
      const bool has_layer = s_.find(fmt::format("layers.{}.attn_norm.weight", i)).has_value();
      const int64_t height = table && !s_.tensors[*table].shape.empty() ? s_.tensors[*table].shape[0] : 0;
      if (!has_layer || ratio == height) continue;
      reporter_.add("config-shape", {"config.json", "compress_ratios"},
                    "expected {} for layer {} ({}), found {}", height, i,
                    table ? s_.tensors[*table].name : "the lack of a compressor", quoted_setting(ratio));
      return;
    }
  }

  /// Checks the list of layers with a sparse-attention indexer. Other layers share the indexer of a layer
  /// before.
  void check_indexers() {
    const Json* types = configured("indexer_types");
    if (s_.is_part || types == nullptr || !types->is_array()) return;
    std::set<size_t> layers, with;
    for (const TensorInfo& t : s_.tensors) {
      constexpr std::string_view kLayers = "layers.";
      const size_t at = t.name.find(kLayers);
      if (at == t.name.npos || names_draft(t.name)) continue;
      const std::string_view rest = std::string_view(t.name).substr(at + kLayers.size());
      const auto layer = parse_index(rest.substr(0, rest.find('.')));
      if (!layer) continue;
      layers.insert(static_cast<size_t>(*layer));
      if (has_part(rest, "indexer")) with.insert(static_cast<size_t>(*layer));
    }
    if (with.empty() || *with.begin() >= types->size())
      return;  // lost indexers are not the fault of the config
    for (size_t i = 0; i < types->size(); ++i) {
      const bool full = (*types)[i] == "full", shared = (*types)[i] == "shared";
      if (!layers.contains(i) || !(full || shared) || full == with.contains(i)) continue;
      // A layer without attention has no index, and a lost index is not the fault of the config.
      if (full && i > 0 && i + 1 < types->size() && with.contains(i - 1) && with.contains(i + 1)) continue;
      const Json* mixers = configured("layer_types");
      if (mixers != nullptr) continue;
      reporter_.add("config-shape", {"config.json", "indexer_types"},
                    "expected {} for layer {}, which has {}, found {}", full ? "shared" : "full", i,
                    full ? "no indexer" : "an indexer", quoted_setting((*types)[i]));
      return;
    }
  }

  /// Checks that the heads of a tower divide its width.
  void check_tower_heads() {
    const Json& tower = member(s_.config, "vision_config");
    const auto width = integer_of(tower, tower.contains("embed_dim") ? "embed_dim" : "hidden_size");
    for (const char* key : {"num_heads", "num_attention_heads"}) {
      const auto heads = integer_of(tower, key);
      if (!width || !heads || tower.contains("head_dim") || (*heads > 0 && *width % *heads == 0)) continue;
      reporter_.add("impossible-setting", {"config.json", fmt::format("vision_config.{}", key)},
                    "expected a divisor of its width, {}, found {}", *width, *heads);
    }
  }

  /// Checks the width of an MLP that four keys determine. Source: transformers 5.17, modeling_lfm2.py.
  void check_width() {
    if (!model_ || !model_->family->adjusts_width) return;
    const Json* stated = configured("intermediate_size");
    const auto tensor = s_.find("model.layers.0.feed_forward.w1.weight");
    if (stated == nullptr || !stated->is_number_integer() || !tensor || s_.tensors[*tensor].shape.size() != 2)
      return;
    const auto number = [&](const char* key, double otherwise) {
      const Json* value = configured(key);
      return value != nullptr && value->is_number() ? value->get<double>() : otherwise;
    };
    auto width = stated->get<int64_t>();
    const Json* adjusts = configured("block_auto_adjust_ff_dim");
    if (adjusts == nullptr || *adjusts == true) {
      const auto multiple = std::max<int64_t>(1, static_cast<int64_t>(number("block_multiple_of", 256)));
      width =
          static_cast<int64_t>(number("block_ffn_dim_multiplier", 1) * static_cast<double>(2 * width / 3));
      width = (width + multiple - 1) / multiple * multiple;
    }
    const TensorInfo& t = s_.tensors[*tensor];
    if (t.shape[0] == width) return;
    reporter_.add("config-shape", {"config.json", "intermediate_size"},
                  "expected a width of {} (as in {}), found one of {} by intermediate_size, "
                  "block_auto_adjust_ff_dim, block_multiple_of and block_ffn_dim_multiplier",
                  t.shape[0], t.name, width);
  }

  /// Reports numbers and booleans in quotes. In Python, "false" counts as true.
  void check_texts() {
    for (const Json* config : model_configs(s_.config)) {
      for (const auto& [key, value] : config->items()) {
        if (!value.is_string() || !is_number_or_switch(value.get_ref<const std::string&>())) continue;
        const bool is_number = std::any_of(std::begin(kOfNumbers), std::end(kOfNumbers),
                                           [&](std::string_view word) { return key.find(word) != key.npos; });
        if (is_number && !is_checked_elsewhere(key)) odd(key, "a number or a switch, not a text", value);
      }
    }
  }
  bool is_checked_elsewhere(const std::string& key) const { return reporter_.reported_names().contains(key); }
};

}  // namespace

void lint_choices(const LintInput& s, LintReporter& reporter) { Choices(s, reporter).run(); }

}  // namespace twofour
