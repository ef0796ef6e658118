// Files that change, shrink, vanish or cannot be read while a conversion runs: one clear message, and nothing
// left that looks complete.
#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>

#include "formats/error.h"
#include "lib/artifact/open_source.h"
#include "lib/convert/convert.h"
#include "lib/io/file.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace changing_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// A checkpoint that is opened and planned before somebody changes it.
struct Opened {
  Scratch scratch;
  fs::path directory, shard, out;
  std::optional<Checkpoint> source;
  Plan plan;

  explicit Opened(uint64_t max_shard_size = 5'000'000'000)
      : directory(scratch / "src"), shard(directory / "model.safetensors"), out(scratch / "out") {
    Tensors tensors;
    add_experts(tensors, "model.layers.0.mlp.experts", random_experts(2, 32, 64));
    add_bf16(tensors, "model.norm.weight", {64});
    write_checkpoint(directory, {tensors}, R"({"num_experts": 2})");
    std::ofstream(directory / "tokenizer.json") << "{}";
    for (const auto& entry : fs::directory_iterator(directory)) {
      if (entry.path().extension() == ".safetensors") shard = entry.path();
    }
    source.emplace(open_source(directory));
    OneRule recipe;
    recipe.max_shard_size = max_shard_size;
    plan = make_plan(*source, recipe);
  }
  void refuses(const std::string& message) {
    CAPTURE(message);
    Progress progress;
    CHECK_THROWS_WITH_AS(convert(*source, plan, out, {}, progress), doctest::Contains(message.c_str()),
                         Error);
    CHECK(!fs::exists(out));
  }
};

}  // namespace

TEST_CASE("a weight file that is cut while being read is an error, not a signal") {
  for (const uint64_t size : {uint64_t{5'000'000'000}, uint64_t{1500}}) {
    Opened o(size);
    fs::resize_file(o.shard, fs::file_size(o.shard) - 1);
    o.refuses("it was truncated while being read");
  }
  Opened o;
  fs::resize_file(o.shard, 0);
  o.refuses("it was truncated while being read");
}

TEST_CASE("a weight file that is written to while being read is reported, and its output is removed") {
  for (const uint64_t size : {uint64_t{5'000'000'000}, uint64_t{1500}}) {
    Opened o(size);
    fs::last_write_time(o.shard, fs::last_write_time(o.shard) + std::chrono::seconds(1));
    o.refuses("expected a file that does not change while being read, found it changed");
  }
  Opened o;
  std::ofstream(o.shard, std::ios::app) << "more";
  o.refuses("found it changed");
}

TEST_CASE("a weight file that vanishes is read to its end, another file that does is an error") {
  Opened o;
  fs::remove(o.directory / "tokenizer.json");
  o.refuses("tokenizer.json");
  std::ofstream(o.directory / "tokenizer.json") << "{}";
  fs::remove(o.shard);
  Progress progress;
  convert(*o.source, o.plan, o.out, {}, progress);
  CHECK(validate(o.out).differences.empty());
}

TEST_CASE("a file without read permission is refused by its name") {
  Opened o;
  fs::permissions(o.scratch.path, fs::perms(0755));
  for (const fs::path& file : {o.shard, o.directory / "config.json"}) {
    fs::permissions(file, fs::perms::none);
    // Permissions do not hold root back.
    const bool root = ::geteuid() == 0;
    if (root) REQUIRE(::seteuid(65534) == 0);
    const std::string message = message_of([&] { Checkpoint::open(o.directory); });
    // Not damage, for which what is finished would be written again.
    CHECK_THROWS_AS(InputFile(file, Io::kBuffered), ReadError);
    if (root) REQUIRE(::seteuid(0) == 0);
    CHECK_MESSAGE(message == file.string() + ": cannot open: Permission denied", message);
    fs::permissions(file, fs::perms(0644));
  }
}

}  // namespace changing_test
