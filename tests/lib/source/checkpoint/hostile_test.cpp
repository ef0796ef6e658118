#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>

#include "formats/error.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/plan/plan.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/scratch.h"

namespace hostile_test {

// Files and directories made to do harm. Each must end in one short message, soon and without much memory.

using namespace twofour;

namespace {

namespace fs = std::filesystem;

std::string refusal(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

std::string refusal(const fs::path& path) {
  return refusal([&] { Checkpoint::open(path); });
}

bool says(const std::string& message, std::string_view fragment) {
  CAPTURE(message);
  CHECK(message.size() < 1000);
  CHECK(message.find('\n') == std::string::npos);
  return message.find(fragment) != std::string::npos;
}

/// Directories with a sound shard and something bad instead of the file `name`.
struct Trap {
  explicit Trap(const std::string& name) : name_(name) {
    write_text(scratch / "sound.safetensors", SafetensorsFile().add_u8("a", 2).bytes());
  }
  std::string with_link(const fs::path& target) {
    fs::create_symlink(target, scratch / name_);
    return take();
  }
  std::string with_fifo() {
    REQUIRE(::mkfifo((scratch / name_).c_str(), 0600) == 0);
    return take();
  }
  std::string with_directory() {
    fs::create_directory(scratch / name_);
    return take();
  }
  std::string take() {
    const std::string message = refusal(scratch.path);
    fs::remove(scratch / name_);
    return message;
  }
  Scratch scratch;
  std::string name_;
};

Tensors expert_tensors() {
  Tensors tensors;
  add_experts(tensors, "model.layers.0.mlp.experts", random_experts(2, 16, 32));
  return tensors;
}

}  // namespace

TEST_CASE(
    "links to nowhere and in circles, FIFOs, devices and directories are refused in every place of a file") {
  for (const std::string name :
       {"2.safetensors", "config.json", "hf_quant_config.json", "model.safetensors.index.json"}) {
    CAPTURE(name);
    Trap trap(name);
    CHECK(says(trap.with_link("nowhere"), name));
    CHECK(says(trap.with_link(name), name));
    CHECK(says(trap.with_link("/dev/zero"), name + ": expected a regular file, found something else"));
    CHECK(says(trap.with_fifo(), name + ": expected a regular file, found something else"));
    CHECK(says(trap.with_directory(), name + ": expected a regular file, found something else"));
  }
}

TEST_CASE("an index that names something else than a file is refused") {
  Trap trap("bad");
  write_text(trap.scratch / kIndexName, R"({"weight_map":{"a":"bad"}})");
  CHECK(says(trap.with_link("nowhere"),
             "expected the file bad, which it names, found a link to nowhere, which"));
  CHECK(says(trap.with_link("bad"), "bad: cannot open: "));
  CHECK(says(trap.with_link("/dev/zero"), "bad: expected a regular file"));
  CHECK(says(trap.with_fifo(), "bad: expected a regular file"));
  CHECK(says(trap.with_directory(), "bad: expected a regular file"));
  CHECK(says(trap.with_link("/proc/self/mem"), "bad: "));
  const std::string huge(300, 'x');
  for (const std::string& name : {std::string("../sound.safetensors"), "/" + huge, huge}) {
    write_text(trap.scratch / kIndexName, R"({"weight_map":{"a":")" + name + "\"}}");
    CHECK(says(trap.take(), "expected the name of a file in this directory, found \""));
  }
  write_text(trap.scratch / kIndexName, R"({"weight_map":{")" + std::string(5000, 'a') + "\":\"bad\"}}");
  CHECK(says(trap.take(), "expected names of at most 4096 bytes, found \"aaa"));
}

TEST_CASE("a file that may not be read is refused by name") {
  if (::geteuid() == 0) return;  // who may read everything
  Trap trap("2.safetensors");
  write_text(trap.scratch / trap.name_, SafetensorsFile().add_u8("b", 2).bytes());
  fs::permissions(trap.scratch / trap.name_, fs::perms::none);
  CHECK(says(trap.take(), "2.safetensors: cannot open: Permission denied"));
}

