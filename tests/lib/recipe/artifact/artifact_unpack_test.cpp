#include <doctest/doctest.h>
#include <fmt/format.h>

#include <random>

#include "formats/layouts/layouts.h"
#include "lib/base/io/file.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/kept_tensors.h"

namespace artifact_unpack_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kBlock = "model.layers.0.mlp.experts";

/// Reads every tensor of a view whole and at random ranges, short and long.
void check_reads(const Checkpoint& view, const ReadTensors& expected, unsigned seed) {
  std::mt19937 random(seed);
  REQUIRE(view.tensors().size() == expected.size());
  for (size_t i = 0; i < view.tensors().size(); ++i) {
    const TensorInfo& t = view.tensors()[i];
    CAPTURE(t.name);
    REQUIRE(expected.count(t.name));
    const ReadTensor& whole = expected.at(t.name);
    CHECK(t.dtype == whole.dtype);
    CHECK(t.shape == whole.shape);
    REQUIRE(t.bytes() == whole.bytes.size());
    std::vector<uint8_t> bytes(whole.bytes.size());
    view.read(i, 0, bytes);
    CHECK((bytes == whole.bytes));
    for (int round = 0; round < 8; ++round) {
      const size_t begin = random() % bytes.size(), rest = bytes.size() - begin;
      const size_t count = 1 + random() % (round % 2 == 0 ? std::min<size_t>(rest, 40) : rest);
      std::vector<uint8_t> part(count);
      view.read(i, begin, part);
      REQUIRE(std::equal(part.begin(), part.end(), whole.bytes.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
  }
}

/// Overwrites a byte of a tensor of an artifact.
void poke(const fs::path& artifact, const std::string& tensor, uint64_t offset, uint8_t byte) {
  const Checkpoint c = Checkpoint::open(artifact);
  const size_t i = c.find(tensor).value();
  uint8_t before = 0;
  c.read(i, offset, {&before, 1});
  for (int bit = 0; bit < 8; ++bit) {
    if (((before ^ byte) >> bit & 1) == 0) continue;
    flip_bit(artifact / c.shard_of(i).name, c.shard_of(i).data_begin + c.tensors()[i].begin + offset, bit);
  }
}

/// The messages of reading all of a source, by both paths.
std::pair<std::string, std::string> read_messages(const fs::path& source) {
  const auto read_all = [&](ReadPath how) {
    return message_of([&] {
      const Checkpoint view = open_source(source, how);
      for (size_t i = 0; i < view.tensors().size(); ++i) {
        std::vector<uint8_t> bytes(view.tensors()[i].bytes());
        view.read(i, 0, bytes);
      }
    });
  };
  return {read_all(ReadPath::kFast), read_all(ReadPath::kReference)};
}

}  // namespace

TEST_CASE("both read paths give back what a layout kept, however the source stored it") {
  struct Case {
    int64_t e, i, h;
  };
  const ViewLimits small{512, 256, 16384};
  for (const std::string how : {"modelopt", "compressed-tensors", "not gated", "stack", "stack, k outer",
                                "stack, interleaved", "stack, interleaved, k outer"}) {
    for (const auto& [e, i, h] : {Case{2, 48, 96}, {1, 16, 16}, {2, 208, 144}, {1, 16, 400}}) {
      if (how == "stack" && i != 48 && i != 208) continue;
      const Scratch scratch;
      const std::vector<std::string> also =
          how == "modelopt" ? std::vector<std::string>{"*.o_proj"} : std::vector<std::string>{};
      write_checkpoint(scratch / "src", {experts_stored_as(how, kBlock, e, i, h)});
      for_each_layout([&]<class L>() {
        if (how == "not gated" && L::pairs_gate_and_up) return;
        if (L::pairs_gate_and_up && i % 8 != 0) return;
        CAPTURE(how);
        CAPTURE(std::string(L::name));
        CAPTURE(i);
        CAPTURE(h);
        const fs::path artifact = scratch / L::name;
        convert(scratch / "src", artifact, rule_to(L::name, also));
        const ReadTensors expected = kept_by(L::name, scratch / "src", also);
        unsigned seed = 0;
        for (const ReadPath path : {ReadPath::kFast, ReadPath::kReference}) {
          for (const ViewLimits& limits : {ViewLimits{}, small}) {
            const Checkpoint view = open_source(artifact, path, limits);
            CHECK(view.is_view());
            CHECK(view.nvfp4_modules().size() == Checkpoint::open(scratch / "src").nvfp4_modules().size());
            check_reads(view, expected, ++seed);
          }
        }
        convert(artifact, scratch / (std::string(L::name) + " back"), rule_to("nvfp4"), {.jobs = 3});
        check_equal(read_tensors(scratch / (std::string(L::name) + " back")), expected);
        check_proven(artifact, scratch / (std::string(L::name) + " back"));
      });
    }
  }
}

TEST_CASE("an artifact that is not what its layout makes is refused where it is read") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {experts_stored_as("modelopt", kBlock, 2, 48, 96)});
  const auto refused = [&](const std::string& layout, const std::string& tensor, uint64_t offset,
                           uint8_t byte) {
    convert(scratch / "src", scratch / "bad", rule_to(layout));
    const std::string name = kBlock + "." + tensor;
    poke(scratch / "bad", name, offset, byte);
    const auto [fast, reference] = read_messages(scratch / "bad");
    CAPTURE(fast);
    CAPTURE(reference);
    CHECK(fast.find("model-00001-of-00001.safetensors: " + name + ": expert 1, row ") == 0);
    CHECK(reference.find("model-00001-of-00001.safetensors: " + name + ": expert 1, row ") == 0);
    CHECK(message_of([&] { convert(scratch / "bad", scratch / "out", rule_to("nvfp4")); }) == fast);
    CHECK(!fs::exists(scratch / "out"));
    fs::remove_all(scratch / "bad");
    return fast;
  };
  // w13 is [2, 96, 96]: meta [12, 96] an expert.
  for (const unsigned nibble : {0u, 1u, 2u, 3u, 5u, 6u, 7u, 10u, 11u, 15u}) {
    CHECK(refused("v7", "w13_meta", 12 * 96 + 5 * 96 + 70, static_cast<uint8_t>(0x40 | nibble)) ==
          fmt::format("model-00001-of-00001.safetensors: {}.w13_meta: expert 1, row 5, n 70: expected two "
                      "ascending positions in each half of the metadata byte, found 0x4{:X}",
                      kBlock, nibble));
    refused("v7", "w13_meta", 12 * 96 + 3, static_cast<uint8_t>(nibble << 4 | 4));
  }
  // w2 is [2, 96, 48]: packed [6, 384] an expert; row 3 has the second copy of group 1.
  const std::string copy = refused("v7-packed", "w2_packed", 6 * 384 + 3 * 384 + 3 * 96 + 11, 0x7E);
  CHECK(copy.find("expert 1, row 3, n 11: expected the block scale 0x") != copy.npos);
  CHECK(copy.ends_with("of its other copy, found 0x7E"));
  // g8's scales of w13 are [128, 8] an expert: columns 6 and 7 and rows from 96 on are padding.
  refused("g8", "w13_scale", 128 * 8 + 512 + 2, 0x38);  // row 0, group 6
  refused("g8", "w13_scale", 128 * 8 + 12, 0x38);       // row 96, group 0
}

