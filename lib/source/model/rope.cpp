#include "lib/source/model/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace twofour {
namespace {

/// Returns the factor by which YaRN scales attention.
double mscale(double factor, double slope) {
  return factor <= 1 ? 1.0 : 0.1 * slope * std::log(factor) + 1.0;
}

/// Returns the frequencies 1 / theta^(2i / size), in float32 like in the training of models.
std::vector<float> plain_frequencies(double theta, int64_t size) {
  std::vector<float> f;
  for (int64_t i = 0; i < size / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(size);
    f.push_back(1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent))));
  }
  return f;
}

void scale_llama3(const Settings& rope, double original, std::vector<float>& frequencies) {
  const double factor = rope.positive("factor", 0), low = rope.positive("low_freq_factor", 0),
               high = rope.positive("high_freq_factor", 0);
  if (factor < 1) rope.refuse("factor", "a number of 1 or more");
  if (low == 0) rope.refuse("low_freq_factor", "a number above 0");
  if (high <= low) rope.refuse("high_freq_factor", "a number above low_freq_factor");
  for (float& f : frequencies) {
    const double turns = original * static_cast<double>(f) / (2 * std::numbers::pi);
    const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    f = static_cast<float>(static_cast<double>(f) * (kept + (1 - kept) / factor));
  }
}

