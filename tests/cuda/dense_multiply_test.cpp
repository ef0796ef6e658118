#include "kernels/multiply/dense_multiply.h"

#include <cstring>

#include "formats/error.h"
#include "kernels/numbers/quantize.h"
#include "tests/support/device/dense_on_device.h"
#include "tests/support/device/device.h"

namespace dense_multiply_test {

using namespace twofour;
using namespace twofour::cuda;

namespace {

struct Case {
  int64_t e, n, k, rows, rows_per_x;
  bool g8 = false, gated = false, nvfp4 = false;
  DenseEpilogue epilogue = DenseEpilogue::rows;
  Float x_type = Float::bf16;
  int warps_k = 0;
  bool distinct = false;
  float limit = 0;
  Float out_type = Float::f32;
  int64_t x_from = 0;  ///< where x begins in its array
};

void check_case(const Case& c) {
  CAPTURE(c.e);
  CAPTURE(c.n);
  CAPTURE(c.k);
  CAPTURE(c.rows);
  CAPTURE(c.g8);
  CAPTURE(c.gated);
  CAPTURE(c.nvfp4);
  CAPTURE(c.warps_k);
  const DenseExperts dense(c.e, c.n, c.k, static_cast<unsigned>(c.n + c.k));
  const DenseOnDevice weights(dense, c.g8, c.gated);
  const int64_t x_rows = c.rows / c.rows_per_x;
  Activations x(static_cast<size_t>(c.x_from + x_rows * c.k), c.x_type, 5);

  DeviceMemory x_codes, x_scales;
  const float x_global = 0.004f;
  const DeviceMemory device_global(std::vector<float>{x_global});
  Nvfp4Rows nvfp4;
  if (c.nvfp4) {
    std::vector<uint8_t> codes(static_cast<size_t>(x_rows * c.k / 2)),
        scales(static_cast<size_t>(x_rows * c.k / 16));
    for (int64_t row = 0; row < x_rows; ++row) {
      quantize_nvfp4_row(x.values.data() + row * c.k, c.k, x_global, codes.data() + row * c.k / 2,
                         scales.data() + row * c.k / 16);
    }
    dequantize_nvfp4(Arithmetic::modelopt, x_global, codes.data(), scales.data(), x.values);
    x_codes = DeviceMemory(codes), x_scales = DeviceMemory(scales);
    nvfp4 = {x_codes.as<uint8_t>(), x_scales.as<uint8_t>(), device_global.as<float>()};
  }
  std::mt19937 random(8);
  std::vector<int32_t> ids;
  std::vector<float> row_weight;
  for (int64_t r = 0; r < c.rows; ++r) {
    ids.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(c.e)));
    row_weight.push_back(static_cast<float>(random() % 1000) / 500.0f - 1.0f);
  }
  const DeviceMemory device_ids(ids), device_weight(row_weight);
  const int64_t columns = c.epilogue == DenseEpilogue::swiglu ? c.n / 2 : c.n;
  DeviceMemory out(static_cast<size_t>(c.rows * columns * size_of(c.out_type)));

  ExpertRows rows;
  rows.rows = c.rows, rows.rows_per_x = c.rows_per_x;
  rows.x = x.device.as<uint8_t>() + c.x_from * size_of(c.x_type), rows.x_type = c.x_type;
  rows.ids = device_ids.as<int32_t>(), rows.row_weight = device_weight.as<float>();
  rows.out = out.as(), rows.out_type = c.out_type;
  rows.distinct = c.distinct;
  DenseOptions options;
  options.nvfp4 = c.nvfp4 ? &nvfp4 : nullptr;
  options.epilogue = c.epilogue, options.warps_k = c.warps_k, options.limit = c.limit;
  DeviceMemory workspace(dense_multiply_workspace(weights.device, rows));
  const DeviceStream stream;
  std::vector<uint8_t> first;
  for (int run = 0; run < 2; ++run) {
    out.fill(0xFF);
    workspace.fill(0xFF);
    dense_multiply(weights.device, rows, workspace.as(), workspace.bytes(), stream.get(), options);
    stream.synchronize();
    const auto got = out.download<uint8_t>();
    if (run == 1) CHECK(got == first);
    first = got;
  }

