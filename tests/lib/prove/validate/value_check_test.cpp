#include "lib/prove/validate/checks.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "formats/half.h"
#include "lib/prove/validate/check_layers.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/weights/stored_weights.h"

namespace value_check_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kBlock = "model.layers.0.mlp.experts";

fs::path golden(const std::string& name) { return fs::path(TWOFOUR_GOLDEN_DIR) / name / "src"; }

TensorData f32(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values) {
  TensorData t{name, DType::kF32, std::move(shape), std::vector<uint8_t>(values.size() * 4)};
  std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  return t;
}

std::vector<float> random_floats(int64_t count, unsigned seed) {
  const StoredTensor stored = random_scales(DType::kF32, {count}, seed);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(i % 3 ? stored.number(i) : -stored.number(i)));
  return values;
}

struct Compared {
  std::vector<ValueReport> values;
  std::vector<LayerReport> layers;
  Findings findings;
};

/// Compares every module of two checkpoints and runs their blocks on three tokens.
Compared compare(const Tensors& source, const Tensors& other, double tolerance = 0, int threads = 1) {
  const Scratch a, b;
  const std::string config = R"({"hidden_size": 64, "num_experts_per_tok": 2})";
  const Checkpoint x = open_checkpoint(a, source, config), y = open_checkpoint(b, other, config);
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  Compared out;
  Progress progress;
  const Matrices mx(x, out.findings), my(y, out.findings);
  const auto all = [](const Linear&) { return true; };
  out.values = compare_values(mx, my, all, tolerance, progress, out.findings);
  LayerCoverage coverage;
  run_stored_layers(mx, my, all, {.tokens = 3}, out.findings, out.layers, coverage);
  CHECK(coverage.found == out.layers.size() + coverage.not_run.size());
  omp_set_num_threads(before);
  CHECK(progress.done == progress.total);
  return out;
}

/// gpt-oss: gate and up in turn, [E, 2I, H], and down, [E, H, I], in MXFP4.
struct GptOss {
  int64_t e = 3, i = 32, h = 64;
  StoredTensor up{DType::kU8, {e, 2 * i, h / 32, 16}, 1}, down{DType::kU8, {e, h, i / 32, 16}, 2};
  StoredTensor up_scale{DType::kU8, {e, 2 * i, h / 32}, 3, 8}, down_scale{DType::kU8, {e, h, i / 32}, 4, 8};

  GptOss() {
    for (StoredTensor* s : {&up_scale, &down_scale}) {
      for (uint8_t& byte : s->bytes) byte = static_cast<uint8_t>(byte + 120);
    }
  }
  Tensors tensors() const {
    Tensors to;
    up.add_to(to, kBlock + ".gate_up_proj_blocks");
    up_scale.add_to(to, kBlock + ".gate_up_proj_scales");
    down.add_to(to, kBlock + ".down_proj_blocks");
    down_scale.add_to(to, kBlock + ".down_proj_scales");
    add_bf16(to, kBlock + ".gate_up_proj_bias", {e, 2 * i});
    return to;
  }
  /// The same weights as BF16 matrices of experts of their own, with halves told apart by hand.
  Tensors singles() const {
    Tensors to;
    for (int64_t x = 0; x < e; ++x) {
      for (const std::string name : {"gate_proj", "up_proj", "down_proj"}) {
        const bool is_down = name == "down_proj";
        const int64_t n = is_down ? h : i, k = is_down ? i : h;
        TensorData t{fmt::format("{}.{}.{}.weight", kBlock, x, name), DType::kBF16, {n, k}, {}};
        for (int64_t at = 0; at < n * k; ++at) {
          const int64_t row = is_down ? x * h + at / k : x * 2 * i + 2 * (at / k) + (name == "up_proj");
          const int64_t from = row * k + at % k;
          const double weight = is_down ? kSlowE2m1.value(down.code(from)) * down_scale.number(from / 32)
                                        : kSlowE2m1.value(up.code(from)) * up_scale.number(from / 32);
          const uint16_t bits = bf16_from_float(static_cast<float>(weight));
          t.bytes.push_back(static_cast<uint8_t>(bits));
          t.bytes.push_back(static_cast<uint8_t>(bits >> 8));
        }
        to.push_back(t);
      }
    }
    return to;
  }
};

}  // namespace

