#include "lib/run/runtime/matrix.h"

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "lib/run/runtime/artifact.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/device/device_experts.h"
#include "tests/support/message.h"
#include "tests/support/models/runtime_layer.h"

namespace matrix_test {

using namespace twofour;

namespace {

/// Float32 sums of some hundred products.
constexpr double kTolerance = 2e-6;

/// A layer's tensors in memory, as another program holds them.
struct HeldLayer {
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<std::vector<float>> scales;
  std::array<PlacedMatrix, 2> placed;

  explicit HeldLayer(const ConvertedLayer& made) {
    const Checkpoint c = Checkpoint::open(made.path());
    const auto read = [&](const std::string& suffix) {
      const auto at = c.find(std::string(ConvertedLayer::kName) + suffix);
      REQUIRE(at);
      std::vector<uint8_t> data(c.tensors()[*at].bytes());
      c.read(*at, 0, data);
      return data;
    };
    for (const size_t which : {size_t{0}, size_t{1}}) {
      const std::string matrix = which == 0 ? ".w13" : ".w2";
      with_layout(made.layout, [&]<class L>() {
        for (int part = 0; part < L::part_count; ++part) {
          bytes.push_back(read(matrix + "_" + L::part(part, {1, 16, 16}).suffix));
          placed[which].parts[part] = bytes.back().data();
        }
      });
      const std::vector<uint8_t> raw = read(matrix + "_global_scale");
      scales.emplace_back(raw.size() / sizeof(float));
      std::memcpy(scales.back().data(), raw.data(), raw.size());
      placed[which].global_scale = scales.back().data();
    }
  }
};

LayerInfo info_of(const ConvertedLayer& made) {
  return {ConvertedLayer::kName, made.layout, made.e, made.h, made.i, made.gated};
}

MatrixInfo matrix_of(const ConvertedLayer& made, size_t which) {
  return {which == 0 ? "w13" : "w2", made.layout, layer_shapes(info_of(made))[which]};
}

/// out[r] = w[ids[r]] x[r] in double.
std::vector<double> reference(const WeightRows& w, const std::vector<int32_t>& ids,
                              const std::vector<float>& x) {
  std::vector<double> out, row(static_cast<size_t>(w.k));
  for (size_t r = 0; r < ids.size(); ++r) {
    w.load(ids[r]);
    for (int64_t n = 0; n < w.n; ++n) {
      w.row(n, row);
      double sum = 0;
      for (size_t k = 0; k < row.size(); ++k) sum += row[k] * static_cast<double>(x[r * row.size() + k]);
      out.push_back(sum);
    }
  }
  return out;
}

}  // namespace

TEST_CASE("rows of a matrix in memory meet the expert that each names, in every layout and type") {
  for (const char* layout : kLayouts) {
    CAPTURE(layout);
    const ConvertedLayer made(layout, 3, 48, 80);
    const HeldLayer held(made);
    for (const size_t which : {size_t{0}, size_t{1}}) {
      CAPTURE(which);
      const RuntimeMatrix matrix =
          RuntimeMatrix::over(matrix_of(made, which), held.placed[which], Device::cpu);
      const Shape& shape = matrix.info().shape;
      const int64_t rows = 70;  // more than are multiplied at a time
      CHECK(matrix.workspace_bytes(rows) == 0);
      const Tokens tokens = draw_tokens(rows, shape.k, 3, 1, 7);
      std::vector<float> out(static_cast<size_t>(rows * shape.n));
      matrix.multiply(rows, cuda::Float::f32, tokens.hidden.data(), tokens.ids.data(), out.data(), nullptr,
                      0);
      const auto want = reference(which == 0 ? made.w13() : made.w2(), tokens.ids, tokens.hidden);
      CHECK(relative_error(out, want) < kTolerance);

      const auto half = to_float_bytes(tokens.hidden, cuda::Float::f16);
      std::vector<uint8_t> narrow(static_cast<size_t>(rows * shape.n) * 2);
      matrix.multiply(rows, cuda::Float::f16, half.data(), tokens.ids.data(), narrow.data(), nullptr, 0);
      CHECK(relative_error(from_float_bytes(narrow, cuda::Float::f16), want) < 4.0 / 2048);
    }
  }
}

TEST_CASE("a layer in memory gives the floats of the layer in its file, with an expert map too") {
  for (const char* layout : kLayouts) {
    CAPTURE(layout);
    const ConvertedLayer made(layout, 4, 32, 48);
    const HeldLayer held(made);
    const Tokens tokens = draw_tokens(5, 48, 4, 2, 3);
    for (const bool mapped : {false, true}) {
      LayerOptions options;
      if (mapped) options.expert_map = {1, -1, 0, 3};
      const RuntimeLayer layer = RuntimeLayer::over(info_of(made), held.placed, Device::cpu, options);
      CHECK(layer.info().bytes == RuntimeArtifact::open(made.path()).layers()[0].bytes);
      const RuntimeLayer from_file = RuntimeArtifact::open(made.path()).load(0, Device::cpu, options);
      const MoeInput input = input_of(tokens, options);
      CHECK(layer.run(input).out == from_file.run(input).out);
    }
  }
}

TEST_CASE("what kernels must not meet is refused with its place") {
  const ConvertedLayer made("v7", 3, 32, 48);
  HeldLayer held(made);
  const auto message = [&](const MatrixInfo& info, const PlacedMatrix& at) {
    return message_of([&] { RuntimeMatrix::over(info, at, Device::cpu); });
  };
  const MatrixInfo w2 = matrix_of(made, 1);
  PlacedMatrix at = held.placed[1];

  at.parts[1] = nullptr;
  CHECK(contains(message(w2, at), "w2_meta: expected a pointer, found NULL"));
  at = held.placed[1];
  at.global_scale = nullptr;
  CHECK(contains(message(w2, at), "w2: expected a pointer to global scales"));
  held.scales[1][2] = std::nanf("");
  CHECK(contains(message(w2, held.placed[1]), "w2: expert 2: expected a finite global scale above 0"));
  held.scales[1][2] = 1;

  const size_t meta = 4, scale = 5;  // of w2, behind the three parts of w13
  const uint8_t before = std::exchange(held.bytes[meta][50], uint8_t{0x00});
  CHECK(contains(message(w2, held.placed[1]), "w2_meta: expert 0, row 1, column 2: expected two ascending"));
  held.bytes[meta][50] = before;
  held.bytes[scale].back() = 0x7F;
  CHECK(
      contains(message(w2, held.placed[1]), "w2_scale: expert 2, row 1, column 47: expected a block scale"));

  MatrixInfo odd = w2;
  odd.layout = "v9";
  CHECK(contains(message(odd, held.placed[1]),
                 "w2: expected the layout v7, v7-packed or g8, or nvfp4, found v9"));
  odd = w2;
  odd.shape.k = 24;
  CHECK(contains(message(odd, held.placed[1]), "K in groups of 16, found [3, 48, 24]"));
  LayerInfo whole = info_of(made);
  whole.layout = "nvfp4";
  CHECK(contains(message_of([&] { RuntimeLayer::over(whole, held.placed, Device::cpu, {}); }),
                 "expected the layout v7, v7-packed or g8, found nvfp4"));
}

TEST_CASE("dense NVFP4 is multiplied as checkpoints store it") {
  const int64_t n = 40, k = 96;
  const Nvfp4Matrix weights = random_experts(1, k, n).down[0];
  const std::vector<float> scale = {weights.global};
  PlacedMatrix at;
  at.parts[0] = weights.codes.data();
  at.parts[1] = weights.scales.data();
  at.global_scale = scale.data();
  const RuntimeMatrix matrix = RuntimeMatrix::over({"linear", "nvfp4", {1, n, k}}, at, Device::cpu);
  const Tokens tokens = draw_tokens(6, k, 1, 1, 2);
  std::vector<float> out(static_cast<size_t>(6 * n));
  matrix.multiply(6, cuda::Float::f32, tokens.hidden.data(), tokens.ids.data(), out.data(), nullptr, 0);
  for (size_t r = 0; r < 6; ++r) {
    for (size_t row = 0; row < static_cast<size_t>(n); ++row) {
      double sum = 0, magnitude = 0;
      for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
        DenseGroup group;
        const size_t g = row * k / kGroup + i / kGroup;
        std::copy_n(&weights.codes[8 * g], 8, group.codes);
        group.scale = weights.scales[g];
        const double product = weight_of(group, static_cast<int64_t>(i % kGroup), weights.global) *
                               static_cast<double>(tokens.hidden[r * k + i]);
        sum += product, magnitude += std::abs(product);
      }
      CHECK(std::abs(static_cast<double>(out[r * n + row]) - sum) <= kTolerance * magnitude + 1e-30);
    }
  }
}

}  // namespace matrix_test
