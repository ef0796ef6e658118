#include <doctest/doctest.h>
#include <fmt/format.h>
#include <xtensor/xadapt.hpp>
#include <xtensor/xbuilder.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xrepeat.hpp>

#include <algorithm>
#include <cmath>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/layouts/layouts.h"
#include "kernels/moe/moe.h"
#include "lib/base/io/file.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace golden_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// A golden checkpoint, the block that its files speak of and the names of one expert's matrices.
struct Golden {
  const char *name, *block, *gate, *up, *down;
  bool divides;  ///< compressed-tensors
  fs::path source() const { return fs::path(TWOFOUR_GOLDEN_DIR) / name / "src"; }
  fs::path expected(const char* file) const { return fs::path(TWOFOUR_GOLDEN_DIR) / name / "expect" / file; }
};

constexpr Golden kGoldens[] = {
    {"modelopt-qwen3", "model.layers.0.mlp.experts", "gate_proj", "up_proj", "down_proj", false},
    {"compressed-tensors-qwen3", "model.layers.0.mlp.experts", "gate_proj", "up_proj", "down_proj", true},
    {"modelopt-mixtral-uneven", "model.layers.0.block_sparse_moe.experts", "w1", "w3", "w2", false},
};

/// Weights [E, N, K], decoded from stored bytes by the formats' description alone.
struct Weights {
  int64_t e, n, k;
  std::vector<double> exact;   ///< products in double
  std::vector<float> rounded;  ///< rounded to float32 once
  int64_t loaded = 0;
  WeightRows rows() {
    return {e, n, k, [this](int64_t expert) { loaded = expert; },
            [this](int64_t row, std::span<double> out) {
              std::copy_n(exact.begin() + (loaded * n + row) * k, k, out.begin());
            }};
  }
  void add(unsigned code, unsigned scale, float global) {
    const float scaled = e2m1_to_float(code) * e4m3_to_float(scale);  // exact
    exact.push_back(static_cast<double>(scaled) * static_cast<double>(global));
    rounded.push_back(scaled * global);
  }
};

/// The rows of some modules, one after the other, of every expert; block scales as folded to the largest
/// global scale, which leaves equal ones alone. The golden "dense" weights are folded too.
Weights decode_source(const Golden& golden, const ReadTensors& tensors,
                      const std::vector<const char*>& modules) {
  Weights w{0, 0, 0, {}, {}};
  const auto tensor = [&](const char* module, const char* suffix) -> const ReadTensor& {
    return tensors.at(fmt::format("{}.{}.{}{}", golden.block, w.e, module, suffix));
  };
  const char* codes_suffix = golden.divides ? ".weight_packed" : ".weight";
  const auto multiplier = [&](const char* module) {
    return golden.divides ? 1.0f / tensor(module, ".weight_global_scale").as<float>()[0]
                          : tensor(module, ".weight_scale_2").as<float>()[0];
  };
  for (; tensors.count(fmt::format("{}.{}.{}{}", golden.block, w.e, modules[0], codes_suffix)); ++w.e) {
    float largest = 0;
    for (const char* module : modules) largest = std::max(largest, multiplier(module));
    w.n = 0;
    for (const char* module : modules) {
      const ReadTensor& codes = tensor(module, codes_suffix);
      const auto& scales = tensor(module, ".weight_scale").bytes;
      const float factor = multiplier(module) / largest;
      w.n += codes.shape[0];
      w.k = 2 * codes.shape[1];
      for (size_t i = 0; i < 2 * codes.bytes.size(); ++i) {
        w.add(codes.bytes[i / 2] >> i % 2 * 4 & 15u, e4m3_from_float(e4m3_to_float(scales[i / 16]) * factor),
              largest);
      }
    }
  }
  return w;
}

/// The dense weights that v7 tensors stand for; dropped ones are zero.
Weights decode_v7(const ReadTensors& tensors, const std::string& name) {
  const auto part = [&](const char* suffix, size_t per) -> xt::xtensor<unsigned, 3> {
    const ReadTensor& t = tensors.at(name + suffix);  // [E, K/per, N]
    const auto stored = xt::adapt(t.bytes.data(), {t.shape[0], t.shape[1], t.shape[2]});
    return xt::repeat(xt::xtensor<unsigned, 3>(xt::transpose(stored, {0, 2, 1})), per, 2);
  };
  const auto kept = part("_comp", 4), meta = part("_meta", 8), scale = part("_scale", 16);
  const auto globals = tensors.at(name + "_global_scale").as<float>();
  const auto k = xt::arange<unsigned>(static_cast<unsigned>(kept.shape(2)));
  const auto place = (meta >> (k / 4u % 2u * 4u)) & 15u;
  const xt::xtensor<unsigned, 3> codes = xt::where(xt::equal(k % 4u, place & 3u), kept & 15u,
                                                   xt::where(xt::equal(k % 4u, place >> 2u), kept >> 4u, 0u));
  const auto size = [&](size_t d) { return static_cast<int64_t>(codes.shape(d)); };
  Weights w{size(0), size(1), size(2), {}, {}};
  for (size_t i = 0; i < codes.size(); ++i)
    w.add(codes.flat(i), scale.flat(i), globals[i / (codes.size() / codes.shape(0))]);
  return w;
}

/// The largest difference, as a share of the largest value.
double relative_difference(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  const auto want = xt::adapt(expected.data(), {expected.size()});
  const double largest = xt::amax(xt::abs(want))();
  REQUIRE(largest > 0);
  return xt::amax(xt::abs(xt::adapt(found.data(), {found.size()}) - want))() / largest;
}

}  // namespace