TEST_CASE("a directory with the name of a file that twofour writes is refused before anything is written") {
  for (const char* name :
       {"model-00001-of-00001.safetensors", "model.safetensors.index.json", "twofour.json"}) {
    CAPTURE(name);
    const Scratch scratch;
    write_checkpoint(scratch / "src",
                     {expert_tensors(), {}});  // with an index, so that only named files count
    fs::remove(scratch / "src" / name);
    fs::create_directory(scratch / "src" / name);
    write_text(scratch / "src" / name / "stowaway", "x");
    CHECK(says(refusal([&] { convert(scratch / "src", scratch / "out"); }), name));
    CHECK_FALSE(fs::exists(scratch / "out"));
  }
}

TEST_CASE("FIFOs, devices and broken links beside the weights are findings and not copied") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {expert_tensors()});
  REQUIRE(::mkfifo((scratch / "src/fifo").c_str(), 0600) == 0);
  fs::create_symlink("/dev/zero", scratch / "src/zero");
  fs::create_symlink("nowhere", scratch / "src/dangling");
  fs::create_symlink("loop", scratch / "src/loop");
  const ConvertResult result = convert(scratch / "src", scratch / "out");
  CHECK(findings_of(result.findings, "not-a-file").size() == 4);
  for (const char* name : {"fifo", "zero", "dangling", "loop"})
    CHECK_FALSE(fs::exists(scratch / "out" / name));
  CHECK(text_of(result.findings).find("dangling: a link to nowhere, which does not exist") !=
        std::string::npos);
}

TEST_CASE("files whose names are not UTF-8 are refused before anything is written") {
  const std::string wrong = std::string("bad") + '\xff';
  for (const std::string& name : {wrong + ".json", wrong + "/notes.txt", wrong + ".safetensors"}) {
    const Scratch scratch;
    write_checkpoint(scratch / "src", {expert_tensors()});
    fs::create_directories((scratch / "src" / name).parent_path());
    write_text(scratch / "src" / name, SafetensorsFile().add_u8("a", 2).bytes());
    CHECK(says(refusal([&] { convert(scratch / "src", scratch / "out"); }),
               name + ": expected a name in UTF-8"));
    CHECK_FALSE(fs::exists(scratch / "out"));
  }
  const Scratch scratch;
  write_checkpoint(scratch / "src", {expert_tensors()});
  write_text(scratch / "src/g\u00fcte.txt", "x");
  convert(scratch / "src", scratch / "out");
  CHECK(validate(scratch / "out").differences.empty());
  CHECK(fs::exists(scratch / "out/g\u00fcte.txt"));
}

TEST_CASE("a file whose name leaves no room for the temporary one is refused before anything is written") {
  for (const std::string& folder : {std::string(), std::string(200, 'd') + "/"}) {
    const Scratch scratch;
    write_checkpoint(scratch / "src", {expert_tensors()});
    fs::create_directories(scratch / "src" / folder);
    const fs::path longest = folder + std::string(243, 'x'), longer = folder + std::string(244, 'x');
    write_text(scratch / "src" / longest, "x");
    convert(scratch / "src", scratch / "out");
    CHECK(read_text(scratch / "out" / longest) == "x");
    fs::rename(scratch / "src" / longest, scratch / "src" / longer);
    CHECK(says(
        refusal([&] { convert(scratch / "src", scratch / "over"); }),
        "xxx: expected a name of at most 243 bytes, because its temporary name is 12 longer, found 244"));
    CHECK_FALSE(fs::exists(scratch / "over"));
  }
}

TEST_CASE("a file that vanishes or changes its kind after the plan was made is an error that names it") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {expert_tensors()});
  for (const bool fifo : {false, true}) {
    write_text(scratch / "src/tokenizer.json", "{}");
    const Checkpoint source = Checkpoint::open(scratch / "src");
    const Plan plan = make_plan(source, {});
    fs::remove(scratch / "src/tokenizer.json");
    if (fifo) REQUIRE(::mkfifo((scratch / "src/tokenizer.json").c_str(), 0600) == 0);
    Progress progress;
    CHECK(
        says(refusal([&] { convert(source, plan, scratch / "out", {}, progress); }), "src/tokenizer.json: "));
    CHECK_FALSE(fs::exists(scratch / "out" / kManifestName));
    fs::remove_all(scratch / "out");
    fs::remove(scratch / "src/tokenizer.json");
  }
}

