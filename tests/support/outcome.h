#pragma once
#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "formats/json.h"
#include "tests/support/program.h"

namespace twofour {

/// The whole of stdout as one document, of a run that did what it should.
inline Json json_of(const Outcome& o) {
  CHECK(o.code == 0);
  CHECK_MESSAGE(o.err.empty(), o.err);
  return parse_json("stdout", o.out);
}

/// Exactly one line, "twofour: ..." of the program's name, on stderr and nothing on stdout, exit code 2.
inline void check_one_line(const Outcome& o, const std::string& part) {
  CHECK(o.code == 2);
  CHECK(o.out.empty());
  const std::string program = std::filesystem::path(program_words().back()).filename().string();
  CHECK_MESSAGE(o.err.starts_with(program + ": "), o.err);
  CHECK_MESSAGE(o.err.find('\n') == o.err.size() - 1, o.err);
  CHECK_MESSAGE(o.err.find(part) != std::string::npos, o.err);
}

}  // namespace twofour
