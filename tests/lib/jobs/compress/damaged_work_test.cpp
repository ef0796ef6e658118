// A work folder with a flipped bit anywhere is refused, or what the bit spoils is computed again.
#include <doctest/doctest.h>

#include <fstream>
#include <random>

#include "lib/base/io/file.h"
#include "lib/jobs/compress/compress.h"
#include "lib/jobs/compress/work_folder.h"
#include "lib/jobs/convert/convert.h"
#include "lib/write/transform/open_to_convert.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace damaged_work_test {
namespace {

namespace fs = std::filesystem;

/// A compression that ends behind some of its layers, and what it comes to if nothing happens.
struct Interrupted {
  Interrupted(const char* name, Sequential how, std::vector<std::string> also, int64_t end)
      : sequential(how) {
    rule.pattern = "2:4";
    rule.selection.also = parse_patterns(also);
    write_decoder_checkpoint(read_decoder_golden(fs::path(TWOFOUR_GOLDEN_DIR) / "decoder", name),
                             scratch / "model");
    Progress progress;
    open().collect(left, progress, end);
    take_up();
    expected = finish();
  }
  Compression open() const {
    CompressInput input;
    input.text = "squares";
    input.sequential = sequential;
    for (int32_t w = 0; w < 4; ++w) {
      input.windows.emplace_back();
      for (int32_t i = 0; i < 32; ++i) input.windows.back().push_back((i * i + 7 * w + i / 3) % 48);
    }
    return Compression(scratch / "model", Recipe(rule), input, {best_isa()}, 1);
  }
  void take_up() const {
    fs::remove_all(work);
    fs::copy(left, work, fs::copy_options::recursive);
  }
  /// Goes on, and converts: statistics, weights and twofour.json.
  std::map<std::string, std::string> finish() const {
    Progress progress;
    open().collect(work, progress);
    const fs::path file = Compression::statistics_of(work), out = scratch / "out";
    const auto statistics = std::make_shared<const Statistics>(Statistics::open(file));
    const Recipe solved =
        with_statistics(Recipe(rule), statistics, statistics->hash().hex(), Compression::encoded(work));
    const Checkpoint source = open_to_convert(scratch / "model", solved);
    fs::remove_all(out);
    convert(source, make_plan(source, solved), out, {}, progress);
    auto all = read_tree(out);
    all["statistics"] = read_text(file);
    return all;
  }

  Scratch scratch;
  Sequential sequential;
  Rule rule{.to = "quantize"};
  fs::path left = scratch / "left", work = scratch / "work";
  std::map<std::string, std::string> expected;
};

/// Places all over a file, the first and the last among them.
std::vector<uint64_t> places_in(uint64_t bytes, size_t count, std::mt19937& random) {
  std::vector<uint64_t> places;
  if (bytes == 0) return places;
  places = {0, bytes - 1};
  for (size_t i = 0; i + 2 < count; ++i) places.push_back((i * bytes + random() % bytes) / (count - 2));
  return places;
}

}  // namespace

TEST_CASE("a flipped bit in any file of a work folder is refused, or changes nothing that is written") {
  struct Case {
    const char* name;
    Sequential sequential;
    std::vector<std::string> also;
    int64_t end;
  };
  const Case cases[] = {{"llama", Sequential::kGroups, {"lm_head"}, 1},
                        {"llama", Sequential::kNone, {"lm_head"}, 1},
                        {"llama", Sequential::kGroups, {"lm_head"}, INT64_MAX}};
  std::mt19937 random(41);
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const Interrupted run(c.name, c.sequential, c.also, c.end);
    std::map<std::string, int> refused;
    int again = 0;
    for (const auto& [file, bytes] : files_below(run.left)) {
      CAPTURE(file);
      const bool is_large = file == "statistics.safetensors" || file.starts_with("streams-");
      for (const uint64_t at : places_in(bytes, is_large ? 8 : 2, random)) {
        CAPTURE(at);
        run.take_up();
        flip_bit(run.work / file, at, static_cast<int>(random() % 8));
        std::map<std::string, std::string> found;
        const std::string message = message_of([&] { found = run.finish(); });
        if (message.empty()) {
          ++again;
          CHECK((found == run.expected));
        } else {
          ++refused[file];
          contains(message, (run.work / file).string() + ": expected ");
          contains(message, "--force begins again");
        }
      }
    }
    CHECK(refused.at("state.json") == 2);
    CHECK(refused.at("statistics.safetensors") > 0);
    CHECK(refused.contains("streams-odd") == (c.end == 1));
    CHECK(refused.size() == (c.end == 1 ? 3 : 2));
    CHECK(again > 0);
  }
}

TEST_CASE(
    "each number of the statistics of a whole layer is held against its hash, those of others are not") {
  const Interrupted run("llama", Sequential::kNone, {}, 1);
  const fs::path file = Compression::statistics_of(run.left);
  const Statistics s = Statistics::open_unfinished(file);
  int whole = 0, others = 0;
  for (const TensorInfo& t : s.tensors()) {
    CAPTURE(t.name);
    const bool is_whole = t.name.find("layers.0.") != std::string::npos;
    // Single numbers of layers that are still to come are checked as they are read: a sum of squares above 0.
    if (!is_whole && !t.name.ends_with("hessian") && !t.name.ends_with("count")) continue;
    run.take_up();
    flip_bit(Compression::statistics_of(run.work), s.data_begin() + t.end - 1, 3);
    Progress progress;
    const std::string message = message_of([&] { run.open().collect(run.work, progress); });
    (is_whole ? whole : others) += 1;
    CHECK_MESSAGE(message.empty() != is_whole, message);
    if (is_whole) contains(message, "expected sums of layer 0 that an earlier run collected");
    if (!is_whole) CHECK((read_text(Compression::statistics_of(run.work)) == run.expected.at("statistics")));
  }
  CHECK(whole > 0);
  CHECK(others > 0);
}

TEST_CASE("any bit of state.json, and any cut, is refused") {
  const Interrupted run("llama", Sequential::kNone, {}, 1);
  const std::string sound = read_text(run.left / WorkState::kName);
  REQUIRE(WorkState::read(run.left)->layers == 1);
  const auto refused = [&](const std::string& text) {
    std::ofstream(run.left / WorkState::kName) << text;
    return message_of([&] { Compression::layers_done(run.left); }) ==
           (run.left / "state.json").string() +
               ": expected the state of a compression, found something else or a damaged one; --force begins "
               "again";
  };
  for (size_t i = 0; i < sound.size(); ++i) {
    std::string damaged = sound;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
    REQUIRE_MESSAGE(refused(damaged), i);
    if (i % 16 == 0) REQUIRE_MESSAGE(refused(sound.substr(0, i)), i);
  }
  // Of another version, with hashes of nothing.
  CHECK(refused(seal_object(R"({"format": "twofour compress 1", "layers": 1, "run": {}})")));
  CHECK(refused(seal_object(R"({"format": "twofour compress 2", "layers": 1, "run": {}})")));
}

TEST_CASE("a state of fewer or more hashes than layers is refused") {
  const Interrupted run("llama", Sequential::kNone, {}, 1);
  const WorkState sound = *WorkState::read(run.left);
  for (const int64_t layers : {0, 2, 3, -1, 1000}) {
    run.take_up();
    WorkState other = sound;
    other.layers = layers;
    other.write(run.work);
    Progress progress;
    contains(message_of([&] { run.open().collect(run.work, progress); }), "state.json: expected the state");
  }
}

}  // namespace damaged_work_test
}  // namespace twofour
