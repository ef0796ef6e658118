#include "tools/bench/fp8/fp8_multiply.h"

#include <algorithm>
#include <cstring>

#include "formats/error.h"
#include "kernels/numbers/casts.h"
#include "tests/support/device/dense_on_device.h"
#include "tests/support/device/device.h"

namespace fp8_multiply_test {

using namespace twofour;
using namespace twofour::cuda;

namespace {

bool no_cublaslt() {
  if (no_gpu()) return true;
  if (no_cublaslt_reason().empty()) return false;
  std::printf("skipped: no cuBLASLt (%s)\n", no_cublaslt_reason().c_str());
  return true;
}

/// Runs a product on poisoned memory, captured.
std::vector<uint8_t> product(const Fp8Shape& s, const Fp8Rows& w, const Fp8Rows& x) {
  const Fp8Multiply multiply(s);
  DeviceMemory out(static_cast<size_t>(s.e * s.m * s.n * size_of(s.out_type))),
      workspace(multiply.workspace_bytes());
  out.fill(0xFF);
  if (workspace.bytes() > 0) workspace.fill(0xFF);
  const DeviceStream stream;
  const DeviceGraph graph(stream, [&] { multiply.run(w, x, out.as(), workspace.as(), stream.get()); });
  graph.replay(stream);
  stream.synchronize();
  return out.download<uint8_t>();
}

double decoded(uint8_t code) { return static_cast<double>(e4m3_to_float(code)); }

/// Whole numbers of which no sum over 128 k reaches 2^13, and scales that are powers of two: nothing is cut
/// or rounded, so that every bit is known.
void check_exact(const Fp8Shape& s) {
  CAPTURE(s.e);
  CAPTURE(s.m);
  CAPTURE(s.n);
  CAPTURE(s.k);
  CAPTURE(static_cast<int>(s.scaling));
  std::mt19937 random(static_cast<unsigned>(s.n + s.k + s.m));
  const auto codes = [&](int64_t count) {
    std::vector<uint8_t> list;
    for (int64_t i = 0; i < count; ++i) {
      // -0 among them
      const float value = static_cast<float>(random() % 7);
      list.push_back(static_cast<uint8_t>(e4m3_from_float(value) | (random() % 2 ? 0x80 : 0)));
    }
    return list;
  };
  const auto scales = [&](int64_t count) {
    std::vector<float> list;
    for (int64_t i = 0; i < count; ++i)
      list.push_back(s.scaling == Fp8Scaling::tensor ? 0.25f
                                                     : std::ldexp(1.0f, static_cast<int>(random() % 7) - 3));
    return list;
  };
  const auto w = codes(s.e * s.n * s.k), x = codes(s.e * s.m * s.k);
  const auto w_scales = scales(s.e * s.n), x_scales = scales(s.e * s.m);
  const DeviceMemory device_w(w), device_x(x), device_w_scales(w_scales), device_x_scales(x_scales);
  const auto got = Activations::from_bits(product(s, {device_w.as<uint8_t>(), device_w_scales.as<float>()},
                                                  {device_x.as<uint8_t>(), device_x_scales.as<float>()}),
                                          s.out_type);
  int64_t wrong = 0;
  for (int64_t em = 0; em < s.e * s.m; ++em) {
    for (int64_t n = 0; n < s.n; ++n) {
      const int64_t en = em / s.m * s.n + n;
      double sum = 0;
      for (int64_t k = 0; k < s.k; ++k)
        sum += decoded(w[static_cast<size_t>(en * s.k + k)]) * decoded(x[static_cast<size_t>(em * s.k + k)]);
      float want =
          static_cast<float>(sum) * w_scales[static_cast<size_t>(en)] * x_scales[static_cast<size_t>(em)];
      if (s.out_type == Float::bf16) want = bf16_to_float(bf16_from_float(want));
      if (got[static_cast<size_t>(em * s.n + n)] != want) ++wrong;
    }
  }
  CHECK(wrong == 0);
}

/// NVFP4 weights and activations through all of the route.
struct Route {
  Fp8Shape s;
  DenseExperts dense;
  DenseOnDevice on_device;
  Activations x;
  DeviceMemory w_codes, w_scales, x_codes, x_scales;

