#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/names/pattern.h"
#include "tools/cli/arguments.h"

namespace twofour {

/// Adds --seed, a whole number from 0 to 2^64 - 1. Other numbers are refused.
Argument& add_seed_option(Arguments& args, uint64_t& seed, const std::string& help);

/// Refuses values of an option that are not finite as a float, and values below 0.
Argument& check_finite_not_negative(Argument& option);

/// Adds --max-shard-size. parse_size_option() parses its value.
Argument& add_shard_size_option(Arguments& args, std::string& size);

/// Parses the value of `option` with parse_size(). The Error names the option.
uint64_t parse_size_option(const char* option, const std::string& text);

/// Parses the values of `option` with parse_patterns(). The Error names the option.
std::vector<NamePattern> parse_pattern_option(const char* option, const std::vector<std::string>& texts);

}  // namespace twofour
