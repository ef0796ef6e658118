#pragma once
#include <string>

#include "lib/jobs/choose/choose_by_size.h"
#include "lib/report/report.h"

namespace twofour {

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
