#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>

#include "kernels/numbers/casts.h"
#include "kernels/numbers/quantize.h"
#include "kernels/numbers/quantize_mx.h"
#include "lib/recipe/selection/input_scales.h"
#include "lib/source/linears/linears.h"
#include "tests/lib/prove/validate/planted.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/stored_int4.h"

// The linker puts these functions in the place of the encoder's (--wrap in tests/CMakeLists.txt): convert and
// validate run in one program whose encoder is wrong, so that only a derivation of validate's own notices.

namespace twofour::planted {

Fault fault = Fault::kNone;

#define TWOFOUR_GLOBAL_SCALE "_ZN7twofour15global_scale_ofERKNS_12QuantizeRuleEf"
#define TWOFOUR_QUANTIZE                                                                     \
  "_ZN7twofour14quantize_nvfp4ERKNS_12QuantizeRuleERKNS_11GlobalScaleESt4spanIKfLm184467440" \
  "73709551615EEPhS9_NS_3IsaE"
#define TWOFOUR_MXFP8 \
  "_ZN7twofour14quantize_mxfp8ERKNS_6MxRuleESt4spanIKfLm18446744073709551615EEPhS6_NS_3IsaE"
#define TWOFOUR_MXFP4 \
  "_ZN7twofour14quantize_mxfp4ERKNS_6MxRuleESt4spanIKfLm18446744073709551615EEPhS6_NS_3IsaE"
#define TWOFOUR_MX_CODES "_ZN7twofour16cast_mxfp4_codesESt4spanIKhLm18446744073709551615EEPS1_PhNS_3IsaE"
#define TWOFOUR_MXFP4_TILE "_ZN7twofour16mxfp4_tile_scaleENS_5DTypeERKNS_10Mxfp4RangeE"
#define TWOFOUR_NVFP4_TILE "_ZN7twofour16nvfp4_tile_scaleENS_5DTypeEff"
#define TWOFOUR_ROUND_SCALE "_ZN7twofour11round_scaleENS_5DTypeEf"
#define TWOFOUR_READ_ROWS \
  "_ZN7twofour12WeightReader9read_rowsERKNS_6LinearElllSt4spanIfLm18446744073709551615EE"
#define TWOFOUR_INPUT_SCALES \
  "_ZN7twofour19choose_input_scalesERKNS_10CheckpointERKNS_14InputScaleRuleERNS_8ProblemsE"
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
using QuantizeMx = void(const MxRule&, std::span<const float>, uint8_t*, uint8_t*, Isa);
QuantizeMx real_mxfp8 asm("__real_" TWOFOUR_MXFP8), wrong_mxfp8 asm("__wrap_" TWOFOUR_MXFP8),
    real_mxfp4 asm("__real_" TWOFOUR_MXFP4), wrong_mxfp4 asm("__wrap_" TWOFOUR_MXFP4);
void real_mx_codes(std::span<const uint8_t>, const uint8_t*, uint8_t*, Isa) asm("__real_" TWOFOUR_MX_CODES);
void wrong_mx_codes(std::span<const uint8_t>, const uint8_t*, uint8_t*, Isa) asm("__wrap_" TWOFOUR_MX_CODES);
float real_mxfp4_tile(DType, const Mxfp4Range&) asm("__real_" TWOFOUR_MXFP4_TILE);
float wrong_mxfp4_tile(DType, const Mxfp4Range&) asm("__wrap_" TWOFOUR_MXFP4_TILE);
float real_nvfp4_tile(DType, float, float) asm("__real_" TWOFOUR_NVFP4_TILE);
float wrong_nvfp4_tile(DType, float, float) asm("__wrap_" TWOFOUR_NVFP4_TILE);
float real_round_scale(DType, float) asm("__real_" TWOFOUR_ROUND_SCALE);
float wrong_round_scale(DType, float) asm("__wrap_" TWOFOUR_ROUND_SCALE);
using ReadRows = void(WeightReader*, const Linear&, int64_t, int64_t, int64_t, std::span<float>);
ReadRows real_read_rows asm("__real_" TWOFOUR_READ_ROWS), wrong_read_rows asm("__wrap_" TWOFOUR_READ_ROWS);
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

using InputScales = std::vector<ChosenInputScale>(const Checkpoint&, const InputScaleRule&, Problems&);
InputScales real_input_scales asm("__real_" TWOFOUR_INPUT_SCALES), wrong_input_scales
    asm("__wrap_" TWOFOUR_INPUT_SCALES);

std::vector<ChosenInputScale> wrong_input_scales(const Checkpoint& source, const InputScaleRule& rule,
                                                 Problems& problems) {
  auto chosen = real_input_scales(source, rule, problems);
  if (fault == Fault::kInputScale) chosen.at(1) = {chosen[1].multiplier * 2, false};
  if (fault == Fault::kNoInputScales) chosen.assign(chosen.size(), {});
  if (fault == Fault::kOwnInputScale) chosen.at(1) = {1, true};
  if (fault == Fault::kInputScaleOfAll) {
    float most = 0;
    for (const ChosenInputScale& one : chosen) most = std::max(most, one.multiplier);
    for (ChosenInputScale& one : chosen) one = {most > 0 ? most : 1, false};
  }
  return chosen;
}

MxRule own_mx_rule(const MxRule& rule) {
  MxRule own = rule;
  if (fault == Fault::kMxArithmetic) {
    own.arithmetic =
        rule.arithmetic == Arithmetic::modelopt ? Arithmetic::compressed_tensors : Arithmetic::modelopt;
  }
  return own;
}

void wrong_mxfp8(const MxRule& rule, std::span<const float> weights, uint8_t* values, uint8_t* scales,
                 Isa isa) {
  real_mxfp8(own_mx_rule(rule), weights, values, scales, isa);
}

void wrong_mxfp4(const MxRule& rule, std::span<const float> weights, uint8_t* codes, uint8_t* scales,
                 Isa isa) {
  real_mxfp4(own_mx_rule(rule), weights, codes, scales, isa);
  if (fault != Fault::kMxNibbles) return;
  for (size_t i = 0; i < weights.size() / 2; ++i)
    codes[i] = static_cast<uint8_t>(codes[i] << 4 | codes[i] >> 4);
}

void wrong_mx_codes(std::span<const uint8_t> codes, const uint8_t* shifts, uint8_t* out, Isa isa) {
  real_mx_codes(codes, shifts, out, isa);
  if (fault != Fault::kMxCastCodes) return;
  for (size_t i = 0; i < codes.size(); ++i) std::swap(out[2 * i], out[2 * i + 1]);
}

float wrong_mxfp4_tile(DType type, const Mxfp4Range& tile) {
  return real_mxfp4_tile(type, tile) * (fault == Fault::kTileScale ? 2.0f : 1.0f);
}
float wrong_nvfp4_tile(DType type, float largest, float global) {
  return real_nvfp4_tile(type, largest, global) * (fault == Fault::kTileScale ? 2.0f : 1.0f);
}
float wrong_round_scale(DType type, float scale) {
  return real_round_scale(type, fault == Fault::kRoundedScale ? scale / 2 : scale);
}

void wrong_read_rows(WeightReader* reader, const Linear& module, int64_t e, int64_t n0, int64_t n1,
                     std::span<float> out) {
  real_read_rows(reader, module, e, n0, n1, out);
  if (fault == Fault::kDecode) {
    for (size_t i = 0; i + 1 < out.size(); i += 2) std::swap(out[i], out[i + 1]);
  }
  if (fault == Fault::kDecodeScale) {
    for (float& x : out) x *= 2;
  }
}

void wrong_shifts(std::span<const uint8_t> scales, float fp8_scale, uint8_t* shifts) {
  real_shifts(scales, fault == Fault::kShift ? 2 * fp8_scale : fp8_scale, shifts);
}

}  // namespace twofour::planted

