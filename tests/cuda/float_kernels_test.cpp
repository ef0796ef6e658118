#include <doctest/doctest.h>
#include <xtensor/xadapt.hpp>
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>

#include <algorithm>
#include <cmath>
#include <random>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/half.h"
#include "kernels/attention/attention.h"
#include "kernels/device/device_memory.h"
#include "kernels/floats/device_gemm.h"
#include "kernels/floats/device_matrix.h"
#include "kernels/floats/device_vectors.h"
#include "kernels/floats/float_multiply.h"
#include "tests/support/device/device.h"
#include "tests/support/device/drawn_floats.h"

namespace twofour {
namespace {

using cuda::DeviceMemory;

/// x w' in double.
std::vector<float> product(const std::vector<float>& x, int64_t m, const std::vector<float>& w, int64_t n,
                           int64_t k) {
  const xt::xtensor<double, 3> rows = xt::adapt(x.data(), {m, int64_t{1}, k});
  const xt::xtensor<double, 2> sums = xt::sum(rows * xt::adapt(w.data(), {n, k}), {2});
  return {sums.begin(), sums.end()};
}

/// Weights in a format, and their values.
struct DrawnMatrix {
  cuda::DeviceMatrix matrix;
  DeviceMemory weights, scales, bias;
  std::vector<float> values;
};

DrawnMatrix store(cuda::MatrixFormat format, int64_t n, int64_t k, unsigned seed, int64_t block = 24) {
  DrawnMatrix s;
  std::mt19937 random(seed);
  const auto count = static_cast<size_t>(n * k);
  s.matrix.format = format, s.matrix.n = n, s.matrix.k = k;
  s.values = draw(n * k, seed, 0.1f);
  std::vector<uint8_t> bytes, scales;
  const auto draw_bytes = [&](size_t many, unsigned least, unsigned most) {
    std::vector<uint8_t> drawn(many);
    for (uint8_t& b : drawn) b = static_cast<uint8_t>(least + random() % (most - least + 1));
    return drawn;
  };
  switch (format) {
    case cuda::MatrixFormat::f32:
      s.weights = DeviceMemory(s.values);
      break;
    case cuda::MatrixFormat::bf16:
    case cuda::MatrixFormat::f16: {
      const bool bf16 = format == cuda::MatrixFormat::bf16;
      std::vector<uint16_t> halves;
      for (float& v : s.values) {
        halves.push_back(bf16 ? bf16_from_float(v) : fp16_from_float(v));
        v = bf16 ? bf16_to_float(halves.back()) : fp16_to_float(halves.back());
      }
      s.weights = DeviceMemory(halves);
      break;
    }
    case cuda::MatrixFormat::fp8: {
      bytes = draw_bytes(count, 0, 0x7E);
      const int64_t columns = (k + block - 1) / block, rows = (n + block - 1) / block;
      std::vector<float> grid = draw(rows * columns, seed + 1);
      for (float& g : grid) g = std::abs(g);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < k; ++j) {
          const auto at = static_cast<size_t>(i * k + j);
          if (random() % 2 == 0) bytes[at] |= 0x80;
          s.values[at] =
              e4m3_to_float(bytes[at]) * grid[static_cast<size_t>(i / block * columns + j / block)];
        }
      }
      s.weights = DeviceMemory(bytes), s.scales = DeviceMemory(grid);
      s.matrix.scale_rows = s.matrix.scale_cols = block;
      break;
    }
    case cuda::MatrixFormat::nvfp4:
      bytes = draw_bytes(count / 2, 0, 255), scales = draw_bytes(count / 16, 1, 0x7E);
      s.matrix.global_scale = 0.0123f;
      for (size_t i = 0; i < count; ++i) {
        const float code = e2m1_to_float(bytes[i / 2] >> (4 * (i % 2)) & 15u);
        s.values[i] = code * e4m3_to_float(scales[i / 16]) * s.matrix.global_scale;
      }
      s.weights = DeviceMemory(bytes), s.scales = DeviceMemory(scales);
      break;
    case cuda::MatrixFormat::mxfp4:
      bytes = draw_bytes(count / 2, 0, 255), scales = draw_bytes(count / 32, 110, 140);
      for (size_t i = 0; i < count; ++i) {
        const float code = e2m1_to_float(bytes[i / 2] >> (4 * (i % 2)) & 15u);
        s.values[i] = code * e8m0_to_float(scales[i / 32]);
      }
      s.weights = DeviceMemory(bytes), s.scales = DeviceMemory(scales);
      break;
  }
  s.matrix.weights = s.weights.as(), s.matrix.scales = s.scales.as();
  return s;
}