  Route(const Fp8Shape& shape, Float x_type)
      : s(shape),
        dense(s.e, s.n, s.k, static_cast<unsigned>(s.n + s.k)),
        on_device(dense, false, false),
        x(static_cast<size_t>(s.e * s.m * s.k), x_type, 5),
        w_codes(static_cast<size_t>(s.e * s.n * s.k)),
        w_scales(static_cast<size_t>(s.e * s.n * 4)),
        x_codes(static_cast<size_t>(s.e * s.m * s.k)),
        x_scales(static_cast<size_t>(s.e * s.m * 4)) {
    // A row without weights, and one without activations.
    std::fill_n(dense.scales.begin(), s.k / 16, uint8_t{0});
    on_device.scales.upload(dense.scales.data(), dense.scales.size());
    std::fill_n(x.values.begin(), s.k, 0.0f);
    x.device = Activations::to_device(x.values, x_type);
    for (DeviceMemory* memory : {&w_codes, &w_scales, &x_codes, &x_scales}) memory->fill(0xFF);
    const DenseMatrices matrices{on_device.device.codes, on_device.device.scales, s.e, s.n, s.k};
    const auto* global = on_device.device.global_scale;
    const DeviceStream stream;
    fp8_scales_of_weights(matrices, global, s.scaling, w_scales.as<float>(), stream.get());
    dequantize_to_fp8(matrices, global, w_scales.as<float>(), w_codes.as<uint8_t>(), stream.get());
    QuantizeToFp8 q;
    q.x = x.device.as(), q.type = x_type, q.m = s.e * s.m, q.k = s.k, q.scaling = s.scaling;
    q.codes = x_codes.as<uint8_t>(), q.scales = x_scales.as<float>();
    quantize_to_fp8(q, stream.get());
    stream.synchronize();
  }

  std::vector<float> weights() const {
    std::vector<float> all;
    for (int64_t e = 0; e < s.e; ++e)
      for (int64_t n = 0; n < s.n; ++n)
        for (int64_t k = 0; k < s.k; ++k) {
          const DenseRows rows = dense.rows(e);
          const unsigned code = rows.codes[n * s.k / 2 + k / 2] >> 4 * (k % 2) & 15u;
          all.push_back(e2m1_to_float(code) * e4m3_to_float(rows.scales[n * s.k / 16 + k / 16]) *
                        dense.global_scale[static_cast<size_t>(e)]);
        }
    return all;
  }

