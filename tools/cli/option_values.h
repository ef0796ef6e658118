#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/names/pattern.h"
#include "lib/source/hub/remote_source.h"
#include "tools/cli/arguments.h"

namespace twofour {

/// Adds --seed, a whole number below 2^64. Larger numbers, or numbers below 0, are refused.
Argument& add_seed_option(Arguments& args, uint64_t& seed, const std::string& help);

/// Refuses a value that is not finite as a float, or below 0.
Argument& check_finite_not_negative(Argument& option);

/// Adds --max-shard-size, for parse_size_option.
Argument& add_shard_size_option(Arguments& args, std::string& size);

/// parse_size of the value of `option`, which the Error names.
uint64_t parse_size_option(const char* option, const std::string& text);

/// parse_patterns of the values of `option`, which the Error names.
std::vector<NamePattern> parse_pattern_option(const char* option, const std::vector<std::string>& texts);

/// The task of a process, and the number of tasks.
struct TaskNumber {
  size_t index, count;
  std::string from;  ///< the source of the number: "--task", "SLURM_ARRAY_TASK_ID"
};

/// The task by the option --task, "i/n" with i from 0, if it is given; else by the environment: the
/// completion index of a Kubernetes Job, which needs `tasks`, the index in a Slurm array, or the rank in a
/// Slurm step. `tasks` is the number of tasks if given (else 0); an array's index then counts from 0, even if
/// only a part of the array runs. Throws Error if neither gives a task, and on impossible values.
TaskNumber find_task(const std::string& task, size_t tasks);

/// The source of tokens: --tokens or --text.
struct TokenOptions {
  std::string tokens, text;
  const std::string& file() const { return text.empty() ? tokens : text; }
};
void add_token_options(Arguments& args, TokenOptions& to);

/// The texts as tokens of a model with that vocabulary: every row of --tokens, or --text by the model's
/// tokenizer.json.
std::vector<std::vector<int32_t>> read_texts(const TokenOptions& options, const std::string& model,
                                             int64_t vocabulary);

/// Options of commands that read all of a source behind a URL.
struct RemoteOptions {
  std::string cache, cache_size = "32GB";  ///< an empty folder: the user's cache
};

/// Adds --zero-points, the reading of INT4 zero points; `of` names their owner in the help.
Argument& add_zero_points_option(Arguments& args, std::string& word, const std::string& of);

/// Adds --cache and --cache-size.
void add_cache_options(Arguments& args, RemoteOptions& options);

/// The cache's folder and size by the options. Throws Error if there is no home directory for the usual
/// folder.
CacheOptions cache_of(const RemoteOptions& options);

/// The help of a source: `what`, and that it may be behind a URL.
std::string or_url(const std::string& what);

}  // namespace twofour
