#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <string>

#include "formats/weight_format.h"
#include "lib/source/linears/linears.h"
#include "tests/support/message.h"
#include "tests/support/weights/stored_weights.h"

// MXFP6 and NVFP4 with block scales for 32 weights.

namespace grouped_formats_test {

using namespace twofour;

namespace {

const std::string kModule = "model.layers.0.mlp.down_proj";
constexpr SlowFloat kSlowE2m3{2, 3, 1, 31};

std::string groups(int bits, const char* format) {
  return R"({"quantization_config": {"quant_method": "compressed-tensors", "format": ")" +
         std::string(format) +
         R"(", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": )" +
         std::to_string(bits) + R"(, "type": "float", "strategy": "group", "group_size": 32}}}}})";
}
std::string modelopt(const char* algorithm, int size) {
  return R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": ")" + std::string(algorithm) +
         R"(", "group_size": )" + std::to_string(size) + "}}";
}

Tensors mxfp6(const StoredTensor& codes, const StoredTensor& scales) {
  Tensors tensors;
  codes.add_to(tensors, kModule + ".weight_packed");
  scales.add_to(tensors, kModule + ".weight_scale");
  return tensors;
}

Tensors of_32(const StoredTensor& codes, const StoredTensor& scales, float global = 0.37f) {
  Tensors tensors;
  codes.add_to(tensors, kModule + ".weight");
  scales.add_to(tensors, kModule + ".weight_scale");
  std::vector<uint8_t> bytes(sizeof(global));
  std::memcpy(bytes.data(), &global, sizeof(global));
  tensors.push_back({kModule + ".weight_scale_2", DType::kF32, {}, bytes});
  return tensors;
}

StoredTensor block_scales(std::vector<int64_t> shape) { return {DType::kF8E4M3, std::move(shape), 5, 0x7F}; }

/// The problem of the only module.
std::string refusal(const Tensors& tensors, const std::optional<std::string>& config) {
  const Scratch scratch;
  return message_of([&] { find_weight_modules(open_checkpoint(scratch, tensors, config)); });
}

}  // namespace

TEST_CASE("every code of E2M3 is the number that the definition gives") {
  for (unsigned code = 0; code < 64; ++code)
    CHECK(bits_of(e2m3_to_float(code)) == bits_of(static_cast<float>(kSlowE2m3.value(code))));
}

// The bytes are those of compressed-tensors 0.20.0, compressors/mxfp6/helpers.py, for these numbers.
TEST_CASE("MXFP6 has four codes in three bytes, the first in the lowest bits") {
  const std::array<float, 8> numbers = {0.125f, -7.5f, 1, -0.0f, 3.75f, -0.875f, 2.25f, 6.5f};
  Tensors tensors;
  std::vector<uint8_t> bytes = {0xC1, 0x8F, 0x80, 0xD7, 0x19, 0x75};
  bytes.resize(24);
  tensors.push_back({kModule + ".weight_packed", DType::kU8, {1, 24}, bytes});
  tensors.push_back({kModule + ".weight_scale", DType::kU8, {1, 1}, {128}});
  const Scratch scratch;
  const Checkpoint c = open_checkpoint(scratch, tensors);
  std::vector<float> out(32);
  WeightReader(c).read_rows(only(find_weight_modules(c)), 0, 0, 1, out);
  for (size_t i = 0; i < numbers.size(); ++i) CHECK(bits_of(out[i]) == bits_of(2 * numbers[i]));
  for (size_t i = numbers.size(); i < out.size(); ++i) CHECK(bits_of(out[i]) == 0);
}

TEST_CASE("MXFP6 is read with every value") {
  const int64_t n = 19, k = 2048;
  for (const DType type : {DType::kU8, DType::kF8E8M0}) {
    const StoredTensor codes(DType::kU8, {n, k / 4 * 3}, 1), scales(type, {n, k / 32}, 2, 250);
    for (const auto& config :
         {std::optional<std::string>(), std::optional(groups(6, "mxfp6-pack-quantized"))}) {
      const Scratch scratch;
      const Checkpoint c = open_checkpoint(scratch, mxfp6(codes, scales), config);
      const Linear m = only(find_weight_modules(c));
      CHECK(m.format == WeightFormat::kMxfp6);
      CHECK((m.n == n && m.k == k && m.scale_rows == 1 && m.scale_cols == 32));
      check_values(c, m, [&](int64_t, int64_t row, int64_t col) {
        unsigned code = 0;
        for (int bit = 0; bit < 6; ++bit) {
          const int64_t at = 6 * (row * k + col) + bit;
          code |= (codes.byte(at / 8) >> at % 8 & 1u) << bit;
        }
        return kSlowE2m3.value(code) * scales.number(row * k / 32 + col / 32);
      });
    }
  }
}

