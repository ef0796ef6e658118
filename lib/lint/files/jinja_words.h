#pragma once
#include <string_view>

namespace twofour {

/// Operators that need something after them.
inline constexpr std::string_view kBinary[] = {"+",  "-",   "*",  "/",   "//", "%",  "**", "~",
                                               "==", "!=",  "<",  ">",   "<=", ">=", "|",  ".",
                                               "=",  "and", "or", "not", "in", "is"};
/// Symbols that begin no operand.
inline constexpr std::string_view kNoBeginnings[] = {")",  "]",  "}", ",", "*", "/", "|",
                                                     "==", "!=", "=", ".", ">", "<"};
/// Functions that compare with their text and do not write it.
inline constexpr std::string_view kSearches[] = {
    "split", "rsplit", "replace", "find",         "startswith", "strip",  "removeprefix",   "endswith",
    "index", "rstrip", "count",   "removesuffix", "partition",  "lstrip", "raise_exception"};

/// The filters of Jinja 3.1, and tojson as transformers has it.
inline constexpr std::string_view kFilters[] = {
    "abs",        "attr",    "batch",     "capitalize", "center",    "count",
    "d",          "default", "dictsort",  "e",          "escape",    "filesizeformat",
    "first",      "float",   "format",    "groupby",    "indent",    "int",
    "items",      "join",    "last",      "length",     "list",      "lower",
    "map",        "max",     "min",       "pprint",     "random",    "reject",
    "rejectattr", "replace", "reverse",   "round",      "safe",      "select",
    "selectattr", "slice",   "sort",      "string",     "striptags", "sum",
    "title",      "tojson",  "trim",      "truncate",   "unique",    "upper",
    "urlencode",  "urlize",  "wordcount", "wordwrap",   "xmlattr",   "forceescape",
    "from_json",  "fromjson"};

}  // namespace twofour
