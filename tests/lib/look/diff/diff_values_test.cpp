// Differences of numbers: which values are equal, how far others lie apart, and what a tolerance lets pass.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "lib/look/diff/gate.h"
#include "tests/support/diff_of.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/stored_weights.h"

namespace diff_values_test {

using namespace twofour;

TEST_CASE("0 equals -0, not byte for byte") {
  Nvfp4Matrix m = random_matrix(16, 32, 1);
  m.codes[5] = 0x80;
  Tensors a, b;
  add_modelopt(a, "x.down_proj", m);
  m.codes[5] = 0x08;
  add_modelopt(b, "x.down_proj", m);
  a.push_back(f32("norm", {2}, {0.0f, -0.0f}));
  b.push_back(f32("norm", {2}, {-0.0f, -0.0f}));
  const DiffResult r = diff_of(a, b);
  CHECK(r.count(DiffClass::kEqual) == 2);
  CHECK(r.same_bytes == 0);
}

TEST_CASE("NaN equals NaN and nothing else; scales that are NaN cannot be read") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto floats = [&](std::vector<float> v) { return Tensors{f32("norm", {3}, std::move(v))}; };
  CHECK(only_entry(diff_of(floats({1, nan, 2}), floats({1, -nan, 2}))).cls == DiffClass::kEqual);
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(only_entry(diff_of(floats({0, infinity, 2}), floats({-0.0f, infinity, 2}))).cls == DiffClass::kEqual);
  const DiffEntry e = only_entry(diff_of(floats({1, 7, 2}), floats({1, nan, 2})));
  CHECK(e.cls == DiffClass::kDifferent);
  CHECK(e.error.beyond == 1);
  CHECK(e.error.first.k == 1);

  Nvfp4Matrix m = random_matrix(16, 32, 4);
  Tensors a, b;
  add_modelopt(a, "x.up_proj", m);
  m.scales[9] = 0x7F;
  add_modelopt(b, "x.up_proj", m);
  const DiffResult r = diff_of(a, b);
  CHECK(only_entry(r).cls == DiffClass::kUnreadable);
  CHECK(only_entry(r).message.find("found byte 0x7F at n 4, k 16") != std::string::npos);
  CHECK(default_diff_gate().count(r) == 1);
}

TEST_CASE("what has no float values is counted element by element, places in any rank") {
  std::vector<uint8_t> bytes(2 * 3 * 5 * 8);
  Tensors a{{"t", DType::kI64, {2, 3, 5}, bytes}};
  bytes[(1 * 15 + 2 * 5 + 3) * 8 + 7] = 0x80;
  bytes[(1 * 15 + 2 * 5 + 4) * 8] = 9;
  Tensors b{{"t", DType::kI64, {2, 3, 5}, bytes}};
  const DiffEntry e = only_entry(diff_of(a, b));
  CHECK(e.cls == DiffClass::kDifferent);
  CHECK((e.error.beyond == 2 && e.error.weights == 30));
  CHECK((e.error.first.e == 1 && e.error.first.n == 2 && e.error.first.k == 3));
  REQUIRE(e.first);
  CHECK(*e.first == std::array<ElementValue, 2>{int64_t{0}, std::numeric_limits<int64_t>::min()});
}

TEST_CASE("integers beyond 2^53 are compared exactly, whatever the tolerance") {
  const auto stored = [](DType dtype, auto... values) {
    TensorData t{"t", dtype, {sizeof...(values)}, {}};
    const auto append = [&](auto v) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(&v);
      t.bytes.insert(t.bytes.end(), bytes, bytes + sizeof(v));
    };
    (append(values), ...);
    return Tensors{t};
  };
  constexpr int64_t kBig = int64_t{1} << 62, kLeast = std::numeric_limits<int64_t>::min();
  const DiffOptions lenient{.tolerance = 0.5};
  {
    const DiffResult r = diff_of(stored(DType::kI64, int64_t{7}, kBig, kBig),
                                 stored(DType::kI64, int64_t{7}, kBig + 1, kBig), lenient);
    const DiffEntry& e = only_entry(r);
    CHECK(e.cls == DiffClass::kDifferent);
    CHECK((e.error.beyond == 1 && e.error.max_abs == 1 && e.error.first.k == 1));
    CHECK(*e.first == std::array<ElementValue, 2>{kBig, kBig + 1});
    CHECK(*r.rows[0].first == *e.first);
    CHECK(parse_diff_gate({"max-abs>0"}).count(r) == 1);
    CHECK(parse_diff_gate({"max-abs>1"}).count(r) == 0);
  }
  {
    const DiffEntry e = only_entry(diff_of(stored(DType::kI64, kLeast), stored(DType::kI64, -(kLeast + 1))));
    CHECK(e.error.max_abs == 0x1p64);  // 2^64 - 1, rounded once
    CHECK(e.error.energy == 0x1p126);
  }
  {
    constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
    const DiffEntry e = only_entry(diff_of(stored(DType::kU64, kMost), stored(DType::kU64, kMost - 1)));
    CHECK((e.error.max_abs == 1 && *e.first == std::array<ElementValue, 2>{kMost, kMost - 1}));
  }
  {
    const DiffEntry e =
        only_entry(diff_of(stored(DType::kI8, int8_t{-128}), stored(DType::kI8, int8_t{127})));
    CHECK((e.error.max_abs == 255 && *e.first == std::array<ElementValue, 2>{int64_t{-128}, int64_t{127}}));
  }
}

