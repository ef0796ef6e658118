#include "kernels/floats/float_ops.h"

#include <doctest/doctest.h>
#include <xtensor/xadapt.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/device/isa.h"

namespace twofour {
namespace {

std::vector<float> draw(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& v : x) v = normal(random);
  return x;
}

/// The first columns of a matrix whose rows lie further apart, in double.
xt::xtensor<double, 2> columns_of(const std::vector<float>& x, int64_t rows, int64_t count) {
  const auto pitch = static_cast<int64_t>(x.size()) / rows;
  return xt::view(xt::adapt(x.data(), {rows, pitch}), xt::all(), xt::range(int64_t{0}, count));
}

TEST_CASE("products are those in double, on every instruction set and at any shape") {
  for (const int64_t m : {1, 3, 20, 65}) {
    for (const int64_t n : {1, 5, 48, 130}) {
      for (const int64_t k : {1, 7, 64, 1000}) {
        CAPTURE(m);
        CAPTURE(n);
        CAPTURE(k);
        // Rows lie further apart than they are long.
        const std::vector<float> a = draw(static_cast<size_t>(m * (k + 3)), 1),
                                 b = draw(static_cast<size_t>(n * (k + 1)), 2),
                                 c = draw(static_cast<size_t>(k * (n + 2)), 3);
        const auto x = columns_of(a, m, k), y = columns_of(b, n, k), z = columns_of(c, k, n);
        const auto outer = xt::view(x, xt::all(), xt::newaxis(), xt::all());  // [m, 1, k]
        const xt::xtensor<double, 2> want_rows = xt::sum(outer * y, {2}),
                                     want_columns = xt::sum(outer * xt::transpose(z), {2});
        for (const Isa isa : available_isas()) {
          CAPTURE(isa_name(isa));
          std::vector<float> rows(static_cast<size_t>(m * (n + 4)), -7.0f), columns = rows;
          const FloatOps& ops = float_ops(isa);
          ops.multiply_rows(m, n, k, {a.data(), k + 3}, {b.data(), k + 1}, rows.data(), n + 4);
          ops.multiply_columns(m, n, k, {a.data(), k + 3}, {c.data(), n + 2}, columns.data(), n + 4);
          for (const auto& [found, want] : {std::pair{&rows, &want_rows}, {&columns, &want_columns}}) {
            const auto whole = xt::adapt(found->data(), {m, n + 4});
            CHECK(xt::all(xt::equal(xt::view(whole, xt::all(), xt::range(n, n + 4)), -7.0f)));
            // k products of about 1, each sum rounded to 2^-24.
            CHECK(xt::all(xt::abs(columns_of(*found, m, n) - *want) <= 0x1p-22 * static_cast<double>(k)));
          }
        }
      }
    }
  }
}

TEST_CASE("results do not depend on where numbers lie") {
  constexpr int64_t kCount = 301;
  const std::vector<float> x = draw(kCount, 4), up = draw(kCount, 5);
  for (const Isa isa : available_isas()) {
    const FloatOps& ops = float_ops(isa);
    std::vector<float> first;
    for (size_t offset = 0; offset < 17; ++offset) {
      std::vector<float> soft(offset), gate(offset), ups(offset), product(offset + 3);
      soft.insert(soft.end(), x.begin(), x.end());
      gate.insert(gate.end(), x.begin(), x.end());
      ups.insert(ups.end(), up.begin(), up.end());
      ops.softmax(soft.data() + offset, kCount, 0.5f);
      ops.multiply_rows(1, 3, 100, {gate.data() + offset, 100}, {ups.data() + offset, 100},
                        product.data() + offset, 3);
      ops.gate_units(gate.data() + offset, ups.data() + offset, kCount, 1.0f, 0.0f);
      std::vector<float> all(soft.begin() + static_cast<int64_t>(offset), soft.end());
      all.insert(all.end(), gate.begin() + static_cast<int64_t>(offset), gate.end());
      all.insert(all.end(), product.begin() + static_cast<int64_t>(offset), product.end());
      if (offset == 0) first = all;
      CHECK(all == first);
    }
  }
}

TEST_CASE("softmax, its sink and the log of the sum are those in double") {
  for (const Isa isa : available_isas()) {
    const FloatOps& ops = float_ops(isa);
    for (const int64_t count : {1, 63, 64, 65, 1000}) {
      std::vector<float> x = draw(static_cast<size_t>(count), 6);
      x[0] = 30;  // far above the others
      const xt::xtensor<double, 1> exponentials = xt::exp(xt::cast<double>(xt::adapt(x.data(), {count})));
      const double sum = xt::sum(exponentials)();
      CHECK(ops.log_sum_exp(x.data(), count) == doctest::Approx(std::log(sum)).epsilon(1e-7));
      for (const float sink : {-std::numeric_limits<float>::infinity(), 31.0f}) {
        std::vector<float> soft = x;
        ops.softmax(soft.data(), count, sink);
        const double total = sum + std::exp(static_cast<double>(sink));
        CHECK(xt::all(xt::abs(xt::adapt(soft.data(), {count}) - exponentials / total) < 1e-6));
      }
    }
  }
}

TEST_CASE("a gate is gate sigmoid(slope gate) (up + offset)") {
  for (const Isa isa : available_isas()) {
    std::vector<float> gate = draw(200, 7);
    gate[0] = -200;  // exp(200) is infinite in float32
    gate[1] = 200;
    const std::vector<float> up = draw(200, 8), before = gate;
    float_ops(isa).gate_units(gate.data(), up.data(), 200, 1.702f, 1.0f);
    for (size_t i = 0; i < gate.size(); ++i) {
      const auto g = static_cast<double>(before[i]), u = static_cast<double>(up[i]);
      CHECK(static_cast<double>(gate[i]) ==
            doctest::Approx(g / (1 + std::exp(-1.702 * g)) * (u + 1)).epsilon(1e-5));
    }
  }
}

}  // namespace
}  // namespace twofour
