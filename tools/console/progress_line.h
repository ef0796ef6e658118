#pragma once
#include <cstdio>
#include <string>

#include "tools/console/console.h"

namespace twofour {

/// The number of columns of the terminal at `stream`. 0 if it is no terminal or has no size.
size_t terminal_columns(std::FILE* stream);

/// True if `stream` is a terminal that obeys control sequences (TERM is set and not dumb).
bool obeys_controls(std::FILE* stream);

/// A line about a run that has taken `seconds`, of at most `columns` characters. It has phase, share, place
/// or bytes, speed and time left; if the line is short, the least useful parts go.
std::string progress_line(const ShownProgress& progress, double seconds, size_t columns);

}  // namespace twofour
