#include "tools/option_values.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "formats/error.h"
#include "lib/plan/plan.h"
#include "lib/runtime/layer.h"

namespace twofour {
namespace {

std::string seed_problem(const std::string& text) {
  uint64_t seed = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, seed);
  if (error == std::errc() && at == end) return "";
  return fmt::format("expected a whole number from 0 to 2^64 - 1, found '{}'", text);
}

std::string limit_problem(const std::string& text) {
  char* at = nullptr;
  const double value = std::strtod(text.c_str(), &at);
  if (!text.empty() && at == text.c_str() + text.size() && is_limit(value)) return "";
  return fmt::format("expected a finite float32 number not below 0, found '{}'", text);
}

template <class F>
auto naming(const char* option, F&& parse) {
  try {
    return parse();
  } catch (const Error& e) {
    throw Error(fmt::format("{}: {}", option, e.what()));
  }
}

}  // namespace

CLI::Option* add_seed_option(CLI::App& app, uint64_t& seed, const std::string& help) {
  return app.add_option("--seed", seed, help)->check(seed_problem);
}

CLI::Option* check_finite_not_negative(CLI::Option* option) {
  return option->check(limit_problem, "NONNEGATIVE");
}

uint64_t parse_size_option(const char* option, const std::string& text) {
  return naming(option, [&] { return parse_size(text); });
}

std::vector<Pattern> parse_pattern_option(const char* option, const std::vector<std::string>& texts) {
  return naming(option, [&] { return parse_patterns(texts); });
}

}  // namespace twofour
