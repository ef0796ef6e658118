#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/half.h"
#include "formats/weight_format.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/stored_weights.h"

namespace four_bit_casts_test {

// MXFP4 and NVFP4 become FP8, MXFP8 and MXFP4: values that the output has stay, and what does not is counted.

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kName = "model.layers.0.mlp.down_proj";
constexpr int64_t kRows = 131, kK = 288;
/// DeepSeek-V4's own form is written of sources in that form alone.
const std::string kConfig =
    R"({"model_type": "deepseek_v4", "quantization_config": {"quant_method": "fp8"}})";

/// The same tensors under that configuration.
void copy_as_deepseek_v4(const fs::path& from, const fs::path& to) {
  Tensors tensors;
  for (const auto& [name, t] : read_tensors(from)) tensors.push_back({name, t.dtype, t.shape, t.bytes});
  write_checkpoint(to, {tensors}, kConfig);
}

/// Codes of all values and block scales between two exponents, a block of zeros with a scale far below.
struct Mxfp4 {
  int64_t rows, k;
  std::vector<uint8_t> codes = std::vector<uint8_t>(static_cast<size_t>(rows * k / 2)),
                       scales = std::vector<uint8_t>(static_cast<size_t>(rows * k / 32));
  Mxfp4(int low, int high, unsigned seed, int64_t n = kRows, int64_t inputs = kK) : rows(n), k(inputs) {
    std::mt19937 random(seed);
    for (uint8_t& byte : codes) byte = static_cast<uint8_t>(random());
    for (uint8_t& byte : scales)
      byte = static_cast<uint8_t>(127 + low +
                                  static_cast<int>(random() % static_cast<unsigned>(high - low + 1)));
    for (size_t i = 0; i < 16; ++i) codes[i] = i % 2 ? 0x80 : 0x08;
    scales[0] = 0;
  }
  void write(const fs::path& path) const {
    const Tensors tensors = {{kName + ".weight_packed", DType::kU8, {rows, k / 2}, codes},
                             {kName + ".weight_scale", DType::kU8, {rows, k / 32}, scales}};
    write_checkpoint(path, {tensors}, kConfig);
  }
  unsigned code(int64_t i) const { return codes[static_cast<size_t>(i / 2)] >> i % 2 * 4 & 15u; }
  double value(int64_t i) const {
    return std::ldexp(double{e2m1_to_float(code(i))}, scales[static_cast<size_t>(i / 32)] - 127);
  }
};

OneRule rule_to(const std::string& to, const std::string& dialect, const std::string& block = "",
                const std::string& scale_dtype = "", const std::string& exact = "") {
  OneRule rule;
  rule.to = to;
  rule.dialect = dialect;
  rule.block = block;
  rule.scale_dtype = scale_dtype;
  rule.exact = exact;
  if (to == "fp8") rule.odd_blocks = "write";
  return rule;
}

void check_valid(const fs::path& source, const fs::path& out) {
  const ValidateReport report = validate_from(source, out);
  CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
}

struct Case {
  const char *dialect, *block, *scale_dtype, *suffix;
  int64_t rows, cols;
};
constexpr Case kCases[] = {
    {"compressed-tensors", "128x128", "f32", ".weight_scale", 128, 128},
    {"compressed-tensors", "32x32", "bf16", ".weight_scale", 32, 32},
    {"compressed-tensors", "1x128", "f32", ".weight_scale", 1, 128},
    {"modelopt", "128x128", "f32", ".weight_scale", 128, 128},
    {"deepseek", "32x32", "f32", ".weight_scale_inv", 32, 32},
    {"deepseek-v4", "128x128", "e8m0", ".scale", 128, 128},
    {"deepseek-v4", "32x32", "e8m0", ".scale", 32, 32},
    {"deepseek-v4", "32x32", "f32", ".scale", 32, 32},
};

double number_of(const ReadTensor& t, size_t i) {
  if (t.dtype == DType::kF32) return double{t.as<float>()[i]};
  if (t.dtype == DType::kBF16) return double{bf16_to_float(t.as<uint16_t>()[i])};
  return std::ldexp(1.0, t.bytes[i] - 127);
}

}  // namespace

