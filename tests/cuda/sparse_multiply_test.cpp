#include "kernels/multiply/sparse_multiply.h"

#include <cstring>

#include "formats/error.h"
#include "tests/support/device/device.h"
#include "tests/support/device/device_experts.h"

namespace sparse_multiply_test {

using namespace twofour;
using namespace twofour::cuda;

namespace {

struct Case {
  int64_t e, n, k, rows, rows_per_x;
  Float x_type = Float::bf16, out_type = Float::f32;
  SparsePlan plan = {};
  float magnitude = 1.0f;
  bool distinct = false;
};

template <class Layout>
void check_case(const Case& c, bool reference = false) {
  CAPTURE(Layout::name);
  CAPTURE(c.e);
  CAPTURE(c.n);
  CAPTURE(c.k);
  CAPTURE(c.rows);
  CAPTURE(c.rows_per_x);
  CAPTURE(c.plan.warps_k);
  CAPTURE(c.plan.warps_n);
  CAPTURE(c.plan.cluster);
  CAPTURE(c.plan.tile_m);
  CAPTURE(reference);
  const auto seed = static_cast<unsigned>(c.n * 31 + c.k * 7 + c.rows);
  const DenseExperts dense(c.e, c.n, c.k, seed);
  const SparseOnDevice<Layout> weights(dense);
  const Activations x(static_cast<size_t>(c.rows / c.rows_per_x * c.k), c.x_type, seed + 1, c.magnitude);
  std::mt19937 random(seed + 2);
  std::vector<int32_t> ids;
  std::vector<float> row_weight;
  for (int64_t r = 0; r < c.rows; ++r) {
    ids.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(c.e)));
    row_weight.push_back(static_cast<float>(random() % 1000) / 500.0f - 1.0f);
  }
  // An expert that nobody chose, where there are enough, and one that all others share.
  for (size_t i = 0; i < ids.size(); ++i)
    if (c.e > 2 && ids[i] == 1) ids[i] = 0;
  const DeviceMemory device_ids(ids), device_weight(row_weight);
  DeviceMemory out(static_cast<size_t>(c.rows * c.n * size_of(c.out_type)));
  out.fill(0xFF);  // NaN in every type

  ExpertRows rows;
  rows.rows = c.rows, rows.rows_per_x = c.rows_per_x;
  rows.x = x.device.as(), rows.x_type = c.x_type;
  rows.ids = device_ids.as<int32_t>(), rows.row_weight = device_weight.as<float>();
  rows.out = out.as(), rows.out_type = c.out_type;
  rows.distinct = c.distinct;
  const DeviceStream stream;
  DeviceMemory workspace(sparse_multiply_workspace(weights.experts(), rows));
  workspace.fill(0xFF);
  if (reference) {
    sparse_multiply_reference(weights.experts(), rows, stream.get());
  } else {
    sparse_multiply(weights.experts(), rows, workspace.as(), workspace.bytes(), stream.get(), c.plan);
  }
  stream.synchronize();

  std::vector<double> want(static_cast<size_t>(c.rows * c.n)), row(static_cast<size_t>(c.k));
  const WeightRows w = weights.rows();
  for (int64_t e = 0; e < c.e; ++e) {
    w.load(e);
    for (int64_t n = 0; n < c.n; ++n) {
      w.row(n, row);
      for (int64_t r = 0; r < c.rows; ++r) {
        if (ids[static_cast<size_t>(r)] != e) continue;
        double sum = 0;
        for (int64_t k = 0; k < c.k; ++k)
          sum += row[static_cast<size_t>(k)] *
                 static_cast<double>(x.values[static_cast<size_t>(r / c.rows_per_x * c.k + k)]);
        want[static_cast<size_t>(r * c.n + n)] =
            sum * static_cast<double>(row_weight[static_cast<size_t>(r)]);
      }
    }
  }
  const auto bytes = out.download<uint8_t>();
  // With many rows of an expert all of K is summed by tensor cores, which cut what does not fit when they add
  // 16 products to a float32 sum: half a last place a time.
  const double cut = c.rows >= 8 * c.e ? static_cast<double>(c.k) / 16 * 0x1p-24 : 0;
  CHECK(relative_error(Activations::from_bits(bytes, c.out_type), want) <
        tolerance(c.out_type, c.x_type == Float::f32 && !reference) + cut);

  // The same bits again.
  out.fill(0xFF);
  if (reference) return;
  sparse_multiply(weights.experts(), rows, workspace.as(), workspace.bytes(), stream.get(), c.plan);
  stream.synchronize();
  CHECK(std::memcmp(out.download<uint8_t>().data(), bytes.data(), bytes.size()) == 0);
}

void check_both(const Case& c) {
  check_case<KMajorPlanes>(c);
  check_case<KMajorPacked>(c);
}

}  // namespace

TEST_CASE("the 2:4 multiplication is right for odd shapes") {
  if (no_gpu()) return;
  for (const int64_t n : {4, 16, 48, 120, 128, 144, 272}) {
    for (const int64_t k : {16, 48, 64, 80, 256}) {
      check_both({3, n, k, 7, 1});
    }
  }
  check_both({1, 1, 16, 1, 1});
  check_both({1, 130, 1040, 5, 5});
}

