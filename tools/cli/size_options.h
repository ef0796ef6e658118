#pragma once
#include <optional>
#include <string>
#include <vector>

#include "lib/jobs/choose/choose_by_size.h"
#include "tools/cli/arguments.h"

namespace twofour {

/// The options for formats that a size chooses.
struct SizeOptions {
  std::optional<double> bits;
  std::string size;
  std::vector<std::string> menu;
  std::string engine = "twofour";
  bool is_given() const { return bits || !size.empty(); }
};

/// Adds --bits, --size, --menu and --for.
void add_size_options(Arguments& args, SizeOptions& options);

/// Throws Error on --menu or --for without a size.
void check_size_options(const SizeOptions& options);

/// The request that the options stand for. `recipe` has one rule.
SizeRequest size_request(const SizeOptions& options, Recipe recipe, const std::string& statistics);

}  // namespace twofour
