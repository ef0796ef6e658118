#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "tests/support/checkpoint_builder.h"
#include "tests/support/faults/large_model.h"
#include "tests/support/scratch.h"

// Damage within matrices of MXFP6, and of NVFP4 with a scale for 32 weights.

namespace six_bits_test {

using namespace twofour;
using Edit = LargeModel::Edit;
using Edits = std::vector<std::pair<std::string, Edit>>;
using Span = std::span<uint8_t>;

namespace {

constexpr size_t kAt = 99 << 10, kPage = 48 << 10;
const std::string kUp = "model.layers.1.mlp.up_proj.weight_packed",
                  kScales = "model.layers.1.mlp.up_proj.weight_scale";

std::string lines(const Edits& edits) { return lines_of(LargeModel::get("mxfp6").lint_changed(edits)); }

void found(const std::string& rule, const Edits& edits) {
  const std::string all = lines(edits);
  CAPTURE(all);
  CHECK(all.starts_with(rule + ": model.layers.1.mlp.up_proj"));
}

Edit filled(size_t at, size_t count, std::function<uint8_t(size_t, std::mt19937&)> f) {
  return [=](Span b, size_t, std::mt19937& random) {
    for (size_t i = at; i < std::min(b.size(), at + count); ++i) b[i] = f(i, random);
  };
}
uint8_t noise(size_t, std::mt19937& random) { return static_cast<uint8_t>(random()); }
uint8_t text(size_t i, std::mt19937&) {
  constexpr std::string_view kText =
      "<html><body>429 Too many requests, please try again later</body></html>\n";
  return static_cast<uint8_t>(kText[i % kText.size()]);
}
/// The signs of four codes in each three bytes, cleared from byte `at` on.
Edit without_signs(size_t at) {
  return [=](Span b, size_t, std::mt19937&) {
    constexpr uint8_t kMagnitudes[] = {0xDF, 0xF7, 0x7D};  // bits 5, 11, 17 and 23 of 24
    for (size_t i = at; i < b.size(); ++i) b[i] &= kMagnitudes[i % 3];
  };
}

/// Codes of E2M1 [n, k / 2] of a scale for 32 weights, and these scales, of normal weights.
void add_of_32(Tensors& to, const std::string& module, int64_t n, int64_t k, std::mt19937_64& random,
               const std::function<void(std::vector<uint8_t>&)>& change) {
  constexpr float kNumbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  std::normal_distribution<float> normal;
  std::vector<uint8_t> codes(static_cast<size_t>(n * k / 2)), scales;
  std::vector<float> group(32);
  for (size_t g = 0; g < static_cast<size_t>(n * k) / 32; ++g) {
    float most = 0;
    for (float& x : group) most = std::max(most, std::fabs(x = normal(random)));
    scales.push_back(static_cast<uint8_t>(0x60 + std::lround(8 * std::log2(most))));
    for (size_t i = 0; i < group.size(); ++i) {
      const float size = std::fabs(group[i]) * 6 / most;
      size_t best = 0;
      for (size_t c = 1; c < 8; ++c)
        if (std::fabs(kNumbers[c] - size) < std::fabs(kNumbers[best] - size)) best = c;
      const size_t code = best | (group[i] < 0 ? 8 : 0);
      codes[g * 16 + i / 2] = static_cast<uint8_t>(codes[g * 16 + i / 2] | code << (4 * (i % 2)));
    }
  }
  if (change) change(codes);
  to.push_back({module + ".weight", DType::kU8, {n, k / 2}, std::move(codes)});
  to.push_back({module + ".weight_scale", DType::kF8E4M3, {n, k / 32}, std::move(scales)});
  const float global = 1e-4f;
  std::vector<uint8_t> bytes(sizeof(global));
  std::memcpy(bytes.data(), &global, sizeof(global));
  to.push_back({module + ".weight_scale_2", DType::kF32, {}, std::move(bytes)});
}

/// What lint says of the MLPs of a model whose second up_proj was changed.
std::string of_mlps(const std::function<void(std::vector<uint8_t>&)>& change) {
  std::mt19937_64 random(11);
  Tensors tensors;
  for (int layer = 0; layer < 2; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".mlp.";
    for (const char* name : {"gate_proj", "up_proj"})
      add_of_32(tensors, at + name, 2048, 1024, random,
                layer == 1 && std::string_view(name) == "up_proj" ? change : nullptr);
    add_of_32(tensors, at + "down_proj", 1024, 2048, random, nullptr);
  }
  const Scratch scratch;
  write_checkpoint(scratch / "c", {tensors},
                   R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4",
                       "group_size": 32}})");
  Progress progress;
  std::string all;
  for (const LintFinding& f : lint(scratch / "c", {}, progress).findings) {
    if (f.severity != Severity::kNote && f.name.find("mlp") != f.name.npos)
      all += std::string(lint_rules()[f.rule].id) + ": " + f.name + ": " + f.message + "\n";
  }
  return all;
}

}  // namespace