using namespace twofour;
using planted::differences_of;
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

namespace {

/// "SUFFIX SUFFIX " of the tensors with bytes that differ.
std::string wrong_tensors(const Findings& found) {
  std::string names;
  for (const Finding& f : found) {
    if (f.id == "bytes") names += f.where.substr(kDown.size()) + " ";
  }
  return names;
}

OneRule rule_to(const std::string& to, const std::string& dialect = "", const std::string& exact = "") {
  OneRule rule;
  rule.to = to;
  rule.dialect = dialect;
  rule.exact = exact;
  if (to == "fp8") {
    rule.granularity = "block";
    rule.odd_blocks = "write";
  }
  return rule;
}

/// Weights of 64 rows and inputs in a format.
Tensors stored_as(const std::string& how) {
  Tensors tensors;
  if (how == "fp8") {
    fp8_weights({64, 64}, 3).add_to(tensors, kDown + ".weight");
    random_scales(DType::kF32, {2, 2}, 4).add_to(tensors, kDown + ".weight_scale_inv");
  } else if (how == "mxfp8") {
    fp8_weights({64, 64}, 3).add_to(tensors, kDown + ".weight");
    tensors.push_back({kDown + ".weight_scale", DType::kU8, {64, 2}, std::vector<uint8_t>(128, 118)});
  } else if (how == "mxfp4") {
    StoredTensor(DType::kU8, {64, 32}, 5).add_to(tensors, kDown + ".weight");
    tensors.push_back({kDown + ".weight_scale", DType::kU8, {64, 2}, std::vector<uint8_t>(128, 118)});
  } else if (how == "nvfp4") {
    add_modelopt(tensors, kDown, random_matrix(64, 64, 6));
  } else {
    StoredInt4 w(64, 64, 32, how == "awq" ? DType::kF16 : DType::kBF16, 7);
    if (how == "gptq") w.raise_zeros();
    if (how == "gptq") w.shuffle(7);
    how == "awq"    ? w.add_awq(tensors, kDown)
    : how == "gptq" ? w.add_gptq(tensors, kDown, 1)
                    : w.add_packed(tensors, kDown, true);
    if (how == "gptq") w.add_index(tensors, kDown + ".g_idx");
  }
  return tensors;
}

std::string config_of(const std::string& how) {
  if (how == "awq") return int4_config("awq", 32, R"(, "version": "gemm", "zero_point": true)");
  if (how == "gptq") return int4_config("gptq", 32, R"(, "desc_act": true)");
  if (how == "fp8")
    return R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}})";
  if (how == "int4")
    return R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}})";
  return R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}})";
}

}  // namespace

