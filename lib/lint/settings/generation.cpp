#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "formats/json/access.h"
#include "lib/lint/files/checks.h"
#include "lib/lint/settings/checks.h"
#include "lib/lint/settings/setting_kinds.h"
#include "lib/source/config/model_config.h"

// Checks generation_config.json, which engines take as defaults of every request. Source: transformers 5.17,
// generation/configuration_utils.py, logits_process.py; vLLM, sampling_params.py.

namespace twofour {
namespace {

using enum SettingKind;
constexpr Setting kGeneration[] = {
    {"max_length", kCount},
    {"max_new_tokens", kCount},
    {"min_length", kNumber},
    {"min_new_tokens", kNumber},
    {"do_sample", kSwitch},
    {"use_cache", kSwitch},
    {"num_beams", kCount},
    {"num_return_sequences", kCount},
    {"temperature", kNotNegative},
    {"top_k", kNumberOrAll},
    {"top_p", kShare},
    {"min_p", kShareOrNothing},
    {"typical_p", kShare},
    {"epsilon_cutoff", kShareOrNothing},
    {"eta_cutoff", kShareOrNothing},
    {"repetition_penalty", kPositive},
    {"encoder_repetition_penalty", kPositive},
    {"length_penalty", kAnyNumber},
    {"no_repeat_ngram_size", kNumber},
    {"eos_token_id", kTokens},
    {"bos_token_id", kTokens},
    {"pad_token_id", kTokenOrNone},
};

/// Pairs of settings. The first must not exceed the second.
constexpr std::pair<const char*, const char*> kOrdered[] = {{"min_new_tokens", "max_new_tokens"},
                                                            {"min_length", "max_length"}};

/// Reports tokens that end answers and are never chosen.
void check_suppressed(const Json& config, const char* file, LintReporter& reporter) {
  const Json& ends = member(config, "eos_token_id");
  const Json& suppressed = member(config, "suppress_tokens");
  if (!suppressed.is_array() || ends.is_null()) return;
  const auto is_suppressed = [&](const Json& end) {
    return std::ranges::find(suppressed, end) != suppressed.end();
  };
  const Json list = ends.is_array() ? ends : Json::array({ends});
  if (list.empty() || !std::ranges::all_of(list, is_suppressed)) return;
  reporter.add("impossible-setting", {file, "suppress_tokens"},
               "expected a token of eos_token_id that is not in it, found {}", quoted_setting(ends));
}

}  // namespace

void lint_generation(const LintInput& s, LintReporter& reporter) {
  constexpr const char* kFile = "generation_config.json";
  const Json config = read_lint_config(s.path, kFile, reporter);
  if (!config.is_object()) return;
  const auto odd = [&](const char* key, const char* expected, const Json& found) {
    reporter.add("odd-setting", {kFile, key}, "expected {}, found {}", expected, quoted_setting(found));
  };
  for (const Setting& setting : kGeneration) {
    const auto at = config.find(setting.key);
    if (at != config.end() && !fits(*at, setting.kind)) odd(setting.key, expected_of(setting.kind), *at);
  }
  const auto samples = config.find("do_sample"), temperature = config.find("temperature");
  if (samples != config.end() && *samples == true && temperature != config.end() &&
      temperature->is_number() && temperature->get<double>() == 0)
    odd("temperature", "a number above 0, because do_sample is true", *temperature);
  for (const auto& [least, most] : kOrdered) {
    const auto low = integer_of(config, least), high = integer_of(config, most);
    if (low && high && *low > *high)
      odd(least, fmt::format("at most {}, {}", most, *high).c_str(), config[least]);
  }
  const auto beams = integer_of(config, "num_beams"), answers = integer_of(config, "num_return_sequences");
  if (beams && answers && *beams > 1 && *answers > *beams)
    odd("num_return_sequences", fmt::format("at most num_beams, {}", *beams).c_str(),
        config["num_return_sequences"]);
  check_suppressed(config, kFile, reporter);
  lint_token_settings(s, kFile, config, reporter);
}

}  // namespace twofour
