// Files through the page cache and past it, from the command line: the same bytes, and runs that say how much
// they moved.
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/conversion.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"

namespace cli_io_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

/// Experts large enough to be read and written directly, beside tensors of any size.
std::string synth_source(const fs::path& directory) {
  const Outcome o = run_program({"synth", directory.string(), "--shape", "qwen3-moe", "--layers", "1",
                                 "--experts", "8", "--vocab", "16", "-q"});
  REQUIRE_MESSAGE(o.code == 0, o.err);
  return directory.string();
}

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

bool has_note(const Json& result) {
  for (const Json& f : result["findings"]) {
    if (f["rule"] == "no-direct-io") return true;
  }
  return false;
}

/// The number before " GB/s WORD".
double rate_of(const std::string& text, const std::string& word) {
  const size_t at = text.find(" GB/s" + word);
  REQUIRE_MESSAGE(at != std::string::npos, text);
  return std::stod(text.substr(text.rfind(' ', at - 1) + 1));
}

}  // namespace

TEST_CASE("buffered and direct write the same bytes, for any number of jobs and every command") {
  const Scratch scratch;
  const std::string source = synth_source(scratch / "src");
  for (const Words& command : {Words{"convert", "--to", "v7", "--max-shard-size", "5MB"},
                               Words{"convert", "--to", "bf16"}, Words{"prune", "--max-shard-size", "3MB"}}) {
    CAPTURE(fmt::format("{}", fmt::join(command, " ")));
    const std::string out = (scratch / "out").string();
    const auto run = [&](const Words& more) {
      const Json result = json_of(run_program(joined(joined(command, {source, out, "--json"}), more)));
      CHECK(result["bytes_verified"] > 0);
      const auto tree = read_tree(out);
      CHECK(json_of(run_program({"validate", out, "--io", "direct", "--json"}))["valid"] == true);
      fs::remove_all(out);
      return tree;
    };
    const auto buffered = run({"-j", "1"});
    for (const char* jobs : {"1", "2", "5"}) {
      CHECK((run({"--io", "direct", "-j", jobs}) == buffered));
      CHECK((run({"--io", "buffered", "-j", jobs}) == buffered));
    }
  }
}

TEST_CASE("tasks of a plan may go past the page cache each as they like") {
  const Scratch scratch;
  const std::string source = synth_source(scratch / "src"), out = (scratch / "out").string(),
                    plan = (scratch / "plan.json").string(), alone = (scratch / "alone").string();
  const Words options{"--to", "v7", "--max-shard-size", "5MB"};
  REQUIRE(run_program(joined({"convert", source, alone, "-q"}, options)).code == 0);
  REQUIRE(run_program(joined({"plan", source, out, "-o", plan, "-q"}, options)).code == 0);
  const Outcome first = run_program({"convert", "--plan", plan, "--task", "0/2", "--io", "direct"});
  CHECK_MESSAGE(first.code == 0, first.err);
  CHECK(rate_of(first.out, " read") >= 0);
  CHECK(rate_of(first.out, " written") >= 0);
  CHECK(run_program({"convert", "--plan", plan, "--task", "1/2"}).code == 0);
  const Outcome merged = run_program({"merge", out});
  CHECK(merged.code == 0);
  CHECK(merged.out.find("no weights read or written") != std::string::npos);
  CHECK(rate_of(merged.out, "\n") >= 0);
  CHECK((read_tree(out) == read_tree(alone)));
}

TEST_CASE("where there is no direct I/O a run says so and writes the same") {
  if (!fs::exists("/dev/shm")) return;
  const Scratch scratch;
  const std::string source = synth_source(scratch / "src"), alone = (scratch / "alone").string();
  const fs::path memory = fs::path("/dev/shm") / (scratch.path.filename().string() + "-out");
  const Words words{"convert", "--to", "v7", source, memory.string(), "--io", "direct"};
  CHECK(has_note(json_of(run_program(joined(words, {"--json"})))));
  CHECK(run_program({"convert", "--to", "v7", source, alone, "-q"}).code == 0);
  CHECK((read_tree(memory) == read_tree(alone)));
  const Json buffered = json_of(
      run_program({"convert", memory.string(), (scratch / "back").string(), "--to", "nvfp4", "--json"}));
  CHECK_FALSE(has_note(buffered));
  fs::remove_all(memory);
}

TEST_CASE("a dry run states the bytes and the memory that the run takes") {
  const Scratch scratch;
  const std::string source = synth_source(scratch / "src");
  for (const char* io : {"buffered", "direct"}) {
    for (const Words& command : {Words{"convert", "--to", "v7"}, Words{"prune"}}) {
      const std::string out = (scratch / "out").string();
      const Words words = joined(command, {source, out, "--io", io, "-j", "3"});
      const Json plan = json_of(run_program(joined(words, {"--dry-run", "--json"})));
      Run run(words);
      uint64_t peak = 0;
      while (run.is_running()) {
        peak = std::max(peak, run.peak_memory());
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      const Outcome o = run.wait();
      CHECK_MESSAGE(o.code == 0, o.err);
      CHECK(peak > 0);
      CHECK(peak <= plan["peak_memory"].get<uint64_t>());
      CHECK(rate_of(o.out, " read") > 0);
      CHECK(rate_of(o.out, " written") > 0);
      uint64_t written = 0;
      for (const auto& entry : fs::directory_iterator(out)) {
        if (entry.path().extension() == ".safetensors") written += entry.file_size();
      }
      CHECK(written == plan["bytes_written"].get<uint64_t>());
      fs::remove_all(out);
      const Json result = json_of(run_program(joined(words, {"--json"})));
      CHECK(result["bytes_written"] == plan["bytes_written"]);
      // Planning reads the global scales, the run all the rest.
      const auto planned = plan["bytes_read"].get<uint64_t>(), read = result["bytes_read"].get<uint64_t>();
      CHECK(read <= planned);
      CHECK(read + 8 * 3 * sizeof(float) >= planned);
      fs::remove_all(out);
    }
  }
}

}  // namespace cli_io_test