constexpr cuda::MatrixFormat kFormats[] = {cuda::MatrixFormat::bf16,  cuda::MatrixFormat::f16,
                                           cuda::MatrixFormat::f32,   cuda::MatrixFormat::fp8,
                                           cuda::MatrixFormat::mxfp4, cuda::MatrixFormat::nvfp4};

bool takes(cuda::MatrixFormat format, int64_t k) {
  return format == cuda::MatrixFormat::nvfp4 ? k % 16 == 0
                                             : format != cuda::MatrixFormat::mxfp4 || k % 32 == 0;
}

TEST_CASE("one row and many rows times stored matrices are what double gives") {
  if (no_gpu()) return;
  const cuda::DeviceStream stream;
  cuda::MatrixProducts products;
  unsigned seed = 1;
  for (const cuda::MatrixFormat format : kFormats) {
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{33, 64}, {7, 37}, {200, 1056}, {96, 2080}, {1, 96}}) {
      if (!takes(format, k)) continue;
      CAPTURE(static_cast<int>(format));
      CAPTURE(n);
      CAPTURE(k);
      DrawnMatrix w = store(format, n, k, ++seed);
      const std::vector<float> bias = draw(n, ++seed);
      w.bias = DeviceMemory(bias), w.matrix.bias = w.bias.as<float>();
      for (const int64_t m : {int64_t{1}, int64_t{5}, int64_t{130}}) {
        CAPTURE(m);
        const std::vector<float> x = draw(m * k, ++seed);
        std::vector<float> expected = product(x, m, w.values, n, k);
        for (size_t i = 0; i < expected.size(); ++i) expected[i] += bias[i % static_cast<size_t>(n)];
        const DeviceMemory device_x(x);
        DeviceMemory out(expected.size() * sizeof(float));
        // Two planes keep 16 bits of the mantissas of inputs and weights, three keep all: the error is that
        // of float32 sums.
        for (const auto& [planes, bound] : {std::pair(3, 6e-6), std::pair(2, 3e-5)}) {
          CAPTURE(planes);
          products.set_rows(device_x.as<float>(), m, k, stream.get(), planes);
          products.multiply(w.matrix, out.as<float>(), n, false, stream.get());
          stream.synchronize();
          CHECK(error_of(out.download<float>(), expected) <= bound);
        }
        if (m > 1) continue;
        cuda::multiply_row({&w.matrix, 1}, {.x = device_x.as<float>()}, {out.as<float>(), false},
                           stream.get());
        stream.synchronize();
        CHECK(error_of(out.download<float>(), expected) <= 2e-6);
        const std::vector<float> once = out.download<float>();
        cuda::multiply_row({&w.matrix, 1}, {.x = device_x.as<float>()}, {out.as<float>(), true},
                           stream.get());
        stream.synchronize();
        for (float& v : expected) v *= 2;
        CHECK(error_of(out.download<float>(), expected) <= 2e-6);
      }
      const std::vector<int32_t> ids{static_cast<int32_t>(n - 1), 0};
      const DeviceMemory device_ids(ids);
      DeviceMemory rows(2 * static_cast<size_t>(k) * sizeof(float));
      cuda::take_rows(w.matrix, device_ids.as<int32_t>(), 2, rows.as<float>(), stream.get());
      stream.synchronize();
      std::vector<float> expected(w.values.end() - k, w.values.end());
      expected.insert(expected.end(), w.values.begin(), w.values.begin() + k);
      CHECK(error_of(rows.download<float>(), expected) <= 1e-7);
    }
  }
}

