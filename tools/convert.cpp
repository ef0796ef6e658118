#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "lib/error_lines.h"
#include "lib/io/file.h"
#include "lib/tasks/run.h"
#include "lib/tasks/split.h"
#include "tools/cli/conversion_options.h"
#include "tools/cli/recipe_options.h"
#include "tools/cli/option_values.h"

namespace twofour {
namespace {

struct Options {
  ConversionOptions common;
  RecipeOptions recipe;
  std::string plan, task;
  size_t tasks = 0;
};

/// One task of a plan.
int run_planned(const Options& o, const Common& common) {
  const TaskNumber number = find_task(o.task, o.tasks);
  const TaskPlan tasks = parse_task_plan(o.plan, read_text(o.plan));
  const Io io = parse_io(o.common.io);
  const PlannedSource planned = open_planned(o.plan, tasks, io);
  const Device device = conversion_device(common, planned.plan.recipe);
  const auto files = split_tasks(planned.source, planned.plan, number.count).files[number.index];
  TaskResult result;
  with_progress(common, [&](Progress& progress) {
    ConvertOptions options;
    options.jobs = common.jobs;
    options.verify = !o.common.no_verify;
    options.isa = best_isa();
    options.device = device;
    options.io = io;
    result = run_task(planned, tasks, files, options, progress);
  });
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
    put("{}: task {} of {} (by {}): {} of {}, {} (from {}){}\n", tasks.destination.string(), number.index,
        number.count, number.from, result.files, counted(planned.plan.files.size(), "file"),
        format_bytes(result.bytes_written), format_bytes(result.bytes_read),
        result.files_kept > 0 ? fmt::format("; {} finished before", result.files_kept) : "");
    put("{}", Lines{speed_text(device, result.seconds, result.bytes_read, result.bytes_written,
                               !o.common.no_verify)});
  }
  return kDone;
}

int run(const Options& o, const Common& common) {
  if (!o.plan.empty()) return run_planned(o, common);
  for (const auto& [name, value] :
       {std::pair{"SRC", &o.common.source}, {"DST", &o.common.destination}, {"--to", &o.recipe.layout}}) {
    if (value->empty())
      throw ErrorLines({fmt::format("{} is required", name), "See twofour convert --help."});
  }
  if (!o.task.empty() || o.tasks != 0) {
    throw Error(
        fmt::format("{}: expected with --plan only, found without", o.task.empty() ? "--tasks" : "--task"));
  }
  return run_conversion(o.common, o.recipe, common);
}

}  // namespace

std::function<int()> setup_convert(CLI::App& app, const Common& common) {
  auto o = std::make_shared<Options>();
  add_conversion_options(app, o->common);
  add_recipe_options(app, o->recipe, kConverts);
  CLI::Option* plan = app.add_option("--plan", o->plan,
                                     "Do a task of this plan, made by twofour plan, in place of all options");
  for (CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    option->required(false);  // run() looks, since --plan stands for all
    if (option != plan && name != "--help" && name != "--no-verify" && name != "--io") plan->excludes(option);
  }
  app.add_option("--task", o->task,
                 "Of a plan: i/n, from 0/n (default: by SLURM_ARRAY_TASK_ID, SLURM_PROCID or "
                 "JOB_COMPLETION_INDEX)")
      ->type_name("I/N");
  app.add_option("--tasks", o->tasks, "Of a plan: how many tasks there are, where --task does not say")
      ->check(CLI::Range(1, 1'000'000));
  return [o, &common] { return run(*o, common); };
}

}  // namespace twofour
