#pragma once
#include <functional>
#include <string>

#include "formats/error.h"

namespace twofour {

/// What an Error says; empty where `f` throws none.
inline std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace twofour
