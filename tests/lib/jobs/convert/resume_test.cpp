#include "lib/jobs/convert/resume.h"
#include "lib/recipe/artifact/open_unpacked.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "formats/error.h"
#include "lib/jobs/convert/conversion.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace resume_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

void write_source(const fs::path& directory, unsigned seed = 1) {
  Tensors tensors;
  add_experts(tensors, "model.layers.0.mlp.experts", random_experts(2, 32, 64, seed));
  add_bf16(tensors, "model.norm.weight", {64}, seed);
  write_checkpoint(directory, {tensors}, R"({"num_experts": 2})");
  fs::create_directories(directory / "sub");
  std::ofstream(directory / "sub/tokenizer.json") << "{}";
}

OneRule small_files() {
  OneRule recipe;
  recipe.max_shard_size = 1500;
  return recipe;
}

ConvertResult resume(const fs::path& source, const fs::path& out, const OneRule& recipe = small_files()) {
  ConvertOptions options;
  options.existing = Existing::kResume;
  return convert(source, out, recipe, options);
}

/// Leaves `out` as a run does that ended after its first `count` files.
void leave_unfinished(const fs::path& from, const fs::path& out, size_t count) {
  const Checkpoint source = open_source(from);
  const Plan plan = make_plan(source, small_files());
  REQUIRE(plan.files.size() > 4);
  OutputDirectory directory(out, from, Existing::kRefuse);
  Progress progress;
  REQUIRE(begin_or_resume(directory, source, plan, nullptr, progress).empty());
  std::vector<bool> wanted(plan.files.size());
  std::fill_n(wanted.begin(), count, true);
  Conversion conversion(source, plan, {}, out, progress, wanted,
                        [&](ShardRecord&& r) { directory.note(format_shard_record(plan, r)); });
  conversion.run();
  directory.keep();
}

/// The name of the `i`th weight file.
std::string file_name(const fs::path& out, size_t i) {
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model-0000" + std::to_string(i + 1))) return name;
  }
  return "";
}

struct Sources {
  Scratch scratch;
  fs::path source = scratch / "src", out = scratch / "out";
  std::map<std::string, std::string> expected;
  Sources() {
    write_source(source);
    convert(source, scratch / "whole", small_files());
    expected = read_tree(scratch / "whole");
  }
  void refuses(const OneRule& recipe, const char* what) {
    CAPTURE(what);
    const auto before = read_tree(out);
    CHECK_THROWS_WITH_AS(resume(source, out, recipe), doctest::Contains(what), Error);
    CHECK((read_tree(out) == before));
  }
};

}  // namespace

TEST_CASE("a run that goes on keeps what is finished and ends with the bytes of an undisturbed one") {
  Sources s;
  for (const size_t count : {size_t{0}, size_t{1}, size_t{3}}) {
    leave_unfinished(s.source, s.out, count);
    CHECK_THROWS_WITH_AS(Checkpoint::open(s.out), doctest::Contains("interrupted run of twofour left"),
                         Error);
    std::ofstream(s.out / ".model.safetensors.index.json.unfinished") << "half";
    std::ofstream(s.out / "twofour.json") << "half";
    const ConvertResult result = resume(s.source, s.out);
    CHECK(result.files_kept == count);
    CHECK((result.bytes_kept > 0) == (count > 0));
    CHECK(!result.was_complete);
    CHECK((read_tree(s.out) == s.expected));
    fs::remove_all(s.out);
  }
}

TEST_CASE("absent or empty, a destination is begun afresh; complete, it is verified") {
  Sources s;
  for (const bool exists : {false, true}) {
    if (exists) fs::create_directory(s.out);
    CHECK(resume(s.source, s.out).files_kept == 0);
    CHECK((read_tree(s.out) == s.expected));
    const ConvertResult again = resume(s.source, s.out);
    CHECK(again.was_complete);
    CHECK(again.bytes_verified > 0);
    CHECK((read_tree(s.out) == s.expected));
    fs::remove_all(s.out);
  }
}

