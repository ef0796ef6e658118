#include "tools/cli/option_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/run/runtime/layer.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/tokenizer/token_file.h"
#include "lib/source/tokenizer/tokenizer.h"
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

/// The problem with a value of --text that is not a path but the text itself.
std::string text_problem(const std::string& file) {
  std::error_code error;
  const bool is_there = std::filesystem::exists(file, error);
  if (is_there || (!error && file.find_first_of(" \n") == file.npos)) return "";
  return fmt::format("expected the path of a file, found text: {}; write it to a file first",
                     json_quote_short(file));
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

std::optional<size_t> parse_number(std::string_view text) {
  size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// The number in an environment variable. Empty if it is not set.
std::optional<size_t> number_of(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  const auto number = parse_number(text);
  if (!number) throw Error(fmt::format("{}: expected a number, found '{}'", variable, text));
  return number;
}

/// The number of tasks in an environment variable. Empty if it is not set. Throws Error if it is 0.
std::optional<size_t> count_of(const char* variable) {
  const auto count = number_of(variable);
  if (count == 0u) throw Error(fmt::format("{}: expected a number of tasks, found 0", variable));
  return count;
}

TaskNumber checked(TaskNumber task) {
  if (task.index < task.count) return task;
  throw Error(
      fmt::format("{}: expected a task from 0 to {}, found {}", task.from, task.count - 1, task.index));
}

TaskNumber from_option(const std::string& text, size_t tasks) {
  const size_t slash = text.find('/');
  const auto index = parse_number(text.substr(0, slash));
  const auto count =
      slash == std::string::npos ? std::nullopt : parse_number(std::string_view(text).substr(slash + 1));
  if (!index || !count || *count == 0) {
    throw Error(fmt::format("--task: expected i/n, the first of four being 0/4, found '{}'", text));
  }
  constexpr size_t kMostTasks = 1'000'000;
  if (*count > kMostTasks)
    throw Error(fmt::format("--task: expected at most {} tasks, found {}", kMostTasks, *count));
  if (tasks != 0 && tasks != *count) {
    throw Error(fmt::format("--task: expected {} tasks (--tasks), found {}", tasks, *count));
  }
  return checked({*index, *count, "--task"});
}

/// The task that SLURM_ARRAY_TASK_ID stands for, in an array such as 0-7, 1-8 or 0-14:2.
TaskNumber from_array(size_t id, size_t tasks) {
  constexpr const char* kFrom = "SLURM_ARRAY_TASK_ID";
  if (count_of("SLURM_NTASKS").value_or(1) > 1) {
    throw Error(fmt::format(
        "{}: expected steps of one task in an array job, found SLURM_NTASKS {}; --task says which "
        "task each is",
        kFrom, *count_of("SLURM_NTASKS")));
  }
  if (tasks != 0) return checked({id, tasks, kFrom});
  const auto count = count_of("SLURM_ARRAY_TASK_COUNT");
  if (!count)
    throw Error(fmt::format("{}: expected SLURM_ARRAY_TASK_COUNT or --tasks too, found neither", kFrom));
  const size_t first = number_of("SLURM_ARRAY_TASK_MIN").value_or(0);
  const size_t step = number_of("SLURM_ARRAY_TASK_STEP").value_or(1);
  if (step == 0) throw Error("SLURM_ARRAY_TASK_STEP: expected 1 or more, found 0");
  if (id < first) throw Error(fmt::format("{}: expected {} or more, found {}", kFrom, first, id));
  return checked({(id - first) / step, *count, kFrom});
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

TaskNumber find_task(const std::string& task, size_t tasks) {
  if (!task.empty()) return from_option(task, tasks);
  if (const auto index = number_of("JOB_COMPLETION_INDEX")) {
    if (tasks == 0) {
      throw Error("JOB_COMPLETION_INDEX: expected --tasks too, the number of completions, found none");
    }
    return checked({*index, tasks, "JOB_COMPLETION_INDEX"});
  }
  if (const auto id = number_of("SLURM_ARRAY_TASK_ID")) return from_array(*id, tasks);
  if (const auto rank = number_of("SLURM_PROCID")) {
    const auto count = tasks != 0 ? tasks : count_of("SLURM_NTASKS");
    if (!count) throw Error("SLURM_PROCID: expected SLURM_NTASKS or --tasks too, found neither");
    return checked({*rank, *count, "SLURM_PROCID"});
  }
  throw Error(
      "--plan: expected --task i/n, or SLURM_ARRAY_TASK_ID, SLURM_PROCID or JOB_COMPLETION_INDEX in the "
      "environment, found none");
}

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

Argument& add_zero_points_option(Arguments& args, std::string& word, const std::string& of) {
  const ArgumentGroup group(args, of == "of SRC" ? "Formats" : "Models and texts");
  const auto words = zero_points_words();
  return args
      .option(
          "--zero-points", word,
          fmt::format("How the zero points of INT4 {} are read where the config says that there are none and "
                      "others are stored: stored, as the config's format says; symmetric, 8 whatever is "
                      "stored; v2, without the 1 that GPTQ's first version adds",
                      of))
      .one_of(std::vector<std::string>(words.begin(), words.end()))
      .default_text("refuse such a module");
}

void add_cache_options(Arguments& args, RemoteOptions& o) {
  args.option(
          "--cache", o.cache,
          "If SRC is a URL: where its weight files are while they are read. They are removed at the end of a "
          "run that succeeds, and kept for --resume by one that does not")
      .value_name("DIRECTORY")
      .default_text("XDG_CACHE_HOME/twofour, ~/.cache/twofour");
  args.option("--cache-size", o.cache_size, "Most bytes of files in --cache, such as 20GB or 16GiB")
      .value_name("SIZE");
}

CacheOptions cache_of(const RemoteOptions& o) {
  CacheOptions options{o.cache, parse_size_option("--cache-size", o.cache_size)};
  if (!options.folder.empty()) return options;
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (cache != nullptr && *cache != '\0') {
    options.folder = std::filesystem::path(cache) / "twofour";
  } else if (home != nullptr && *home != '\0') {
    options.folder = std::filesystem::path(home) / ".cache/twofour";
  } else {
    throw Error("--cache: expected a directory, found none and no HOME for the usual one");
  }
  return options;
}

std::string or_url(const std::string& what) { return what + ", or hf://org/name[@revision] or https://"; }

}  // namespace twofour
