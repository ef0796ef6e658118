#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/cli/arguments.h"

namespace twofour {

/// The options for a source of tokens, which is --tokens or --text.
struct TokenOptions {
  std::string tokens, text;
  const std::string& file() const { return text.empty() ? tokens : text; }
};
void add_token_options(Arguments& args, TokenOptions& to);

/// Reads texts as tokens of a model. They are the rows of --tokens, or --text as the model's tokenizer.json
/// splits it. `vocabulary` is the number of tokens that the model knows.
std::vector<std::vector<int32_t>> read_texts(const TokenOptions& options, const std::string& model,
                                             int64_t vocabulary);

/// Adds --context, whose default is 1024 or, if the model has fewer positions, their number.
Argument& add_context_option(Arguments& args, std::optional<int64_t>& context, const std::string& help);
/// The tokens of a window: the value of --context, or its default for a model with so many positions.
int64_t context_or_default(std::optional<int64_t> context, int64_t positions);

}  // namespace twofour
