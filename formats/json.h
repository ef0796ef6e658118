#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace twofour {

/// Keeps the order of keys, so that a rewritten config reads like the one it came from (one of more than 256
/// KiB is sorted instead).
using Json = nlohmann::ordered_json;

/// Parses one document. Throws Error naming `where` on syntax errors, on text that is not UTF-8 and on
/// nesting deeper than 64 and on more than 1,000,000 values. Of duplicate keys the last counts, as in
/// Python's loader. NaN, Infinity and -Infinity, which that loader takes too and some configs have, and
/// integers of more than 64 bits become marked strings that format_json turns back.
Json parse_json(std::string_view where, std::string_view text);

/// The document as text, two spaces a level, with a newline at the end.
std::string format_json(const Json& json);
/// The document without blanks and line ends, for journals, records and messages. Marked strings stay.
std::string json_line(const Json& json);

/// Throws Error naming `where` if `text` has a zero byte. JSON has none, but nlohmann-json takes one for the
/// end of the text and would not see what stands behind it.
void refuse_zero_byte(std::string_view where, std::string_view text);

/// Throws Error naming `where` if a string or number of `text`, or what stands between two, takes more than
/// 16 MiB: nlohmann-json's lexer holds all since the last one began, and a string several times over.
void refuse_long_tokens(std::string_view where, std::string_view text);

/// The whole number that `json` is, for int, int64_t, uint32_t and uint64_t. Throws Json::type_error on
/// everything else, numbers that T does not have among it: nlohmann-json cuts those, and conversions of
/// floats are undefined.
template <class T>
T whole_number(const Json& json);

/// `text` within JSON quotes.
std::string json_quote(std::string_view text);

/// The same for a message, which a hostile file must not make long: of more than 256 bytes the first, and how
/// many there are.
std::string json_quote_short(std::string_view text);

}  // namespace twofour