TEST_CASE("MXFP4 becomes FP8 without loss where the exponents of a tile span at most 14") {
  const Scratch scratch;
  const Mxfp4 from(-20, -6, 1);
  from.write(scratch / "src");
  for (const Case& c : kCases) {
    CAPTURE(c.dialect);
    CAPTURE(c.block);
    CAPTURE(c.scale_dtype);
    const fs::path to = scratch / (std::string(c.dialect) + c.block + c.scale_dtype);
    const ConvertResult result =
        convert(scratch / "src", to, rule_to("fp8", c.dialect, c.block, c.scale_dtype, "strict"));
    const EncodedResult found = encoded(result).at(0);
    const int64_t across = (kK + c.cols - 1) / c.cols, down = (kRows + c.rows - 1) / c.rows;
    CHECK(found.cast);
    CHECK(found.tiles.count == static_cast<uint64_t>(across * down));
    CHECK(found.tiles.inexact == 0);
    CHECK(found.error.error == 0);
    const ReadTensors out = read_tensors(to);
    const ReadTensor &weight = out.at(kName + ".weight"), &scale = out.at(kName + c.suffix);
    CHECK(out.size() == 2);
    CHECK(scale.dtype == (std::string(c.scale_dtype) == "f32"    ? DType::kF32
                          : std::string(c.scale_dtype) == "bf16" ? DType::kBF16
                                                                 : DType::kF8E8M0));
    for (int64_t i = 0; i < kRows * kK; ++i) {
      const auto tile = static_cast<size_t>(i / kK / c.rows * across + i % kK / c.cols);
      const uint8_t byte = weight.bytes[static_cast<size_t>(i)];
      REQUIRE(double{e4m3_to_float(byte)} * number_of(scale, tile) == from.value(i));
      REQUIRE(((byte & 0x80) >> 4) == static_cast<int>(from.code(i) & 8));
    }
    check_valid(scratch / "src", to);
  }
}

namespace {

/// Checks an output against its source number by number: tile scales from the exponents, the nearest bytes,
/// the tiles that were rounded, and the sums of errors.
void check_tiles(const Mxfp4& from, const ReadTensors& out, const EncodedResult& found, const Case& c) {
  const int64_t across = (from.k + c.cols - 1) / c.cols, down = (from.rows + c.rows - 1) / c.rows;
  const auto tile_of = [&](int64_t i) {
    return static_cast<size_t>(i / from.k / c.rows * across + i % from.k / c.cols);
  };
  std::vector<int> highest(static_cast<size_t>(across * down), -1000);
  for (int64_t i = 0; i < from.rows * from.k; ++i) {
    int& high = highest[tile_of(i)];
    if (from.code(i) % 8 != 0) high = std::max(high, from.scales[static_cast<size_t>(i / 32)] - 127);
  }
  const ReadTensor &weight = out.at(kName + ".weight"), &scale = out.at(kName + c.suffix);
  const int lowest = scale.dtype == DType::kF8E8M0 ? -127 : -126;
  std::vector<float> scales;
  for (size_t t = 0; t < highest.size(); ++t) {
    scales.push_back(highest[t] == -1000 ? 1.0f : std::ldexp(1.0f, std::max(highest[t] - 6, lowest)));
    REQUIRE(number_of(scale, t) == double{scales[t]});
  }
  std::vector<bool> rounded(scales.size());
  EncodeError error;
  for (int64_t n = 0; n < from.rows; ++n) {
    std::vector<float> weights, back;
    for (int64_t i = n * from.k; i < (n + 1) * from.k; ++i) {
      const float value = static_cast<float>(from.value(i)), own = scales[tile_of(i)];
      const uint8_t byte = e4m3_from_float(value / own);
      REQUIRE(weight.bytes[static_cast<size_t>(i)] == byte);
      weights.push_back(value);
      back.push_back(e4m3_to_float(byte) * own);
      if (back.back() != value) rounded[tile_of(i)] = true;
    }
    error.add(weights, back, from.k, Isa::portable);
  }
  CHECK(found.error == error);
  CHECK(found.tiles.count == rounded.size());
  CHECK(found.tiles.inexact == static_cast<uint64_t>(std::count(rounded.begin(), rounded.end(), true)));
}

}  // namespace

