#include "tools/cli/token_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/source/tokenizer/token_file.h"
#include "lib/source/tokenizer/tokenizer.h"

namespace twofour {
namespace {

/// The problem with a value of --text that is not a path but the text itself.
std::string text_problem(const std::string& file) {
  std::error_code error;
  const bool is_there = std::filesystem::exists(file, error);
  if (is_there || (!error && file.find_first_of(" \n") == file.npos)) return "";
  return fmt::format("expected the path of a file, found text: {}; write it to a file first",
                     json_quote_short(file));
}

}  // namespace

void add_token_options(Arguments& args, TokenOptions& to) {
  const ArgumentGroup group(args, "Models and texts");
  args.option("--tokens", to.tokens,
              "Token ids [W, T], I32 or I64, in safetensors or .npy: each row is a text of its own")
      .value_name("FILE");
  args.option("--text", to.text, "Text in UTF-8, which the model's tokenizer.json takes apart")
      .value_name("FILE")
      .check(text_problem);
}

std::vector<std::vector<int32_t>> read_texts(const TokenOptions& o, const std::string& model,
                                             int64_t vocabulary) {
  if (!o.text.empty()) return {Tokenizer::load(model).encode(read_text(o.text), true, o.text)};
  const TokenWindows rows = read_token_file(o.tokens, vocabulary);
  std::vector<std::vector<int32_t>> texts;
  for (int64_t i = 0; i < rows.count; ++i) texts.emplace_back(rows.window(i).begin(), rows.window(i).end());
  return texts;
}

Argument& add_context_option(Arguments& args, std::optional<int64_t>& context, const std::string& help) {
  return args.option("--context", context, help)
      .range(2, 1 << 24)
      .default_text("1024, or the model's positions if fewer");
}

int64_t context_or_default(std::optional<int64_t> context, int64_t positions) {
  constexpr int64_t kUsual = 1024;
  return context.value_or(std::clamp<int64_t>(positions, 2, kUsual));
}

}  // namespace twofour
