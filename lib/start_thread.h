#pragma once
#include <fmt/format.h>

#include <system_error>
#include <thread>
#include <utility>

#include "formats/error.h"

namespace twofour {

/// Runs `f` on a thread of its own. Throws Error where the system starts none: limits on processes count
/// threads, too.
template <class F>
std::jthread start_thread(F&& f) {
  try {
    return std::jthread(std::forward<F>(f));
  } catch (const std::system_error& e) {
    throw Error(
        fmt::format("threads: expected the system to start one more, found that it does not ({}); "
                    "-j asks for fewer",
                    e.code().message()));
  }
}

}  // namespace twofour