TEST_CASE("block scales that are not valid are refused as in any source") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {experts_stored_as("modelopt", kBlock, 2, 48, 96)});
  for (const char* layout : {"v7", "g8"}) {
    for (const int byte : {0x7F, 0x80, 0xFF}) {
      convert(scratch / "src", scratch / "bad", rule_to(layout));
      poke(scratch / "bad", kBlock + ".w2_scale", 17, static_cast<uint8_t>(byte));
      for (const char* target : {"nvfp4", "bf16", "v7", "g8", "prune"}) {
        const std::string text =
            message_of([&] { convert(scratch / "bad", scratch / "out", rule_to(target)); });
        CAPTURE(text);
        CHECK(text.find("down_proj.weight_scale: expected block scales that are not negative and not NaN") !=
              text.npos);
      }
      fs::remove_all(scratch / "bad");
    }
  }
}

TEST_CASE("a manifest that does not fit its artifact is refused") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {experts_stored_as("modelopt", kBlock, 2, 48, 96)});
  convert(scratch / "src", scratch / "v7", rule_to("v7"));
  const std::string text = read_text(scratch / "v7/twofour.json");
  const auto opened = [&](const std::string& from, const std::string& now) {
    std::string changed = text;
    const size_t at = changed.find(from);
    REQUIRE(at != changed.npos);
    write_sealed(scratch / "v7/twofour.json", changed.replace(at, from.size(), now));
    return message_of([&] { open_source(scratch / "v7"); });
  };
  CHECK(opened("\"shape\":[2,96,96]", "\"shape\":[2,96,112]")
            .find("expected U8 [2, 28, 96], found U8 [2, 24, 96]") != std::string::npos);
  CHECK(opened("\"shape\":[2,96,96]", "\"shape\":[2,96,-96]").find("a multiple of 16, found [2, 96, -96]") !=
        std::string::npos);
  CHECK(opened("\"gated\":true", "\"gated\":false").find("expected 2 sources, found 4") != std::string::npos);
  CHECK(opened("\"rows\":[0,1,48]", "\"rows\":[1,1,48]").find("expected every row once, found row 48") !=
        std::string::npos);
  CHECK(opened("\"rows\":[0,1,48]", "\"rows\":[0,1,49]").find("expected 48 rows of expert 0, found 49") !=
        std::string::npos);
  CHECK(opened("\"dialect\":\"modelopt\"", "\"dialect\":\"x\"").find("expected an NVFP4 dialect, found x") !=
        std::string::npos);
  CHECK(opened("\"global_scale_bits\":\"3e800000\"", "\"global_scale_bits\":\"3f800000\"")
            .find("expected 1 (the stored bits of its source), found 0.25") != std::string::npos);
  CHECK(opened("experts.1.up_proj", "experts.1.gate_proj").find("expected one tensor") != std::string::npos);
  const std::string lines = opened("\"rows\"", "\"lines\"");
  CHECK(lines.find("expected a manifest that describes how") != std::string::npos);
  CHECK(lines.ends_with(", found something else"));
  const std::string syntax = opened("\"rows\"", "@");
  CHECK_MESSAGE(syntax == fmt::format("{}: not JSON: error at byte {}",
                                      (scratch / "v7/twofour.json").string(), text.find("\"rows\"") + 1),
                syntax);
  CHECK(opened("w13_comp", "w13_gone").find("expected a tensor comp, found none") != std::string::npos);
  fs::remove(scratch / "v7/twofour.json");
  CHECK(message_of([&] { open_source(scratch / "v7"); }).find("expected twofour.json, which records") !=
        std::string::npos);
}

}  // namespace artifact_unpack_test