TEST_CASE("F64 is compared by value, in double") {
  const auto stored = [](std::vector<double> values) {
    std::vector<uint8_t> bytes(values.size() * sizeof(double));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return Tensors{{"t", DType::kF64, {static_cast<int64_t>(values.size())}, bytes}};
  };
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               infinity = std::numeric_limits<double>::infinity();
  const DiffResult same = diff_of(stored({0.0, nan, infinity}), stored({-0.0, -nan, infinity}));
  CHECK(only_entry(same).cls == DiffClass::kEqual);
  CHECK_FALSE(only_entry(same).same_bytes);
  const double next = std::nextafter(1.0, 2.0);  // the same float32
  const DiffEntry e = only_entry(diff_of(stored({3, 1.0}), stored({3, next})));
  CHECK(e.cls == DiffClass::kDifferent);
  CHECK((e.error.max_abs == 0x1p-52 && *e.first == std::array<ElementValue, 2>{1.0, next}));
  CHECK(only_entry(diff_of(stored({3, 1.0}), stored({3, next}), {.tolerance = 0x1p-52})).cls ==
        DiffClass::kWithin);
  const DiffResult lost = diff_of(stored({1, 2, 3}), stored({1, nan, 3.5}));
  CHECK((only_entry(lost).error.beyond == 2 && std::isnan(only_entry(lost).error.max_abs)));
  CHECK(parse_diff_gate({"max-abs>100"}).count(lost) == 1);
}

TEST_CASE("tensors without elements are equal, bytes that hold several elements are counted as bytes") {
  const Tensors a{{"f4", DType::kF4, {2, 4}, {1, 2, 3, 4}}, {"none", DType::kF32, {0, 3}, {}}};
  Tensors b = a;
  b[0].bytes[3] = 9;
  const DiffResult r = diff_of(a, b);
  CHECK(entry(r, "none").cls == DiffClass::kEqual);
  CHECK(entry(r, "f4").cls == DiffClass::kDifferent);
  CHECK((entry(r, "f4").error.beyond == 1 && entry(r, "f4").error.first.k == 3));
  CHECK(parse_diff_gate({"max-abs>1e30"}).count(r) == 1);  // nobody knows how far these lie apart

  // Gone, come, or of another shape or type, they are told as any other.
  Tensors c{b[0]}, d{b[0], {"none", DType::kF32, {3, 0}, {}}}, e{b[0], {"none", DType::kI32, {0, 3}, {}}};
  CHECK(entry(diff_of(b, c), "none").cls == DiffClass::kRemoved);
  CHECK(entry(diff_of(c, b), "none").cls == DiffClass::kAdded);
  CHECK(entry(diff_of(b, d), "none").cls == DiffClass::kShape);
  CHECK(entry(diff_of(b, e), "none").cls == DiffClass::kType);
}

TEST_CASE("a difference of exactly the tolerance passes, the next larger one does not") {
  const Tensors a{f32("norm", {2}, {4.0f, -1.0f})}, b{f32("norm", {2}, {4.5f, -1.0f})};
  CHECK(only_entry(diff_of(a, b, {.tolerance = 0.125})).cls == DiffClass::kWithin);
  CHECK(only_entry(diff_of(a, b, {.tolerance = std::nextafter(0.125, 0.0)})).cls == DiffClass::kDifferent);
  CHECK(only_entry(diff_of(b, a, {.tolerance = 0.111})).cls == DiffClass::kDifferent);
  CHECK(only_entry(diff_of(b, a, {.tolerance = 0.112})).cls == DiffClass::kWithin);
}

TEST_CASE("cosine, SNR and largest difference are those of the definition, over strips of any number") {
  constexpr int64_t kN = 37, kK = 65'536;  // more than two row blocks
  const FloatMatrix x = random_floats(kN, kK, 5), y = random_floats(kN, kK, 6);
  Tensors a, b;
  add_floats(a, "x.up_proj", x, DType::kF32);
  add_floats(b, "x.up_proj", y, DType::kF32);
  const DiffResult r = diff_of(a, b);
  double aa = 0, bb = 0, ab = 0, dd = 0, most = 0;
  for (size_t i = 0; i < x.values.size(); ++i) {
    const double p = x.values[i], q = y.values[i];
    aa += p * p, bb += q * q, ab += p * q, dd += (p - q) * (p - q), most = std::max(most, std::abs(p - q));
  }
  const ValueError& e = only_entry(r).error;
  CHECK(e.cosine() == doctest::Approx(ab / std::sqrt(aa * bb)).epsilon(1e-9));
  CHECK(e.snr_db() == doctest::Approx(10 * std::log10(aa / dd)).epsilon(1e-9));
  CHECK(e.max_abs == most);
}

}  // namespace diff_values_test
