#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "formats/families/sizes.h"
#include "lib/lint/settings/checks.h"
#include "lib/lint/settings/setting_kinds.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

using enum SettingKind;

/// Settings that model classes use without a check. If one is a list with a value for each layer, each
/// element is checked. Source: huggingface/transformers 5.17, configuration_*.py.
constexpr Setting kSettings[] = {
    {"hidden_size", kCount},
    {"intermediate_size", kNumber},  // 0 in models without a dense layer
    {"intermediate_size_mlp", kCount},
    {"moe_intermediate_size", kCount},
    {"shared_expert_intermediate_size", kNumber},
    {"shared_intermediate_size", kNumber},
    {"moe_shared_expert_intermediate_size", kNumber},
    {"num_hidden_layers", kCount},
    {"num_attention_heads", kCount},
    {"num_key_value_heads", kCount},
    {"head_dim", kCount},
    {"vocab_size", kCount},
    {"max_position_embeddings", kCount},
    {"kv_lora_rank", kCount},
    {"q_lora_rank", kCount},
    {"qk_nope_head_dim", kNumber},
    {"qk_rope_head_dim", kNumber},
    {"v_head_dim", kCount},
    {"num_experts_per_tok", kNumber},
    {"moe_topk", kNumber},
    {"moe_k", kNumber},
    {"top_k_experts", kNumber},
    {"experts_per_token", kNumber},
    {"n_shared_experts", kNumber},
    {"num_shared_experts", kNumber},
    {"moe_num_shared_experts", kNumber},
    {"first_k_dense_replace", kNumber},
    {"num_dense_layers", kNumber},
    {"moe_layer_freq", kNumber},
    {"decoder_sparse_step", kCount},
    {"interleave_moe_layer_step", kCount},
    {"full_attention_interval", kCount},
    {"num_nextn_predict_layers", kNumber},
    {"mtp_num_hidden_layers", kNumber},
    {"n_group", kCount},
    {"topk_group", kCount},
    {"linear_num_key_heads", kCount},
    {"linear_num_value_heads", kCount},
    {"linear_key_head_dim", kCount},
    {"linear_value_head_dim", kCount},
    {"linear_conv_kernel_dim", kCount},
    {"index_head_dim", kCount},
    {"index_n_heads", kCount},
    {"index_topk", kCount},
    {"o_groups", kCount},
    {"o_lora_rank", kCount},
    {"rms_norm_eps", kEpsilon},
    {"layer_norm_eps", kEpsilon},
    {"layer_norm_epsilon", kEpsilon},
    {"norm_eps", kEpsilon},
    {"attn_output_gate", kSwitch},
    {"rope_theta", kPositive},
    {"swiglu_limit", kPositive},
    {"logits_scaling", kPositive},
    {"residual_multiplier", kPositive},
    {"embedding_multiplier", kPositive},
    {"attention_multiplier", kPositive},
    {"sliding_window", kNumber},
    {"query_pre_attn_scalar", kPositive},
    {"logit_scale", kPositive},
    {"final_logit_softcapping", kPositive},
    {"attn_logit_softcapping", kPositive},
    {"attention_chunk_size", kCount},
    {"chunk_size", kCount},
    {"mamba_chunk_size", kCount},
    {"hc_mult", kNumber},
    {"hc_count", kCount},
    {"split_ngram_parts", kCount},
    {"norm_epsilon", kEpsilon},
    {"routed_scaling_factor", kPositive},
    {"partial_rotary_factor", kShare},
    {"attention_bias", kSwitch},
    {"mlp_bias", kSwitch},
    {"use_bias", kSwitch},
    {"qkv_bias", kSwitch},
    {"use_qk_norm", kSwitch},
    {"norm_topk_prob", kSwitch},
    {"tie_word_embeddings", kSwitch},
    {"use_expert_bias", kSwitch},
    {"attention_dropout", kShareOrNothing},
    {"hidden_dropout", kShareOrNothing},
    {"attn_pdrop", kShareOrNothing},
    {"embd_pdrop", kShareOrNothing},
    {"resid_pdrop", kShareOrNothing},
    {"initializer_range", kNotNegative},
    {"eos_token_id", kToken},
    {"bos_token_id", kToken},
    {"pad_token_id", kTokenOrNone},
};

