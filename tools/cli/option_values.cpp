#include "tools/cli/option_values.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "formats/error.h"
#include "lib/run/runtime/layer.h"
#include "lib/write/plan/plan.h"

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

Argument& add_seed_option(Arguments& args, uint64_t& seed, const std::string& help) {
  return args.option("--seed", seed, help).check(seed_problem);
}

Argument& check_finite_not_negative(Argument& option) { return option.check(limit_problem); }

Argument& add_shard_size_option(Arguments& args, std::string& size) {
  const ArgumentGroup group(args, "Writing");
  return args
      .option("--max-shard-size", size, "Largest weight file to write, in bytes of data, decimal: 5GB, 500MB")
      .value_name("SIZE");
}

uint64_t parse_size_option(const char* option, const std::string& text) {
  return naming(option, [&] { return parse_size(text); });
}

std::vector<NamePattern> parse_pattern_option(const char* option, const std::vector<std::string>& texts) {
  return naming(option, [&] { return parse_patterns(texts); });
}

}  // namespace twofour