TEST_CASE("rows in pieces times stored matrices are what double gives, of several matrices and of experts") {
  if (no_gpu()) return;
  const cuda::DeviceStream stream;
  using enum cuda::MatrixFormat;
  unsigned seed = 500;
  for (const auto& [format, k, block] : {std::tuple(mxfp4, int64_t{128}, int64_t{0}),
                                         {mxfp4, 4224, 0},
                                         {mxfp4, 8448, 0},
                                         {nvfp4, 4160, 0},
                                         {fp8, 16, 32},
                                         {fp8, 4224, 128},
                                         {fp8, 8208, 32},
                                         {fp8, 4112, 4096},
                                         {fp8, 9008, 10000},
                                         {fp8, 4104, 128},
                                         {fp8, 4224, 96},
                                         {bf16, 4104, 0}}) {
    CAPTURE(static_cast<int>(format));
    CAPTURE(k);
    CAPTURE(block);
    const std::vector<float> x = draw(2 * k, ++seed);
    const DrawnMatrix a = store(format, 19, k, ++seed, block), b = store(format, 150, k, ++seed, block);
    std::vector<float> expected = product(x, 1, a.values, 19, k);
    const std::vector<float> second = product(x, 1, b.values, 150, k);
    expected.insert(expected.end(), second.begin(), second.end());
    const DeviceMemory dx(x);
    DeviceMemory out(169 * sizeof(float));
    cuda::multiply_row(std::array{a.matrix, b.matrix}, {.x = dx.as<float>()}, {out.as<float>(), false},
                       stream.get());
    stream.synchronize();
    CHECK(error_of(out.download<float>(), expected) <= 3e-6);
    // Two experts with rows of their own
    const DrawnMatrix c = store(format, 19, k, ++seed, block);
    const DeviceMemory table(std::vector{a.matrix, c.matrix}), ids(std::vector<int32_t>{1, 0});
    const cuda::ExpertMatrices experts{
        table.as<cuda::DeviceMatrix>(), 1, 2, 19, k, format, a.matrix.scale_cols};
    cuda::multiply_expert_rows(experts, ids.as<int32_t>(), 2, {.x = dx.as<float>(), .stride = k},
                               {out.as<float>(), false}, stream.get());
    stream.synchronize();
    expected = product(x, 1, c.values, 19, k);
    const std::vector<float> other = product({x.begin() + k, x.end()}, 1, a.values, 19, k);
    expected.insert(expected.end(), other.begin(), other.end());
    std::vector<float> found = out.download<float>();
    found.resize(38);
    CHECK(error_of(found, expected) <= 3e-6);
  }
}

TEST_CASE("planes multiplied without the library are what double gives") {
  if (no_gpu()) return;
  const cuda::DeviceStream stream;
  const int64_t m = 70, n = 131, k = 45;
  std::vector<float> a = draw(m * k, 1), b = draw(n * k, 2);
  std::vector<uint16_t> a16, b16;
  for (float& v : a) a16.push_back(bf16_from_float(v)), v = bf16_to_float(a16.back());
  for (float& v : b) b16.push_back(bf16_from_float(v)), v = bf16_to_float(b16.back());
  const DeviceMemory da(a16), db(b16);
  DeviceMemory out(static_cast<size_t>(m * n) * sizeof(float));
  cuda::multiply_planes_plainly(
      {{da.as(), k, false}, {db.as(), k, false}, m, n, k, out.as<float>(), n, 1, false}, stream.get());
  stream.synchronize();
  CHECK(error_of(out.download<float>(), product(a, m, b, n, k)) <= 1e-6);
}