TEST_CASE("MXFP6: noise, text, zeros, a page that is there twice, lost signs") {
  CHECK(lines({}) == "");
  found("odd-region", {{kUp, filled(kAt, kPage, noise)}});
  found("odd-numbers", {{kUp, filled(0, 4 << 20, noise)}});
  found("odd-region", {{kUp, filled(kAt, kPage, text)}});
  found("odd-region", {{kUp, filled(kAt, kPage, [](size_t, std::mt19937&) { return uint8_t{0xFF}; })}});
  found("zero-regions", {{kUp, filled(kAt + 1000, kPage, [](size_t, std::mt19937&) { return uint8_t{0}; })}});
  found("zero-weights", {{kUp, filled(0, 4 << 20, [](size_t, std::mt19937&) { return uint8_t{0}; })}});
  found("odd-region",
        {{kUp, [](Span b, size_t, std::mt19937&) { std::memmove(&b[kAt + kPage], &b[kAt], kPage); }}});
  found("odd-region", {{kUp, without_signs(768 << 10)}});
  found("odd-numbers", {{kUp, without_signs(0)}});
  found("mxfp4-nan-scale", {{kScales, filled(100, 1, [](size_t, std::mt19937&) { return uint8_t{0xFF}; })}});
  found("suspicious-scale",
        {{kScales, [](Span b, size_t, std::mt19937&) { b[5000] = static_cast<uint8_t>(b[5000] + 20); }}});
}

TEST_CASE("MXFP6: pruned weights and neurons are sound") {
  const Edit pruned = [](Span b, size_t, std::mt19937& random) {
    for (size_t i = 0; i + 3 <= b.size(); i += 3) {
      uint32_t word = 0;
      std::memcpy(&word, &b[i], 3);
      for (int code = 0; code < 4; ++code)
        if (random() % 10 < 6) word &= ~(63u << (6 * code));
      std::memcpy(&b[i], &word, 3);
    }
  };
  CHECK(lines({{"model.layers.*_proj.weight_packed", pruned}}) == "");
  CHECK(lines({{kUp, pruned}}) == "");
  CHECK(lines({{kUp, [](Span b, size_t row, std::mt19937&) {
                  for (size_t r = 7; r < b.size() / row; r += 200) std::fill_n(&b[r * row], row, uint8_t{0});
                }}}) == "");
}

TEST_CASE("NVFP4 with a scale for 32 weights: noise, text, zeros, lost signs") {
  using Bytes = std::vector<uint8_t>;
  CHECK(of_mlps({}) == "");
  const auto is_found = [](const std::string& rule, const std::function<void(Bytes&)>& change) {
    const std::string all = of_mlps(change);
    CAPTURE(all);
    CHECK(all.starts_with(rule + ": model.layers.1.mlp.up_proj"));
  };
  std::mt19937 random(5);
  is_found("odd-region", [&](Bytes& b) {
    for (size_t i = kAt; i < kAt + kPage; ++i) b[i] = static_cast<uint8_t>(random());
  });
  is_found("odd-region", [&](Bytes& b) {
    for (size_t i = kAt; i < kAt + kPage; ++i) b[i] = text(i, random);
  });
  is_found("odd-region", [](Bytes& b) {
    for (size_t i = 0; i < b.size() / 2; ++i) b[i] &= 0x77;
  });
  is_found("zero-regions", [](Bytes& b) { std::fill_n(&b[kAt + 1000], kPage, uint8_t{0}); });
  is_found("odd-codes", [&](Bytes& b) {
    for (uint8_t& x : b) x = static_cast<uint8_t>(random());
  });
}

}  // namespace six_bits_test