TEST_CASE("a complete artifact of another recipe or source, or a damaged one, is not passed off as done") {
  Sources s;
  resume(s.source, s.out);
  OneRule other = small_files();
  other.to = "v7-packed";
  s.refuses(other, "recipe: rules: to changed: \"v7\" before, \"v7-packed\" now");
  fs::remove_all(s.source);
  write_source(s.source, 9);
  OneRule larger = small_files();
  larger.max_shard_size = 1600;
  s.refuses(larger, "max_shard_size changed: 1500 before, 1600 now");
  CHECK(resume(s.source, s.out).was_complete);  // the same headers: content shows in --source alone
  flip_bit(s.out / file_name(s.out, 1), fs::file_size(s.out / file_name(s.out, 1)) - 1, 0);
  s.refuses(small_files(), "expected the complete artifact that source and recipe give");
  fs::remove(s.out / file_name(s.out, 2));
  s.refuses(small_files(), "");
}

TEST_CASE(
    "a complete artifact whose source lost a file or has another global scale is not passed off as done") {
  Sources s;
  resume(s.source, s.out);
  fs::remove(s.source / "sub/tokenizer.json");
  s.refuses(small_files(), "sub/tokenizer.json: unexpected file: listed in twofour.json");
  std::ofstream(s.source / "sub/tokenizer.json") << "{}";
  CHECK(resume(s.source, s.out).was_complete);
  const std::string name = "model.layers.0.mlp.experts.0.up_proj.weight_scale_2";
  uint64_t at = 0;
  fs::path file;
  {
    const Checkpoint c = Checkpoint::open(s.source);
    const size_t tensor = c.find(name).value();
    at = c.shard_of(tensor).data_begin + c.tensors()[tensor].begin;
    file = c.path() / c.shard_of(tensor).name;
  }
  flip_bit(file, at + 2, 7);  // the exponent's last bit
  s.refuses(small_files(), (name + " changed: 0.25 before, 0.125 now").c_str());
  OneRule nvfp4 = small_files();
  nvfp4.to = "nvfp4";
  const auto to_nvfp4 = [&](const fs::path& out) {
    ConvertOptions options;
    options.existing = Existing::kResume;
    return convert(s.source, out, nvfp4, options);
  };
  to_nvfp4(s.scratch / "dialect");
  CHECK(to_nvfp4(s.scratch / "dialect").was_complete);
  flip_bit(file, at + 2, 7);
  CHECK_THROWS_WITH_AS(to_nvfp4(s.scratch / "dialect"), doctest::Contains(" changed: 0.125 before, 0.25 now"),
                       Error);
}

TEST_CASE("finished files that were damaged meanwhile are written again") {
  Sources s;
  const auto damaged = [&](size_t kept, auto damage) {
    leave_unfinished(s.source, s.out, 3);
    damage(s.out / file_name(s.out, 1));
    CHECK(resume(s.source, s.out).files_kept == kept);
    CHECK((read_tree(s.out) == s.expected));
    fs::remove_all(s.out);
  };
  damaged(3, [](const fs::path&) {});
  damaged(2, [](const fs::path& file) { flip_bit(file, fs::file_size(file) - 1, 7); });
  damaged(2, [](const fs::path& file) { flip_bit(file, 9, 0); });
  damaged(2, [](const fs::path& file) { fs::resize_file(file, 40); });
  damaged(2, [](const fs::path& file) { fs::remove(file); });
}

