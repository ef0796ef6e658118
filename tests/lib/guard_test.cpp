// Ways to lose data or to pass off a wrong directory, each of which a user could fall into.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/look/inspect/inspect.h"
#include "lib/write/output/output_directory.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace guard_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

Tensors sound(int64_t experts = 2) {
  Tensors tensors;
  add_experts(tensors, "model.layers.0.mlp.experts", random_experts(experts, 16, 16));
  return tensors;
}

void put(const fs::path& file, const std::string& text) { std::ofstream(file) << text; }

/// Message of the Error that converting ends with; empty if it does not.
std::string refusal(const fs::path& source, const fs::path& destination, bool force = false) {
  ConvertOptions options;
  options.existing = force ? Existing::kReplace : Existing::kRefuse;
  return message_of([&] { convert(source, destination, {}, options); });
}

/// Replaces the first `from` in a file by a text of the same length.
void patch(const fs::path& file, const std::string& from, const std::string& to) {
  std::string text = read_text(file);
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  REQUIRE(from.size() == to.size());
  text.replace(at, from.size(), to);
  put(file, text);
}

}  // namespace

TEST_CASE("a relative destination inside the source is refused") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  const fs::path before = fs::current_path();
  fs::current_path(scratch / "src");
  const std::string message = refusal(".", "out");
  fs::current_path(before);
  CHECK(contains(message, "expected a directory outside of the source"));
  CHECK(!fs::exists(scratch / "src/out"));
}

TEST_CASE("a link is refused however its name ends") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  fs::create_directory(scratch / "real");
  fs::create_directory_symlink(scratch / "real", scratch / "link");
  for (const char* name : {"link", "link/", "link/."}) {
    CAPTURE(name);
    CHECK(contains(refusal(scratch / "src", scratch / name), "found a symbolic link"));
  }
  CHECK(fs::is_empty(scratch / "real"));
}

TEST_CASE("two runs cannot write one directory") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  {
    OutputDirectory other(scratch / "out", {}, Existing::kRefuse);
    CHECK(
        contains(refusal(scratch / "src", scratch / "out", true), "expected no other run in this directory"));
    CHECK(fs::exists(scratch / "out" / kJournalName));
  }
  CHECK(!fs::exists(scratch / "out"));
  CHECK(refusal(scratch / "src", scratch / "out").empty());
}

TEST_CASE("a directory left by a killed run is taken over with force") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  fs::create_directory(scratch / "out");
  Journal(scratch / "out", Sharing::kAlone).begin();
  put(scratch / "out/.model-00001-of-00001.safetensors.unfinished", "half");
  CHECK(contains(refusal(scratch / "src", scratch / "out"), "--force replaces it"));
  CHECK(refusal(scratch / "src", scratch / "out", true).empty());
  CHECK(validate(scratch / "out").differences.empty());
}

TEST_CASE(
    "force empties neither a foreign directory with a file of our name nor one that the source links to") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  fs::create_directory(scratch / "foreign");
  put(scratch / "foreign/twofour.json", "{}");
  put(scratch / "foreign/precious", "data");
  CHECK(contains(refusal(scratch / "src", scratch / "foreign", true), "--force replaces only"));
  CHECK(read_text(scratch / "foreign/precious") == "data");

  REQUIRE(refusal(scratch / "src", scratch / "old").empty());
  write_checkpoint(scratch / "old", {sound()});
  fs::create_directory(scratch / "links");
  for (const auto& entry : fs::directory_iterator(scratch / "src")) {
    const fs::path name = entry.path().filename();
    if (name.extension() == ".json") {
      fs::copy_file(entry.path(), scratch / "links" / name);
    } else {
      fs::create_symlink(scratch / "old" / name, scratch / "links" / name);
    }
  }
  CHECK(contains(refusal(scratch / "links", scratch / "old", true),
                 "expected a directory outside of the source"));
  CHECK(fs::exists(scratch / "old/twofour.json"));
}

