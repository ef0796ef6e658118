#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "lib/base/findings/finding.h"
#include "tools/console/console.h"

namespace twofour {

/// Replaces all characters that a terminal would obey or hide by \\xNN or \\u{N}, since names from hostile
/// files may have them. These are control characters except line ends, bytes that are not UTF-8, characters
/// without width, and characters that change the text's direction (Unicode's Bidi_Control).
std::string printable(std::string_view text);
/// Does the same, and replaces line ends by \\x0A. Use it for names, which could otherwise forge lines of
/// twofour.
std::string printable_line(std::string_view text);

/// Lines of twofour's own, as an argument of print_stdout() and print_stderr(). Names in them must already be
/// printable.
struct Lines {
  std::string text;
};

/// Converts an argument of print_stdout() or print_stderr(). A text becomes one line, since it may contain
/// names from files.
template <class T>
decltype(auto) print_argument(const T& value) {
  if constexpr (std::is_same_v<T, Lines>) {
    return std::string_view(value.text);
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return printable_line(value);
  } else {
    return (value);
  }
}

template <class... Arguments>
using PrintFormat =
    fmt::format_string<std::remove_cvref_t<decltype(print_argument(std::declval<const Arguments&>()))>...>;

template <class... Values>
std::string formatted(fmt::string_view format, const Values&... values) {
  return fmt::vformat(format, fmt::make_format_args(values...));
}

/// Prints to stdout. Control characters, and line ends in arguments, are made harmless. main() reports a
/// failed write at the end.
template <class... Arguments>
void print_stdout(PrintFormat<Arguments...> format, const Arguments&... arguments) {
  write_stdout(printable(formatted(format, print_argument(arguments)...)));
}

/// Prints to stderr. Control characters, and line ends in arguments, are made harmless. A failed write is
/// ignored.
template <class... Arguments>
void print_stderr(PrintFormat<Arguments...> format, const Arguments&... arguments) {
  write_stderr(formatted(format, print_argument(arguments)...));
}

/// Shortens a line of a message, since arguments and hostile names may have any length. It drops the middle
/// of a word of more than 300 characters and of a line of more than 2000 characters.
std::string shortened(const std::string& line);

/// A number of bytes with a decimal unit: "12.9 GB".
std::string format_bytes(uint64_t bytes);

/// Writes `text` to `to`, which is stdout or stderr. It has the colour of a severity if `to` is a terminal
/// with colours (TERM is not dumb) and NO_COLOR is not set.
void print_coloured(std::FILE* to, Severity severity, std::string_view text);

}  // namespace twofour