TEST_CASE("NVFP4 with scales for 32 is read with every value") {
  const int64_t n = 23, k = 2048;
  const StoredTensor codes(DType::kU8, {n, k / 2}, 3), scales = block_scales({n, k / 32});
  const std::optional<std::string> configs[] = {std::nullopt, modelopt("NVFP4", 32),
                                                modelopt("W4A16_NVFP4", 32), modelopt("W4A8_NVFP4_FP8", 32)};
  for (const auto& config : configs) {
    const Scratch scratch;
    const Checkpoint c = open_checkpoint(scratch, of_32(codes, scales), config);
    CHECK(c.nvfp4_modules().empty());
    const Linear m = only(find_weight_modules(c));
    CHECK(m.format == WeightFormat::kNvfp4Bs32);
    CHECK((m.n == n && m.k == k && m.scale_rows == 1 && m.scale_cols == 32));
    check_values(c, m, [&](int64_t, int64_t row, int64_t col) {
      const double unscaled =
          kSlowE2m1.value(codes.code(row * k + col)) * scales.number(row * k / 32 + col / 32);
      return static_cast<double>(static_cast<float>(unscaled)) * double{0.37f};
    });
  }
}

TEST_CASE(
    "scales for 32 weights where the config says 16 are refused, and so are other widths than it says") {
  const StoredTensor codes(DType::kU8, {4, 64}, 3);
  const std::string where = "model.safetensors: " + kModule;
  CHECK(refusal(of_32(codes, block_scales({4, 4})), modelopt("NVFP4", 16)) ==
        where + ".weight_scale: expected block scales for 16 weights (the config), found F8_E4M3 [4, 4]");
  CHECK(refusal(of_32(codes, block_scales({4, 4})),
                R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}})") ==
        where + ".weight_scale: expected block scales for 16 weights (the config), found F8_E4M3 [4, 4]");
  const StoredTensor sixes(DType::kU8, {4, 48}, 1), scales(DType::kU8, {4, 2}, 2, 250);
  CHECK(refusal(mxfp6(sixes, scales), groups(4, "mxfp4-pack-quantized")) ==
        where + ".weight_scale: expected U8 [4, 3], found U8 [4, 2]");
  CHECK(refusal(mxfp6({DType::kU8, {4, 64}, 1}, {DType::kU8, {4, 4}, 2, 250}),
                groups(6, "mxfp6-pack-quantized")) ==
        where + ".weight_packed: expected K a multiple of 32, four codes in three bytes, found U8 [4, 64]");
  CHECK(refusal(mxfp6({DType::kU8, {4, 47}, 1}, scales), groups(6, "mxfp6-pack-quantized")) ==
        where + ".weight_packed: expected K a multiple of 32, four codes in three bytes, found U8 [4, 47]");
  CHECK(refusal(mxfp6(sixes, {DType::kU8, {4, 3}, 2, 250}), groups(6, "mxfp6-pack-quantized")) ==
        where + ".weight_scale: expected U8 [4, 2], found U8 [4, 3]");
}

TEST_CASE("scales that are no numbers are refused with their place") {
  const Scratch scratch;
  Tensors tensors = mxfp6({DType::kU8, {4, 48}, 1}, {DType::kU8, {4, 2}, 2, 250});
  tensors[1].bytes[3] = 0xFF;
  const Checkpoint c = open_checkpoint(scratch, tensors);
  std::vector<float> out(4 * 64);
  const Linear m = only(find_weight_modules(c));
  CHECK(message_of([&] { WeightReader(c).read_rows(m, 0, 0, 4, out); }) ==
        "model.safetensors: " + kModule +
            ".weight_scale: expected block scales that are numbers, found NaN, 0xFF at n 1, k 32");
  for (const float global : {0.0f, -1.0f}) {
    const Scratch other;
    const Checkpoint d =
        open_checkpoint(other, of_32({DType::kU8, {4, 32}, 3}, block_scales({4, 2}), global));
    const Linear of = only(find_weight_modules(d));
    CHECK(message_of([&] {
            WeightReader(d).read_rows(of, 0, 0, 4, out);
          }).find("positive finite global scale") != std::string::npos);
  }
}

}  // namespace grouped_formats_test