TEST_CASE("swapped dimensions, changed metadata, configs and stray files are found without the source") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  put(scratch / "src/tokenizer.json", "{\"a\": 1}");
  const auto differs_after = [&](const char* id, auto change) {
    fs::remove_all(scratch / "out");
    convert(scratch / "src", scratch / "out");
    REQUIRE(validate(scratch / "out").differences.empty());
    change();
    const auto report = validate(scratch / "out");
    CAPTURE(text_of(report.differences));
    CHECK(!findings_of(report.differences, id).empty());
  };
  const fs::path shard = scratch / "out/model-00001-of-00001.safetensors";
  differs_after("tensor", [&] { patch(shard, "\"shape\":[2,4,32]", "\"shape\":[2,32,4]"); });
  differs_after("file", [&] { patch(shard, "\"twofour.layout\":\"v7\"", "\"twofour.layout\":\"g8\""); });
  differs_after("file", [&] { patch(scratch / "out/config.json", "2:4", "4:2"); });
  differs_after("file", [&] { patch(scratch / "out/tokenizer.json", "1", "2"); });
  differs_after("extra-file", [&] { put(scratch / "out/hf_quant_config.json", "{}"); });
  differs_after("missing-file", [&] { fs::remove(scratch / "out/tokenizer.json"); });
}

TEST_CASE("an expert beyond the NVFP4 ones is refused, whatever config says") {
  const Scratch scratch;
  Tensors tensors = sound(3);
  add_bf16(tensors, "model.layers.0.mlp.experts.3.gate_proj.weight", {16, 16});
  write_checkpoint(scratch / "src", {tensors});
  CHECK(contains(refusal(scratch / "src", scratch / "out"), "expected only NVFP4 experts 0 to 2"));

  for (const char* config :
       {"{\"moe_num_experts\": 4}", "{\"a\": {\"text_config\": {\"num_experts\": 4}}}"}) {
    write_checkpoint(scratch / "counted", {sound(3)}, config);
    CHECK(contains(refusal(scratch / "counted", scratch / "out"), "expected 4 NVFP4 experts"));
    fs::remove_all(scratch / "counted");
  }
}

TEST_CASE("a config that is no object is refused") {
  const Scratch scratch;
  for (const char* config : {"[]", "5", "null", "\"x\""}) {
    write_checkpoint(scratch / "src", {sound()}, config);
    CHECK(contains(refusal(scratch / "src", scratch / "out"), "config.json: expected an object"));
    fs::remove_all(scratch / "src");
  }
}

TEST_CASE("a source file written to meanwhile is an error") {
  const Scratch scratch;
  put(scratch / "file", "before");
  const InputFile file(scratch / "file");
  file.check_unchanged();
  put(scratch / "file", "behind");
  fs::last_write_time(scratch / "file", fs::last_write_time(scratch / "file") + std::chrono::seconds(1));
  CHECK_THROWS_WITH_AS(file.check_unchanged(), doctest::Contains("found a change"), Error);
}

TEST_CASE("a manifest that does not fit its tensors does not mislead inspect") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  convert(scratch / "src", scratch / "out");
  for (const char* shape : {"[0,00,00]", "[9,32,16]", "[2,-2,16]"}) {
    std::string text = read_text(scratch / "out/twofour.json");
    const size_t at = text.find("\"shape\":[2,32,16]");
    REQUIRE(at != std::string::npos);
    text.replace(at + 8, 9, std::string(shape) == "[0,00,00]" ? "[0,0,0]" : shape);
    write_sealed(scratch / "out/twofour.json", text);
    const std::string what =
        describe_byte(Checkpoint::open(scratch / "out"), "model.layers.0.mlp.experts.w13_comp", 100);
    CHECK(contains(what, "byte 0 of element 100"));
    fs::remove_all(scratch / "out");
    convert(scratch / "src", scratch / "out");
  }
}

TEST_CASE("inspect says that a byte of metadata is illegal, and of which quad") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  convert(scratch / "src", scratch / "out");
  const std::string name = "model.layers.0.mlp.experts.w13_meta";
  uint64_t at = 0;
  fs::path file;
  {
    const Checkpoint c = Checkpoint::open(scratch / "out");
    const size_t tensor = *c.find(name);
    file = scratch / "out" / c.shard_of(tensor).name;
    at = c.shard_of(tensor).data_begin + c.tensors()[tensor].begin;
  }
  const std::string whole = read_text(file);
  // All bytes: a nibble is legal where its two places, low bits first, rise.
  for (unsigned byte = 0; byte < 256; ++byte) {
    CAPTURE(byte);
    std::string text = whole;
    text[at] = static_cast<char>(byte);
    write_text(file, text);
    const std::string what = describe_byte(Checkpoint::open(scratch / "out"), name, 0);
    for (const unsigned quad : {0u, 1u}) {
      const unsigned nibble = quad == 0 ? byte % 16 : byte / 16, first = nibble % 4, second = nibble / 4;
      const std::string told =
          fmt::format("illegal: expected two rising places in quad k {}-{}", 4 * quad, 4 * quad + 3);
      CHECK((what.find(told) != std::string::npos) == (first >= second));
    }
  }
}

}  // namespace guard_test