/// Returns the largest number in a list that has one for each layer.
const Json* largest_of(const Json& list) {
  const Json* largest = nullptr;
  for (const Json& one : list) {
    if (one.is_number_integer() && (largest == nullptr || *largest < one)) largest = &one;
  }
  return largest;
}

/// torch has no type of the name "torch.bfloat16". Source: transformers 5.17, modeling_utils.py.
constexpr const char* kDtypes[] = {"bfloat16", "float16", "float32",       "float64",
                                   "half",     "float",   "float8_e4m3fn", "auto"};

/// Checks of config.json that need no tensors.
class Settings : public SettingLint {
 public:
  Settings(const LintInput& s, LintReporter& reporter) : SettingLint(s, reporter) {
    if (model_) sizes_.emplace(*model_->family, *config_);
  }

  void run() {
    check_kinds();
    check_heads();
    check_experts();
    check_layer_lists();
    check_synonyms();
    check_nested();
  }

 private:
  void odd_once(const char* key, const char* expected, const Json& found) {
    if (reported_.insert(key).second) odd(key, expected, found);
  }
  template <class... Args>
  void impossible(std::string key, fmt::format_string<Args...> text, Args&&... args) {
    reporter_.add("impossible-setting", {"config.json", std::move(key)}, text, std::forward<Args>(args)...);
  }
  /// Returns a number in the config; by default, that of its family.
  std::optional<int64_t> number(std::string_view key) const {
    if (const Json* value = configured(key))
      return value->is_number_integer() && *value > 0 ? std::optional(value->get<int64_t>()) : std::nullopt;
    return sizes_ ? sizes_->number(key) : std::nullopt;
  }

  void check_kinds() {
    // If other commands refuse a setting, it is reported with their message.
    for (const std::string& problem : find_odd_settings(s_.config)) {
      const size_t key = problem.find(": ");
      reported_.insert(problem.substr(0, key));
      reporter_.add("odd-setting", {"config.json", problem.substr(0, key)}, problem.substr(key + 2));
    }
    for (const Json* config : model_configs(s_.config)) {
      for (const Setting& setting : kSettings) {
        const auto at = config->find(setting.key);
        if (at == config->end()) continue;
        // As head_dim, transformers writes the size of the rotated part, which is 0 here.
        const auto turned = config->find("qk_rope_head_dim");
        if (setting.key == std::string_view("head_dim") && *at == 0 && turned != config->end() &&
            *turned == 0)
          continue;
        const bool ok = at->is_array() ? std::all_of(at->begin(), at->end(),
                                                     [&](const Json& one) { return fits(one, setting.kind); })
                                       : fits(*at, setting.kind);
        if (!ok) odd_once(setting.key, expected_of(setting.kind), *at);
      }
      // A boolean beside it states whether there is a window.
      const auto window = config->find("sliding_window");
      if (window != config->end() && *window == 0 && !config->contains("use_sliding_window"))
        odd_once("sliding_window", "a number of tokens or null", *window);
      if (window != config->end() && window->is_null() && member(*config, "use_sliding_window") == true)
        odd_once("sliding_window", "a number of tokens, because use_sliding_window is true", *window);
      for (const char* key : {"dtype", "torch_dtype"}) {
        const auto at = config->find(key);
        if (at == config->end() || at->is_null() || at->is_object()) continue;
        const bool known = at->is_string() && std::any_of(std::begin(kDtypes), std::end(kDtypes),
                                                          [&](const char* d) { return *at == d; });
        if (!known) odd_once(key, "bfloat16, float16 or float32", *at);
      }
    }
  }
  void check_heads() {
    const auto heads = number("num_attention_heads"), groups = number("num_key_value_heads");
    if (heads && groups && *groups > 0 && *heads % *groups != 0 &&
        !reported_.contains("num_key_value_heads")) {
      impossible("num_key_value_heads", "expected a divisor of num_attention_heads, {}, found {}", *heads,
                 *groups);
    }
    const auto width = number("hidden_size");
    const bool derived = configured("head_dim") == nullptr && model_ &&
                         configured("qk_rope_head_dim") == nullptr &&
                         sizes_->keys("head_dim") != std::vector<std::string>{"head_dim"};
    if (derived && heads && width && *heads > 0 && *width % *heads != 0) {
      impossible("num_attention_heads",
                 "expected a divisor of hidden_size, {}, because there is no head_dim, found {}", *width,
                 *heads);
    }
    const auto whole = configured("qk_head_dim") != nullptr ? number("qk_head_dim") : std::nullopt;
    const auto rest = number("qk_nope_head_dim"), turned = number("qk_rope_head_dim");
    if (whole && rest && turned && *whole != *rest + *turned)
      impossible("qk_head_dim", "expected qk_nope_head_dim and qk_rope_head_dim together, {}, found {}",
                 *rest + *turned, *whole);
    const auto dim = number("head_dim");
    if (dim && *dim % 2 != 0 && configured("head_dim") != nullptr)
      impossible("head_dim", "expected an even number, because positions rotate pairs, found {}", *dim);
  }