/// Products of rows of `k` numbers.
void check_inputs(int64_t k) {
  CAPTURE(k);
  const cuda::DeviceStream stream;
  const int64_t n = 40, e = 5, rows = 3;
  const std::vector<float> x = draw(k, 1), norm = draw(k, 2), up = draw(k, 3);
  const DeviceMemory dx(x), dnorm(norm), dup(up);
  DeviceMemory out(static_cast<size_t>(rows * 2 * n) * sizeof(float));
  const DrawnMatrix w = store(cuda::MatrixFormat::bf16, n, k, 4);
  std::vector<float> normed(x.size());
  cpu::rms_norm(x.data(), 1, norm, 1e-5, normed.data());
  cuda::multiply_row({&w.matrix, 1}, {.x = dx.as<float>(), .norm = dnorm.as<float>(), .epsilon = 1e-5},
                     {out.as<float>(), false}, stream.get());
  stream.synchronize();
  std::vector<float> found = out.download<float>();
  found.resize(static_cast<size_t>(n));
  CHECK(error_of(found, product(normed, 1, w.values, n, k)) <= 2e-6);

  std::vector<float> gated(x.size());
  const cuda::GateUnits units{1.7f, 1.0f, 0.9f};
  for (size_t i = 0; i < x.size(); ++i) {
    const double g = std::min(x[i], units.limit), u = std::clamp(up[i], -units.limit, units.limit);
    gated[i] = static_cast<float>(g / (1 + std::exp(-static_cast<double>(units.slope) * g)) * (u + 1.0));
  }
  cuda::multiply_row({&w.matrix, 1}, {.x = dx.as<float>(), .up = dup.as<float>(), .gate = units},
                     {out.as<float>(), false}, stream.get());
  stream.synchronize();
  found = out.download<float>();
  found.resize(static_cast<size_t>(n));
  CHECK(error_of(found, product(gated, 1, w.values, n, k)) <= 2e-6);

  const cuda::GateUnits gelu{cuda::kGeluSlope, 0, 0, cuda::kGeluCubic};
  for (size_t i = 0; i < x.size(); ++i) {
    const double g = 4 * static_cast<double>(x[i]);
    const double inner = std::sqrt(2 / std::acos(-1.0)) * (g + 0.044715 * g * g * g);
    gated[i] = static_cast<float>(0.5 * g * (1 + std::tanh(inner)) * static_cast<double>(up[i]));
  }
  std::vector<float> wide = x;
  for (float& v : wide) v *= 4;
  const DeviceMemory dwide(wide);
  DeviceMemory active(static_cast<size_t>(k) * sizeof(float));
  cuda::gate_rows(dwide.as<float>(), dup.as<float>(), 1, k, k, gelu, active.as<float>(), stream.get());
  cuda::multiply_row({&w.matrix, 1}, {.x = dwide.as<float>(), .up = dup.as<float>(), .gate = gelu},
                     {out.as<float>(), false}, stream.get());
  stream.synchronize();
  CHECK(error_of(active.download<float>(), gated) <= 1e-6);
  found = out.download<float>();
  found.resize(static_cast<size_t>(n));
  CHECK(error_of(found, product(gated, 1, w.values, n, k)) <= 2e-6);

  std::vector<DrawnMatrix> stored;
  std::vector<cuda::DeviceMatrix> table;
  for (unsigned i = 0; i < 2 * e; ++i) {
    stored.push_back(store(i % 3 == 0 ? cuda::MatrixFormat::f32 : cuda::MatrixFormat::bf16, n, k, 10 + i));
    table.push_back(stored.back().matrix);
  }
  const std::vector<int32_t> ids{4, 0, 2};
  const DeviceMemory device_table(table), device_ids(ids);
  cuda::multiply_expert_rows({device_table.as<cuda::DeviceMatrix>(), 2, e, 2 * n, k},
                             device_ids.as<int32_t>(), rows, {.x = dx.as<float>()}, {out.as<float>(), false},
                             stream.get());
  stream.synchronize();
  std::vector<float> expected;
  for (const int32_t id : ids) {
    for (const int which : {0, 1}) {
      const auto& own = stored[static_cast<size_t>(2 * id + which)].values;
      const std::vector<float> some = product(x, 1, own, n, k);
      expected.insert(expected.end(), some.begin(), some.end());
    }
  }
  CHECK(error_of(out.download<float>(), expected) <= 2e-6);
}