TEST_CASE("config.json may hold anything at all: it is used or refused, and never trouble") {
  const char* values[] = {"null",
                          "5",
                          "-1",
                          "1e300",
                          "99999999999999999999999",
                          "\"x\"",
                          "[]",
                          "[null]",
                          "{}",
                          R"({"group_0":5})",
                          R"({"group_0":{"targets":5}})",
                          R"(["re:("])",
                          R"(["re:(a+)+$"])",
                          R"({"num_bits":"8","type":1})",
                          R"({"num_bits":8})",
                          R"(["re:\\1"])"};
  const Scratch scratch;
  const Tensors tensors = expert_tensors();
  write_checkpoint(scratch / "src", {tensors}, "{}");
  const auto run = [&](const std::string& config, const char* to, const char* dialect) {
    CAPTURE(config);
    CAPTURE(to);
    fs::remove(scratch / "src/config.json");
    write_text(scratch / "src/config.json", config);
    OneRule recipe;
    recipe.to = to;
    recipe.dialect = dialect;
    CHECK_NOTHROW(refusal([&] {
      const Checkpoint source = Checkpoint::open(scratch / "src");
      const Plan plan = make_plan(source, recipe);
      for (const auto& [name, text] : plan.config.texts) parse_json(name, text);
    }));
  };
  for (const std::string value : values) {
    for (const char* key : {"ignore", "config_groups", "kv_cache_scheme", "quant_algo", "quantized_layers"}) {
      const std::string config = "{\"quantization_config\":{\"" + std::string(key) + "\":" + value + "}}";
      run(config, "nvfp4", "compressed-tensors");
      run(config, "bf16", "");
    }
    for (const char* key : {"quantization_config", "compression_config", "text_config", "num_experts"}) {
      const std::string config = "{\"" + std::string(key) + "\":" + value + "}";
      run(config, "v7", "");
      run(config, "nvfp4", "compressed-tensors");
    }
  }
}

TEST_CASE("integers of more than 64 bits in config.json are the same in the artifact") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {expert_tensors()}, R"({"id": 340282366920938463463374607431768211456})");
  convert(scratch / "src", scratch / "out");
  CHECK(read_text(scratch / "out/config.json").find("\"id\": 340282366920938463463374607431768211456,") !=
        std::string::npos);
}

TEST_CASE("headers of megabytes are refused in one short line, or read") {
  const auto check = [&](const std::string& header, std::string_view message) {
    const Scratch scratch;
    write_text(scratch / "a.safetensors", safetensors_file(header, ""));
    CHECK(says(refusal(scratch / "a.safetensors"), message));
  };
  const size_t size = 4u << 20;
  check("{" + std::string(size, ' ') + "}", "accepted");
  check(std::string(size, '{'), "not JSON");
  check("{\"a\":" + std::string(size, '['), "expected an object that describes a tensor, found an array");
  check("{\"a\":" + std::string(size, '1') + "}", "header: not JSON");
  check("{\"__metadata__\":{\"a\":\"" + std::string(size, 'x') + "\"}}", "accepted");
  check("{\"" + std::string(size, 'x') + "\":5}", "expected names of at most 4096 bytes");
  check("{\"a\":{\"dtype\":\"" + std::string(size, 'x') + "\"}}", "unknown dtype \"xxx");
}

TEST_CASE("a manifest that is no JSON is refused with the byte of the error") {
  const Scratch scratch;
  write_text(scratch / "twofour.json", R"({"format": 2, "files": x})");
  CHECK(refusal([&] { read_manifest(scratch / "twofour.json", 1); }) ==
        (scratch / "twofour.json").string() + ": not JSON: error at byte 24");
}

TEST_CASE("numbers of a manifest that are no integers, or none of 64 bits, are refused") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {expert_tensors()});
  convert(scratch / "src", scratch / "out");
  const std::string text = read_text(scratch / "out/twofour.json");
  for (const std::string field : {"\"format\":", "\"max_shard_size\":", "\"shape\":["}) {
    for (size_t at = 0; (at = text.find(field, at)) != std::string::npos;) {
      at = text.find_first_not_of(' ', at + field.size());
      for (const char* value : {"1.5", "1e300", "-1e300", "99999999999999999999", "\"1\"", "null"}) {
        CAPTURE(field);
        CAPTURE(value);
        std::string wrong = text;
        wrong.replace(at, text.find_first_not_of("0123456789", at) - at, value);
        fs::remove(scratch / "twofour.json");
        write_text(scratch / "twofour.json", wrong);
        CHECK(
            says(refusal([&] { read_manifest(scratch / "twofour.json", 1); }), "twofour.json: expected a "));
      }
    }
  }
}

}  // namespace hostile_test