TEST_CASE("a journal is believed up to its first damaged line") {
  Sources s;
  leave_unfinished(s.source, s.out, 3);
  const std::string journal = read_text(s.out / kJournalName);
  std::vector<size_t> ends;
  for (size_t at = 0; (at = journal.find('\n', at)) != std::string::npos;) ends.push_back(++at);
  REQUIRE(ends.size() == 5);  // what it is, the fingerprint, three files
  fs::rename(s.out, s.scratch / "kept");
  for (size_t length = ends[1]; length <= journal.size(); length += 61) {
    CAPTURE(length);
    fs::copy(s.scratch / "kept", s.out);
    std::ofstream(s.out / kJournalName) << journal.substr(0, length);
    const auto whole =
        static_cast<size_t>(std::count_if(ends.begin(), ends.end(), [&](size_t e) { return e <= length; }));
    CHECK(resume(s.source, s.out).files_kept == whole - 2);
    CHECK((read_tree(s.out) == s.expected));
    fs::remove_all(s.out);
  }
  fs::copy(s.scratch / "kept", s.out);
  flip_bit(s.out / kJournalName, ends[2] + 40, 0);
  CHECK(resume(s.source, s.out).files_kept == 1);
  CHECK((read_tree(s.out) == s.expected));
  // Without the fingerprint nobody knows what the files are, without the first line not whose.
  for (const size_t length : {ends[0], ends[1] - 1}) {
    fs::remove_all(s.out);
    fs::copy(s.scratch / "kept", s.out);
    std::ofstream(s.out / kJournalName) << journal.substr(0, length);
    s.refuses(small_files(), "cannot resume: the journal is empty");
  }
  std::ofstream(s.out / kJournalName) << journal.substr(0, ends[0] - 1);
  s.refuses(small_files(), "or one that twofour wrote");
  fs::remove_all(s.out);
  fs::create_directory(s.out);
  std::ofstream(s.out / kJournalName) << journal.substr(0, 20);
  resume(s.source, s.out);
  CHECK((read_tree(s.out) == s.expected));
}

TEST_CASE("a changed source or recipe is refused with what changed, and nothing is touched") {
  Sources s;
  leave_unfinished(s.source, s.out, 2);
  OneRule other = small_files();
  other.max_shard_size = 1501;
  s.refuses(other, "recipe: max_shard_size changed: 1500 before, 1501 now");
  const fs::path shard = s.source / "model.safetensors";
  const fs::path weights = fs::exists(shard) ? shard : s.source / file_name(s.source, 0);
  const auto written = fs::last_write_time(weights);
  fs::last_write_time(weights, written + std::chrono::seconds(1));
  s.refuses(small_files(), "modified changed: ");
  fs::last_write_time(weights, written);
  s.refuses(small_files(), "ctime changed: ");
  const auto again = [&] {
    fs::remove_all(s.out);
    leave_unfinished(s.source, s.out, 2);
  };
  again();
  std::ofstream(s.source / "sub/tokenizer.json", std::ios::app) << " ";
  s.refuses(small_files(), "source: sub/tokenizer.json: bytes changed: 2 before, 3 now");
  again();
  fs::remove(s.source / "sub/tokenizer.json");
  s.refuses(small_files(), "source: sub/tokenizer.json changed: {");
  again();
  std::ofstream(s.source / "new.txt") << "new";
  s.refuses(small_files(), "changed: ");
  ConvertOptions forced;
  forced.existing = Existing::kReplace;
  convert(s.source, s.out, small_files(), forced);
  CHECK(validate(s.out).differences.empty());
}

TEST_CASE("foreign directories are not resumed into, nor one that another run writes") {
  Sources s;
  fs::create_directory(s.out);
  std::ofstream(s.out / "mine.txt") << "mine";
  s.refuses(small_files(), "expected an absent or empty directory or one that twofour wrote");
  fs::remove_all(s.out);
  leave_unfinished(s.source, s.out, 1);
  const OutputDirectory other(s.out, s.source, Existing::kResume);
  s.refuses(small_files(), "expected no other run in this directory");
}

TEST_CASE("a run that fails keeps what an earlier one finished") {
  Sources s;
  leave_unfinished(s.source, s.out, 2);
  const Checkpoint source = open_source(s.source);
  const Plan plan = make_plan(source, small_files());
  const auto broken = [&](const ShardRecord&) { throw Error("disk: full"); };
  {
    OutputDirectory directory(s.out, s.source, Existing::kResume);
    Progress progress;
    const auto records = begin_or_resume(directory, source, plan, nullptr, progress);
    CHECK(records.size() == 2);
    std::vector<bool> wanted(plan.files.size(), true);
    for (const ShardRecord& r : records) wanted[r.file] = false;
    Conversion conversion(source, plan, {}, s.out, progress, wanted, broken);
    CHECK_THROWS_WITH_AS(conversion.run(), "disk: full", Error);
  }
  CHECK_THROWS_AS(Checkpoint::open(s.out), Error);
  CHECK(resume(s.source, s.out).files_kept == 2);
  CHECK((read_tree(s.out) == s.expected));
}

}  // namespace resume_test
