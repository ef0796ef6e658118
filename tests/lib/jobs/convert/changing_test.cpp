// Files that change, shrink, vanish or cannot be read while a conversion runs: one clear message, and nothing
// left that looks complete.
#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/jobs/convert/convert.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace changing_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// Puts other bytes under a file's name, with the size and the time of change of those before.
void replace(const fs::path& file) {
  std::string text = read_text(file);
  text.back() = static_cast<char>(text.back() ^ 1);
  const fs::path other = file.string() + ".new";
  std::ofstream(other) << text;
  fs::last_write_time(other, fs::last_write_time(file));
  fs::rename(other, file);
}

/// A checkpoint that calls something as its first bytes are read, once it is armed.
class Disturbed : public TensorSource {
 public:
  Disturbed(Checkpoint stored, std::function<void()> disturb)
      : stored_(std::move(stored)), disturb_(std::move(disturb)) {}
  const Checkpoint& stored() const override { return stored_; }
  uint64_t reader_bytes() const override { return 0; }
  bool is_another() const override { return false; }
  void read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const override {
    if (is_armed.exchange(false)) disturb_();
    stored_.read(tensor, offset, out);
  }
  mutable std::atomic<bool> is_armed{false};

 private:
  Checkpoint stored_;
  std::function<void()> disturb_;
};

/// A checkpoint that is opened and planned before somebody changes it.
struct Opened {
  Scratch scratch;
  fs::path directory, shard, out;
  OneRule recipe;
  std::optional<Checkpoint> source;
  Plan plan;
  std::shared_ptr<const Disturbed> disturbed;

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
    recipe.max_shard_size = max_shard_size;
    source.emplace(open_source(directory));
    plan = make_plan(*source, recipe);
  }
  /// Has `change` happen when all files are open and the first bytes are read.
  void disturb(std::function<void()> change) {
    std::vector<TensorInfo> tensors(source->tensors().begin(), source->tensors().end());
    std::vector<uint32_t> shards;
    for (size_t i = 0; i < tensors.size(); ++i) shards.push_back(source->shard_index_of(i));
    const Json config = source->config();
    disturbed = std::make_shared<Disturbed>(*std::exchange(source, std::nullopt), std::move(change));
    source.emplace(Checkpoint::over(disturbed, std::move(tensors), std::move(shards), config, nullptr, {}));
    plan = make_plan(*source, recipe);
    disturbed->is_armed = true;
  }
  bool is_disturbed() const { return !disturbed->is_armed; }
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
    Opened o(size), before;
    o.disturb([&] { fs::resize_file(o.shard, fs::file_size(o.shard) - 1); });
    o.refuses("it was truncated while being read");
    fs::resize_file(before.shard, fs::file_size(before.shard) - 1);
    before.refuses("expected a file that does not change while being read, found it changed: ");
  }
  Opened o;
  o.disturb([&] { fs::resize_file(o.shard, 0); });
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

TEST_CASE("files that change between opening and copying are refused, so that all are of one state") {
  const std::function<void(const Opened&)> changes[] = {
      [](const Opened& o) { replace(o.shard); },
      [](const Opened& o) { replace(o.directory / "tokenizer.json"); },
      [](const Opened& o) { replace(o.directory / "config.json"); },
      [](const Opened& o) { fs::remove(o.shard); },
      [](const Opened& o) { fs::remove(o.directory / "tokenizer.json"); },
      [](const Opened& o) { std::ofstream(o.directory / "added.json") << "{}"; },
      [](const Opened& o) { std::ofstream(o.directory / "model-2.safetensors") << "{}"; },
  };
  for (const auto& change : changes) {
    Opened o;
    change(o);
    Progress progress;
    const std::string message = message_of([&] { convert(*o.source, o.plan, o.out, {}, progress); });
    CHECK_MESSAGE(message.starts_with(o.directory.string() + "/"), message);
    CHECK(!fs::exists(o.out));
  }
}

TEST_CASE("a weight file that vanishes or is replaced once all is open is read to its end") {
  for (const bool vanishes : {false, true}) {
    Opened o, undisturbed;
    Progress progress;
    convert(*undisturbed.source, undisturbed.plan, undisturbed.out, {}, progress);
    o.disturb([&] { vanishes ? void(fs::remove(o.shard)) : replace(o.shard); });
    convert(*o.source, o.plan, o.out, {}, progress);
    CHECK(o.is_disturbed());
    CHECK(validate(o.out).differences.empty());
    CHECK((read_tensors(o.out) == read_tensors(undisturbed.out)));
  }
}

TEST_CASE(
    "what is written to while its bytes are read leaves nothing, the source or what else the run reads") {
  {
    Opened o;
    o.disturb([&] { std::fstream(o.shard, std::ios::in | std::ios::out).seekp(-1, std::ios::end).put('x'); });
    o.refuses("found it changed");
    CHECK(o.is_disturbed());
  }
  Opened o;
  const fs::path other = o.scratch / "other";
  std::ofstream(other) << "1";
  const FileStates inputs({other});
  o.disturb([&] { replace(other); });
  ConvertOptions options;
  options.inputs = &inputs;
  Progress progress;
  contains(message_of([&] { convert(*o.source, o.plan, o.out, options, progress); }),
           other.string() + ": expected a file that does not change while being read, found another");
  CHECK(!fs::exists(o.out));
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