  std::vector<double> want(static_cast<size_t>(c.rows * columns));
  for (int64_t r = 0; r < c.rows; ++r) {
    const auto product = [&](int64_t n) {
      double sum = 0;
      for (int64_t k = 0; k < c.k; ++k)
        sum += weight_of(dense, ids[static_cast<size_t>(r)], n, k) *
               static_cast<double>(x.values[static_cast<size_t>(c.x_from + r / c.rows_per_x * c.k + k)]);
      return sum;
    };
    for (int64_t i = 0; i < columns; ++i) {
      double value = 0;
      if (c.epilogue == DenseEpilogue::swiglu) {
        const auto weight = static_cast<double>(row_weight[static_cast<size_t>(r)]);
        double gate = weight * product(i), up = weight * product(c.n / 2 + i);
        if (c.limit > 0) {
          const auto limit = static_cast<double>(c.limit);
          gate = std::min(gate, limit), up = std::clamp(up, -limit, limit);
        }
        value = gate / (1 + std::exp(-gate)) * up;
      } else {
        value = product(c.epilogue == DenseEpilogue::stored && c.g8
                            ? GateUpInterleaved8::source_row({1, c.n, c.k, c.gated}, i)
                            : i) *
                static_cast<double>(row_weight[static_cast<size_t>(r)]);
      }
      want[static_cast<size_t>(r * columns + i)] = value;
    }
  }
  // Tensor cores cut what does not fit when they add 16 products to a float32 sum: half a last place a time.
  const double cut = static_cast<double>(c.k) / 16 * 0x1p-24;
  CHECK(relative_error(Activations::from_bits(first, c.out_type), want) <
        tolerance(c.out_type, c.x_type == Float::f32 && !c.nvfp4) + cut);
}

}  // namespace

TEST_CASE("the dense multiplication is right for odd shapes") {
  if (no_gpu()) return;
  for (const int64_t n : {4, 16, 48, 130, 144}) {
    for (const int64_t k : {16, 48, 256, 272, 512}) check_case({3, n, k, 7, 1});
  }
  for (const int64_t k : {64, 192, 320, 1408}) check_case({3, 48, k, 7, 1});
  for (const int64_t k : {16, 64, 192, 256, 272, 832}) {
    for (const bool gated : {false, true}) {
      check_case({2, 144, k, 5, 1, true, gated});
      check_case({2, 272, k, 5, 5, true, gated, true});
    }
  }
}

TEST_CASE("the dense multiplication is right for any number of rows and cut") {
  if (no_gpu()) return;
  for (const int64_t rows : {1, 2, 8, 9, 17, 33, 64}) {
    check_case({1, 64, 512, rows, 1});
    check_case({5, 64, 256, rows, 1, true});
  }
  check_case({3, 272, 320, 400, 2, true});
  check_case({1, 1040, 256, 257, 1, true});
  for (const bool g8 : {false, true}) {
    for (const int warps_k : {1, 2, 4, 8}) {
      check_case({3, 160, 2304, 12, 2, g8, false, false, DenseEpilogue::rows, Float::bf16, warps_k});
      check_case({3, 160, 2304, 12, 2, g8, false, false, DenseEpilogue::rows, Float::f16, warps_k, true});
    }
    for (const int warps_k : {2, 4})  // 16 rows at a time
      check_case({3, 160, 2304, 30, 2, g8, false, false, DenseEpilogue::rows, Float::bf16, warps_k});
    check_case({3, 160, 2304, 60, 2, g8, false, false, DenseEpilogue::rows, Float::bf16, 1});
  }
  check_case({3, 130, 1040, 4, 1, true});  // byte by byte
  check_case({2, 96, 7168, 40, 1, false, false, false, DenseEpilogue::rows, Float::f32});
}

