#include <fmt/format.h>

#include <memory>
#include <optional>

#include "lib/base/findings/problems.h"
#include "lib/base/io/file.h"
#include "lib/jobs/tasks/run.h"
#include "lib/write/output/destination.h"
#include "tools/cli/arguments.h"
#include "tools/cli/conversion_options.h"
#include "tools/cli/recipe_options.h"
#include "tools/cli/source_options.h"
#include "tools/cli/task_number.h"
#include "tools/text/plan_text.h"

namespace twofour {
namespace {

struct ConvertArguments {
  ConversionOptions common;
  RecipeOptions recipe;
  std::string plan, task;
  std::optional<uint64_t> tasks;
};

/// Runs one task of a plan file.
int run_planned(const ConvertArguments& o, const Common& common) {
  const TaskNumber number = find_task(o.task, o.tasks.value_or(0));
  const TaskFile tasks = parse_task_plan(o.plan, read_text(o.plan));
  const Io io = parse_io(o.common.io);
  const Device device = choose_solver_device(common, !tasks.statistics.empty());
  const bool is_remote = is_remote_address(tasks.source.string());
  const auto cache = is_remote ? std::optional(cache_of(o.common.remote)) : std::nullopt;
  if (cache) check_apart_from_cache(tasks.destination, cache->folder);
  const PlannedSource planned = open_planned(o.plan, tasks, io, solver_of(common, device), cache);
  TaskResult result;
  with_progress(common, [&](Progress& progress) {
    planned.opened->download_whole_files(&progress);
    ConvertOptions options;
    options.jobs = common.jobs;
    options.verify = !o.common.no_verify;
    options.isa = best_isa();
    options.device = device;
    options.io = io;
    result = run_task(planned, tasks, number.index, number.count, options, progress);
  });
  planned.opened->remove_downloads();
  print_findings(common, result.findings);
  if (common.json) {
    print_json({{"task", number.index},
                {"tasks", number.count},
                {"from", number.from},
                {"device", device_name(device)},
                {"destination", tasks.destination.string()},
                {"files", result.files},
                {"files_kept", result.files_kept},
                {"bytes_read", result.bytes_read},
                {"bytes_written", result.bytes_written},
                {"bytes_verified", result.bytes_verified},
                {"seconds", result.seconds},
                {"findings", findings_to_json(result.findings)}});
  } else if (!common.quiet) {
    print_stdout("{}: task {} of {} (by {}): {} of {}, {} written, {} read{}\n", tasks.destination.string(),
                 number.index, number.count, number.from, result.files,
                 counted(planned.plan.files.size(), "file"), format_bytes(result.bytes_written),
                 format_bytes(result.bytes_read),
                 result.files_kept > 0 ? fmt::format("; {} finished before", result.files_kept) : "");
    print_stdout("{}", Lines{speed_text(device, result.seconds, result.bytes_read, result.bytes_written,
                                        !o.common.no_verify)});
  }
  return kDone;
}

int run_convert(const ConvertArguments& o, const Common& common) {
  if (!o.plan.empty()) return run_planned(o, common);
  const bool no_rule = o.recipe.layout.empty() && o.recipe.recipe.empty();
  for (const auto& [name, is_absent] : {std::pair{"SRC", o.common.source.empty()},
                                        {"DST", o.common.destination.empty()},
                                        {"--to or --recipe", no_rule}}) {
    if (is_absent) throw ErrorLines({fmt::format("{} is required", name), "See twofour convert --help."});
  }
  if (!o.task.empty() || o.tasks) {
    throw Error(
        fmt::format("{}: expected with --plan only, found without", o.task.empty() ? "--tasks" : "--task"));
  }
  return run_conversion(o.common, o.recipe, common);
}

}  // namespace

std::function<int()> setup_convert(Arguments& args, const Common& common) {
  auto o = std::make_shared<ConvertArguments>();
  add_conversion_options(args, o->common);
  add_config_option(args, o->common.without_config);
  add_recipe_options(args, o->recipe, kConverts);
  add_statistics_options(args, o->recipe, kConverts);
  add_mask_option(args, o->recipe, kConverts);
  add_budget_options(args, o->recipe, kConverts);
  args.option(
          "--plan", o->plan,
          "Run a task of this plan, which twofour plan wrote. It replaces the other options of a conversion")
      .value_name("FILE");
  args.replaces_all("--plan", {"--no-verify", "--io", "--cache",
                               "--cache-size"});  // run_convert() requires SRC, DST and --to or --recipe
  args.option("--task", o->task, "Task to run: number I, from 0, of N")
      .value_name("I/N")
      .default_text("by SLURM_ARRAY_TASK_ID, SLURM_PROCID or JOB_COMPLETION_INDEX");
  args.option("--tasks", o->tasks, "Number of tasks, if --task does not give it").range(1, 1'000'000);
  return [o, &common] { return run_convert(*o, common); };
}

}  // namespace twofour