TEST_CASE("a row is normed, or gated, before it is multiplied; experts have rows of their own") {
  if (no_gpu()) return;
  for (const int64_t k : {300, 4500, 9002}) check_inputs(k);
}

TEST_CASE("products of inputs are those of the CPU") {
  if (no_gpu()) return;
  const cuda::DeviceStream stream;
  cuda::MatrixProducts products;
  const int64_t m = 300, k = 72, n = 50;
  const std::vector<float> x = draw(m * k, 1), a = draw(m * n, 2);
  const DeviceMemory dx(x), da(a);
  DeviceMemory sums(std::vector<float>(static_cast<size_t>(k * k), 1.0f)),
      cross(std::vector<float>(static_cast<size_t>(n * k), 1.0f));
  products.set_rows(dx.as<float>(), m, k, stream.get());
  products.add_products(sums.as<float>(), stream.get());
  products.add_cross_products(da.as<float>(), n, cross.as<float>(), stream.get());
  stream.synchronize();
  std::vector<float> expected(static_cast<size_t>(k * k), 1.0f), found = sums.download<float>();
  cpu::add_products(x.data(), m, k, expected.data());
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j < i; ++j) found[static_cast<size_t>(i * k + j)] = 1.0f;
  }
  CHECK(error_of(found, expected) <= 1e-5);
  std::vector<float> expected_cross(static_cast<size_t>(n * k), 1.0f);
  cpu::add_cross_products(a.data(), n, x.data(), k, m, expected_cross.data());
  CHECK(error_of(cross.download<float>(), expected_cross) <= 1e-5);
}

TEST_CASE("figures of logits are those of double") {
  if (no_gpu()) return;
  const cuda::DeviceStream stream;
  const int64_t m = 3, n = 5001;
  std::vector<float> x = draw(m * n, 1, 4), y = draw(m * n, 2, 4);
  x[77] = x[4000] = 60;  // the first of equal ones
  const std::vector<int32_t> tokens{5, 0, 5000};
  const DeviceMemory dx(x), dy(y), dt(tokens);
  DeviceMemory fx(3 * sizeof(cuda::LogitFigures)), fy(3 * sizeof(cuda::LogitFigures));
  cuda::logit_figures(dy.as<float>(), m, n, nullptr, nullptr, nullptr, fy.as<cuda::LogitFigures>(),
                      stream.get());
  cuda::logit_figures(dx.as<float>(), m, n, dt.as<int32_t>(), dy.as<float>(), fy.as<cuda::LogitFigures>(),
                      fx.as<cuda::LogitFigures>(), stream.get());
  stream.synchronize();
  const auto found = fx.download<cuda::LogitFigures>();
  CHECK(found[0].top == 77);
  for (int64_t i = 0; i < m; ++i) {
    const xt::xtensor<double, 1> own = xt::view(xt::adapt(x.data(), {m, n}), i),
                                 others = xt::view(xt::adapt(y.data(), {m, n}), i);
    const double sum = std::log(xt::sum(xt::exp(own - 60))()) + 60,
                 other = std::log(xt::sum(xt::exp(others - 60))()) + 60;
    const double divergence = xt::sum(xt::exp(others - other) * (others - other - (own - sum)))();
    const cuda::LogitFigures& f = found[static_cast<size_t>(i)];
    CHECK(f.log_sum == doctest::Approx(sum).epsilon(1e-7));
    CHECK(f.divergence == doctest::Approx(divergence).epsilon(1e-6));
    CHECK(static_cast<double>(f.own) == own(tokens[static_cast<size_t>(i)]));
    CHECK(static_cast<double>(f.most) == xt::amax(own)());
  }
}

}  // namespace
}  // namespace twofour
