#include "lib/source/model/one_block_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "lib/source/model/compressed_shape.h"

namespace twofour {
namespace {

constexpr const char* kPattern = "hybrid_override_pattern";

/// The letter of a layer's kind in a pattern; 0: none.
char letter_of(std::string_view kind) {
  return kind == "mamba" ? 'M' : kind == "attention" ? '*' : kind == "moe" ? 'E' : kind == "mlp" ? '-' : '\0';
}

/// The kinds of all layers, as letters of a pattern.
std::string read_kinds(const Settings& s, int64_t layers) {
  const char* list = s.sizes().stated("layers_block_type") != nullptr ? "layers_block_type" : "layer_types";
  const Json *kinds = s.sizes().stated(list), *pattern = s.sizes().stated(kPattern);
  const std::string each = fmt::format("for each of {} layers", layers);
  if (kinds != nullptr && (!kinds->is_array() || static_cast<int64_t>(kinds->size()) != layers))
    s.refuse(list, fmt::format("linear_attention, full_attention, moe or mlp {}", each));
  if (kinds == nullptr && (pattern == nullptr || !pattern->is_string() ||
                           static_cast<int64_t>(s.text(kPattern).size()) != layers))
    s.refuse(kPattern, fmt::format("M, *, E or - {}", each));
  std::string letters;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const char letter = letter_of(s.sizes().mixer(layer));
    if (letter == '\0' && kinds != nullptr)
      s.refuse(list, fmt::format("linear_attention, full_attention, moe or mlp {}", each));
    if (letter == '\0') s.refuse(kPattern, fmt::format("M, *, E or - {}", each));
    letters.push_back(letter);
  }
  if (kinds != nullptr && pattern != nullptr && *pattern != letters)
    s.refuse(kPattern, fmt::format("{}, the kinds of {}", letters, list));
  return letters;
}

bool is_infinite(const Json& value) {
  // Python writes Infinity, and transformers {"__float__": "Infinity"}.
  const std::string text = value.dump();
  return text.find("Infinity") != text.npos && text.find('-') == text.npos;
}

/// transformers takes time_step_min as the least step, no largest one, and ignores the limits.
void expect_no_step_limit(const Settings& s) {
  const Json* limit = s.sizes().stated("time_step_limit");
  const bool is_none =
      limit == nullptr || (limit->is_array() && limit->size() == 2 && (*limit)[0].is_number() &&
                           (*limit)[0].get<double>() == 0 && is_infinite((*limit)[1]));
  if (!is_none) s.refuse("time_step_limit", "[0, Infinity], no limit but time_step_min");
}

void expect(const Settings& s, const char* key, std::initializer_list<const char*> known) {
  const std::string found = s.text(key);
  if (!found.empty() && std::find(known.begin(), known.end(), found) == known.end())
    s.refuse(key, *known.begin());
}

void read_state_space(const Settings& s, StateSpaceShape& m) {
  expect(s, "mamba_hidden_act", {"silu", "swish"});
  expect_no_step_limit(s);
  m.heads = limited_count(s, "mamba_num_heads", kMostHeadSize);
  m.groups = limited_count(s, "n_groups", kMostHeadSize);
  m.head_size = limited_count(s, "mamba_head_dim", kMostHeadSize);
  m.state_size = limited_count(s, "ssm_state_size", kMostHeadSize);
  m.kernel = limited_count(s, "conv_kernel", kMostHeadSize);
  m.least_step = s.positive("time_step_min", 0.001, true);
  if (m.heads % m.groups != 0) s.refuse("n_groups", fmt::format("a divisor of the {} heads", m.heads));
  // Structures grow with these products.
  if (m.projected() > kMostSize || m.window() > kMostSize || m.recurrent() > kMostSize)
    s.refuse("mamba_num_heads", fmt::format("heads with states of at most {} numbers", kMostSize));
}

void read_plain_attention(const Settings& s, AttentionShape& a) {
  if (s.yes("attention_bias", false)) s.refuse("attention_bias", "false");
  if (s.sizes().stated("sliding_window") != nullptr) s.refuse("sliding_window", "null");
  a.heads = limited_count(s, "num_attention_heads", kMostHeadSize);
  a.kv_heads = s.count("num_key_value_heads");
  a.head_size = a.value_size = limited_count(s, "head_dim", kMostHeadSize);
  if (a.heads % a.kv_heads != 0)
    s.refuse("num_key_value_heads", fmt::format("a divisor of the {} heads", a.heads));
  a.scale = 1.0 / std::sqrt(static_cast<double>(a.head_size));  // no rope: positions come from Mamba
}

}  // namespace

void read_one_block_shape(const Settings& s, ModelShape& m) {
  m.one_block = true;
  // Earlier names, which transformers takes instead of the ones that are read here
  for (const auto& [earlier, name] :
       {std::pair("mamba_n_groups", "n_groups"), std::pair("mamba_d_conv", "conv_kernel"),
        std::pair("mamba_conv_bias", "use_conv_bias"), std::pair("mamba_dt_min", "time_step_min"),
        std::pair("mamba_dt_limit", "time_step_limit")}) {
    if (s.has(earlier)) s.refuse(earlier, fmt::format("none, but {}", name));
  }
  const std::string kinds = read_kinds(s, m.layers);
  expect(s, "mlp_hidden_act", {"relu2"});
  m.gate.is_relu2 = true;
  m.windows.assign(static_cast<size_t>(m.layers), 0);
  for (const char kind : kinds) {
    m.mixers.push_back(kind == 'M' ? Mixer::kStateSpace : kind == '*' ? Mixer::kAttention : Mixer::kNone);
    m.sparse.push_back(kind == 'E');
  }
  if (kinds.find('M') != kinds.npos) read_state_space(s, m.state_space);
  if (kinds.find('*') != kinds.npos) read_plain_attention(s, m.attention);
  if (kinds.find('-') != kinds.npos) m.width = limited_count(s, "intermediate_size");
  if (kinds.find('E') == kinds.npos) return;
  m.expert_width = limited_count(s, "moe_intermediate_size");
  m.shared_width = limited_count(s, "moe_shared_expert_intermediate_size");
  if (s.sizes().stated("moe_latent_size") != nullptr) m.latent = limited_count(s, "moe_latent_size");
}

}  // namespace twofour
