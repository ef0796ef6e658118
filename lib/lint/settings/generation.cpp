#include "lib/lint/files/checks.h"
#include "lib/lint/settings/checks.h"
#include "lib/lint/settings/setting_kinds.h"
#include "lib/source/checkpoint/model_config.h"

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
};

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
    odd("temperature", "a number of more than 0, as do_sample is true", *temperature);
  lint_token_settings(s, kFile, config, reporter);
}

}  // namespace twofour
