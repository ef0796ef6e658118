#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/error.h"
#include "lib/look/metrics/quality.h"
#include "lib/write/transform/expert_packer.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace fold_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kBlock = "model.layers.0.mlp.experts";

/// Converts experts whose gate and up have these global scales.
struct Folded {
  Folded(ExpertSet set, const std::vector<float>& gate, const std::vector<float>& up)
      : experts(std::move(set)) {
    for (size_t e = 0; e < experts.gate.size(); ++e) {
      experts.gate[e].global = gate[e];
      experts.up[e].global = up[e];
    }
    Tensors tensors;
    add_experts(tensors, kBlock, experts);
    write_checkpoint(scratch / "src", {tensors});
    result = convert(scratch / "src", scratch / "out");
    ours = read_tensors(scratch / "out");
  }
  const std::vector<uint8_t>& bytes(const char* part) const { return ours.at(kBlock + "." + part).bytes; }
  Scratch scratch;
  ExpertSet experts;
  ConvertResult result;
  ReadTensors ours;
};

}  // namespace

TEST_CASE(
    "one group worked by hand: 1.5 at 0.75 of the larger scale becomes 1.125, 7 * 2^-9 becomes 5 * 2^-9") {
  ExpertSet experts = random_experts(1, 16, 32);
  experts.gate[0].scales[0] = 0x3C;  // 1.5 = 1.100b * 2^0
  experts.gate[0].scales[1] = 0x07;  // 7 * 2^-9
  experts.up[0].scales[0] = 0x3C;
  // The gate's weights are e2m1 * 1.5 * 0.375. Against the up's 0.5 its block scale is 1.5 * 0.75 = 1.125,
  // which E4M3 has: 0x39. The subnormal 7 * 0.75 = 5.25 goes to 5 * 2^-9: 0x05.
  const Folded folded(experts, {0.375f}, {0.5f});
  CHECK(folded.bytes("w13_scale")[0] == 0x39);   // gate row 0, group 0
  CHECK(folded.bytes("w13_scale")[32] == 0x05);  // gate row 0, group 1
  CHECK(folded.bytes("w13_scale")[16] == 0x3C);  // up row 0, group 0: its own scale is the larger
  CHECK(folded.ours.at(kBlock + ".w13_global_scale").as<float>() == std::vector<float>{0.5f});
  CHECK(folded.ours.at(kBlock + ".w2_global_scale").as<float>() == std::vector<float>{0.25f});
}

TEST_CASE("rounding of folded block scales goes to the even neighbour on a tie") {
  // 1.125 (0x39) and 1.375 (0x3B) times 0.5 are exact; times 0.75 they are 0.84375 and 1.03125. In [0.5, 1)
  // steps are 1/16, so 0.84375 = 13.5/16 is a tie between 13 and 14; in [1, 2) they are 1/8 and 1.03125 is
  // nearer to 1.
  const auto table = fold_table(0.75f, 1.0f);
  CHECK(table[0x39] == 0x36);  // 14/16 = 1.110b * 2^-1
  CHECK(table[0x3B] == 0x38);  // 1.0
  CHECK(table[0x00] == 0x00);
  CHECK(table[0x7E] == 0x7A);  // 448 * 0.75 = 336 between 320 and 352: 20, the even mantissa, wins: 320
  CHECK(fold_table(0.5f, 1.0f)[0x39] == 0x31);
}

TEST_CASE("every block scale folds to the nearest E4M3 number of its float32 product") {
  for (const auto& [own, larger] : {std::pair{0.3f, 0.7f}, {1.0f, 1.0f}, {1e-6f, 1.0f}, {0.9999f, 1.0f}}) {
    const auto table = fold_table(own, larger);
    for (unsigned byte = 0; byte < 0x7F; ++byte) {
      const float exact = e4m3_to_float(byte) * (own / larger);
      const float error = std::fabs(e4m3_to_float(table[byte]) - exact);
      for (unsigned other = 0; other < 0x7F; ++other) CHECK(error <= std::fabs(e4m3_to_float(other) - exact));
    }
  }
}

TEST_CASE("the finding counts the experts concerned and the largest factor between their scales") {
  const Folded folded(random_experts(4, 16, 16), {0.5f, 0.25f, 0.5f, 1.0f}, {0.5f, 0.5f, 0.5f, 0.125f});
  const auto unequal = findings_of(folded.result.findings, "unequal-global-scales");
  REQUIRE(unequal.size() == 1);
  CHECK(unequal[0].severity == Severity::kWarning);
  CHECK(unequal[0].where == kBlock + ".w13");
  CHECK(unequal[0].message ==
        "gate and up differ in 2 of 4 experts, by a factor of up to 8: folded to the larger");
  CHECK(folded.ours.at(kBlock + ".w13_global_scale").as<float>() ==
        std::vector<float>{0.5f, 0.5f, 0.5f, 1.0f});
}

