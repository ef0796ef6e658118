#include <doctest/doctest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "lib/base/io/file.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/output/journal.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"

namespace cli_output_test {

using namespace twofour;

namespace {

const std::string kGolden = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";
/// Exit code of the program as a shell runs it with `words`, -1 where a signal ended it.
int code(const std::string& words) {
  std::string command;
  for (const std::string& word : program_words()) command += "'" + word + "' ";
  const int status = std::system((command + words).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("output that does not arrive is not success") {
  const Outcome o = run_program({"inspect", kGolden});
  REQUIRE(o.code == 0);
  CHECK(code("inspect '" + kGolden + "' >/dev/full 2>/dev/null") == 2);
}

TEST_CASE("names forge no lines on standard error either, of one message or of several") {
  const Scratch scratch;
  const std::filesystem::path out = scratch / "out", weights = scratch / "weights";
  std::filesystem::create_directories(out);
  Journal(out, Sharing::kAlone).begin();
  write_text(out / "a\ntwofour: forged\x1B[2K", "");
  write_text(out / "b\r", "");
  const Outcome errors = run_program({"convert", kGolden, out.string(), "--to", "v7", "-q"});
  CHECK(errors.code == 2);
  CHECK_MESSAGE(errors.err.starts_with("twofour: " + (out / "a\\x0Atwofour: forged\\x1B[2K: ").string()),
                errors.err);
  CHECK(contains(errors.err, "\n" + (out / "b\\x0D: ").string()));
  CHECK(std::count(errors.err.begin(), errors.err.end(), '\n') == 2);
  CHECK(errors.err.find_first_of("\r\x1B") == std::string::npos);
  // A warning: its message names the tensor that the index lacks.
  std::filesystem::create_directories(weights);
  write_safetensors(weights / "1.safetensors",
                    {{"a", DType::kU8, {1}, {1}}, {"b\\nerror: forged", DType::kU8, {1}, {1}}});
  write_text(weights / kIndexName, R"({"weight_map":{"a":"1.safetensors"}})");
  const Outcome warning = run_program({"inspect", weights.string()});
  CHECK(warning.code == 0);
  CHECK(contains(warning.err, "the first b\\x0Aerror: forged; "));
  CHECK(std::count(warning.err.begin(), warning.err.end(), '\n') == 1);
}

TEST_CASE(
    "closed or full standard files do not end a command, and nothing meant for them gets into a weight "
    "file") {
  const Scratch scratch;
  CHECK(code("inspect /nonexistent 2>/dev/full") == 2);
  CHECK(code("inspect /nonexistent 2>&-") == 2);
  CHECK(code("inspect /nonexistent --json >/dev/full 2>/dev/full") == 2);
  CHECK(code("--bogus 2>/dev/full") == 2);
  CHECK(code("--version >&- 2>&-") == 2);
  CHECK(code("--version 2>&-") == 0);
  const std::string open = (scratch / "open").string(), closed = (scratch / "closed").string();
  CHECK(code("convert '" + kGolden + "' '" + open + "' --to v7 >/dev/null 2>/dev/full") == 0);
  // What it reports at the end finds no standard output; the artifact is whole all the same.
  CHECK(code("convert '" + kGolden + "' '" + closed + "' --to v7 <&- >&- 2>&-") == 2);
  CHECK((read_tree(closed) == read_tree(open)));
}

}  // namespace cli_output_test