TEST_CASE("FP8 of MXFP4 is that of the numbers one by one, for any span, size and instruction set") {
  const Scratch scratch;
  const std::pair<int64_t, int64_t> shapes[] = {{131, 288}, {1, 32}, {33, 160}, {257, 544}, {400, 416}};
  unsigned seed = 100;
  for (const int span : {0, 13, 14, 15, 17, 18, 40, 200}) {
    for (const int low : {-127, -125, -60, 124 - span}) {  // bytes from 0, and up to 251, which fits float32
      if (low + span > 124) continue;
      const auto [rows, k] = shapes[seed++ % std::size(shapes)];
      const Case& c = kCases[seed % std::size(kCases)];
      CAPTURE(span);
      CAPTURE(low);
      CAPTURE(rows);
      CAPTURE(c.block);
      CAPTURE(c.scale_dtype);
      const Mxfp4 from(low, low + span, seed, rows, k);
      from.write(scratch / "src");
      for (const Isa isa : available_isas()) {
        ConvertOptions options;
        options.isa = isa;
        const auto result = convert(scratch / "src", scratch / "out",
                                    rule_to("fp8", c.dialect, c.block, c.scale_dtype), options);
        check_tiles(from, read_tensors(scratch / "out"), encoded(result).at(0), c);
        if (isa == Isa::portable) check_valid(scratch / "src", scratch / "out");
        fs::remove_all(scratch / "out");
      }
      fs::remove_all(scratch / "src");
    }
  }
}

TEST_CASE("tiles of zeros, and whole matrices and rows that share a scale") {
  const Scratch scratch;
  Mxfp4 from(-30, -6, 9, 140, 320);
  for (size_t i = 0; i < from.codes.size(); ++i) {
    if (i / 160 >= 128) from.codes[i] = i % 3 ? 0x80 : 0x08;  // the last tiles down
  }
  from.write(scratch / "src");
  for (const auto& [granularity, rows] : {std::pair{"tensor", int64_t{140}}, {"row", int64_t{1}}}) {
    CAPTURE(granularity);
    OneRule rule = rule_to("fp8", "compressed-tensors");
    rule.granularity = granularity;
    const auto result = convert(scratch / "src", scratch / granularity, rule);
    const Case c{"compressed-tensors", "", "f32", ".weight_scale", rows, 320};
    check_tiles(from, read_tensors(scratch / granularity), encoded(result).at(0), c);
    check_valid(scratch / "src", scratch / granularity);
  }
  const auto result = convert(scratch / "src", scratch / "blocks", rule_to("fp8", "deepseek"));
  check_tiles(from, read_tensors(scratch / "blocks"), encoded(result).at(0),
              {"deepseek", "", "f32", ".weight_scale_inv", 128, 128});
}

TEST_CASE("MXFP4 beyond float32 is refused by every cast") {
  const Scratch scratch;
  Mxfp4 from(-10, -6, 10);
  from.scales[12] = 254;
  from.codes[12 * 16] = 0x07;
  from.write(scratch / "src");
  for (const std::string to : {"mxfp8", "mxfp4", "fp8", "quantize"}) {
    const std::string text =
        message_of([&] { convert(scratch / "src", scratch / "out", rule_to(to, "modelopt")); });
    CHECK_MESSAGE(text.find("expected finite weights, found inf at row 1, k 96") != std::string::npos, text);
    CHECK(!fs::exists(scratch / "out"));
  }
}

