#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>

#include "formats/json.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"

namespace cli_option_test {

using namespace twofour;

namespace {

const std::string kGolden = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";

/// A usage error about one option's value.
void check_usage(std::vector<std::string> words, const std::string& message) {
  const Outcome o = run_program(words);
  CHECK(o.code == 2);
  CHECK(o.out.empty());
  CHECK(o.err == fmt::format("twofour: {}\nSee twofour {} --help.\n", message, words[0]));
}

}  // namespace

TEST_CASE("a seed that is no number of 64 bits is refused by every command that has one") {
  const Scratch scratch;
  const std::string out = (scratch / "out").string();
  for (const std::string seed : {"-1", "18446744073709551616", "99999999999999999999999", "1e23", "1.5"}) {
    for (std::vector<std::string> words : std::vector<std::vector<std::string>>{
             {"synth", out, "--shape", "tiny"},
             {"validate", kGolden},
             {"run", kGolden, "--layer", "0", "--random", "1", "-o", out}}) {
      words.insert(words.end(), {"--seed", seed});
      check_usage(words, fmt::format("--seed: expected a whole number from 0 to 2^64 - 1, found '{}'", seed));
    }
  }
  CHECK(!std::filesystem::exists(out));
  const Outcome largest =
      run_program({"synth", out, "--shape", "tiny", "--dry-run", "--json", "--seed", "18446744073709551615"});
  CHECK(parse_json("stdout", largest.out)["seed"] == UINT64_MAX);
}

TEST_CASE("a limit that is not finite or below 0 is refused in a short line") {
  for (const std::string limit : {"inf", "nan", "-1", "1e999", "1e39", "1e-60", "x"}) {
    check_usage({"run", kGolden, "--layer", "0", "--random", "1", "-o", "y", "--limit", limit},
                fmt::format("--limit: expected a finite float32 number not below 0, found '{}'", limit));
  }
}

TEST_CASE("a size or pattern that is not valid is reported with its option") {
  const Scratch scratch;
  const std::string out = (scratch / "out").string();
  check_one_line(run_program({"convert", kGolden, out, "--to", "v7", "--max-shard-size", "abc"}),
                 "--max-shard-size: expected a size such as 5GB or 500MB, found 'abc'");
  for (const std::string option : {"--include", "--exclude", "--also"}) {
    check_one_line(run_program({"convert", kGolden, out, "--to", "v7", option, "re:("}),
                   option + ": pattern 're:(': not a regular expression");
  }
  check_one_line(run_program({"diff", kGolden, kGolden, "--exclude", "re:("}), "--exclude: pattern 're:('");
  check_one_line(run_program({"inspect", kGolden, "--tensor", "re:("}), "--tensor: pattern 're:('");
  CHECK(!std::filesystem::exists(out));
}

TEST_CASE("a size that is not valid is refused") {
  const Scratch scratch;
  for (const char* size : {"5 GB", "big", "0", "-1", "5GiB", "1.2.3GB", "GB", ""}) {
    CAPTURE(std::string(size));
    const Outcome o = run_program({"convert", kGolden, (scratch / "out").string(), "--to", "v7",
                                   fmt::format("--max-shard-size={}", size)});
    CHECK(o.code == 2);
    CHECK(!std::filesystem::exists(scratch / "out"));
  }
}

}  // namespace cli_option_test