TEST_CASE("equal scales stay untouched beside unequal ones, and so do codes") {
  ExpertSet experts = random_experts(2, 16, 16);
  const Folded folded(experts, {0.5f, 0.3f}, {0.5f, 0.7f});
  Bytes expected = expected_v7(kBlock, folded.experts);
  const size_t expert = folded.bytes("w13_scale").size() / 2;
  CHECK(std::equal(expected.at(kBlock + ".w13_scale").begin(),
                   expected.at(kBlock + ".w13_scale").begin() + static_cast<ptrdiff_t>(expert),
                   folded.bytes("w13_scale").begin()));
  CHECK((folded.bytes("w13_scale") != expected.at(kBlock + ".w13_scale")));
  for (const char* part : {"w13_comp", "w13_meta", "w2_comp", "w2_meta", "w2_scale"}) {
    CAPTURE(std::string(part));
    CHECK((folded.bytes(part) == expected.at(kBlock + "." + part)));
  }
}

TEST_CASE("the loss that the finding states is the change of the weights concerned") {
  const Folded folded(random_experts(2, 48, 32), {0.3f, 0.5f}, {0.7f, 0.5f});
  double energy = 0, error = 0;  // of the first expert's gate, the only one folded
  const Nvfp4Matrix& gate = folded.experts.gate[0];
  for (size_t i = 0; i < 2 * gate.codes.size(); ++i) {
    const double code = e2m1_to_float(gate.codes[i / 2] >> i % 2 * 4 & 15u);
    const float scale = e4m3_to_float(gate.scales[i / 16]);
    const double before = code * static_cast<double>(scale) * 0.3f;
    const double after =
        code * static_cast<double>(e4m3_to_float(e4m3_from_float(scale * (0.3f / 0.7f)))) * 0.7f;
    energy += before * before;
    error += (after - before) * (after - before);
  }
  const auto loss = findings_of(folded.result.findings, "fold-loss");
  REQUIRE(loss.size() == 1);
  CHECK(loss[0].where == kBlock + ".w13");
  CHECK_MESSAGE(loss[0].message.find(fmt::format("by {:.3g} in relative norm", std::sqrt(error / energy))) !=
                    std::string::npos,
                loss[0].message);
  for (const Quality& q : qualities(folded.result)) {
    if (q.fold_energy == 0) continue;
    CHECK(q.fold_energy == doctest::Approx(energy).epsilon(1e-12));
    CHECK(q.fold_error == doctest::Approx(error).epsilon(1e-12));
  }
}

TEST_CASE("a fold that changes a matrix by more than 10 % is refused and leaves nothing, any fold takes it") {
  ExpertSet experts = random_experts(2, 48, 32);
  experts.up[1].global = 1e-5f;  // its block scales have nothing left of them under gate's
  Tensors tensors;
  add_experts(tensors, kBlock, experts);
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors});
  CHECK_THROWS_WITH_AS(convert(scratch / "src", scratch / "out"),
                       doctest::Contains("change of at most 10 % of the weights in relative norm"), Error);
  CHECK_THROWS_WITH_AS(convert(scratch / "src", scratch / "out"), doctest::Contains("experts.1.up_proj"),
                       Error);
  CHECK(!fs::exists(scratch / "out"));
  OneRule any;
  any.fold = Fold::kAny;
  const ConvertResult result = convert(scratch / "src", scratch / "out", any);
  CHECK(findings_of(result.findings, "fold-loss").size() == 1);
  CHECK(validate_from(scratch / "src", scratch / "out").differences.empty());
}

TEST_CASE("equal scales bring neither a finding nor a loss") {
  const Folded folded(random_experts(2, 16, 16), {0.5f, 0.25f}, {0.5f, 0.25f});
  CHECK(findings_of(folded.result.findings, "unequal-global-scales").empty());
  CHECK(findings_of(folded.result.findings, "fold-loss").empty());
  CHECK((folded.bytes("w13_scale") == expected_v7(kBlock, folded.experts).at(kBlock + ".w13_scale")));
}

TEST_CASE("gate and up of one stack share their scale and are never folded") {
  std::vector<Nvfp4Matrix> gate_up, down;
  for (unsigned e = 0; e < 2; ++e) {
    gate_up.push_back(random_matrix(32, 16, e, 0.5f + static_cast<float>(e)));
    down.push_back(random_matrix(16, 16, 10 + e));
  }
  Tensors tensors;
  add_stack(tensors, kBlock + ".gate_up_proj", gate_up, false, {2});
  add_stack(tensors, kBlock + ".down_proj", down, false, {2});
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors});
  OneRule strict;
  strict.fold = Fold::kStrict;
  const ConvertResult result = convert(scratch / "src", scratch / "out", strict);
  CHECK(findings_of(result.findings, "unequal-global-scales").empty());
}

TEST_CASE("scales of compressed-tensors are compared as multipliers") {
  Tensors tensors;
  ExpertSet experts = random_experts(1, 16, 16);
  experts.gate[0].global = 0.25f;  // stored as 4
  experts.up[0].global = 0.5f;     // stored as 2
  add_compressed_tensors(tensors, kBlock + ".0.gate_proj", experts.gate[0]);
  add_compressed_tensors(tensors, kBlock + ".0.up_proj", experts.up[0]);
  add_compressed_tensors(tensors, kBlock + ".0.down_proj", experts.down[0]);
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors});
  convert(scratch / "src", scratch / "out");
  CHECK(read_tensors(scratch / "out").at(kBlock + ".w13_global_scale").as<float>() ==
        std::vector<float>{0.5f});
}

}  // namespace fold_test