TEST_CASE("interleaved stacks in MXFP4 equal the same weights of single experts in BF16") {
  const GptOss model;
  for (const bool forth : {true, false}) {
    const Compared c =
        forth ? compare(model.tensors(), model.singles()) : compare(model.singles(), model.tensors());
    // gpt-oss's bias makes its layer none that the reference computes.
    CHECK_MESSAGE(c.findings.size() == (forth ? 1 : 0), text_of(c.findings));
    CHECK(findings_of(c.findings, "layer-not-run").size() == (forth ? 1 : 0));
    REQUIRE(c.values.size() == (forth ? 2 : 9));
    uint64_t weights = 0;
    for (const ValueReport& v : c.values) {
      CHECK(v.error.different == 0);
      CHECK(v.error.cosine() == 1);
      CHECK(std::isinf(v.error.snr_db()));
      weights += v.error.weights;
    }
    CHECK(weights == 3 * 3 * 32 * 64);
    REQUIRE(c.layers.size() == (forth ? 0 : 1));
    if (forth) continue;
    CHECK(c.layers[0].block == kBlock);
    CHECK(!c.layers[0].reference);
    CHECK(c.layers[0].relative_error == 0);
    CHECK(c.layers[0].experts_used == 3);
  }
}

TEST_CASE("one changed weight is found, in the coordinates of the source") {
  const GptOss model;
  Tensors other = model.singles();
  Tensors::value_type& up = other[3 + 1];  // of expert 1
  REQUIRE(up.name == kBlock + ".1.up_proj.weight");
  const uint16_t bits = bf16_from_float(1000.0f);
  std::memcpy(up.bytes.data() + 2 * (5 * 64 + 17), &bits, sizeof(bits));
  const Compared c = compare(model.tensors(), other);
  const ValueReport& v = c.values[1];
  CHECK(v.module == kBlock + ".gate_up_proj");
  CHECK(v.error.different == 1);
  CHECK(v.error.beyond == 1);
  CHECK((v.error.first.e == 1 && v.error.first.n == 11 && v.error.first.k == 17));  // row 5 of up
  CHECK(v.error.first.found == 1000.0f);
  CHECK(v.error.max_abs == std::abs(1000.0 - double{v.error.first.expected}));
  CHECK(v.error.error == v.error.max_abs * v.error.max_abs);
  CHECK(c.values[0].error.different == 0);
  CHECK(c.layers.empty());
  const Compared singles = compare(model.singles(), other);
  REQUIRE(singles.layers.size() == 1);
  CHECK(singles.layers[0].relative_error > 0.01);
}

TEST_CASE("figures are those of plain sums, and the same for any number of threads") {
  const int64_t n = 700, k = 1801;  // several row blocks, the last one short, and K no multiple of the lanes
  const std::vector<float> a = random_floats(n * k, 1);
  std::vector<float> b = a;
  for (size_t i = 0; i < b.size(); i += 3) b[i] *= 1 + static_cast<float>(i % 7) / 64;
  const Tensors source{f32("m.weight", {n, k}, a)}, other{f32("m.weight", {n, k}, b)};
  const double tolerance = 5.5 / 64;
  const Compared one = compare(source, other, tolerance, 1), many = compare(source, other, tolerance, 4);
  REQUIRE(one.values.size() == 1);
  const ValueError &e = one.values[0].error, &f = many.values[0].error;
  CHECK(e.energy == f.energy);
  CHECK(e.other_energy == f.other_energy);
  CHECK(e.product == f.product);
  CHECK(e.error == f.error);

  long double aa = 0, bb = 0, ab = 0, dd = 0;
  double largest = 0;
  uint64_t different = 0, beyond = 0;
  int64_t first = -1;
  for (size_t i = 0; i < a.size(); ++i) {
    const long double x = a[i], y = b[i];
    aa += x * x;
    bb += y * y;
    ab += x * y;
    dd += (x - y) * (x - y);
    largest = std::max(largest, std::abs(double{a[i]} - double{b[i]}));
    different += a[i] != b[i];
    const bool far = std::abs(double{b[i]} - double{a[i]}) > tolerance * std::abs(double{a[i]});
    if (far && first < 0) first = static_cast<int64_t>(i);
    beyond += far;
  }
  CHECK(e.weights == a.size());
  CHECK(e.different == different);
  CHECK(different > 100);
  CHECK(e.beyond == beyond);
  CHECK((e.first.n == first / k && e.first.k == first % k));
  CHECK(e.max_abs == largest);
  // Sums of some 1e6 doubles: each addition is off by 1e-16 at most.
  CHECK(e.relative_error() == doctest::Approx(static_cast<double>(std::sqrt(dd / aa))).epsilon(1e-10));
  CHECK(e.cosine() == doctest::Approx(static_cast<double>(ab / std::sqrt(aa * bb))).epsilon(1e-10));
  CHECK(e.snr_db() == doctest::Approx(static_cast<double>(10 * std::log10(aa / dd))).epsilon(1e-10));
}