  void check_experts() {
    std::optional<int64_t> count, chosen;
    std::string count_key, chosen_key;
    const auto take = [&](std::optional<int64_t>& to, std::string& key, const char* name) {
      if (to || *name == '\0') return;
      const Json* value = configured(name);
      if (value != nullptr && value->is_array() && !value->empty()) value = largest_of(*value);
      if (value == nullptr || !value->is_number_integer() || *value < 0) return;
      to = value->get<int64_t>();
      key = name;
    };
    if (model_) {
      take(count, count_key, model_->family->experts.count);
      take(chosen, chosen_key, model_->family->experts.per_token);
    }
    for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"})
      take(count, count_key, key);
    for (const char* key : {"num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk",
                            "moe_k", "top_k_experts"})
      take(chosen, chosen_key, key);
    if (model_ && !count && *model_->family->experts.count != '\0')
      count = sizes_->number(model_->family->experts.count);
    if (model_ && !chosen && *model_->family->experts.per_token != '\0') {
      chosen = sizes_->number(model_->family->experts.per_token);
      chosen_key = model_->family->experts.per_token;
    }
    if (!count || *count < 2 || !chosen) return;
    if (*chosen < 1 || *chosen > *count) {
      impossible(chosen_key, "expected 1 to {}, the count of experts{}, found {}", *count,
                 count_key.empty() ? "" : " by " + count_key, *chosen);
    }
    const auto groups = number("n_group"), of_groups = number("topk_group");
    if (!groups || *groups < 1) return;
    if (*count % *groups != 0) {
      impossible("n_group", "expected a divisor of {}, {}, found {}", count_key, *count, *groups);
    } else if (of_groups && *of_groups > *groups) {
      impossible("topk_group", "expected at most n_group, {}, found {}", *groups, *of_groups);
    } else if (of_groups && *groups > 1 && *of_groups * (*count / *groups) < *chosen) {
      impossible("topk_group", "expected groups with {} experts or more ({}), found {} groups of {}", *chosen,
                 chosen_key, *of_groups, *count / *groups);
    }
  }