TEST_CASE("tiles of MXFP4 that FP8 rounds are counted, and refused by exact strict") {
  const Scratch scratch;
  Mxfp4 from(-10, -6, 2);
  // 2^-15 below the largest: 0.5 and 1.5 do not fit, 1 does.
  from.scales[8 * 9 + 2] = 127 - 6;
  from.scales[40 * 9 + 2] = 127 - 21;
  for (size_t i = 0; i < 16; ++i) from.codes[(40 * 9 + 2) * 16 + i] = 0x22;
  from.write(scratch / "fits");
  from.codes[(40 * 9 + 2) * 16 + 3] = 0x21;
  from.write(scratch / "src");
  const ConvertResult fits =
      convert(scratch / "fits", scratch / "a", rule_to("fp8", "deepseek-v4", "", "", "strict"));
  CHECK(encoded(fits).at(0).tiles.inexact == 0);
  const ConvertResult result = convert(scratch / "src", scratch / "b", rule_to("fp8", "deepseek-v4"));
  CHECK(encoded(result).at(0).tiles == CastTiles{6, 1});
  const auto found = findings_of(result.findings, "tiles-not-exact");
  REQUIRE(found.size() == 1);
  CHECK(found[0].where == kName);
  CHECK(found[0].message ==
        "1 of 6 tiles hold values that FP8 rounds under one scale, the first at row 0, k 0 with scales from "
        "2^-21 "
        "to 2^-6");
  check_valid(scratch / "src", scratch / "b");
  const std::string refused = message_of(
      [&] { convert(scratch / "src", scratch / "c", rule_to("fp8", "deepseek-v4", "", "", "strict")); });
  CHECK_MESSAGE(
      refused.find(kName + ": expected weights that FP8 stores without loss (--exact strict), found 1 of 6 "
                           "tiles with others, the first at row 0, k 0 with scales from 2^-21 to 2^-6") !=
          std::string::npos,
      refused);
  CHECK(!fs::exists(scratch / "c"));
  // Rows of 128 are tiles of their own.
  CHECK(encoded(convert(scratch / "src", scratch / "d", rule_to("fp8", "deepseek", "1x128", "", "strict")))
            .at(0)
            .tiles.inexact == 0);
}

TEST_CASE("MXFP4 becomes MXFP8 with the same scales, and MXFP4 of another dialect with the same bytes") {
  const Scratch scratch;
  const Mxfp4 from(-120, 100, 3);
  from.write(scratch / "src");
  for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
    convert(scratch / "src", scratch / ("8" + dialect), rule_to("mxfp8", dialect, "", "", "strict"));
    const ReadTensors eight = read_tensors(scratch / ("8" + dialect));
    CHECK(eight.at(kName + ".weight").dtype == DType::kF8E4M3);
    CHECK(eight.at(kName + ".weight_scale").dtype == DType::kU8);
    CHECK(eight.at(kName + ".weight_scale").bytes == from.scales);
    constexpr uint8_t kBytes[] = {0x00, 0x30, 0x38, 0x3C, 0x40, 0x44, 0x48, 0x4C};
    for (int64_t i = 0; i < kRows * kK; ++i) {
      const unsigned code = from.code(i);
      REQUIRE(eight.at(kName + ".weight").bytes[static_cast<size_t>(i)] ==
              (kBytes[code & 7] | (code & 8) << 4));
    }
    check_valid(scratch / "src", scratch / ("8" + dialect));
    convert(scratch / "src", scratch / ("4" + dialect), rule_to("mxfp4", dialect, "", "", "strict"));
    const ReadTensors four = read_tensors(scratch / ("4" + dialect));
    CHECK(four.at(kName + (dialect == "modelopt" ? ".weight" : ".weight_packed")).bytes == from.codes);
    CHECK(four.at(kName + ".weight_scale").bytes == from.scales);
    check_valid(scratch / "src", scratch / ("4" + dialect));
  }
}

