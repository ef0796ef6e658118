#pragma once
#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "lib/names/pattern.h"

namespace twofour {

/// Adds --seed, a whole number below 2^64: CLI11 would take one of more bits, or below 0, for another.
CLI::Option* add_seed_option(CLI::App& app, uint64_t& seed, const std::string& help);

/// Refuses what is not finite as a float or below 0, where CLI11 would spell out the largest double.
CLI::Option* check_finite_not_negative(CLI::Option* option);

/// parse_size of what was given with `option`, which the Error names.
uint64_t parse_size_option(const char* option, const std::string& text);

/// parse_patterns of what was given with `option`, which the Error names.
std::vector<Pattern> parse_pattern_option(const char* option, const std::vector<std::string>& texts);

}  // namespace twofour