TEST_CASE("the 2:4 multiplication is right for any number of rows an expert") {
  if (no_gpu()) return;
  for (const int64_t rows : {1, 2, 3, 8, 9, 16, 17, 33, 64}) {
    check_both({1, 128, 192, rows, 1});
    check_both({5, 256, 128, rows, 1});
  }
  check_both({40, 128, 128, 600, 10});
  check_both({3, 272, 320, 400, 2});
  check_both({1, 1040, 256, 257, 1, Float::bf16, Float::bf16});
  check_both({2, 144, 1024, 130, 1});
  check_both({700, 16, 64, 1100, 1});
  check_both({5, 256, 320, 9, 3, Float::bf16, Float::f32, {}, 1.0f, true});
  check_both({9, 128, 128, 128, 1});
  check_both({9, 128, 128, 129, 1});
}

TEST_CASE("blocks that share the K of columns give the 2:4 product") {
  if (no_gpu()) return;
  check_both({1, 640, 4096, 40, 1});    // few columns: many blocks for each
  check_both({5, 512, 2048, 700, 1});   // and two records of an expert
  check_both({14, 2560, 640, 300, 1});  // a little more than a round of all blocks
  // Of 512 columns and up to 32 or 48 rows
  check_both({66, 1040, 1024, 660, 1});
  check_both({66, 1040, 1024, 1400, 1});
}

TEST_CASE("the 2:4 multiplication is right where many experts have few rows each") {
  if (no_gpu()) return;
  check_both({144, 528, 192, 144 * 9, 1});
  check_both({144, 784, 128, 144 * 30, 1});
}

TEST_CASE("the 2:4 multiplication is right with hundreds of rows an expert") {
  if (no_gpu()) return;
  for (const int64_t rows : {130, 192, 193, 255, 256, 257, 600}) check_both({1, 400, 192, rows, 1});
  check_both({4, 528, 320, 4 * 190, 2, Float::bf16, Float::f16});
  check_both({3, 1040, 64, 3 * 500, 1, Float::bf16, Float::bf16});
  check_both({1, 272, 4096, 300, 1});       // blocks share K
  check_both({8, 2576, 768, 8 * 200, 1});   // and of some items behind a round
  check_both({4096, 16, 64, 4096 * 8, 1});  // more experts than all warps that sort can count
}

TEST_CASE("every cut of the 2:4 multiplication gives the product") {
  if (no_gpu()) return;
  for (const int warps_k : {1, 2, 4, 8}) {
    for (const int cluster : {1, 2, 4, 8}) {
      for (const int tile_m : {8, 16, 32}) {
        check_both({3, 384, 704, 40, 2, Float::bf16, Float::f32, {warps_k, 8 / warps_k, cluster, tile_m}});
      }
    }
  }
  check_both({2, 384, 192, 4, 2, Float::bf16, Float::f32, {1, 3, 5, 8}});
}

TEST_CASE("the 2:4 multiplication reads and writes BF16, FP16 and FP32 of any magnitude") {
  if (no_gpu()) return;
  for (const Float in : {Float::f32, Float::bf16, Float::f16}) {
    for (const Float out : {Float::f32, Float::bf16, Float::f16}) check_both({4, 160, 320, 12, 4, in, out});
  }
  for (const float magnitude : {1e-20f, 1e-6f, 1e6f, 1e20f}) {
    check_both({4, 160, 320, 12, 4, Float::bf16, Float::f32, {}, magnitude});
  }
}

TEST_CASE("the 2:4 multiplication is right for the shapes of models") {
  if (no_gpu()) return;
  check_both({12, 1024, 2048, 10, 10});
  check_both({12, 2048, 512, 40, 10, Float::f32});
  check_both({2, 768, 7168, 12, 6});
}

TEST_CASE("the plain kernel is right") {
  if (no_gpu()) return;
  check_case<KMajorPlanes>({3, 48, 80, 7, 1}, true);
  check_case<KMajorPacked>({3, 48, 80, 7, 1, Float::f32}, true);
}

TEST_CASE("rows of experts that do not exist stay as they are and raise the flag") {
  if (no_gpu()) return;
  const SparseOnDevice<KMajorPlanes> weights(DenseExperts(2, 64, 64, 1));
  const Activations x(3 * 64, Float::bf16, 2);
  const DeviceMemory ids(std::vector<int32_t>{1, 2, -1});
  DeviceMemory out(3 * 64 * 4), error(4);
  out.fill(0xFF);
  error.fill(0);
  ExpertRows rows;
  rows.rows = 3;
  rows.x = x.device.as(), rows.x_type = Float::bf16;
  rows.ids = ids.as<int32_t>();
  rows.out = out.as();
  rows.error = error.as<int32_t>();
  const DeviceStream stream;
  DeviceMemory workspace(sparse_multiply_workspace(weights.experts(), rows));
  sparse_multiply(weights.experts(), rows, workspace.as(), workspace.bytes(), stream.get());
  stream.synchronize();
  CHECK(error.download<int32_t>()[0] == 1);
  const auto got = out.download<uint32_t>();
  for (size_t i = 0; i < got.size(); ++i) CHECK((got[i] == 0xFFFFFFFFu) == (i >= 64));
}

TEST_CASE("shapes that cannot be are refused") {
  if (no_gpu()) return;
  SparseExperts experts;
  CHECK_THROWS_AS(sparse_multiply(experts, {}, nullptr, 0, nullptr), Error);
  const SparseOnDevice<KMajorPlanes> weights(DenseExperts(1, 16, 16, 1));
  experts = weights.experts();
  experts.k = 24;
  CHECK_THROWS_AS(sparse_multiply(experts, {}, nullptr, 0, nullptr), Error);
  ExpertRows rows;
  rows.rows = 3, rows.rows_per_x = 2;
  CHECK_THROWS_AS(sparse_multiply(weights.experts(), rows, nullptr, 0, nullptr), Error);
}

}  // namespace sparse_multiply_test
