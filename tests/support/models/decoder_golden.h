#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "formats/half.h"
#include "formats/json.h"
#include "lib/run/decoder/decoder.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/checkpoint_builder.h"

namespace twofour {

/// A small model, and what transformers computes of it: a case of tests/loaders/logits.py.
struct DecoderGolden {
  Json config;
  Json tensors;  ///< names and shapes
  size_t prefill = 0;
  int64_t vocabulary = 0;
  std::vector<int32_t> tokens;
  std::vector<float> logits;  ///< [positions, vocabulary], of the last positions
};

inline std::vector<std::string> decoder_golden_names(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  REQUIRE_FALSE(names.empty());
  return names;
}

template <class T>
std::vector<T> read_whole(const Checkpoint& file, const std::string& name) {
  const auto tensor = file.find(name);
  REQUIRE(tensor);
  std::vector<T> values(file.tensors()[*tensor].bytes() / sizeof(T));
  file.read(*tensor, 0, {reinterpret_cast<uint8_t*>(values.data()), values.size() * sizeof(T)});
  return values;
}

inline DecoderGolden read_decoder_golden(const std::filesystem::path& folder, const std::string& name) {
  std::ostringstream text;
  text << std::ifstream(folder / (name + ".json")).rdbuf();
  const Json json = parse_json(name, text.str());
  DecoderGolden golden{json["config"],
                       json["tensors"],
                       json["prefill"].get<size_t>(),
                       json["config"].value("text_config", json["config"])["vocab_size"].get<int64_t>(),
                       {},
                       {}};
  const Checkpoint file = Checkpoint::open(folder / (name + ".safetensors"));
  golden.tokens = read_whole<int32_t>(file, "tokens");
  golden.logits = read_whole<float>(file, "logits");
  return golden;
}

/// The language model's part of the config.
inline const Json& text_config(const DecoderGolden& golden) {
  const auto at = golden.config.find("text_config");
  return at == golden.config.end() ? golden.config : *at;
}
/// True if norms of the model multiply by 1 + w.
inline bool norms_add_one(const DecoderGolden& golden) {
  return text_config(golden).contains("linear_num_key_heads") || golden.config["model_type"] == "gemma3_text";
}

/// The weights that tests/loaders/logits.py gives a tensor: -1 to 1 in steps of 1/64 by a hash of name and
/// place, scaled by a power of two.
inline std::vector<float> golden_weights(const std::string& name, const std::vector<int64_t>& shape,
                                         bool norms_add_one = false) {
  uint64_t seed = 0xCBF29CE484222325;
  for (const char c : name) seed = (seed ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  uint64_t count = 1;
  for (const int64_t n : shape) count *= static_cast<uint64_t>(n);
  const auto has = [&](const char* part) { return name.find(part) != name.npos; };
  float scale = 1, offset = 0;
  if (name.ends_with("norm.weight")) {
    scale = 0.5f, offset = norms_add_one && !has("linear_attn") ? 0.0f : 1.0f;
  } else if (shape.size() < 2 || name.ends_with("_bias")) {
    scale = has("correction") || name.ends_with("gate.bias") ? 0.25f : 1.0f;
  } else if (!has("embed")) {
    const bool stack = name.ends_with("experts.gate_up_proj") || name.ends_with("experts.down_proj");
    const auto fan = static_cast<double>(stack ? shape[1] : shape.back());
    scale = static_cast<float>(std::exp2(1 - std::ceil(std::log2(fan) / 2)));
  }
  std::vector<float> weights(count);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t x = i * 0x9E3779B97F4A7C15 + seed;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    x ^= x >> 31;
    weights[i] = (static_cast<float>(x >> 57) - 64) / 64 * scale + offset;
  }
  return weights;
}

/// The input of the head: the last norm of `hidden` [rows, H], in double.
inline std::vector<float> golden_last_norm(const DecoderGolden& golden, const std::vector<float>& hidden) {
  const Json& config = text_config(golden);
  const bool is_nested = &config != &golden.config;
  const bool is_nemotron = golden.config["model_type"] == "nemotron_h";
  std::vector<float> weight = golden_weights(is_nested     ? "model.language_model.norm.weight"
                                             : is_nemotron ? "backbone.norm_f.weight"
                                                           : "model.norm.weight",
                                             {config["hidden_size"].get<int64_t>()}, norms_add_one(golden));
  for (float& w : weight) w += norms_add_one(golden) ? 1.0f : 0.0f;
  const double epsilon = config[is_nemotron ? "layer_norm_epsilon" : "rms_norm_eps"].get<double>();
  std::vector<float> out(hidden.size());
  for (size_t row = 0; row < hidden.size(); row += weight.size()) {
    double sum = 0;
    for (size_t i = 0; i < weight.size(); ++i) sum += std::pow(static_cast<double>(hidden[row + i]), 2);
    const double size = std::sqrt(sum / static_cast<double>(weight.size()) + epsilon);
    for (size_t i = 0; i < weight.size(); ++i)
      out[row + i] =
          static_cast<float>(static_cast<double>(hidden[row + i]) / size * static_cast<double>(weight[i]));
  }
  return out;
}

/// The table of experts that tests/loaders/logits.py gives a layer, I64 [vocabulary, top_k].
inline TensorData golden_table(const std::string& name, int64_t vocabulary, int64_t top_k, int64_t experts) {
  TensorData t{name, DType::kI64, {vocabulary, top_k}, {}};
  for (int64_t i = 0; i < vocabulary * top_k; ++i) {
    const auto expert = static_cast<uint8_t>((5 * (i / top_k) + 3 * (i % top_k)) % experts);
    t.bytes.push_back(expert);
    t.bytes.insert(t.bytes.end(), 7, 0);
  }
  return t;
}

/// The model as a directory, in BF16, with another config or other tensors where these are given.
inline void write_decoder_checkpoint(const DecoderGolden& golden, const std::filesystem::path& directory,
                                     const std::string& config = {},
                                     const std::function<void(Tensors&)>& edit = nullptr) {
  Tensors tensors;
  for (const auto& [name, shape] : golden.tensors.items()) {
    if (name.ends_with("tid2eid")) {
      const int64_t experts = golden.config["n_routed_experts"].get<int64_t>();
      tensors.push_back(golden_table(name, shape[0].get<int64_t>(), shape[1].get<int64_t>(), experts));
      continue;
    }
    TensorData t{name, DType::kBF16, {}, {}};
    for (const Json& n : shape) t.shape.push_back(n.get<int64_t>());
    for (const float w : golden_weights(name, t.shape, norms_add_one(golden))) {
      const uint32_t bits = std::bit_cast<uint32_t>(w);  // BF16 has each of them
      t.bytes.push_back(static_cast<uint8_t>(bits >> 16));
      t.bytes.push_back(static_cast<uint8_t>(bits >> 24));
    }
    tensors.push_back(std::move(t));
  }
  if (edit) edit(tensors);
  write_checkpoint(directory, {tensors}, config.empty() ? golden.config.dump() : config);
}

/// The folder of golden files: that of the tests, or one that tests/loaders/logits.py --large has made.
inline std::filesystem::path golden_folder() {
  const char* other = std::getenv("TWOFOUR_LOGITS");
  return other != nullptr ? std::filesystem::path(other)
                          : std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder";
}

/// The logits of all tokens: a prefill, and tokens one by one.
inline std::vector<float> run_golden(const Decoder& decoder, const DecoderGolden& golden) {
  DecoderSequence sequence(decoder);
  const std::span<const int32_t> tokens(golden.tokens);
  std::vector<float> logits = sequence.append(tokens.first(golden.prefill), true);
  for (size_t i = golden.prefill; i < tokens.size(); ++i) {
    const std::vector<float> next = sequence.append(tokens.subspan(i, 1));
    logits.insert(logits.end(), next.begin(), next.end());
  }
  return logits;
}

/// The largest error at a position over the largest logit there.
inline double relative_error(std::span<const float> found, std::span<const float> expected) {
  double error = 0, largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error = std::max(error, std::abs(static_cast<double>(found[i]) - static_cast<double>(expected[i])));
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  return std::isfinite(error) ? error / largest : INFINITY;
}

/// The last positions of those that have expected logits.
inline double worst_error(const DecoderGolden& golden, const std::vector<float>& logits) {
  const auto vocabulary = static_cast<size_t>(golden.vocabulary);
  const std::span<const float> last = std::span(logits).last(golden.logits.size());
  double worst = 0;
  for (size_t i = 0; i < golden.logits.size(); i += vocabulary) {
    worst = std::max(
        worst, relative_error(last.subspan(i, vocabulary), std::span(golden.logits).subspan(i, vocabulary)));
  }
  return worst;
}

}  // namespace twofour