  void check_layer_lists() {
    const auto layers = number("num_hidden_layers");
    if (!layers) return;
    for (const char* key :
         {"layer_types", "mlp_layer_types", "layers_block_type", "indexer_types", "no_rope_layers",
          "moe_layer_freq", "sparse_attention_config.sparse_attention_freq",
          "sparse_attention_config.sparse_disable_index_value"}) {
      const std::string_view path = key;
      const size_t dot = path.find('.');
      const Json* outer = configured(path.substr(0, dot));
      if (outer == nullptr) continue;
      const Json* list = dot == path.npos ? outer : &member(*outer, path.substr(dot + 1));
      if (!list->is_array()) continue;
      const auto count = static_cast<int64_t>(list->size());
      // The list of layers without rotation may be empty, or longer than the number of layers.
      const bool may_differ = std::string_view(key) == "no_rope_layers" && (count == 0 || count > *layers);
      if (count == *layers || may_differ) continue;
      impossible(key, "expected {} entries (num_hidden_layers), found {}", *layers, list->size());
    }
    const Json* pattern = configured("hybrid_override_pattern");
    if (pattern != nullptr && pattern->is_string()) {
      const auto entries = static_cast<int64_t>(pattern->get_ref<const std::string&>().size());
      if (entries != *layers) {
        impossible("hybrid_override_pattern", "expected {} letters (num_hidden_layers), found {}", *layers,
                   entries);
      }
    }
    const Json* ratios = configured("compress_ratios");
    if (ratios != nullptr && ratios->is_array() && !ratios->empty() && std::ssize(*ratios) < *layers) {
      impossible("compress_ratios", "expected an entry for each of {} layers, found {}", *layers,
                 ratios->size());
    }
    const Json* dense = configured("mlp_only_layers");
    if (dense == nullptr || !dense->is_array()) return;
    for (const Json& layer : *dense) {
      if (layer.is_number_integer() && layer >= 0 && layer < *layers) continue;
      impossible("mlp_only_layers", "expected numbers of layers, 0 to {}, found {}", *layers - 1,
                 quoted_setting(layer));
      return;
    }
  }

  /// Compares keys that are synonyms of one setting. Some engines read one key, some another.
  void check_synonyms() {
    constexpr const char* kSame[][4] = {
        {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"},
        {"num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk"},
        {"dtype", "torch_dtype", nullptr, nullptr},
    };
    for (const auto& keys : kSame) {
      const char* first = nullptr;
      for (const char* key : keys) {
        const Json* value = key != nullptr ? configured(key) : nullptr;
        if (value == nullptr || value->is_structured()) continue;
        if (first != nullptr && *configured(first) != *value) {
          impossible(key, "expected {} ({}), found {}", quoted_setting(*configured(first)), first,
                     quoted_setting(*value));
        }
        if (first == nullptr) first = key;
      }
    }
  }

  /// Compares sizes of the language model that are stated in its own config and outside of it. Some engines
  /// read one, some the other.
  void check_nested() {
    const std::vector<const Json*> all = model_configs(s_.config);
    // Towers of other models may be called the text's.
    const std::vector<std::string> classes = strings_of(s_.config, "architectures");
    const bool generates = std::ranges::any_of(classes, [](const std::string& name) {
      return name.ends_with("CausalLM") || name.ends_with("Generation");
    });
    if (all.size() < 2 || !generates) return;
    for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                            "num_experts", "num_experts_per_tok"}) {
      const Json &outer = member(*all.front(), key), &own = member(*all.back(), key);
      if (!outer.is_number() || !own.is_number() || outer == own) continue;
      impossible(key, "expected {} (the language model's config), found {} outside of it",
                 quoted_setting(own), quoted_setting(outer));
    }
  }

  std::optional<FamilySizes> sizes_;
  std::set<std::string> reported_;
};

}  // namespace

void lint_settings(const LintInput& s, LintReporter& reporter) {
  lint_generation(s, reporter);
  if (!s.config.is_object()) return;
  Settings(s, reporter).run();
  lint_rope(s, reporter);
  lint_choices(s, reporter);
  lint_model_class(s, reporter);
}

}  // namespace twofour
