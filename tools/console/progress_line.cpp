#include "tools/console/progress_line.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "tools/console/print.h"

namespace twofour {
namespace {

/// A part of the line. Parts of a higher rank go first if the line is too long.
struct LinePart {
  std::string text;
  int rank;
};

std::string time_left(double seconds) {
  if (seconds < 120) return fmt::format("{:.0f} s left", seconds);
  const auto minutes = static_cast<int64_t>(seconds / 60 + 0.5);
  if (minutes < 120) return fmt::format("{} min left", minutes);
  return fmt::format("{} h {} min left", minutes / 60, minutes % 60);
}

std::string joined(const std::vector<LinePart>& parts) {
  std::string line;
  for (const LinePart& part : parts) line += (line.empty() ? "" : "  ") + part.text;
  return line;
}

}  // namespace

size_t terminal_columns(std::FILE* stream) {
  struct winsize size {};
  if (CapturedConsole::current() != nullptr || ::isatty(::fileno(stream)) == 0) return 0;
  return ::ioctl(::fileno(stream), TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

bool obeys_controls(std::FILE* stream) {
  const char* term = std::getenv("TERM");
  return ::isatty(::fileno(stream)) != 0 && term != nullptr && *term != '\0' &&
         term != std::string_view("dumb");
}

std::string progress_line(const ShownProgress& p, double seconds, size_t columns) {
  const double share =
      p.total > 0 ? std::min(1.0, static_cast<double>(p.done) / static_cast<double>(p.total)) : 0;
  std::vector<LinePart> parts{{p.phase, 3}, {fmt::format("{:3.0f} %", 100 * share), 0}};
  if (p.layers > 0) {
    if (p.layer > 0) parts.push_back({fmt::format("layer {} of {}", p.layer, p.layers), 1});
    if (*p.part != '\0') parts.push_back({p.part, 2});
    parts.push_back({fmt::format("{} of {} tokens", p.tokens, p.all_tokens), 4});
    // A share of the work stands for as many tokens through the whole model.
    const double tokens = share * static_cast<double>(p.all_tokens) / std::max(seconds, 1e-9);
    if (share > 0) parts.push_back({fmt::format("{:.3g} tokens/s", tokens), 5});
  } else {
    parts.push_back({fmt::format("{} of {}", format_bytes(p.done), format_bytes(p.total)), 4});
    parts.push_back({fmt::format("{:.2f} GB/s", static_cast<double>(p.done) / 1e9 / seconds), 5});
  }
  if (share > 0.02 && share < 1) parts.push_back({time_left(seconds / share * (1 - share)), 0});
  while (joined(parts).size() > columns) {
    const auto least =
        std::max_element(parts.begin(), parts.end(), [](auto& a, auto& b) { return a.rank < b.rank; });
    if (least->rank == 0) break;
    parts.erase(least);
  }
  return joined(parts).substr(0, columns);
}

}  // namespace twofour
