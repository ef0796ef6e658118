#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>

#include "kernels/numbers/casts.h"
#include "kernels/numbers/quantize.h"
#include "tests/support/conversion.h"
#include "tests/support/float_weights.h"
#include "tests/support/scratch.h"

// The linker puts these functions in the place of the encoder's (--wrap in tests/CMakeLists.txt): convert and
// validate run in one program whose encoder is wrong, so that only a derivation of validate's own notices.

namespace twofour::planted {

enum class Fault { kNone, kGlobalScale, kBlockScale, kZeroBlock, kFp8Scale, kCast, kShift };
Fault fault = Fault::kNone;

#define TWOFOUR_GLOBAL_SCALE "_ZN7twofour15global_scale_ofERKNS_12QuantizeRuleEf"
#define TWOFOUR_QUANTIZE                                                                     \
  "_ZN7twofour14quantize_nvfp4ERKNS_12QuantizeRuleERKNS_11GlobalScaleESt4spanIKfLm184467440" \
  "73709551615EEPhS9_NS_3IsaE"
#define TWOFOUR_FP8_SCALE "_ZN7twofour12fp8_scale_ofEf"
#define TWOFOUR_CAST "_ZN7twofour17cast_mxfp4_scalesESt4spanIKhLm18446744073709551615EEiPh"
#define TWOFOUR_SHIFTS "_ZN7twofour12mxfp4_shiftsESt4spanIKhLm18446744073709551615EEfPh"

GlobalScale real_global_scale(const QuantizeRule&, float) asm("__real_" TWOFOUR_GLOBAL_SCALE);
GlobalScale wrong_global_scale(const QuantizeRule&, float) asm("__wrap_" TWOFOUR_GLOBAL_SCALE);
void real_quantize(const QuantizeRule&, const GlobalScale&, std::span<const float>, uint8_t*, uint8_t*,
                   Isa) asm("__real_" TWOFOUR_QUANTIZE);
void wrong_quantize(const QuantizeRule&, const GlobalScale&, std::span<const float>, uint8_t*, uint8_t*,
                    Isa) asm("__wrap_" TWOFOUR_QUANTIZE);
float real_fp8_scale(float) asm("__real_" TWOFOUR_FP8_SCALE);
float wrong_fp8_scale(float) asm("__wrap_" TWOFOUR_FP8_SCALE);
void real_cast(std::span<const uint8_t>, int, uint8_t*) asm("__real_" TWOFOUR_CAST);
void wrong_cast(std::span<const uint8_t>, int, uint8_t*) asm("__wrap_" TWOFOUR_CAST);
void real_shifts(std::span<const uint8_t>, float, uint8_t*) asm("__real_" TWOFOUR_SHIFTS);
void wrong_shifts(std::span<const uint8_t>, float, uint8_t*) asm("__wrap_" TWOFOUR_SHIFTS);

/// A range of 4 times 448 in place of 6 times.
GlobalScale wrong_global_scale(const QuantizeRule& rule, float amax) {
  return real_global_scale(rule, fault == Fault::kGlobalScale ? 1.5f * amax : amax);
}

void wrong_quantize(const QuantizeRule& rule, const GlobalScale& global, std::span<const float> weights,
                    uint8_t* codes, uint8_t* scales, Isa isa) {
  QuantizeRule own = rule;
  if (fault == Fault::kBlockScale) {
    own.block_scale = rule.block_scale == BlockScale::max ? BlockScale::mse : BlockScale::max;
  }
  if (fault == Fault::kZeroBlock) {
    own.zero_block = rule.zero_block == ZeroBlock::zero ? ZeroBlock::producer : ZeroBlock::zero;
  }
  real_quantize(own, global, weights, codes, scales, isa);
}

float wrong_fp8_scale(float amax) {
  return real_fp8_scale(fault == Fault::kFp8Scale ? amax * (448.0f / 240.0f) : amax);
}

void wrong_cast(std::span<const uint8_t> scales, int exponent, uint8_t* out) {
  real_cast(scales, fault == Fault::kCast ? exponent + 1 : exponent, out);
}

void wrong_shifts(std::span<const uint8_t> scales, float fp8_scale, uint8_t* shifts) {
  real_shifts(scales, fault == Fault::kShift ? 2 * fp8_scale : fp8_scale, shifts);
}

}  // namespace twofour::planted

using namespace twofour;
using planted::Fault;

