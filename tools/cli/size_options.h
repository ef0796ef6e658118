#pragma once
#include <optional>
#include <string>
#include <vector>

#include "lib/jobs/choose/choose_by_size.h"
#include "lib/report/report.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"

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

/// The choice in a line, without the line end.
std::string size_summary(const SizeChoice& choice);
/// The curve and the units, as complete lines.
std::string size_curve_text(const SizeChoice& choice);
Json size_choice_to_json(const SizeChoice& choice);

/// Adds the curve and the chosen formats to a report.
void add_size_choice(const SizeChoice& choice, Report& report);
/// The report of a choice alone, with a row for each unit.
Report size_report(const SizeChoice& choice, const std::string& command, const std::string& source);

}  // namespace twofour