  /// Codes and scales of rows, by the CPU.
  void check_rows(const std::vector<float>& values, const DeviceMemory& codes,
                  const DeviceMemory& scales) const {
    const auto k = static_cast<size_t>(s.k), rows = values.size() / k;
    std::vector<float> largest(rows);
    for (size_t i = 0; i < values.size(); ++i) largest[i / k] = std::max(largest[i / k], std::abs(values[i]));
    if (s.scaling == Fp8Scaling::tensor)
      std::fill(largest.begin(), largest.end(), *std::max_element(largest.begin(), largest.end()));
    std::vector<float> want_scales;
    std::vector<uint8_t> want(values.size());
    for (size_t row = 0; row < rows; ++row) {
      want_scales.push_back(fp8_scale_of(largest[row]));
      encode_fp8(std::span(values).subspan(row * k, k), want_scales.back(), want.data() + row * k);
    }
    CHECK(scales.download<float>() == want_scales);
    CHECK(codes.download<uint8_t>() == want);
  }
};

/// Every number within what tensor cores of sm_90 may cut (fp8_multiply.h): each of 32 products, the sum
/// before and the sum after, less than 2^-13 of the largest's leading bit; then float32's own rounding.
void check_cut(const Route& r, const std::vector<float>& got) {
  const Fp8Shape& s = r.s;
  const auto w = r.w_codes.download<uint8_t>(), x = r.x_codes.download<uint8_t>();
  const auto w_scales = r.w_scales.download<float>(), x_scales = r.x_scales.download<float>();
  int64_t wrong = 0;
  for (int64_t em = 0; em < s.e * s.m; ++em) {
    for (int64_t n = 0; n < s.n; ++n) {
      const int64_t en = em / s.m * s.n + n;
      double total = 0, cut = 0;
      for (int64_t k0 = 0; k0 < s.k; k0 += 128) {
        double sum = 0, largest = 0;
        for (int64_t k = k0; k < std::min(s.k, k0 + 128); ++k) {
          const double p =
              decoded(w[static_cast<size_t>(en * s.k + k)]) * decoded(x[static_cast<size_t>(em * s.k + k)]);
          sum += p;
          largest = std::max({largest, std::abs(p), k % 32 == 31 ? std::abs(sum) : 0.0});
        }
        total += sum;
        if (largest > 0) cut += 4 * 34 * std::ldexp(1.0, std::ilogb(largest) - 13);
      }
      const double scale = static_cast<double>(w_scales[static_cast<size_t>(en)]) *
                           static_cast<double>(x_scales[static_cast<size_t>(em)]);
      const double rounding = std::abs(total) * static_cast<double>(s.k / 128 + 3) * 0x1p-24;
      const auto value = static_cast<double>(got[static_cast<size_t>(em * s.n + n)]);
      if (!(std::abs(value - total * scale) <= (cut + rounding) * scale)) ++wrong;
    }
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("FP8 products that fit the tensor cores are exact") {
  if (no_cublaslt()) return;
  for (const Fp8Scaling scaling : {Fp8Scaling::tensor, Fp8Scaling::row}) {
    const int64_t e = scaling == Fp8Scaling::tensor ? 3 : 1;
    for (const Float type : {Float::f32, Float::bf16}) {
      for (const int64_t m : {1, 3, 8, 17, 32, 128}) check_exact({e, m, 48, 272, scaling, type});
      for (const int64_t k : {16, 48, 2048}) check_exact({1, 5, 144, k, scaling, type});
      check_exact({e, 9, 16, 128, scaling, type});
    }
  }
}

TEST_CASE("weights and activations of the FP8 route are quantized as the CPU does") {
  if (no_gpu()) return;
  for (const Fp8Scaling scaling : {Fp8Scaling::tensor, Fp8Scaling::row}) {
    for (const Float x_type : {Float::bf16, Float::f32, Float::f16}) {
      for (const int64_t m : {1, 33}) {
        for (const int64_t k : {16, 1040, 2560}) {
          CAPTURE(m);
          CAPTURE(k);
          CAPTURE(static_cast<int>(scaling));
          const Route route({2, m, 70, k, scaling, Float::f32}, x_type);
          route.check_rows(route.weights(), route.w_codes, route.w_scales);
          route.check_rows(route.x.values, route.x_codes, route.x_scales);
        }
      }
    }
  }
}

TEST_CASE("FP8 products are those of decoded values, as far as tensor cores add") {
  if (no_cublaslt()) return;
  for (const Fp8Scaling scaling : {Fp8Scaling::tensor, Fp8Scaling::row}) {
    for (const int64_t m : {1, 8, 33}) {
      CAPTURE(m);
      CAPTURE(static_cast<int>(scaling));
      const Route route({scaling == Fp8Scaling::tensor ? 2 : 1, m, 80, 1040, scaling, Float::f32},
                        Float::bf16);
      const auto got =
          Activations::from_bits(product(route.s, {route.w_codes.as<uint8_t>(), route.w_scales.as<float>()},
                                         {route.x_codes.as<uint8_t>(), route.x_scales.as<float>()}),
                                 Float::f32);
      check_cut(route, got);
    }
  }
}

TEST_CASE("FP8 products that cuBLASLt does not take are refused") {
  if (no_cublaslt()) return;
  CHECK_THROWS_AS(Fp8Multiply({1, 1, 8, 32}), Error);
  CHECK_THROWS_AS(Fp8Multiply({1, 1, 16, 24}), Error);
  CHECK_THROWS_AS(Fp8Multiply({1, 0, 16, 32}), Error);
  CHECK_THROWS_AS(Fp8Multiply({1, 1, 16, 32, Fp8Scaling::row, Float::f16}), Error);
  CHECK_THROWS_AS(Fp8Multiply({2, 1, 16, 32, Fp8Scaling::row}), Error);
  const Fp8Multiply multiply({1, 1, 16, 32});
  const DeviceMemory memory(4096);
  const Fp8Rows rows{memory.as<uint8_t>(), memory.as<float>()};
  const Fp8Rows odd_codes{rows.codes + 1, rows.scales}, odd_scales{rows.codes, rows.scales + 1};
  CHECK_THROWS_AS(multiply.run(odd_codes, rows, memory.as(), nullptr, nullptr), Error);
  CHECK_THROWS_AS(multiply.run(rows, odd_scales, memory.as(), nullptr, nullptr), Error);
}

}  // namespace fp8_multiply_test
