#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/recipe/artifact/recipe.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/plan/plan.h"

namespace twofour {

/// An engine that an output may be for.
struct OutputEngine {
  std::string_view word;     ///< "tensorrt-llm"
  std::string_view name;     ///< its name in engines(); empty for twofour, which loads all that it writes
  std::string_view dialect;  ///< the dialect in which it loads the most formats
};
std::span<const OutputEngine> output_engines();
/// Returns the engine with that name. Throws Error on other names.
const OutputEngine& output_engine(std::string_view word);

/// A format of a menu that stands for linears that stay as they are.
inline constexpr std::string_view kStays = "bf16";

/// The formats that a menu may have: "nvfp4", the formats of one scale for 32 weights, "fp8" with a scale for
/// each row, "bf16", and layouts.
std::vector<std::string> menu_formats();
/// The default menu: all formats except layouts and MXFP8.
std::vector<std::string> default_menu();

/// The rule that gives a format to the linears that `base` selects, in its dialect and with its settings of
/// statistics. Not for kStays.
Rule rule_of_format(std::string_view format, const Rule& base);
/// The same for the linears of a source that can have the format. Linears without whole groups along K
/// cannot.
Rule rule_of_format(std::string_view format, const Rule& base, const Checkpoint& source);

/// A rule without its settings of statistics, for plans that need none.
Rule without_solving(Rule rule);

/// The reason why an engine does not load an output: "vLLM has no loader ...". Empty if it does.
std::string find_engine_refusal(const OutputEngine& engine, const Checkpoint& source, const Plan& plan);

}  // namespace twofour