TEST_CASE("MXFP4 becomes MXFP6 with the same scales and the same numbers") {
  const Scratch scratch;
  const Mxfp4 from(-120, 100, 6);
  from.write(scratch / "src");
  convert(scratch / "src", scratch / "6", rule_to("mxfp6", "compressed-tensors", "", "", "strict"));
  const ReadTensors six = read_tensors(scratch / "6");
  CHECK(six.at(kName + ".weight_scale").bytes == from.scales);
  const std::vector<uint8_t>& packed = six.at(kName + ".weight_packed").bytes;
  REQUIRE(packed.size() == static_cast<size_t>(kRows * kK / 4 * 3));
  for (int64_t i = 0; i < kRows * kK; ++i) {
    const auto at = static_cast<size_t>(i / 4 * 3);
    const unsigned word = packed[at] | packed[at + 1] << 8 | packed[at + 2] << 16;
    REQUIRE(e2m3_to_float(word >> 6 * (i % 4) & 63u) == e2m1_to_float(from.code(i)));
  }
  check_valid(scratch / "src", scratch / "6");
}

TEST_CASE("a scale of MXFP4 that is NaN is refused by every cast") {
  const Scratch scratch;
  Mxfp4 from(-10, -6, 4);
  from.scales[12] = 0xFF;
  from.write(scratch / "src");
  for (const std::string to : {"mxfp8", "mxfp4", "fp8", "quantize"}) {
    const std::string text =
        message_of([&] { convert(scratch / "src", scratch / "out", rule_to(to, "modelopt")); });
    CHECK_MESSAGE(text.find("0xFF at n 1, k 96") != std::string::npos, text);
  }
}

TEST_CASE("NVFP4 that was cast from MXFP4 becomes FP8 without loss, other NVFP4 in part") {
  const Scratch scratch;
  const Mxfp4 from(-14, -6, 5);
  from.write(scratch / "src");
  convert(scratch / "src", scratch / "made", rule_to("quantize", "modelopt"));
  copy_as_deepseek_v4(scratch / "made", scratch / "nv");
  for (const Case& c : kCases) {
    CAPTURE(c.dialect);
    CAPTURE(c.scale_dtype);
    const fs::path to = scratch / (std::string("nv") + c.dialect + c.block + c.scale_dtype);
    const auto result =
        convert(scratch / "nv", to, rule_to("fp8", c.dialect, c.block, c.scale_dtype, "strict"));
    CHECK(encoded(result).at(0).tiles.inexact == 0);
    CHECK(encoded(result).at(0).error.error == 0);
    check_valid(scratch / "nv", to);
  }
  Tensors floats;
  add_floats(floats, kName, random_floats(64, 256, 6));
  write_checkpoint(scratch / "bf16", {floats});
  convert(scratch / "bf16", scratch / "quantized", rule_to("quantize", "modelopt"));
  copy_as_deepseek_v4(scratch / "quantized", scratch / "calibrated");
  const auto some = encoded(convert(scratch / "calibrated", scratch / "tiles", rule_to("fp8", "deepseek")));
  CHECK(some.at(0).tiles == CastTiles{2, 2});
  check_valid(scratch / "calibrated", scratch / "tiles");
  // The folded scale keeps more than taking the values as floats.
  const auto plain =
      encoded(convert(scratch / "calibrated", scratch / "plain", rule_to("fp8", "deepseek", "", "", "off")));
  CHECK(plain.at(0).tiles.count == 0);
  CHECK(some.at(0).error.error < plain.at(0).error.error);
  check_valid(scratch / "calibrated", scratch / "plain");
  // A global scale that is no power of two fits no power.
  const auto powers = encoded(convert(scratch / "calibrated", scratch / "v4", rule_to("fp8", "deepseek-v4")));
  CHECK(powers.at(0).tiles.inexact == 2);
  check_valid(scratch / "calibrated", scratch / "v4");
}

