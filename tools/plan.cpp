#include <fmt/format.h>

#include <memory>
#include <optional>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/base/io/file_states.h"
#include "lib/graft/open_edited.h"
#include "lib/jobs/tasks/split.h"
#include "lib/jobs/tasks/task_plan.h"
#include "lib/write/output/destination.h"
#include "lib/write/transform/open_to_convert.h"
#include "tools/cli/conversion_options.h"
#include "tools/cli/edit_options.h"
#include "tools/cli/recipe_options.h"
#include "tools/text/plan_text.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// The size of a checkpoint's weight files.
uint64_t weight_bytes(const Checkpoint& source) {
  uint64_t bytes = 0;
  for (const Shard& shard : source.shards()) bytes += shard.file.size();
  return bytes;
}

struct PlanArguments {
  ConversionOptions common;
  RecipeOptions recipe;
  EditOptions edit;
  std::string output;
  std::optional<uint64_t> tasks;
};

/// Throws Error if the plan's file would be in `directory`.
void check_outside(const std::string& output, const std::string& directory) {
  const auto within = fs::weakly_canonical(fs::absolute(output))
                          .lexically_relative(fs::weakly_canonical(fs::absolute(directory)));
  if (within.empty() || *within.begin() != "..")
    throw Error(fmt::format("{}: expected a plan outside of {}, found it inside", output, directory));
}

/// Throws Error on options of an edit that need others.
void check_edit(const EditOptions& edit) {
  if (edit.donor.empty() == !edit.take.empty()) {
    throw Error(edit.donor.empty() ? "--take: expected --donor, which modules come from, found none"
                                   : "--donor: expected with --take only, found without");
  }
  if (!edit.by.empty() && edit.experts.empty())
    throw Error("--by: expected with --experts only, found without");
}

/// Prints the plan and, with --tasks, how its work is shared.
void print_plan(const PlanArguments& o, const Checkpoint& source, const Plan& plan, const Common& common) {
  const size_t tasks = o.tasks.value_or(1);
  const TaskSplit split = split_tasks(source, plan, tasks);
  if (common.json) {
    Json json = {{"plan", o.output},
                 {"layout", plan.recipe.what()},
                 {"files", plan.files.size()},
                 {"tensors", plan.tensors.size()},
                 {"bytes_read", plan.read_bytes},
                 {"bytes_written", plan.data_bytes},
                 {"peak_memory", plan.peak_memory(common.jobs)},
                 {"findings", findings_to_json(plan.findings)}};
    if (o.tasks) {
      json["tasks"] = tasks;
      json["balance"] = split.balance();
      json["overhead"] = split.overhead();
      json["task_bytes"] = split.bytes;
    }
    print_json(json);
  } else if (!common.quiet) {
    print_stdout("{}: {} in {}, {}, {} (from {})\n", o.output, o.common.destination, plan.recipe.what(),
                 counted(plan.files.size(), "file"), format_bytes(plan.data_bytes),
                 format_bytes(weight_bytes(source)));
    if (o.tasks) {
      print_stdout(
          "{}: the largest reads and writes {}, {:.2f} times the mean; all {:.2f} times what one "
          "would\n",
          counted(tasks, "task"), format_bytes(split.largest()), split.balance(), split.overhead());
    }
  }
}

int run_plan(const PlanArguments& given, const Common& common) {
  refuse_remote(given.edit.donor, "--donor reads a checkpoint on this machine");
  if (given.recipe.budget.is_given())
    refuse_remote(given.common.source, "--budget and --max-loss read all weights");
  PlanArguments o = given;
  take_whole_directory(o.common, common);
  const RemoteSource remote(o.common.source);
  o.common.source = remote.path().string();
  check_output_file(o.output, "plan", [](const fs::path& file) {
    try {
      parse_task_plan(file.string(), read_text(file));
      return true;
    } catch (const Error&) {
      return false;
    }
  });
  const std::string kept_path = o.recipe.text(keys::kKeepGlobalScale);
  if (!kept_path.empty()) check_apart_from_kept(o.common.destination, kept_path);
  check_destination(o.common.destination, o.common.source, Existing::kRefuse, false);
  for (const std::string& directory : {o.common.source, o.common.destination})
    check_outside(o.output, directory);
  check_edit(o.edit);
  if (!o.edit.donor.empty()) check_apart_from_kept(o.common.destination, o.edit.donor);
  Recipe recipe = o.edit.is_given() ? edit_recipe(o.edit, o.common) : make_recipe(o.recipe, o.common);
  FileStates states({o.common.source, o.edit.donor, kept_path});
  states.leave_out(o.recipe.html);
  std::optional<BudgetChoice> choice;
  if (o.recipe.budget.is_given()) {
    choice = take_budget(o.common, o.recipe, Device::cpu, common, recipe);
  } else if (!o.recipe.html.empty()) {
    throw Error("--html: expected with --budget or --max-loss, found without");
  }
  const Checkpoint source = recipe.edit ? open_edited(o.common.source, o.edit.donor, recipe.edit)
                                        : open_to_convert(o.common.source, recipe);
  check_config(source, o.common);
  const auto kept = keep_global_scales(recipe);
  Plan plan = make_plan(source, recipe);
  if (choice) std::ranges::move(choice->warnings(), std::back_inserter(plan.findings));
  const TaskFile planned = make_task_plan(source, plan, o.common.destination, kept.get(), o.edit.donor);
  states.check_unchanged();
  write_text(o.output, format_task_plan(planned));
  print_findings(common, plan.findings);
  print_plan(o, source, plan, common);
  return kDone;
}

}  // namespace

std::function<int()> setup_plan(Arguments& args, const Common& common) {
  auto o = std::make_shared<PlanArguments>();
  add_source_and_selection(args, o->common);
  add_recipe_options(args, o->recipe, kPlans);
  add_statistics_options(args, o->recipe, kQuantizes);
  add_mask_option(args, o->recipe, kPrunes);
  add_budget_options(args, o->recipe, kQuantizes);
  args.option("--donor", o->edit.donor, "graft: checkpoint directory or file that modules come from")
      .value_name("PATH")
      .as_checkpoint();
  add_take_option(args, o->edit, "--donor, as twofour graft takes them into SRC");
  add_drop_options(args, o->edit);
  for (const char* edit : {"--take", "--modules", "--experts"}) exclude_rule_settings(args, edit);
  args.exactly_one_of({"--to", "--recipe", "--take", "--modules", "--experts"});
  add_links_option(args, o->common.follow_links);
  add_readme_option(args, o->common.no_readme);
  add_config_option(args, o->common.without_config);
  args.option("-o,--output", o->output, "Plan to write, for twofour convert --plan")
      .required()
      .value_name("FILE");
  args.option("--tasks", o->tasks, "Show how evenly the work divides among this many tasks")
      .range(1, 1'000'000);
  args.footer(
      "With --donor and --take the tasks write what twofour graft writes, with --modules or --experts what "
      "twofour drop writes.\n"
      "Then run twofour convert --plan PLAN --task I/N for each I from 0 to N - 1, on any machine, in any "
      "order, with the same N, and twofour merge DST when all are done. The unit of work is an output file: "
      "if the work divides unevenly, a smaller --max-shard-size makes more files.");
  return [o, &common] { return run_plan(*o, common); };
}

}  // namespace twofour