TEST_CASE("0 is -0 and NaN is NaN, but a number is not NaN") {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinite = std::numeric_limits<float>::infinity();
  const auto error = [](const std::vector<float>& a, const std::vector<float>& b) {
    ValueError e;
    e.add_row(a, b, 0, 4, 0.5);
    return e;
  };
  CHECK(error({0.0f, nan, infinite}, {-0.0f, nan, infinite}).different == 0);
  for (const float bad : {nan, infinite}) {
    const ValueError e = error({1.0f, 2.0f}, {1.0f, bad});
    CHECK(e.different == 1);
    CHECK(e.beyond == 1);
    CHECK(!(e.relative_error() < 1e30));
    CHECK((e.first.n == 4 && e.first.k == 1));
    // Wherever it stands, no larger number behind it takes its place.
    for (size_t at = 0; at < 40; ++at) {
      std::vector<float> b(40, 5.0f);
      b[at] = bad;
      ValueError both = error(std::vector<float>(40, 1.0f), b);
      both += error({1.0f}, {100.0f});
      CHECK(!std::isfinite(both.max_abs));
    }
  }
  CHECK(error({0x1p-149f}, {0x1p-140f}).beyond == 0);  // subnormal: held against 2^-126
  CHECK(error({0.0f}, {0x1p-120f}).beyond == 1);
  CHECK(error({0.0f}, {1.0f}).relative_error() == std::numeric_limits<double>::infinity());
  CHECK(error({0.0f}, {0.0f}).relative_error() == 0);

  // Infinite ones that are equal hide no difference beside them.
  const ValueError beside = error({infinite, 1.0f, 2.0f}, {infinite, 100.0f, -200.0f});
  CHECK(beside.max_abs == 202);
  for (const double figure : {beside.snr_db(), beside.cosine(), beside.relative_error()})
    CHECK(std::isnan(figure));
  const ValueError same = error({infinite, 1.0f}, {infinite, 1.0f});
  CHECK(same.snr_db() == std::numeric_limits<double>::infinity());
  CHECK(same.cosine() == 1);
}

TEST_CASE("matrices that the other side lacks, has in another shape or cannot be read are findings") {
  Tensors source, other;
  for (const char* name : {"a", "b", "c"}) add_bf16(source, name + std::string(".weight"), {4, 6});
  add_bf16(other, "a.weight", {4, 6});
  add_bf16(other, "b.weight", {6, 4});
  StoredTensor bad(DType::kF8E4M3, {4, 6}, 1);
  bad.bytes[3] = 0x7F;
  bad.add_to(other, "d.weight");
  random_scales(DType::kF32, {}, 1).add_to(other, "d.weight_scale");
  add_bf16(source, "d.weight", {4, 6});
  const Compared c = compare(source, other);
  REQUIRE(c.findings.size() == 3);
  CHECK(c.findings[0].where == "b");
  CHECK(c.findings[0].message.starts_with("expected [4, 6] in "));
  CHECK(c.findings[0].message.ends_with(", found [6, 4]"));
  CHECK(c.findings[1].where == "c");
  CHECK(c.findings[1].message.ends_with(", found none"));
  CHECK(c.findings[2].severity == Severity::kError);
  CHECK(c.findings[2].message ==
        "model.safetensors: d.weight: expected weights that are numbers, found NaN (0x7F) at n 0, k 3");
}

