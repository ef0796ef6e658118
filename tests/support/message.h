#pragma once
#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "formats/error.h"

namespace twofour {

/// The message of an Error; empty if `f` throws none.
inline std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

/// True if `text` contains `part`. If not, the test fails with the text.
inline bool contains(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  CHECK_MESSAGE(found, text);
  return found;
}

}  // namespace twofour
