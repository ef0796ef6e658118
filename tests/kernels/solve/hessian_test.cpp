#include "kernels/solve/hessian.h"

#include <doctest/doctest.h>
#include <xtensor/xadapt.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xrandom.hpp>
#include <xtensor/xview.hpp>

#include <cmath>
#include <random>
#include <vector>

#include "formats/error.h"
#include "lib/prove/expected/expected_hessian.h"
#include "tests/support/message.h"

namespace hessian_test {

using namespace twofour;

namespace {

using Matrix = xt::xtensor<double, 2>;

/// A' B of A [m, i] and B [m, j].
template <class A, class B>
Matrix product(const A& a, const B& b) {
  return xt::sum(xt::view(a, xt::all(), xt::all(), xt::newaxis()) * xt::view(b, xt::all(), xt::newaxis()),
                 {0});
}

/// X'X of tokens X [tokens, k].
std::vector<float> random_hessian(int64_t k, int tokens, unsigned seed) {
  std::mt19937 random(seed);
  const Matrix x = xt::random::randn<double>({static_cast<int64_t>(tokens), k}, 0, 1, random),
               h = product(x, x);
  return {h.begin(), h.end()};
}

}  // namespace

TEST_CASE(
    "damping and factor are those of plain loops, to the bit, for every instruction set and any threads") {
  for (const int64_t k : {1, 16, 63, 64, 65, 200}) {
    const std::vector<float> h = random_hessian(k, 50, static_cast<unsigned>(k));
    for (const double shrink : {0.0, 0.1, 0.5, 1.0}) {
      const ExpectedHessian wanted = expect_hessian(h, k, 0.01, shrink, true);
      for (const Isa isa : available_isas()) {
        for (const int threads : {1, 3}) {
          const DampedHessian found = damped_hessian(h, k, {0.01, shrink}, true, threads, isa);
          REQUIRE(found.lambda == wanted.lambda);
          REQUIRE(found.matrix == wanted.matrix);
          REQUIRE(found.factor == wanted.factor);
        }
      }
    }
  }
}

TEST_CASE("shrink takes its share of every number outside of the diagonal, and moves no damping") {
  constexpr int64_t k = 40;
  const std::vector<float> h = random_hessian(k, 60, 11);
  const DampedHessian plain = damped_hessian(h, k, 0.01, false);
  for (const double shrink : {0.1, 0.5, 1.0}) {
    const DampedHessian found = damped_hessian(h, k, {0.01, shrink}, false);
    CHECK(found.lambda == plain.lambda);
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < k; ++j) {
        const auto at = static_cast<size_t>(i * k + j),
                   upper = static_cast<size_t>(std::min(i, j) * k + std::max(i, j));
        const float wanted = i == j ? plain.matrix[at] : static_cast<float>((1 - shrink) * double{h[upper]});
        REQUIRE(found.matrix[at] == wanted);
      }
    }
  }
}

TEST_CASE("the factor's square is the inverse, and only the upper triangle is read") {
  constexpr int64_t k = 80;
  std::vector<float> h = random_hessian(k, 200, 4);
  const DampedHessian full = damped_hessian(h, k, 0.01, true);
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j < i; ++j) h[static_cast<size_t>(i * k + j)] = -7;
  }
  const DampedHessian upper = damped_hessian(h, k, 0.01, true);
  CHECK(upper.matrix == full.matrix);
  CHECK(upper.factor == full.factor);
  const Matrix u = xt::adapt(full.factor.data(), {k, k}), damped = xt::adapt(full.matrix.data(), {k, k});
  CHECK(xt::allclose(product(product(u, u), damped), xt::eye(k), 0, 1e-3));
}

TEST_CASE("rows are solved against the damped Hessian") {
  constexpr int64_t k = 96, rows = 11;
  const std::vector<float> h = random_hessian(k, 300, 6), wanted = random_hessian(k, 3, 7);
  const DampedHessian damped = damped_hessian(h, k, 0.05, false);
  const Matrix all = xt::adapt(wanted.data(), {k, k}), own = xt::view(all, xt::range(0, rows)),
               products = product(xt::transpose(own), Matrix(xt::adapt(damped.matrix.data(), {k, k})));
  std::vector<float> once(products.begin(), products.end()), again = once;
  const DampedInverse inverse(h, k, 0.05);
  inverse.multiply(once);
  DampedInverse(h, k, 0.05, 3, Isa::portable).multiply(again);
  CHECK(once == again);
  for (size_t i = 0; i < once.size(); ++i)
    REQUIRE(once[i] == doctest::Approx(wanted[i]).epsilon(1e-3).scale(1));
  std::vector<float> zeros(static_cast<size_t>(k));
  inverse.multiply(zeros);
  for (const float z : zeros) CHECK(z == 0);
}

TEST_CASE("quadratic forms are those in double, within float32") {
  constexpr int64_t k = 48, rows = 35;
  const std::vector<float> h = random_hessian(k, 100, 8);
  std::mt19937 random(3);
  std::vector<float> e;
  for (int64_t i = 0; i < rows * k; ++i) e.push_back(static_cast<float>(random() % 2000) / 1000 - 1);
  const std::vector<double> found = quadratic_forms(h, k, e);
  for (const Isa isa : available_isas()) CHECK(quadratic_forms(h, k, e, 2, isa) == found);
  for (size_t r = 0; r < rows; ++r) {
    // 48 products and their sums, each rounded once to 2^-24.
    CHECK(found[r] == doctest::Approx(expect_form(h, std::span(e).subspan(r * k, k))).epsilon(48 * 0x1p-23));
  }
}

TEST_CASE("what is no sum of products is refused") {
  constexpr int64_t k = 32;
  const std::vector<float> sound = random_hessian(k, 40, 9);
  const auto refused = [&](size_t at, float number) {
    std::vector<float> h = sound;
    h[at] = number;
    return message_of([&] { damped_hessian(h, k, 0.01, true); });
  };
  CHECK(refused(3 * k + 3, std::nanf("")) == "column 3: expected a finite sum of squares, found nan");
  CHECK(refused(3 * k + 3, -1) == "column 3: expected a finite sum of squares, found -1");
  CHECK(refused(3 * k + 7, std::nanf("")) == "columns 3 and 7: expected a finite sum, found nan");
  CHECK(refused(3 * k + 7, 1e6f).find("expected a positive definite Hessian") != std::string::npos);
  CHECK_THROWS_AS(damped_diagonal(std::vector<float>{1, -1}, 0.01), Error);
}

}  // namespace hessian_test