TEST_CASE("a pruned checkpoint's layers give what those of v7 give") {
  const Scratch scratch;
  const fs::path source = golden("modelopt-qwen3");
  OneRule prune;
  prune.to = "prune";
  prune.pattern = "2:4";
  convert(source, scratch / "pruned", prune);
  convert(source, scratch / "v7");
  const ValidateReport ours = validate_from(source, scratch / "pruned"),
                       v7 = validate_from(source, scratch / "v7");
  REQUIRE(ours.layers.size() == 1);
  CHECK(ours.values.empty());
  CHECK(!ours.layers[0].reference);
  CHECK(ours.layers[0].block == v7.layers[0].block);
  // float32 weights here, doubles there: half of a last bit, 2^-24, each.
  CHECK(ours.layers[0].cosine == doctest::Approx(v7.layers[0].cosine).epsilon(1e-7));
  CHECK(ours.layers[0].relative_error == doctest::Approx(v7.layers[0].relative_error).epsilon(1e-7));
  CHECK(ours.layers[0].relative_error > 0.3);
}

TEST_CASE("another dialect keeps values up to a reciprocal's last bit, BF16 up to its rounding") {
  for (const char* name : {"modelopt-qwen3", "compressed-tensors-qwen3", "modelopt-mixtral-uneven"}) {
    for (const std::string layout : {"nvfp4", "bf16"}) {
      CAPTURE(name);
      CAPTURE(layout);
      const Scratch scratch;
      OneRule recipe;
      recipe.to = layout;
      convert(golden(name), scratch / "out", recipe);
      const ValidateReport report = validate_from(golden(name), scratch / "out");
      CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
      CHECK(findings_of(report.notes, "not-compared").empty());
      const Checkpoint source = Checkpoint::open(golden(name));
      CHECK(report.values.size() == source.nvfp4_modules().size());
      for (const ValueReport& v : report.values) {
        CHECK(v.error.relative_error() <= (layout == "nvfp4" ? 0x1p-22 : 0x1p-8));
        CHECK((layout == "nvfp4" || v.error.different > 0));
      }
      CHECK(!report.layers.empty());
      for (const LayerReport& l : report.layers) {
        CHECK(l.relative_error < (layout == "nvfp4" ? 1e-6 : 0.01));
        CHECK((layout == "nvfp4" || l.relative_error > 0));
      }
    }
  }
}

TEST_CASE("a wrong weight shows in values and layers, a NaN scale as what cannot be read") {
  const Scratch scratch;
  OneRule recipe;
  recipe.to = "bf16";
  convert(golden("modelopt-qwen3"), scratch / "out", recipe);
  const auto flip = [&](const fs::path& out, const std::string& tensor, uint64_t offset, int bit) {
    const Checkpoint c = Checkpoint::open(out);
    const size_t i = *c.find(tensor);
    flip_bit(c.shard_of(i).file.path(), c.shard_of(i).data_begin + c.tensors()[i].begin + offset, bit);
  };
  const std::string module = kBlock + ".2.down_proj";
  flip(scratch / "out", module + ".weight", 2 * (7 * 48 + 5) + 1, 6);  // an exponent's high bit
  const ValidateReport wrong = validate_from(golden("modelopt-qwen3"), scratch / "out", 4);
  const auto values = findings_of(wrong.differences, "values");
  REQUIRE(values.size() == 1);
  CHECK(values[0].where == module);
  CHECK(values[0].message.find(
            "1 of 4608 weights differ from the source's by more than 0.0039 (relative), the first at "
            "expert 0, n 7, k 5: ") == 0);
  CHECK(!(wrong.layers.at(0).relative_error < 1));

  recipe.to = "nvfp4";
  convert(golden("modelopt-qwen3"), scratch / "ct", recipe);
  const Checkpoint c = Checkpoint::open(scratch / "ct");
  std::vector<uint8_t> byte(1);
  c.read(*c.find(module + ".weight_scale"), 9, byte);
  for (int bit = 0; bit < 7; ++bit) {
    if (!(byte[0] >> bit & 1)) flip(scratch / "ct", module + ".weight_scale", 9, bit);
  }
  const ValidateReport nan = validate_from(golden("modelopt-qwen3"), scratch / "ct", 4);
  REQUIRE(findings_of(nan.differences, "values").size() == 1);
  CHECK(findings_of(nan.differences, "values")[0].message.ends_with("found byte 0x7F at n 3, k 0"));
  CHECK(findings_of(nan.differences, "layer-output").size() == 1);
  CHECK(nan.layers.empty());
}

}  // namespace value_check_test
