#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdlib>

#include "tests/support/conversion.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"

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