TEST_CASE("blocks of MXFP4 too small for NVFP4 are rounded under its least scale, and no others change") {
  const Scratch scratch;
  Mxfp4 from(0, 0, 11, 32, 64);
  std::fill(from.codes.begin(), from.codes.end(), uint8_t{0x77});
  // Two blocks a row: every code in the first, 6 in the second.
  for (size_t n = 0; n < 32; ++n) {
    for (size_t i = 0; i < 16; ++i) from.codes[n * 32 + i] = static_cast<uint8_t>((i % 8) * 2 * 17 + 16);
    from.scales[2 * n] = static_cast<uint8_t>(127 - n);
    from.scales[2 * n + 1] = 127;
  }
  from.write(scratch / "src");
  const auto found = encoded(convert(scratch / "src", scratch / "out", rule_to("quantize", "modelopt")));
  const auto tensors = read_tensors(scratch / "out");
  const auto& codes = tensors.at(kName + ".weight").bytes;
  // Magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 after so many halvings, nearest, ties to the even code.
  const unsigned halved[][8] = {{0, 1, 2, 3, 4, 5, 6, 7},  // as they are, down to 2^-17
                                {0, 0, 1, 2, 2, 3, 4, 5}, {0, 0, 0, 1, 1, 2, 2, 3}, {0, 0, 0, 0, 0, 1, 1, 2},
                                {0, 0, 0, 0, 0, 0, 0, 1}, {0, 0, 0, 0, 0, 0, 0, 0}};
  for (size_t n = 0; n < 32; ++n) {
    CAPTURE(n);
    const auto& table = halved[n < 18 ? 0 : std::min<size_t>(n - 17, 5)];
    for (size_t i = 0; i < 16; ++i) {
      const unsigned byte = from.codes[n * 32 + i], low = byte & 15u, high = byte >> 4;
      CHECK((codes[n * 32 + i] & 7u) == table[low & 7u]);
      CHECK((codes[n * 32 + i] >> 4 & 7u) == table[high & 7u]);
      CHECK((codes[n * 32 + i] & 0x88u) == (byte & 0x88u));
      CHECK(codes[n * 32 + 16 + i] == 0x77);
    }
  }
  CHECK(found.at(0).tiles == CastTiles{64, 14});
  check_valid(scratch / "src", scratch / "out");
}

TEST_CASE(
    "exact strict refuses MXFP4 that NVFP4 does not hold, and quantized weights without an exact cast") {
  const Scratch scratch;
  const Mxfp4 from(-30, -6, 7);
  from.write(scratch / "src");
  const auto strict = [&](const fs::path& source, const std::string& to) {
    return message_of([&] { convert(source, scratch / "none", rule_to(to, "modelopt", "", "", "strict")); });
  };
  CHECK(strict(scratch / "src", "quantize")
            .find("expected scales that span at most 2^17, which NVFP4 stores without loss (--exact strict), "
                  "found scales from 2^-30 to 2^-6") != std::string::npos);
  const auto best = encoded(convert(scratch / "src", scratch / "out", rule_to("quantize", "modelopt")));
  CHECK(best.at(0).tiles.inexact > 0);
  CHECK(best.at(0).tiles.inexact < best.at(0).tiles.count);
  check_valid(scratch / "src", scratch / "out");
  Tensors floats;
  add_floats(floats, kName, random_floats(64, 256, 8));
  write_checkpoint(scratch / "bf16", {floats});
  convert(scratch / "bf16", scratch / "nv", rule_to("quantize", "modelopt"));
  CHECK(strict(scratch / "nv", "mxfp4").find("no exact cast from NVFP4") != std::string::npos);
}

}  // namespace four_bit_casts_test