TEST_CASE("every layout of the golden checkpoints is what another implementation made, byte for byte") {
  for (const Golden& golden : kGoldens) {
    for_each_layout([&]<class L>() {
      CAPTURE(std::string(golden.name));
      CAPTURE(std::string(L::name));
      std::string file = std::string(L::name) + ".safetensors";
      std::replace(file.begin(), file.end(), '-', '_');
      const Scratch scratch;
      OneRule recipe;
      recipe.to = L::name;
      convert(golden.source(), scratch / "out", recipe);
      const ReadTensors ours = read_tensors(scratch / "out");
      const ReadTensors expected = read_tensors(golden.expected(file.c_str()));
      CHECK(expected.size() == 2 * L::part_count + 2);
      for (const auto& [name, tensor] : expected) {
        CAPTURE(name);
        REQUIRE(ours.count(name));
        CHECK(dtype_name(ours.at(name).dtype) == dtype_name(tensor.dtype));
        CHECK(ours.at(name).shape == tensor.shape);
        CHECK((ours.at(name).bytes == tensor.bytes));
      }
      const ValidateReport report = validate_from(golden.source(), scratch / "out");
      CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
      REQUIRE(report.layers.size() == 1);
      CHECK(report.layers[0].exact);
    });
  }
}

TEST_CASE("everything of the golden checkpoints that is no expert passes through unchanged") {
  for (const Golden& golden : kGoldens) {
    CAPTURE(std::string(golden.name));
    const Scratch scratch;
    convert(golden.source(), scratch / "out");
    const ReadTensors ours = read_tensors(scratch / "out"), source = read_tensors(golden.source());
    const auto is_weight = [&](const std::string& name) {
      const bool input = name.ends_with(".input_scale") || name.ends_with(".input_global_scale");
      return name.starts_with(std::string(golden.block) + ".") && !input;
    };
    size_t passed = 0;
    for (const auto& [name, tensor] : source) {
      CAPTURE(name);
      CHECK(ours.count(name) == !is_weight(name));
      if (is_weight(name)) continue;
      CHECK((ours.at(name) == tensor));
      ++passed;
    }
    CHECK(passed > 10);
    CHECK(ours.size() == passed + 8);
  }
}

TEST_CASE("a golden layer gives the output that another implementation computed in double") {
  // Both sides sum exact products of the same numbers in double but in another order: at most a few hundred
  // terms, so some hundred times 2^-53 of the largest partial sum.
  constexpr double kTolerance = 1e-12;
  for (const Golden& golden : kGoldens) {
    CAPTURE(std::string(golden.name));
    const Scratch scratch;
    convert(golden.source(), scratch / "out");
    const ReadTensors moe = read_tensors(golden.expected("moe.safetensors"));
    const auto tensor = [&](const char* name) -> const ReadTensor& {
      return moe.at(fmt::format("{}.{}", golden.block, name));
    };
    const auto hidden = tensor("hidden").as<float>(), weights = tensor("topk_weights").as<float>();
    const auto ids = tensor("topk_ids").as<int32_t>();
    const MoeInput input{.m = tensor("hidden").shape[0],
                         .h = tensor("hidden").shape[1],
                         .topk = tensor("topk_ids").shape[1],
                         .hidden = hidden,
                         .topk_ids = ids,
                         .topk_weights = weights};

    const ReadTensors source = read_tensors(golden.source());
    Weights w13 = decode_source(golden, source, {golden.gate, golden.up});
    Weights w2 = decode_source(golden, source, {golden.down});
    CHECK(relative_difference(moe_reference(input, w13.rows(), w2.rows()), tensor("out_dense").as<double>()) <
          kTolerance);

    const ReadTensors ours = read_tensors(scratch / "out");
    w13 = decode_v7(ours, std::string(golden.block) + ".w13");
    w2 = decode_v7(ours, std::string(golden.block) + ".w2");
    CHECK(relative_difference(moe_reference(input, w13.rows(), w2.rows()),
                              tensor("out_pruned").as<double>()) < kTolerance);
  }
}

TEST_CASE("weights, rounded to float32 once, are those of another implementation exactly") {
  const Golden& golden = kGoldens[0];
  const Scratch scratch;
  convert(golden.source(), scratch / "out");
  const ReadTensors dense = read_tensors(golden.expected("dense.safetensors"));
  const ReadTensors source = read_tensors(golden.source()), ours = read_tensors(scratch / "out");
  const std::string block = golden.block;
  CHECK((decode_source(golden, source, {golden.gate, golden.up}).rounded ==
         dense.at(block + ".w13.dense").as<float>()));
  CHECK((decode_source(golden, source, {golden.down}).rounded == dense.at(block + ".w2.dense").as<float>()));
  CHECK((decode_v7(ours, block + ".w13").rounded == dense.at(block + ".w13.pruned").as<float>()));
  CHECK((decode_v7(ours, block + ".w2").rounded == dense.at(block + ".w2.pruned").as<float>()));
}

TEST_CASE("golden artifacts are proven from their sources") {
  for (const Golden& golden : kGoldens) {
    CAPTURE(std::string(golden.name));
    const Scratch scratch;
    convert(golden.source(), scratch / "out");
    const ValidateReport report = validate_from(golden.source(), scratch / "out");
    CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
    CHECK(report.source_tensors == read_tensors(golden.source()).size());
    REQUIRE(report.layers.size() == 1);
    CHECK(report.layers[0].exact);
    CHECK(report.layers[0].cosine > 0.8);
  }
}

}  // namespace golden_test
