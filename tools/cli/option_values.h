#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/names/pattern.h"
#include "lib/source/hub/remote_source.h"
#include "tools/cli/arguments.h"

namespace twofour {

/// Adds --seed, a whole number from 0 to 2^64 - 1. Other numbers are refused.
Argument& add_seed_option(Arguments& args, uint64_t& seed, const std::string& help);

/// Refuses values of an option that are not finite as a float, and values below 0.
Argument& check_finite_not_negative(Argument& option);

/// Adds --max-shard-size. parse_size_option() parses its value.
Argument& add_shard_size_option(Arguments& args, std::string& size);

/// Parses the value of `option` with parse_size(). The Error names the option.
uint64_t parse_size_option(const char* option, const std::string& text);

/// Parses the values of `option` with parse_patterns(). The Error names the option.
std::vector<NamePattern> parse_pattern_option(const char* option, const std::vector<std::string>& texts);

/// The task of a process, and the number of tasks.
struct TaskNumber {
  size_t index, count;
  std::string from;  ///< the source of the number: "--task", "SLURM_ARRAY_TASK_ID"
};

/// Finds the task of this process. `task` is the value of --task, "i/n" with i from 0. If it is empty, the
/// environment decides. It has the completion index of a Kubernetes Job, which needs `tasks`, the index in a
/// Slurm array, or the rank in a Slurm step. `tasks` is the number of tasks, or 0 if it is not given. If it
/// is given, the index in an array counts from 0, even if only a part of the array runs. Throws Error if
/// there is no task, and on impossible values.
TaskNumber find_task(const std::string& task, size_t tasks);

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

/// Options of commands that read the whole source of a URL.
struct RemoteOptions {
  std::string cache, cache_size = "32GB";  ///< the user's cache if `cache` is empty
};

/// Adds --zero-points, which decides how INT4 zero points are read. `of` names their owner in the help.
Argument& add_zero_points_option(Arguments& args, std::string& word, const std::string& of);

/// Adds --cache and --cache-size.
void add_cache_options(Arguments& args, RemoteOptions& options);

/// The folder and size of the cache that the options ask for. Throws Error if the usual folder is needed and
/// there is no home directory.
CacheOptions cache_of(const RemoteOptions& options);

/// The help of a source. It states `what` the source is and that it may be a URL.
std::string or_url(const std::string& what);

}  // namespace twofour
