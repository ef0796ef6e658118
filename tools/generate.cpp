#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/error.h"
#include "lib/base/threads/stopwatch.h"
#include "lib/run/eval/generate.h"
#include "lib/source/tokenizer/tokenizer.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"
#include "tools/cli/source_options.h"

namespace twofour {
namespace {

struct GenerateArguments {
  std::string model, against, prompt, zero_points;
  int64_t tokens = 64;
};

/// The continuation of the text by one model.
struct Continuation {
  Generation generation;
  double seconds = 0;
};

std::string text_of(const Tokenizer& tokenizer, const Generation& generation) {
  std::vector<int32_t> ids;
  for (const GeneratedToken& t : generation.tokens) ids.push_back(t.token);
  return tokenizer.decode(ids, true);
}

/// Prints a text as its tokens come.
class StreamedText {
 public:
  explicit StreamedText(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// Prints what `tokens` add to the text. A character that they end within waits for its other bytes.
  void show(std::span<const GeneratedToken> tokens) {
    std::vector<int32_t> ids;
    for (const GeneratedToken& t : tokens) ids.push_back(t.token);
    const std::string text = tokenizer_.decode(ids, true);
    if (!text.starts_with(printed_) || text.ends_with("\uFFFD")) return;
    print_rest(text);
    std::fflush(stdout);
  }
  /// Prints the rest of the whole text and a line end.
  void finish(const std::string& text) {
    if (!text.starts_with(printed_)) {  // a later token changed an earlier part
      print_stdout("\n");
      printed_.clear();
    }
    print_rest(text);
    print_stdout("\n");
    printed_.clear();
  }

 private:
  void print_rest(const std::string& text) {
    print_stdout("{}", Lines{printable(text.substr(printed_.size()))});
    printed_ = text;
  }

  const Tokenizer& tokenizer_;
  std::string printed_;
};

Json to_json(const Tokenizer& tokenizer, const std::string& path, const Continuation& c) {
  Json tokens = Json::array();
  for (const GeneratedToken& t : c.generation.tokens) {
    tokens.push_back({{"token", t.token},
                      {"text", std::string(tokenizer.token(t.token))},
                      {"log_probability", t.log_probability}});
  }
  return {{"path", path},
          {"text", text_of(tokenizer, c.generation)},
          {"ended", c.generation.is_ended},
          {"seconds", c.seconds},
          {"tokens", std::move(tokens)}};
}

/// The first position at which two continuations differ. Empty if they are equal.
std::optional<size_t> parting_of(const Generation& a, const Generation& b) {
  const size_t common = std::min(a.tokens.size(), b.tokens.size());
  for (size_t i = 0; i < common; ++i) {
    if (a.tokens[i].token != b.tokens[i].token) return i;
  }
  return a.tokens.size() == b.tokens.size() ? std::nullopt : std::optional(common);
}

/// A table cell with a token and its probability. The token is shown as in the tokenizer's file, or as its id
/// if the file does not have it.
std::string cell(const Tokenizer& tokenizer, const Generation& generation, size_t i) {
  if (i >= generation.tokens.size()) return "-";
  const GeneratedToken& t = generation.tokens[i];
  const std::string_view text = tokenizer.token(t.token);
  return fmt::format("{} ({:.1f} %)", text.empty() ? fmt::format("id {}", t.token) : text,
                     100 * std::exp(t.log_probability));
}

void print_side_by_side(const Tokenizer& tokenizer, const Generation& a, const Generation& b,
                        std::optional<size_t> parting) {
  for (size_t i = 0; i < std::max(a.tokens.size(), b.tokens.size()); ++i) {
    const std::string left = cell(tokenizer, a, i), right = cell(tokenizer, b, i);
    print_stdout("{:>4} {:<32} {}{}\n", i, left, right, parting && i == *parting ? "  <- they part" : "");
  }
}

int run_generate(const GenerateArguments& o, const Common& common) {
  const Device device = choose_device(common);
  const ZeroPoints zero_points = parse_zero_points(o.zero_points);
  Decoder model = Decoder::open(o.model, zero_points);
  std::optional<Decoder> other;
  if (!o.against.empty()) other = Decoder::open(o.against, zero_points);
  const Tokenizer tokenizer = Tokenizer::load(o.model);
  const std::vector<int32_t> prompt = tokenizer.encode(o.prompt, true, "--prompt");
  if (prompt.empty()) throw Error("--prompt: expected a text of at least one token, found none");
  const auto run = [&](Decoder& decoder) {
    if (device == Device::cuda) decoder.use_cuda();
    const Stopwatch watch;
    StreamedText text(tokenizer);
    Continuation c{generate(decoder, prompt, o.tokens, ending_tokens(decoder.checkpoint()),
                            [&](std::span<const GeneratedToken> tokens) {
                              if (!common.json) text.show(tokens);
                            })};
    c.seconds = watch.seconds();
    if (!common.json) text.finish(text_of(tokenizer, c.generation));
    return c;
  };
  const Continuation own = run(model);
  std::optional<Continuation> others;
  std::optional<size_t> parting;
  if (other) {
    if (!common.json) print_stdout("--- {}\n", o.against);
    others = run(*other);
    parting = parting_of(own.generation, others->generation);
    other->checkpoint().check_same_files();
  }
  model.checkpoint().check_same_files();
  if (common.json) {
    Json json = to_json(tokenizer, o.model, own);
    json["prompt_tokens"] = prompt.size();
    json["device"] = device_name(device);
    if (others) {
      json["against"] = to_json(tokenizer, o.against, *others);
      json["parts_at"] = parting ? Json(*parting) : Json();
    }
    print_json(json);
    return kDone;
  }
  if (others) {
    print_stdout("---\n");
    print_side_by_side(tokenizer, own.generation, others->generation, parting);
    if (parting) {
      print_stdout("the first {} are the same\n", counted(*parting, "token"));
    } else {
      print_stdout("all {} are the same\n", counted(own.generation.tokens.size(), "token"));
    }
  }
  if (!common.quiet) {
    const auto limit = [&](const Decoder& decoder, const Continuation& c, const std::string& path) {
      if (c.generation.is_ended || std::cmp_greater_equal(c.generation.tokens.size(), o.tokens))
        return std::string();
      return fmt::format("; {} has {}", path,
                         counted(static_cast<uint64_t>(decoder.shape().positions), "position"));
    };
    print_stderr("{}, {} behind {} of the prompt in {:.1f} s{}{}\n", device_text(common, device),
                 counted(own.generation.tokens.size(), "token"), prompt.size(), own.seconds,
                 limit(model, own, o.model), others ? limit(*other, *others, o.against) : "");
  }
  return kDone;
}

}  // namespace

std::function<int()> setup_generate(Arguments& args, const Common& common) {
  auto o = std::make_shared<GenerateArguments>();
  args.option("PATH", o->model, "Checkpoint or artifact: a whole model with its tokenizer.json")
      .required()
      .as_checkpoint();
  args.option("--prompt", o->prompt, "Text to continue; no chat template is put around it")
      .as_given()
      .required()
      .value_name("TEXT");
  add_zero_points_option(args, o->zero_points, "of both models");
  args.option("--against", o->against, "Another checkpoint or artifact, which continues the same tokens")
      .value_name("PATH")
      .as_checkpoint();
  args.option("--max-tokens", o->tokens, "At most so many tokens").range(1, 1 << 24);
  return [o, &common] { return run_generate(*o, common); };
}

}  // namespace twofour
