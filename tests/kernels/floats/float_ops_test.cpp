#include "kernels/floats/float_ops.h"

#include <doctest/doctest.h>

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

TEST_CASE("products are those in double, on every instruction set and at any shape") {
  for (const Isa isa : available_isas()) {
    for (const int64_t m : {1, 3, 20, 65}) {
      for (const int64_t n : {1, 5, 48, 130}) {
        for (const int64_t k : {1, 7, 64, 1000}) {
          CAPTURE(isa_name(isa));
          CAPTURE(m);
          CAPTURE(n);
          CAPTURE(k);
          // Rows lie further apart than they are long.
          const std::vector<float> a = draw(static_cast<size_t>(m * (k + 3)), 1),
                                   b = draw(static_cast<size_t>(n * (k + 1)), 2),
                                   c = draw(static_cast<size_t>(k * (n + 2)), 3);
          std::vector<float> rows(static_cast<size_t>(m * (n + 4)), -7.0f), columns = rows;
          const FloatOps& ops = float_ops(isa);
          ops.multiply_rows(m, n, k, {a.data(), k + 3}, {b.data(), k + 1}, rows.data(), n + 4);
          ops.multiply_columns(m, n, k, {a.data(), k + 3}, {c.data(), n + 2}, columns.data(), n + 4);
          double worst = 0;
          bool is_kept = true;
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n + 4; ++j) {
              const auto at = static_cast<size_t>(i * (n + 4) + j);
              if (j >= n) {
                is_kept = is_kept && rows[at] == -7.0f && columns[at] == -7.0f;
                continue;
              }
              double row = 0, column = 0;
              for (int64_t t = 0; t < k; ++t) {
                const auto x = static_cast<double>(a[static_cast<size_t>(i * (k + 3) + t)]);
                row += x * static_cast<double>(b[static_cast<size_t>(j * (k + 1) + t)]);
                column += x * static_cast<double>(c[static_cast<size_t>(t * (n + 2) + j)]);
              }
              worst = std::max({worst, std::abs(static_cast<double>(rows[at]) - row),
                                std::abs(static_cast<double>(columns[at]) - column)});
            }
          }
          CHECK(is_kept);
          // k products of about 1, each sum rounded to 2^-24.
          CHECK(worst <= 0x1p-22 * static_cast<double>(k));
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
      double sum = 0;
      for (const float v : x) sum += std::exp(static_cast<double>(v));
      CHECK(ops.log_sum_exp(x.data(), count) == doctest::Approx(std::log(sum)).epsilon(1e-7));
      for (const float sink : {-std::numeric_limits<float>::infinity(), 31.0f}) {
        std::vector<float> soft = x;
        ops.softmax(soft.data(), count, sink);
        const double total = sum + std::exp(static_cast<double>(sink));
        double worst = 0;
        for (size_t i = 0; i < x.size(); ++i)
          worst = std::max(
              worst, std::abs(static_cast<double>(soft[i]) - std::exp(static_cast<double>(x[i])) / total));
        CHECK(worst < 1e-6);
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