TEST_CASE("a wrong scale or code of MXFP8 and MXFP4 is found, with its place") {
  const Scratch scratch;
  Tensors tensors;
  FloatMatrix weights = random_floats(5, 64, 9);
  weights.values[3] = 1.75f;  // where the producers' scales of MXFP8 differ
  add_floats(tensors, kDown, weights);
  write_checkpoint(scratch / "src", {tensors});
  for (const std::string to : {"mxfp8", "mxfp4"}) {
    for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
      CAPTURE(to);
      CAPTURE(dialect);
      const std::string values =
          to == "mxfp4" && dialect == "compressed-tensors" ? ".weight_packed" : ".weight";
      const OneRule rule = rule_to(to, dialect);
      const auto found_with = [&](Fault fault) {
        return differences_of(scratch / "src", scratch / "out", rule, fault);
      };
      CHECK(found_with(Fault::kNone).empty());
      CHECK(wrong_tensors(found_with(Fault::kMxArithmetic)).find(".weight_scale ") != std::string::npos);
      if (to == "mxfp8") continue;
      const Findings swapped = found_with(Fault::kMxNibbles);
      REQUIRE(wrong_tensors(swapped) == values + " ");
      CHECK(swapped[0].message.find(" (row 0, k ") != std::string::npos);
    }
  }
}

