#pragma once
#include <string>
#include <vector>

#include "tests/support/program.h"

namespace twofour {

/// True if a library of the tests can be loaded into the program.
inline bool can_inject() { return program_words().size() == 1; }

/// The variables for the environment of a run so that one of its calls, or of its reads of files named
/// `file`, fails: see support/fault_shim.cpp.
inline std::vector<std::string> injected(const std::string& fault, const std::string& file = "") {
  // AddressSanitizer wants to be the first library, but a test does not need it to be.
  std::vector<std::string> environment{"LD_PRELOAD=" TWOFOUR_FAULT_SHIM, "TWOFOUR_FAULT=" + fault,
                                       "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0"};
  if (!file.empty()) environment.push_back("TWOFOUR_FAULT_FILE=" + file);
  return environment;
}

}  // namespace twofour
