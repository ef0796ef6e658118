#pragma once
#include <string>

#include "formats/error.h"

namespace twofour {

/// Errors that callers treat in different ways. Their messages are like those of other errors.
enum class ErrorKind {
  kOther,
  kNotFound,  ///< a file or directory is missing
  kExists,    ///< a file or directory is there and may not be replaced
  kArgument,  ///< an argument or option is unknown or has an invalid value
};

struct NotFoundError : Error {
  using Error::Error;
};

struct ExistsError : Error {
  using Error::Error;
};

struct ArgumentError : Error {
  using Error::Error;
};

inline ErrorKind kind_of(const Error& e) {
  if (dynamic_cast<const NotFoundError*>(&e) != nullptr) return ErrorKind::kNotFound;
  if (dynamic_cast<const ExistsError*>(&e) != nullptr) return ErrorKind::kExists;
  if (dynamic_cast<const ArgumentError*>(&e) != nullptr) return ErrorKind::kArgument;
  return ErrorKind::kOther;
}

/// Throws the error of a kind.
[[noreturn]] inline void throw_error(ErrorKind kind, const std::string& message) {
  switch (kind) {
    case ErrorKind::kNotFound:
      throw NotFoundError(message);
    case ErrorKind::kExists:
      throw ExistsError(message);
    case ErrorKind::kArgument:
      throw ArgumentError(message);
    case ErrorKind::kOther:
      break;
  }
  throw Error(message);
}

}  // namespace twofour