TEST_CASE("wrong E4M3 of MXFP4's codes is found") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {stored_as("mxfp4")}, config_of("mxfp4"));
  const OneRule rule = rule_to("mxfp8", "modelopt");
  CHECK(differences_of(scratch / "src", scratch / "out", rule, Fault::kNone).empty());
  CHECK(wrong_tensors(differences_of(scratch / "src", scratch / "out", rule, Fault::kMxCastCodes)) ==
        ".weight ");
}

TEST_CASE("a wrong scale of FP8 tiles is found: of casts from four bits, in BF16 and in E8M0") {
  const Scratch scratch;
  for (const auto& [from, exact, scale_dtype, fault] : {std::tuple{"mxfp4", "", "f32", Fault::kTileScale},
                                                        {"mxfp4", "", "bf16", Fault::kTileScale},
                                                        {"nvfp4", "", "f32", Fault::kTileScale},
                                                        {"mxfp4", "off", "bf16", Fault::kRoundedScale},
                                                        {"int4", "", "bf16", Fault::kRoundedScale},
                                                        {"fp8", "", "bf16", Fault::kRoundedScale}}) {
    for (const char* block : {"128x128", "32x32", "1x128"}) {
      CAPTURE(std::string(from));
      CAPTURE(std::string(scale_dtype));
      CAPTURE(std::string(block));
      fs::remove_all(scratch / "src");
      write_checkpoint(scratch / "src", {stored_as(from)}, config_of(from));
      OneRule rule = rule_to("fp8", "compressed-tensors", exact);
      rule.block = block;
      rule.scale_dtype = scale_dtype;
      const Findings unharmed = differences_of(scratch / "src", scratch / "out", rule, Fault::kNone);
      CHECK_MESSAGE(unharmed.empty(), text_of(unharmed));
      const std::string wrong = wrong_tensors(differences_of(scratch / "src", scratch / "out", rule, fault));
      CHECK(wrong.find(".weight_scale ") != std::string::npos);
    }
  }
  // DeepSeek-V4's own form has E8M0.
  Tensors v4;
  const std::string w2 = "layers.0.ffn.experts.0.w2";
  StoredTensor(DType::kI8, {64, 32}, 5).add_to(v4, w2 + ".weight");
  v4.push_back({w2 + ".scale", DType::kF8E8M0, {64, 2}, std::vector<uint8_t>(128, 118)});
  fs::remove_all(scratch / "src");
  write_checkpoint(scratch / "src", {v4}, R"({"model_type": "deepseek_v4", "expert_dtype": "fp4",
      "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})");
  for (const auto& [exact, fault] : {std::pair{"", Fault::kTileScale}, {"off", Fault::kRoundedScale}}) {
    OneRule rule = rule_to("fp8", "deepseek-v4", exact);
    rule.scale_dtype = "e8m0";
    CHECK(differences_of(scratch / "src", scratch / "out", rule, Fault::kNone).empty());
    const Findings found = differences_of(scratch / "src", scratch / "out", rule, fault);
    REQUIRE(!found.empty());
    CHECK(found.back().where == w2 + ".scale");
  }
}

TEST_CASE("wrongly decoded weights of every format are found, whatever they become") {
  const Scratch scratch;
  for (const std::string from : {"int4", "awq", "gptq", "fp8", "mxfp8", "mxfp4"}) {
    fs::remove_all(scratch / "src");
    write_checkpoint(scratch / "src", {stored_as(from)}, config_of(from));
    for (const std::string to : {"bf16", "quantize", "fp8", "mxfp8", "mxfp4"}) {
      CAPTURE(from);
      CAPTURE(to);
      OneRule rule = rule_to(to, to == "bf16" ? "" : "compressed-tensors", to == "bf16" ? "" : "off");
      if (from == to || (from == "mxfp8" && to == "fp8")) continue;
      CHECK(differences_of(scratch / "src", scratch / "out", rule, Fault::kNone).empty());
      for (const Fault fault : {Fault::kDecode, Fault::kDecodeScale}) {
        const std::string wrong =
            wrong_tensors(differences_of(scratch / "src", scratch / "out", rule, fault));
        CHECK(wrong.find(".weight") != std::string::npos);
      }
    }
  }
}
