#include "lib/jobs/compress/encoded_linears.h"

#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "lib/jobs/compress/compress.h"
#include "lib/jobs/convert/convert.h"
#include "lib/write/transform/open_to_convert.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace encoded_linears_test {
namespace {

namespace fs = std::filesystem;

/// Counts the groups that were found.
struct CountedBefore : EncodedBefore {
  explicit CountedBefore(std::shared_ptr<const EncodedBefore> all) : from(std::move(all)) {}
  std::optional<std::vector<EncodedResult>> read(const QuantizedGroup& group,
                                                 const Write& write) const override {
    auto found = from->read(group, write);
    ++(found ? hits : misses);
    return found;
  }
  std::shared_ptr<const EncodedBefore> from;
  mutable std::atomic<int> hits = 0, misses = 0;
};

Recipe make_recipe() {
  Rule rule{.to = "quantize"};
  rule.pattern = "2:4";
  return Recipe(rule);
}

/// A model whose statistics are collected and whose linears are solved meanwhile.
struct CollectedModel {
  CollectedModel() {
    write_decoder_checkpoint(read_decoder_golden(fs::path(TWOFOUR_GOLDEN_DIR) / "decoder", "qwen3_moe"),
                             scratch / "model", {}, nullptr);
    Compression compression = open();
    work_bytes = compression.needs().work_bytes;
    Progress progress;
    compression.collect(scratch / "work", progress);
  }
  Compression open() const {
    CompressInput input;
    input.text = "squares";
    input.sequential = Sequential::kGroups;
    for (int32_t w = 0; w < 12; ++w) {
      input.windows.emplace_back();
      for (int32_t i = 0; i < 32; ++i) input.windows.back().push_back((i * i + 7 * w + i / 3) % 48);
    }
    return Compression(scratch / "model", recipe, input, {best_isa()}, 2);
  }
  /// The weights that a conversion writes which does not solve again what `before` has.
  std::string write(const std::string& name, std::shared_ptr<const EncodedBefore> before) const {
    const auto file =
        std::make_shared<const Statistics>(Statistics::open(Compression::statistics_of(scratch / "work")));
    const Recipe solved = with_statistics(recipe, file, file->hash().hex(), std::move(before));
    const Checkpoint source = open_to_convert(scratch / "model", solved);
    Progress progress;
    convert(source, make_plan(source, solved), scratch / name, {}, progress);
    return read_text(scratch / name / "model-00001-of-00001.safetensors") +
           read_text(scratch / name / "twofour.json");
  }
  fs::path solved() const { return scratch / "work" / "solved-0-0"; }

  Scratch scratch;
  Recipe recipe = make_recipe();
  uint64_t work_bytes = 0;
};

}  // namespace

TEST_CASE("what was solved while statistics were collected is not solved again") {
  const CollectedModel model;
  const std::string expected = model.write("again", nullptr);
  const auto all = std::make_shared<const CountedBefore>(Compression::encoded(model.scratch / "work"));
  CHECK(model.write("all", all) == expected);
  CHECK(all->hits > 10);
  CHECK(all->misses == 0);

  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(model.scratch / "work"))
    if (entry.is_regular_file()) bytes += entry.file_size();
  CHECK(model.work_bytes >= bytes);

  // A folder whose notes are not there was not finished.
  fs::remove(model.solved() / EncodedLinears::kNotes);
  const auto some = std::make_shared<const CountedBefore>(Compression::encoded(model.scratch / "work"));
  CHECK(model.write("some", some) == expected);
  CHECK(some->hits > 0);
  CHECK(some->hits < all->hits);
  CHECK(some->misses > 0);
}

TEST_CASE("solved linears that were damaged are solved again") {
  const CollectedModel model;
  const std::string expected = model.write("again", nullptr);
  const fs::path file = model.solved() / "model-1.safetensors",
                 notes = model.solved() / EncodedLinears::kNotes;
  const std::string sound = read_text(file), sound_notes = read_text(notes);
  int written = 0, hits = 0;
  const auto check = [&](bool is_sound) {
    const auto before = std::make_shared<const CountedBefore>(Compression::encoded(model.scratch / "work"));
    CHECK(model.write("out-" + std::to_string(++written), before) == expected);
    if (is_sound) hits = before->hits;
    CHECK((before->hits == hits) == is_sound);
    CHECK((before->misses == 0) == is_sound);
  };
  check(true);
  std::string damaged = sound;
  damaged[damaged.size() - 1] ^= 1;
  for (const std::string& bytes : {damaged, sound.substr(0, sound.size() - 1), std::string()}) {
    std::ofstream(file) << bytes;
    check(false);
  }
  fs::remove(file);
  check(false);
  std::ofstream(file) << sound;
  check(true);
  for (const char* bytes : {"[{}]", "[1]", "{\"a\": 2}", "", "[", "[]"}) {
    std::ofstream(notes) << bytes;
    check(false);
  }
  // Another figure in what was found of a matrix, which twofour.json would have.
  std::string figure = sound_notes;
  const size_t digit = figure.find_first_of("123456789", figure.find("\"results\""));
  REQUIRE(digit != std::string::npos);
  figure[digit] = figure[digit] == '1' ? '2' : '1';
  std::ofstream(notes) << figure;
  check(false);
  std::ofstream(notes) << sound_notes;
  check(true);
}

TEST_CASE("a model that was written to while it was compressed is refused") {
  const CollectedModel model;
  const Compression compression = model.open();
  compression.check_unchanged();
  const fs::path file = model.scratch / "model" / "model.safetensors";
  REQUIRE(fs::exists(file));
  std::fstream(file, std::ios::in | std::ios::out).seekp(-1, std::ios::end).put('x');
  CHECK(contains(message_of([&] { compression.check_unchanged(); }), "model.safetensors"));
}

}  // namespace encoded_linears_test
}  // namespace twofour