void scale_yarn(const Settings& rope, double theta, int64_t size, double original, double factor,
                std::vector<float>& frequencies) {
  const auto place_of = [&](double turns) {
    return static_cast<double>(size) * std::log(original / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  double low = place_of(rope.positive("beta_fast", 32)), high = place_of(rope.positive("beta_slow", 1));
  if (rope.yes("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(size - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double slowed = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const auto f = static_cast<double>(frequencies[i]);
    frequencies[i] = static_cast<float>(f / factor * slowed + f * (1 - slowed));
  }
}

/// Scales plain frequencies by the object `rope`. Returns the factor by which positions are stretched.
double scale_rope(const Settings& settings, const Settings& rope, double theta, int64_t positions,
                  std::vector<float>& frequencies, float& amplitude) {
  std::string type = rope.text("rope_type");
  if (type.empty()) type = rope.text("type");
  if (type.empty() || type == "default") return 1;
  if (type != "linear" && type != "llama3" && type != "yarn") {
    const char* which = rope.sizes().stated("rope_type") != nullptr ? "rope_type" : "type";
    rope.refuse(which, "default, linear, llama3 or yarn");
  }

  const auto size = 2 * static_cast<int64_t>(frequencies.size());
  const char* kOriginal = "original_max_position_embeddings";
  const double original = settings.sizes().stated(kOriginal) != nullptr
                              ? settings.positive(kOriginal, 0)
                              : rope.positive(kOriginal, static_cast<double>(positions));
  double factor = rope.positive("factor", 0);
  if (type == "yarn" && factor == 0) factor = static_cast<double>(positions) / original;
  if (factor == 0) rope.refuse("factor", "a finite number above 0");
  if (type == "linear") {
    for (float& f : frequencies) f = static_cast<float>(static_cast<double>(f) / factor);
  } else if (type == "llama3") {
    scale_llama3(rope, original, frequencies);
  } else {
    scale_yarn(rope, theta, size, original, factor, frequencies);
    const double m = rope.positive("mscale", 0, true), all = rope.positive("mscale_all_dim", 0, true);
    const double configured_factor = rope.positive("attention_factor", 0);
    amplitude = static_cast<float>(configured_factor > 0 ? configured_factor
                                   : m > 0 && all > 0    ? mscale(factor, m) / mscale(factor, all)
                                                         : mscale(factor, 1));
  }
  return factor;
}

}  // namespace

void read_rope(const Settings& settings, const FamilyTraits& family, int64_t size, int64_t positions,
               AttentionShape& a) {
  // If a config has both keys, transformers uses the older one.
  const char* key = "rope_scaling";
  const Json* configured = settings.sizes().stated(key);
  if (configured == nullptr || configured->empty())
    configured = settings.sizes().stated(key = "rope_parameters");
  static const Json kNothing = Json::object();
  // The scaling that gpt-oss has if its config states none.
  static const Json kLong = {{"rope_type", "yarn"}, {"factor", 32.0},
                             {"beta_fast", 32.0},   {"beta_slow", 1.0},
                             {"truncate", false},   {"original_max_position_embeddings", 4096}};
  const Settings rope = configured != nullptr
                            ? settings.below(key)
                            : Settings(settings.sizes().family(),
                                       settings.sizes().family().clamps_gates ? kLong : kNothing, "rope: ");
  if (configured != nullptr) {
    for (const Json& value : *configured) {
      if (value.is_object()) settings.refuse(key, "one rope for all layers");
    }
  }
  const double theta = rope.positive("rope_theta", settings.positive("rope_theta", family.theta));
  if (theta <= 1) (rope.has("rope_theta") ? rope : settings).refuse("rope_theta", "a number above 1");
  const double part = rope.positive(
      "partial_rotary_factor",
      settings.positive("partial_rotary_factor", a.kv_rank > 0 || family.rotated == 0 ? 1 : family.rotated));
  const Settings& of_part = rope.has("partial_rotary_factor") ? rope : settings;
  if (part > 1) of_part.refuse("partial_rotary_factor", "a number up to 1");
  // Loaders disagree here, because transformers rotates whole heads in any case.
  if (part < 1 && family.rotated == 1)
    of_part.refuse("partial_rotary_factor", fmt::format("1 for {}", settings.text("model_type")));
  auto rotated = static_cast<int64_t>(static_cast<double>(size) * part);
  // MiniMax's own code and vLLM take rotary_dim. transformers 5.17 does not read it and rotates whole heads
  // of the released models, whose config states half of them, so it is wrong there.
  if (family.rotated == 0 && settings.has("rotary_dim")) {
    const int64_t stated = settings.count("rotary_dim");
    const bool both = of_part.sizes().stated("partial_rotary_factor") != nullptr;
    if (stated > size || (both && stated != rotated))
      settings.refuse("rotary_dim", fmt::format("{} rotated numbers of {}", both ? rotated : size, size));
    rotated = stated;
  }
  if (rotated < 2 || rotated % 2 != 0)
    settings.refuse("partial_rotary_factor",
                    "an even count of rotated numbers in heads of " + std::to_string(size));
  a.frequencies = plain_frequencies(theta, rotated);
  a.interleaved = family.pairs == RopePairs::kNeighbours ||
                  (family.pairs == RopePairs::kAsConfigured && settings.yes("rope_interleave", true));
  const double factor = scale_rope(settings, rope, theta, positions, a.frequencies, a.amplitude);
  if (a.kv_rank > 0 && factor > 1) {
    const double all = rope.positive("mscale_all_dim", 0, true);
    if (all > 0) a.scale *= mscale(factor, all) * mscale(factor, all);
  }
}

namespace {

/// The base of a rope's angles.
double base_of(const Settings& settings, const char* key, double otherwise) {
  const double theta = settings.positive(key, otherwise);
  if (theta <= 1) settings.refuse(key, "a number above 1");
  return theta;
}

/// One of the two ropes of DeepSeek-V4.
std::vector<float> one_of_two(const Settings& settings, const Settings& rope, double theta, int64_t rotated,
                              int64_t head_size, int64_t positions) {
  const double part = rope.positive("partial_rotary_factor", 0);
  if (part > 0 && static_cast<int64_t>(static_cast<double>(head_size) * part) != rotated)
    rope.refuse("partial_rotary_factor", fmt::format("{} rotated numbers of {}", rotated, head_size));
  // The reference multiplies neither cosine nor sine by a factor of YaRN. transformers sets it to 1, too.
  if (rope.positive("attention_factor", 1) != 1) rope.refuse("attention_factor", "1");
  std::vector<float> frequencies = plain_frequencies(theta, rotated);
  float amplitude = 1;
  scale_rope(settings, rope, theta, positions, frequencies, amplitude);
  return frequencies;
}

/// One of the two ropes of Gemma.
std::vector<float> one_of_gemma(const Settings& settings, const Settings& rope, double theta, int64_t size,
                                int64_t positions) {
  std::vector<float> frequencies = plain_frequencies(theta, size);
  float amplitude = 1;
  scale_rope(settings, rope, theta, positions, frequencies, amplitude);
  if (amplitude != 1) rope.refuse("rope_type", "default, linear or llama3");
  return frequencies;
}

}  // namespace

void read_window_ropes(const Settings& settings, const FamilyTraits& family, int64_t positions,
                       AttentionShape& a) {
  constexpr const char *kAll = "rope_parameters", *kFull = "full_attention", *kWindow = "sliding_attention";
  static const Json kNothing = Json::object();
  const Settings none(settings.sizes().family(), kNothing, "rope: ");
  const Json* stated = settings.sizes().stated(kAll);
  const Settings all = stated != nullptr ? settings.below(kAll) : none;
  const auto rope_of = [&](const char* kind) {
    return all.sizes().stated(kind) != nullptr ? all.below(kind) : none;
  };
  const Json* scaling = settings.sizes().stated("rope_scaling");
  const Settings full =
      scaling != nullptr && !scaling->empty() ? settings.below("rope_scaling") : rope_of(kFull);
  const Settings window = rope_of(kWindow);
  if (stated != nullptr && !all.has(kFull) && !all.has(kWindow) && !stated->empty())
    settings.refuse(kAll, "an object for full_attention and one for sliding_attention");
  const double theta = base_of(full, "rope_theta", base_of(settings, "rope_theta", family.theta));
  const double window_theta =
      base_of(window, "rope_theta", base_of(settings, "rope_local_base_freq", family.window_theta));
  a.frequencies = one_of_gemma(settings, full, theta, a.head_size, positions);
  a.window_frequencies = one_of_gemma(settings, window, window_theta, a.head_size, positions);
}

void read_two_ropes(const Settings& settings, int64_t rotated, int64_t positions, AttentionShape& a,
                    CompressedShape& c) {
  const char* key = "rope_scaling";
  const Json* configured = settings.sizes().stated(key);
  if (configured == nullptr || configured->empty())
    configured = settings.sizes().stated(key = "rope_parameters");
  static const Json kNothing = Json::object();
  const Settings none(settings.sizes().family(), kNothing, "rope: ");
  const Settings all = configured != nullptr ? settings.below(key) : none;
  const double theta = base_of(settings, "rope_theta", 10000);
  const double compressed = base_of(settings, "compress_rope_theta", 160000);
  const auto read = [&](const Settings& rope, double of_rope) {
    return one_of_two(settings, rope, of_rope, rotated, a.head_size, positions);
  };
  if (all.has("main") || all.has("compress")) {
    const Settings main = all.below("main"), compress = all.below("compress");
    a.frequencies = read(main, base_of(main, "rope_theta", theta));
    c.frequencies = read(compress, base_of(compress, "rope_theta", compressed));
    return;
  }
  // Only layers with entries have the scaling.
  a.frequencies = read(none, theta);
  c.frequencies = read(all, compressed);
}

}  // namespace twofour
