#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "formats/half.h"
#include "lib/base/io/file.h"
#include "tests/support/conversion.h"
#include "tests/support/edits.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"

// Weights of F16 that compressed-tensors takes to 0 in MX formats are counted.

namespace lost_weights_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kUp = "model.layers.0.mlp.up_proj", kDown = "model.layers.0.mlp.down_proj";

/// Blocks of 32 with largest magnitudes around 2^-14, and zeros, ties of both signs and whole blocks of 0
/// among them.
FloatMatrix small_floats(int64_t n, int64_t k, unsigned seed) {
  FloatMatrix m = random_floats(n, k, seed, 1.0f);
  for (size_t b = 0; b < m.values.size() / 32; ++b) {
    const int exponent = -9 - static_cast<int>(b % 17);
    for (size_t i = 32 * b; i < 32 * (b + 1); ++i) {
      const float x = std::fmin(std::fmax(m.values[i], -1.9f), 1.9f);
      m.values[i] = fp16_to_float(fp16_from_float(std::ldexp(x, exponent)));
    }
  }
  for (size_t i = 0; i < 32; ++i) m.values[i] = i % 2 == 0 ? 0.0f : -0.0f;
  m.values[32] = 0x1.8p-15f;  // the least that has a scale of its own
  for (size_t i = 33; i < 64; ++i) m.values[i] = i % 3 == 0 ? 0x1p-24f : -0x1p-20f;
  m.values[64] = -767 * 0x1p-24f;  // the largest below it
  for (size_t i = 65; i < 96; ++i) m.values[i] = 0x1p-23f;
  return m;
}

/// Weights that are not 0 in blocks below 2^-14 and whose codes are 0.
uint64_t count_lost(const FloatMatrix& m, const std::vector<uint8_t>& codes, bool is_fp8) {
  uint64_t lost = 0;
  for (size_t b = 0; b < m.values.size(); b += 32) {
    float largest = 0;
    for (size_t i = b; i < b + 32; ++i) largest = std::fmax(largest, std::fabs(m.values[i]));
    for (size_t i = b; i < b + 32 && largest < std::ldexp(1.0f, -14); ++i) {
      const int code = is_fp8 ? codes[i] & 0x7F : codes[i / 2] >> (i % 2 * 4) & 7;
      lost += m.values[i] != 0 && code == 0;
    }
  }
  return lost;
}

/// `lost_weights` of a module in twofour.json; 0: it has none.
uint64_t counted_in_manifest(const fs::path& path, const std::string& module) {
  const Json manifest = json_at(path / "twofour.json");
  for (const Json& m : manifest.at("modules")) {
    if (m.at("name") == module) return m.at("quality").value("lost_weights", uint64_t{0});
  }
  FAIL("no such module");
  return 0;
}

}  // namespace

TEST_CASE("weights of F16 that compressed-tensors' scales take to 0 are counted, reported and proven") {
  const FloatMatrix up = small_floats(40, 96, 1), down = small_floats(96, 64, 2);
  for (const std::string to : {"mxfp8", "mxfp4"}) {
    for (const std::string arithmetic : {"compressed-tensors", "modelopt"}) {
      for (const DType type : {DType::kF16, DType::kF32}) {
        CAPTURE(to);
        CAPTURE(arithmetic);
        const Scratch scratch;
        Tensors t;
        add_floats(t, kUp, up, type);
        add_floats(t, kDown, down, type);
        write_checkpoint(scratch / "a", {t});
        OneRule rule;
        rule.to = to;
        rule.dialect = "compressed-tensors";
        rule.arithmetic = arithmetic;
        const ConvertResult result = convert(scratch / "a", scratch / "b", rule);
        const ReadTensors written = read_tensors(scratch / "b");
        const auto lost_of = [&](const std::string& module, const FloatMatrix& m) {
          const std::string codes = module + (to == "mxfp8" ? ".weight" : ".weight_packed");
          return count_lost(m, written.at(codes).bytes, to == "mxfp8");
        };
        const bool loses = arithmetic == "compressed-tensors" && type == DType::kF16;
        const uint64_t of_up = loses ? lost_of(kUp, up) : 0, of_down = loses ? lost_of(kDown, down) : 0;
        CHECK((of_up > 500) == loses);
        CHECK(counted_in_manifest(scratch / "b", kUp) == of_up);
        CHECK(counted_in_manifest(scratch / "b", kDown) == of_down);
        const auto warned = findings_of(result.findings, "weights-lost");
        CHECK(warned.size() == loses);
        for (const Finding& f : warned) {
          CHECK(f.severity == Severity::kWarning);
          CHECK(f.where == kDown);
          CHECK(f.message.starts_with(fmt::format("{} weights in 2 matrices become 0", of_up + of_down)));
        }
        CHECK(text_of(validate_from(scratch / "a", scratch / "b").differences) == "");
        if (!loses) continue;
        // The proof counts for itself.
        std::string text = read_text(scratch / "b/twofour.json");
        const std::string configured = fmt::format("\"lost_weights\":{}", of_up);
        REQUIRE(text.find(configured) != text.npos);
        text.replace(text.find(configured), configured.size(), fmt::format("\"lost_weights\":{}", of_up - 1));
        write_sealed(scratch / "b/twofour.json", text);
        CHECK(findings_of(validate_from(scratch / "a", scratch / "b").differences, "manifest").size() == 1);
      }
    }
  }
}

}  // namespace lost_weights_test
