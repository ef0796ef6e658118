#include "tools/console/print.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace twofour {
namespace {

/// A UTF-8 character, or a byte that does not begin a valid character.
struct Character {
  uint32_t code;
  size_t bytes = 1;
  bool valid = true;
};

Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) -> uint32_t { return static_cast<unsigned char>(text[i]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return {lead, 1, false};
  uint32_t code = lead & (0x7Fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {lead, 1, false};
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  if (code < kLeast[bytes] || code > 0x10FFFF || surrogate) return {lead, 1, false};
  return {code, bytes};
}

/// True for C1 controls, the soft hyphen, and the format characters and separators of Unicode that are
/// invisible or change the text's direction.
bool is_unseen(uint32_t c) {
  return (c >= 0x80 && c < 0xA0) || c == 0xAD || c == 0x61C || c == 0x180E || (c >= 0x200B && c <= 0x200F) ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF ||
         (c >= 0xFFF9 && c <= 0xFFFB) || (c >= 0xE0000 && c <= 0xE007F);
}

/// Replaces control characters and invisible characters of `text` by escapes. Also replaces line ends, unless
/// `keep_line_ends`.
std::string spelled_out(std::string_view text, bool keep_line_ends) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character c = first_character(text);
    if (!c.valid || (c.code < 0x20 && !(keep_line_ends && c.code == '\n')) || c.code == 0x7F) {
      out += fmt::format("\\x{:02X}", static_cast<unsigned char>(text[0]));
    } else if (is_unseen(c.code)) {
      out += fmt::format("\\u{{{:X}}}", c.code);
    } else {
      out += text.substr(0, c.bytes);
    }
    text.remove_prefix(c.bytes);
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) { return spelled_out(text, true); }

std::string printable_line(std::string_view text) { return spelled_out(text, false); }

std::string shortened(const std::string& line) {
  constexpr size_t kWord = 300, kLine = 2000;
  const auto cut = [](std::string_view text, size_t most) {
    if (text.size() <= most) return std::string(text);
    const size_t tail = most / 5, head = most - tail;
    return fmt::format("{}... ({} characters) ...{}", text.substr(0, head), text.size(),
                       text.substr(text.size() - tail));
  };
  std::string out;
  for (size_t at = 0; at <= line.size();) {
    const size_t end = std::min(line.find(' ', at), line.size());
    if (at > 0) out += ' ';
    out += cut(std::string_view(line).substr(at, end - at), kWord);
    at = end + 1;
  }
  return cut(out, kLine);
}

std::string format_bytes(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < 1000) return fmt::format("{} B", bytes);
  if (value < 999.5e3) return fmt::format("{:.3g} kB", value / 1e3);
  if (value < 999.5e6) return fmt::format("{:.3g} MB", value / 1e6);
  if (value < 999.5e9) return fmt::format("{:.3g} GB", value / 1e9);
  return fmt::format("{:.4g} TB", value / 1e12);
}

void print_coloured(std::FILE* to, Severity severity, std::string_view text) {
  const char *no_color = std::getenv("NO_COLOR"), *term = std::getenv("TERM");
  const bool plain =
      (no_color != nullptr && *no_color != '\0') || term == nullptr || term == std::string_view("dumb");
  const auto write = [to](std::string_view part) { to == stdout ? write_stdout(part) : write_stderr(part); };
  if (plain || CapturedConsole::current() != nullptr || ::isatty(::fileno(to)) == 0) {
    write(text);
    return;
  }
  // The text is bold, and red, yellow or cyan.
  const int colour = severity == Severity::kError ? 31 : severity == Severity::kWarning ? 33 : 36;
  write(fmt::format("\033[1;{}m{}\033[0m", colour, text));
}

}  // namespace twofour
