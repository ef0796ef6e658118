#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/hub/remote_source.h"
#include "lib/names/pattern.h"
#include "tools/cli/arguments.h"

namespace twofour {

/// Adds --seed, a whole number below 2^64. One of more bits, or below 0, is refused.
Argument& add_seed_option(Arguments& args, uint64_t& seed, const std::string& help);

/// Refuses a value that is not finite as a float, or below 0.
Argument& check_finite_not_negative(Argument& option);

/// Adds --max-shard-size, for parse_size_option.
Argument& add_shard_size_option(Arguments& args, std::string& size);

/// parse_size of what was given with `option`, which the Error names.
uint64_t parse_size_option(const char* option, const std::string& text);

/// parse_patterns of what was given with `option`, which the Error names.
std::vector<NamePattern> parse_pattern_option(const char* option, const std::vector<std::string>& texts);

/// Which of how many tasks a process is.
struct TaskNumber {
  size_t index, count;
  std::string from;  ///< what said so: "--task", "SLURM_ARRAY_TASK_ID"
};

/// By the option --task, "i/n" with i from 0, if it is given; else by the environment: the completion index
/// of a Kubernetes Job, which needs `tasks`, the index in a Slurm array, or the rank in a Slurm step. `tasks`
/// is their number where it is given (else 0); an array's index then counts from 0 whatever part of the array
/// runs. Throws Error where nothing says it, and on what makes no sense.
TaskNumber find_task(const std::string& task, size_t tasks);

/// Where tokens come from: --tokens or --text.
struct TokenOptions {
  std::string tokens, text;
  const std::string& file() const { return text.empty() ? tokens : text; }
};
void add_token_options(Arguments& args, TokenOptions& to);

/// The texts as tokens of a model with that vocabulary: every row of --tokens, or --text by the model's
/// tokenizer.json.
std::vector<std::vector<int32_t>> read_texts(const TokenOptions& options, const std::string& model,
                                             int64_t vocabulary);

/// What commands that read all of a source behind a URL ask for.
struct RemoteOptions {
  std::string cache, cache_size = "32GB";  ///< an empty folder: that of the user
};

/// Adds --zero-points, how the zero points of INT4 are read; `of` whom.
Argument& add_zero_points_option(Arguments& args, std::string& word, const std::string& of);

/// Adds --cache and --cache-size.
void add_cache_options(Arguments& args, RemoteOptions& options);

/// The folder and the size that they ask for. Throws Error where there is no home for the usual folder.
CacheOptions cache_of(const RemoteOptions& options);

/// The help of a source: `what` it is, and that it may be behind a URL.
std::string or_url(const std::string& what);

}  // namespace twofour
