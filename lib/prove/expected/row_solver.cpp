#include "lib/prove/expected/row_solver.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "formats/weight_format.h"
#include "lib/prove/expected/expected_solve.h"

namespace twofour {
namespace {

constexpr float kHuge = std::numeric_limits<float>::infinity();
/// The index of the nearest among ascending numbers. Ties go to the even index.
template <class Number>
int nearest_of(int first, int last, double x, Number&& number) {
  int best = first;
  for (int i = first + 1; i <= last; ++i) {
    const double before = std::abs(x - number(best)), now = std::abs(x - number(i));
    if (now < before || (now == before && i % 2 == 0)) best = i;
  }
  return best;
}

int nearest_e4m3(float x) {
  return nearest_of(1, 126, static_cast<double>(x),
                    [](int i) { return static_cast<double>(e4m3_to_float(static_cast<unsigned>(i))); });
}

/// floor(log2(x)), at least -127.
int exponent_of(float x) {
  int exponent = 0;
  if (std::frexp(x, &exponent) == 0) return -127;
  return std::max(exponent - 1, -127);
}

}  // namespace

int RowSolver::magnitude_code(float x) const {
  const float size = std::abs(x);
  const auto above = std::upper_bound(s_.numbers.begin(), s_.numbers.end(), size);
  const auto last = static_cast<int>(s_.numbers.size()) - 1,
             next = static_cast<int>(above - s_.numbers.begin());
  return nearest_of(next - 1, std::min(next, last), static_cast<double>(size),
                    [&](int i) { return static_cast<double>(s_.numbers[static_cast<size_t>(i)]); });
}

float RowSolver::unit_of(float x) const {
  const float unit = s_.numbers[static_cast<size_t>(magnitude_code(x))];
  return std::signbit(x) ? -unit : unit;
}

int RowSolver::clamp_scale(int code) const {
  return std::clamp(code, 1, s_.scales == ExpectedSolver::Scales::kPowers ? 253 : 126);
}

int RowSolver::scale_code(float step) const {
  if (s_.scales != ExpectedSolver::Scales::kPowers) return nearest_e4m3(step * to_code());
  if (!(step > 0)) return 1;
  const int low = exponent_of(step);  // of the power of two below, to which the middle belongs
  return clamp_scale(low + 127 + (static_cast<double>(step) > std::ldexp(1.5, low)));
}

int RowSolver::base_scale(float largest) const {
  if (s_.scales == ExpectedSolver::Scales::kPowers)
    return exponent_of(largest) - exponent_of(s_.numbers.back()) + 127;
  return largest == 0 ? 0x38 : nearest_e4m3(largest / 6.0f * to_code());
}

RowSolver::RowSolver(const ExpectedSolver& solver, const ExpectedHessian* hessian,
                     std::span<const float> diagonal, std::span<const float> weights,
                     std::span<const uint8_t> mask)
    : s_(solver),
      h_(hessian),
      diagonal_(diagonal),
      w_(weights),
      k_(weights.size()),
      x_(weights.begin(), weights.end()),
      scales_(k_ / solver.block) {
  const auto group = static_cast<size_t>(s_.group);
  if (s_.dense) {
    masks_.push_back(std::vector<bool>(group, true));
  } else {
    for (int a = 0; a < 4; ++a) {
      for (int b = a + 1; b < 4; ++b) {
        std::vector<bool> one;
        for (int i = 0; i < s_.group; ++i) one.push_back(i / (s_.group / 4) == a || i / (s_.group / 4) == b);
        masks_.push_back(one);
      }
    }
  }
  for (size_t j = 0; !s_.dense && j < mask.size(); j += group) {
    for (size_t m = 0; m < masks_.size(); ++m) {
      bool same = true;
      for (size_t i = 0; i < group; ++i) same = same && masks_[m][i] == (mask[j + i] != 0);
      if (same) given_.push_back(m);
    }
  }
}

ExpectedRow RowSolver::solve() {
  if (s_.method == ExpectedSolver::Method::kJoint) joint();
  if (s_.method == ExpectedSolver::Method::kDiagonal) by_diagonal();
  descend();
  return written();
}

size_t RowSolver::mask_of(size_t first, std::span<const float> weights) const {
  const auto group = static_cast<size_t>(s_.group);
  if (!given_.empty()) return given_[first / group];
  size_t best = 0;
  float top = -1;
  for (size_t m = 0; m < masks_.size(); ++m) {
    float sum = 0;
    for (size_t i = 0; i < group; ++i) {
      if (masks_[m][i]) sum += x_[first + i] * x_[first + i] * weights[i];
    }
    if (sum > top) {
      top = sum;
      best = m;
    }
  }
  return best;
}

int RowSolver::search(size_t block, std::span<const float> x, std::span<const float> weights) const {
  if (s_.scales == ExpectedSolver::Scales::kGiven) return static_cast<int>(block);
  float largest = 0;
  for (const float v : x) largest = std::max(largest, std::abs(v));
  const int base = base_scale(largest);
  int best = base;
  float least = kHuge;
  for (int d = s_.lowest; d <= s_.highest; ++d) {
    const int code = clamp_scale(base + d);
    float loss = 0;
    for (size_t i = 0; i < s_.block; ++i) {
      const float e = x[i] - unit_of(x[i] * inverse(code)) * step(code);
      loss += e * e * weights[i];
    }
    if (loss < least) {
      least = loss;
      best = code;
    }
  }
  return best;
}

void RowSolver::pass_on(size_t column, float error, size_t from, size_t until) {
  for (size_t t = from; t < until; ++t) x_[t] -= error * u(column, t);
}

void RowSolver::joint() {
  const auto group = static_cast<size_t>(s_.group);
  const size_t block = s_.block;
  for (size_t b = 0; b < k_; b += block) {
    std::vector<float> weights, kept(block), errors(block);
    for (size_t i = 0; i < block; ++i) weights.push_back(1.0f / (u(b + i, b + i) * u(b + i, b + i)));
    for (size_t j = 0; j < block; j += group) {
      const size_t m = mask_of(b + j, std::span(weights).subspan(j));
      for (size_t i = 0; i < group; ++i) kept[j + i] = masks_[m][i] ? x_[b + j + i] : 0.0f;
    }
    const int scale = search(b / block, kept, weights);
    scales_[b / block] = scale;
    for (size_t j = b; j < b + block; j += group) {
      float least = kHuge;
      std::vector<float> values(group), spent(group);
      for (size_t m = 0; m < masks_.size(); ++m) {
        if (!given_.empty() && given_[j / group] != m) continue;
        std::vector<float> y(x_.begin() + static_cast<ptrdiff_t>(j),
                             x_.begin() + static_cast<ptrdiff_t>(j + group));
        std::vector<float> v(group), e(group);
        float loss = 0;
        for (size_t i = 0; i < group; ++i) {
          v[i] = masks_[m][i] ? unit_of(y[i] * inverse(scale)) * step(scale) : 0.0f;
          e[i] = (y[i] - v[i]) * (1.0f / u(j + i, j + i));
          loss += e[i] * e[i];
          for (size_t t = i + 1; t < group; ++t) y[t] -= e[i] * u(j + i, j + t);
        }
        if (loss < least) {
          least = loss;
          values = v;
          spent = e;
        }
      }
      for (size_t i = 0; i < group; ++i) {
        x_[j + i] = values[i];
        pass_on(j + i, spent[i], j + group, b + block);
        errors[j - b + i] = spent[i];
      }
    }
    for (size_t i = 0; i < block; ++i) pass_on(b + i, errors[i], b + block, k_);
  }
}

void RowSolver::by_diagonal() {
  const auto group = static_cast<size_t>(s_.group);
  for (size_t j = 0; !s_.dense && j < k_; j += group) {
    const size_t m = mask_of(j, diagonal_.subspan(j));
    for (size_t i = 0; i < group; ++i) {
      if (!masks_[m][i]) x_[j + i] = 0;
    }
  }
  round(diagonal_);
}

void RowSolver::round(std::span<const float> weights) {
  const size_t block = s_.block;
  for (size_t b = 0; b < k_; b += block) {
    const int scale = search(b / block, std::span<const float>(x_).subspan(b, block), weights.subspan(b));
    scales_[b / block] = scale;
    for (size_t i = b; i < b + block; ++i) x_[i] = unit_of(x_[i] * inverse(scale)) * step(scale);
  }
}

ExpectedRow RowSolver::written() const {
  ExpectedRow out;
  // The sign is the bit above those of magnitudes. E4M3 has one magnitude less, NaN.
  const auto sign = static_cast<int>(std::bit_ceil(s_.numbers.size()));
  for (size_t b = 0; b < k_; b += s_.block) {
    const int code = scales_[b / s_.block];
    bool any = false;
    for (size_t i = b; i < b + s_.block; ++i) {
      const float x = x_[i] * inverse(code);
      const int magnitude = magnitude_code(x);
      any = any || magnitude != 0;
      out.codes.push_back(
          static_cast<uint8_t>(magnitude == 0 || !std::signbit(x) ? magnitude : magnitude + sign));
    }
    out.scales.push_back(any ? static_cast<uint8_t>(code) : s_.zero_scale);
  }
  return out;
}

namespace {

/// A row and its global scale. If the scale is far from 1, both are scaled by a power of two, so that no
/// square underflows or overflows.
struct RowInUnits {
  ExpectedSolver solver;
  std::vector<float> weights;
};

RowInUnits in_units(const ExpectedSolver& solver, std::span<const float> weights) {
  RowInUnits out{solver, {weights.begin(), weights.end()}};
  if (solver.scales != ExpectedSolver::Scales::kE4m3) return out;
  int exponent = 0;  // the global scale, or its inverse if it is a divisor, is
                     // in [2^exponent, 2^(exponent + 1))
  std::frexp(solver.global, &exponent);
  exponent = solver.divides ? 1 - exponent : exponent - 1;
  if (exponent >= -40 && exponent <= 24) return out;
  const int shift = -16 - exponent;
  out.solver.global =
      static_cast<float>(std::ldexp(static_cast<double>(solver.global), solver.divides ? -shift : shift));
  for (float& w : out.weights) w = static_cast<float>(std::ldexp(static_cast<double>(w), shift));
  return out;
}

}  // namespace

ExpectedRow expect_row(const ExpectedSolver& solver, const ExpectedHessian& hessian,
                       std::span<const float> weights, std::span<const uint8_t> mask) {
  std::vector<float> diagonal;
  const auto k = static_cast<size_t>(hessian.k);
  for (size_t j = 0; j < k; ++j) diagonal.push_back(hessian.matrix[j * k + j]);
  const RowInUnits in = in_units(solver, weights);
  return RowSolver(in.solver, &hessian, diagonal, in.weights, mask).solve();
}

ExpectedRow expect_row_by_diagonal(const ExpectedSolver& solver, std::span<const float> diagonal,
                                   std::span<const float> weights, std::span<const uint8_t> mask) {
  const RowInUnits in = in_units(solver, weights);
  return RowSolver(in.solver, nullptr, diagonal, in.weights, mask).solve();
}

void use_format(ExpectedSolver& s, std::string_view to) {
  s.scales = to == "fp8" ? ExpectedSolver::Scales::kGiven : ExpectedSolver::Scales::kPowers;
  s.block = to == "fp8" ? 16 : 32;
  s.lowest = -1;
  if (to == "mxfp4") return;
  s.numbers.clear();
  const bool six = to == "mxfp6";
  for (unsigned code = 0; code < (six ? 32u : 127u); ++code)
    s.numbers.push_back(six ? e2m3_to_float(code) : e4m3_to_float(code));
}

std::vector<uint8_t> pack_expected(size_t bits, std::span<const uint8_t> codes) {
  std::vector<uint8_t> packed(codes.size() * bits / 8);
  for (size_t bit = 0; bit < codes.size() * bits; ++bit) {
    const unsigned one = codes[bit / bits] >> bit % bits & 1u;
    packed[bit / 8] = static_cast<uint8_t>(packed[bit / 8] | one << bit % 8);
  }
  return packed;
}

}  // namespace twofour