TEST_CASE("rows one by one give the dense product") {
  if (no_gpu()) return;
  const auto check_single = [](Case c) {
    c.distinct = true;
    check_case(c);
  };
  for (const bool g8 : {false, true}) {
    for (const int64_t n : {16, 48, 112, 144, 272, 400}) {
      for (const int64_t k : {64, 80, 192, 320, 2304}) check_single({5, n, k, 4, 1, g8});
    }
    for (const int warps_k : {1, 2, 4, 8}) {
      for (const Float type : {Float::bf16, Float::f16, Float::f32})
        check_single({3, 208, 2304, 6, 2, g8, false, false, DenseEpilogue::rows, type, warps_k});
      check_single({3, 208, 832, 3, 1, g8, false, true, DenseEpilogue::stored, Float::bf16, warps_k});
    }
    for (const int64_t k : {80, 192}) check_single({200, 1168, k, 200, 1, g8});  // several tiles a warp
    check_single({3, 48, 1040, 4, 1, g8, false, false, DenseEpilogue::rows, Float::bf16, 1});
    check_single({3, 130, 1040, 4, 1, g8});
    check_single({2, 16, 90112, 2, 1, g8});  // x that does not fit
    for (const int64_t from : {2, 4, 8}) {
      Case c{3, 144, 320, 6, 2, g8};
      c.x_from = from;
      check_single(c);
    }
  }
  for (const int64_t k : {80, 256, 1024}) {
    for (const bool nvfp4 : {false, true}) {
      check_single({3, 288, k, 8, 4, true, true, nvfp4, DenseEpilogue::swiglu, Float::bf16, 0, true, 0.05f});
      check_single({3, 288, k, 8, 4, true, true, nvfp4, DenseEpilogue::rows});
      check_single({3, 288, k, 8, 4, true, true, nvfp4, DenseEpilogue::stored});
    }
  }
}

TEST_CASE("blocks that share the K of columns give the dense product") {
  if (no_gpu()) return;
  check_case({1, 640, 4096, 40, 1, true});
  check_case({14, 2560, 640, 100, 1, true});
  // Of 512 columns and up to 32 or 48 rows
  check_case({66, 1040, 1024, 400, 1, true});
  check_case({66, 1040, 1024, 1400, 1, true});
}

TEST_CASE("the dense multiplication is right where many experts have few rows each") {
  if (no_gpu()) return;
  check_case({144, 528, 192, 144 * 9, 1, true});
  check_case({144, 784, 128, 144 * 30, 1, true});
}

TEST_CASE("the dense multiplication is right with hundreds of rows an expert") {
  if (no_gpu()) return;
  for (const int64_t rows : {130, 192, 193, 255, 256, 257, 600}) check_case({1, 400, 192, rows, 1, true});
  check_case({4, 528, 320, 4 * 190, 2, true});
  for (const Float type : {Float::bf16, Float::f16}) {
    Case c{3, 272, 64, 3 * 500, 1, true};
    c.out_type = type;
    check_case(c);
  }
  check_case({1, 272, 4096, 300, 1, true});       // blocks share K
  check_case({34, 272, 576, 34 * 122, 1, true});  // and of some items behind a round
  check_case({8192, 16, 64, 8192 * 7, 1, true});  // more experts than all warps that sort can count
}

TEST_CASE("blocks that go through several groups of rows give the dense product") {
  if (no_gpu()) return;
  check_case({128, 2048, 256, 130, 1, true});
  check_case({100, 2064, 320, 120, 1, false});
}

TEST_CASE("the dense multiplication ends with SwiGLU or leaves rows as stored") {
  if (no_gpu()) return;
  for (const bool nvfp4 : {false, true}) {
    for (const int64_t k : {80, 256, 1024}) {
      check_case({3, 96, k, 20, 1, true, true, nvfp4, DenseEpilogue::swiglu});
      check_case({3, 96, k, 20, 4, true, true, nvfp4, DenseEpilogue::swiglu, Float::bf16, 2, false, 0.05f});
      check_case({3, 96, k, 20, 1, true, true, nvfp4, DenseEpilogue::stored});
    }
  }
}

TEST_CASE("dense shapes that cannot be are refused") {
  if (no_gpu()) return;
  CHECK_THROWS_AS(dense_multiply({}, {}, nullptr, 0, nullptr), Error);
  const DenseExperts dense(1, 16, 32, 1);
  const DenseOnDevice weights(dense, false, false);
  ExpertRows rows;
  rows.rows = 3, rows.rows_per_x = 2;
  CHECK_THROWS_AS(dense_multiply(weights.device, rows, nullptr, 0, nullptr), Error);
  DenseOptions options;
  options.epilogue = DenseEpilogue::swiglu;
  CHECK_THROWS_AS(dense_multiply(weights.device, {}, nullptr, 0, nullptr, options), Error);
}

}  // namespace dense_multiply_test
