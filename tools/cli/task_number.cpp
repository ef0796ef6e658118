#include "tools/cli/task_number.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "formats/error.h"

namespace twofour {
namespace {

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

}  // namespace twofour
