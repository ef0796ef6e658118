#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>

#include "lib/base/findings/given_urls.h"
#include "lib/base/findings/suggest.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tools/cli/arguments.h"

namespace twofour {

Argument::Argument(CLI::Option* option, ArgumentEntry entry) : option_(option), entry_(std::move(entry)) {}

std::string Argument::name() const { return option_->get_name(); }

bool Argument::is_given() const { return option_->count() > 0; }

Argument& Argument::required(bool is_required) {
  option_->required(is_required);
  entry_.required = is_required;
  return *this;
}

namespace {

template <class T>
std::string range_problem(const std::string& text, T least, T most, const std::string& expected) {
  T value{};
  if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) return "";
  return fmt::format("expected {}, found '{}'", expected, text);
}

/// True if `text` is `word`, or has a number of up to three digits in place of N if `word` ends with ":N".
bool is_word(const std::string& word, const std::string& text) {
  if (!word.ends_with(":N")) return text == word;
  const size_t at = word.size() - 1;
  return text.size() > at && text.size() <= at + 3 && text.starts_with(word.substr(0, at)) &&
         std::all_of(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

/// The end of a message about a value of --dialect: what to take if it is the name of an engine.
std::string engine_hint(const std::string& option, std::string text) {
  if (option != "--dialect") return "";
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr const char* kEngines[][3] = {{"vllm", "vLLM is an engine", "modelopt and compressed-tensors"},
                                         {"sglang", "SGLang is an engine", "modelopt and compressed-tensors"},
                                         {"tensorrt-llm", "TensorRT-LLM is an engine", "modelopt"},
                                         {"trt-llm", "TensorRT-LLM is an engine", "modelopt"},
                                         {"transformers", "transformers is a library", "compressed-tensors"}};
  for (const auto& [name, what, reads] : kEngines)
    if (text == name) return fmt::format("; {}, which reads {}", what, reads);
  return "";
}

}  // namespace

Argument& Argument::one_of(std::vector<std::string> words, const std::vector<std::string>& unlisted) {
  entry_.choices = words;
  entry_.path = false;
  return check([words, unlisted, option = name()](const std::string& text) -> std::string {
    for (const auto& list : {words, unlisted}) {
      if (std::any_of(list.begin(), list.end(), [&](const std::string& w) { return is_word(w, text); }))
        return "";
    }
    const std::string hint = engine_hint(option, text);
    return fmt::format("expected {}, found '{}'{}", fmt::join(words, ", "), text,
                       hint.empty() ? did_you_mean(text, words) : hint);
  });
}

Argument& Argument::suggest(std::vector<std::string> words) {
  entry_.suggestions = std::move(words);
  return *this;
}

Argument& Argument::range(int least, int most) {
  entry_.range = fmt::format("{} to {}", least, most);
  return check([least, most, expected = "a whole number from " + entry_.range](const std::string& text) {
    return range_problem(text, least, most, expected);
  });
}

Argument& Argument::range(double least, double most) {
  entry_.range = fmt::format("{} to {}", least, most);
  return check([least, most, expected = "a number from " + entry_.range](const std::string& text) {
    return range_problem(text, least, most, expected);
  });
}

Argument& Argument::check(std::function<std::string(const std::string&)> problem) {
  option_->check(std::move(problem));
  return *this;
}

Argument& Argument::excludes(const std::string& name) {
  excluded_.push_back(name);
  return *this;
}

Argument& Argument::value_name(const std::string& name) {
  entry_.value = name;
  entry_.path = name == "FILE" || name == "DIRECTORY" || name == "PATH";
  return *this;
}

Argument& Argument::tells_count() {
  entry_.repeated = false;
  return *this;
}

Argument& Argument::default_text(const std::string& text) {
  entry_.default_text = text;
  return *this;
}

Argument& Argument::separated_by(char separator) {
  option_->delimiter(separator);
  entry_.is_list = separator == ',';
  return *this;
}

Argument& Argument::as_given() {
  option_->transform(word_as_given);
  return *this;
}

Argument& Argument::as_checkpoint() {
  option_->transform([](std::string path) { return checkpoint_directory(path).string(); });
  return *this;
}

Argument& Argument::common() {
  entry_.common = true;
  return *this;
}

}  // namespace twofour
