#include "lib/source/model/compressed_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "lib/source/model/rope.h"

namespace twofour {
namespace {

constexpr const char* kRatios = "compress_ratios";

/// A number that the family's row gives no default. transformers' value is `otherwise`.
int64_t count_or(const Settings& s, const char* key, int64_t otherwise, int64_t most = kMostSize) {
  return s.has(key) ? limited_count(s, key, most) : otherwise;
}

/// The ratio that transformers' name of a kind of layer stands for; -1: unknown.
int64_t ratio_of(std::string_view kind) {
  if (kind == "sliding_attention") return 0;
  if (kind == "compressed_sparse_attention") return CompressedShape::kOverlapping;
  return kind == "heavily_compressed_attention" ? 128 : -1;
}

/// The ratio of a layer. There is no default, since transformers' default is another model than those that
/// were released.
int64_t read_ratio(const Settings& s, int64_t layer, int64_t layers) {
  const bool has_ratios = s.sizes().stated(kRatios) != nullptr;
  const Json* kinds = s.sizes().stated("layer_types");
  int64_t ratio = -1;
  if (kinds != nullptr) {
    ratio = ratio_of(s.sizes().text("layer_types", layer));
    if (!kinds->is_array() || static_cast<int64_t>(kinds->size()) != layers || ratio < 0)
      s.refuse("layer_types",
               fmt::format("sliding_attention, compressed_sparse_attention or heavily_compressed_attention "
                           "for each of {} layers",
                           layers));
    if (!has_ratios) return ratio;
  }
  // Zeros after the last layer are of drafts. Some writers have 1 for layers without entries.
  const auto stated = s.sizes().is_list(kRatios) ? s.sizes().number(kRatios, layer) : std::nullopt;
  const int64_t found = stated ? (*stated == 1 ? 0 : *stated) : -1;
  if (found != 0 && found != 4 && found != 128)
    s.refuse(kRatios, fmt::format("0, 4 or 128 for each of {} layers", layers));
  if (kinds != nullptr && ratio != found)
    s.refuse("layer_types", fmt::format("the kinds of {}, layer {} has ratio {}", kRatios, layer, found));
  return found;
}

/// transformers states the ratios of its kinds of layers.
void check_rates(const Settings& s) {
  if (s.sizes().stated("compress_rates") != nullptr) {
    const Settings rates = s.below("compress_rates");
    for (const char* kind : {"compressed_sparse_attention", "heavily_compressed_attention"}) {
      const int64_t expected = ratio_of(kind);
      if (rates.has(kind) && rates.count(kind) != expected) rates.refuse(kind, fmt::format("{}", expected));
    }
  }
  for (const auto& [key, expected] :
       {std::pair("compress_rate_csa", 4), std::pair("compress_rate_hca", 128)}) {
    if (s.has(key) && s.count(key) != expected) s.refuse(key, fmt::format("{}", expected));
  }
}

/// The count of rotated numbers of a head.
int64_t read_rotated(const Settings& s, int64_t head_size) {
  constexpr const char *kCount = "qk_rope_head_dim", *kPart = "partial_rotary_factor";
  const double part = s.positive(kPart, 64.0 / 512.0);
  const int64_t of_part = static_cast<int64_t>(static_cast<double>(head_size) * part);
  const int64_t rotated = s.has(kCount) ? limited_count(s, kCount, kMostHeadSize) : of_part;
  const char* key = s.has(kCount) ? kCount : kPart;
  if (rotated < 2 || rotated % 2 != 0 || rotated > head_size)
    s.refuse(key, fmt::format("an even count of rotated numbers in heads of {}", head_size));
  if (s.sizes().stated(kPart) != nullptr && of_part != rotated)
    s.refuse(kPart, fmt::format("{} rotated numbers of {}", rotated, head_size));
  return rotated;
}

void read_index(const Settings& s, int64_t rotated, CompressedShape& c) {
  c.index_heads = count_or(s, "index_n_heads", 64, kMostHeadSize);
  c.index_size = count_or(s, "index_head_dim", 128, kMostHeadSize);
  c.chosen = count_or(s, "index_topk", 512);
  if (!std::has_single_bit(static_cast<uint64_t>(c.index_size)) || c.index_size < rotated)
    s.refuse("index_head_dim", fmt::format("a power of two of at least {}", rotated));
}

void read_streams(const Settings& s, StreamShape& streams) {
  streams.count = count_or(s, "hc_mult", 4, 64);
  streams.iterations = count_or(s, "hc_sinkhorn_iters", 20, 10000);
  streams.epsilon = s.positive("hc_eps", 1e-6, true);
  if (streams.count < 2) s.refuse("hc_mult", "two or more residual streams");
}

}  // namespace

int64_t limited_count(const Settings& settings, const char* key, int64_t most) {
  const int64_t found = settings.count(key);
  if (found > most) settings.refuse(key, fmt::format("at most {}", most));
  return found;
}

void read_compressed_shape(const Settings& s, ModelShape& m) {
  for (const char* key :
       {"kv_source_layer_ids", "index_source_layer_ids", "candidate_source_layer_id", "engram_layer_ids"}) {
    if (s.has(key)) s.refuse(key, "none: DeepSeek-V4.1 has it, and this is DeepSeek-V4");
  }
  AttentionShape& a = m.attention;
  CompressedShape& c = m.compressed;
  m.mixers.assign(static_cast<size_t>(m.layers), Mixer::kCompressed);
  check_rates(s);
  for (int64_t layer = 0; layer < m.layers; ++layer) c.ratios.push_back(read_ratio(s, layer, m.layers));
  a.heads = limited_count(s, "num_attention_heads", kMostHeadSize);
  a.kv_heads = s.count("num_key_value_heads");
  if (a.kv_heads != 1) s.refuse("num_key_value_heads", "1");
  a.head_size = a.value_size = limited_count(s, "head_dim", kMostHeadSize);
  a.q_rank = limited_count(s, "q_lora_rank");
  a.has_sinks = true;
  a.interleaved = true;
  a.scale = 1.0 / std::sqrt(static_cast<double>(a.head_size));
  const int64_t rotated = read_rotated(s, a.head_size);
  a.rotated_from = a.head_size - rotated;
  c.window = count_or(s, "sliding_window", 128);
  c.groups = limited_count(s, "o_groups", kMostHeadSize);
  c.rank = limited_count(s, "o_lora_rank", kMostHeadSize);
  if (a.heads % c.groups != 0) s.refuse("o_groups", fmt::format("a divisor of the {} heads", a.heads));
  if (std::count(c.ratios.begin(), c.ratios.end(), CompressedShape::kOverlapping) > 0)
    read_index(s, rotated, c);
  read_streams(s, m.streams);
  read_two_ropes(s, rotated, m.positions, a, c);
  // Structures grow with these products.
  if (a.heads * a.head_size > kMostSize || (c.window + 512) * a.head_size > kMostSize)
    s.refuse("head_dim", fmt::format("heads of at most {} numbers in all", kMostSize));
  const Json* kinds = s.sizes().stated("mlp_layer_types");
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string_view kind = s.sizes().text("mlp_layer_types", layer);
    const bool is_known = kind == "hash_moe" || kind == "moe";
    if (kinds != nullptr &&
        (!kinds->is_array() || static_cast<int64_t>(kinds->size()) != m.layers || !is_known))
      s.refuse("mlp_layer_types", fmt::format("hash_moe or moe for each of {} layers", m.layers));
    m.hashed.push_back(s.sizes().mlp(layer) == "hash");
  }
  m.sparse.assign(static_cast<size_t>(m.layers), true);
  m.expert_width = limited_count(s, "moe_intermediate_size");
  m.shared_width = m.expert_width * limited_count(s, "n_shared_experts", 64);
}

}  // namespace twofour
