#pragma once
#include <stdlib.h>

#include <optional>
#include <string>

namespace twofour {

/// An environment variable while this lives; without a value it is unset.
class Variable {
 public:
  Variable(const std::string& name, const std::optional<std::string>& value) : name_(name) {
    if (const char* before = ::getenv(name.c_str())) before_ = before;
    set(value);
  }
  ~Variable() { set(before_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const std::optional<std::string>& value) const {
    value ? ::setenv(name_.c_str(), value->c_str(), 1) : ::unsetenv(name_.c_str());
  }

  const std::string name_;
  std::optional<std::string> before_;
};

}  // namespace twofour