namespace {

namespace fs = std::filesystem;

const std::string kDown = "model.layers.0.mlp.down_proj";

/// Row 1 of the matrix has a block of zeros at k = 16.
void write_source(const fs::path& path) {
  FloatMatrix m = random_floats(5, 48, 7);
  for (size_t k = 0; k < 16; ++k) m.values[48 + 16 + k] = 0;
  for (size_t i = 0; i < m.values.size(); i += 16) {
    const bool is_zero = i == 48 + 16;
    if (!is_zero && m.values[i] == 0) m.values[i] = 0.01f;
  }
  Tensors tensors;
  add_floats(tensors, kDown, m);
  write_checkpoint(path, {tensors});
}

/// What validate finds where convert had the fault.
Findings differences_of(const fs::path& source, const fs::path& out, const OneRule& rule, Fault fault) {
  fs::remove_all(out);
  planted::fault = fault;
  convert(source, out, rule);
  // The fault stays: validate must not depend on what is wrong.
  Findings found = validate_from(source, out, 0).differences;
  CHECK(validate(out, 0).differences.empty());  // the artifact is consistent in itself
  planted::fault = Fault::kNone;
  return found;
}

}  // namespace

TEST_CASE(
    "a wrong global scale, block scale rule or zero-block rule of the encoder is found, with its place") {
  const Scratch scratch;
  write_source(scratch / "src");
  for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
    const std::string global = dialect == "modelopt" ? ".weight_scale_2" : ".weight_global_scale";
    for (const std::string block_scale : {"max", "mse", "four-over-six"}) {
      for (const std::string zero_block : {"producer", "zero"}) {
        CAPTURE(dialect);
        CAPTURE(block_scale);
        CAPTURE(zero_block);
        OneRule rule;
        rule.to = "quantize";
        rule.dialect = dialect;
        rule.block_scale = block_scale;
        rule.zero_block = zero_block;
        const auto found_with = [&](Fault fault) {
          const Findings found = differences_of(scratch / "src", scratch / "out", rule, fault);
          CAPTURE(text_of(found));
          for (const Finding& f : found) {
            CHECK(f.id == "bytes");
            CHECK(f.message.find(" (") != std::string::npos);
            CHECK(f.message.find("expected ") != std::string::npos);
          }
          return found;
        };
        const auto where = [](const Findings& found) {
          std::string names;
          for (const Finding& f : found) names += f.where.substr(kDown.size()) + " ";
          return names;
        };
        CHECK(found_with(Fault::kNone).empty());
        CHECK(where(found_with(Fault::kGlobalScale)).find(global + " ") != std::string::npos);
        CHECK(where(found_with(Fault::kBlockScale)).find(".weight_scale ") != std::string::npos);
        const Findings zero = found_with(Fault::kZeroBlock);
        REQUIRE(where(zero).find(".weight_scale ") != std::string::npos);
        bool has_place = false;
        for (const Finding& f : zero) {
          has_place = has_place || (f.where == kDown + ".weight_scale" &&
                                    f.message.find("the first at 4 (row 1, k 16)") != std::string::npos);
        }
        CHECK_MESSAGE(has_place, text_of(zero));
      }
    }
  }
}

TEST_CASE("a wrong scale of FP8 is found") {
  const Scratch scratch;
  write_source(scratch / "src");
  for (const std::string granularity : {"tensor", "row", "block"}) {
    CAPTURE(granularity);
    OneRule rule;
    rule.to = "fp8";
    rule.granularity = granularity;
    rule.odd_blocks = "write";
    CHECK(differences_of(scratch / "src", scratch / "out", rule, Fault::kNone).empty());
    const Findings found = differences_of(scratch / "src", scratch / "out", rule, Fault::kFp8Scale);
    REQUIRE_MESSAGE(found.size() == 2, text_of(found));
    CHECK(found[0].where == kDown + ".weight");
    CHECK(found[0].message.find(" (row 0, k ") != std::string::npos);
    CHECK(found[1].where == kDown + ".weight_scale");
    CHECK(found[1].message.find(" (element 0): expected ") != std::string::npos);
  }
}

TEST_CASE("a wrong cast of MXFP4 is found") {
  const Scratch scratch;
  Tensors tensors;
  tensors.push_back({kDown + ".weight", DType::kI8, {2, 32}, std::vector<uint8_t>(64, 0x35)});
  tensors.push_back({kDown + ".scale", DType::kF8E8M0, {2, 2}, {120, 121, 122, 123}});
  write_checkpoint(scratch / "src", {tensors});
  OneRule rule;
  rule.to = "quantize";
  CHECK(differences_of(scratch / "src", scratch / "out", rule, Fault::kNone).empty());
  const Findings found = differences_of(scratch / "src", scratch / "out", rule, Fault::kCast);
  REQUIRE_MESSAGE(found.size() == 1, text_of(found));
  CHECK(found[0].where == kDown + ".weight_scale");
  CHECK(found[0].message.find("8 bytes differ") == 0);
  rule.to = "fp8";
  CHECK(differences_of(scratch / "src", scratch / "out", rule, Fault::kNone).empty());
  const Findings values = differences_of(scratch / "src", scratch / "out", rule, Fault::kShift);
  REQUIRE_MESSAGE(values.size() == 1, text_of(values));
  CHECK(values[0].where == kDown + ".weight");
  CHECK(values[0].message.find("128 bytes differ") == 0);
}
