#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/jobs/tasks/run.h"
#include "lib/jobs/tasks/task_directory.h"
#include "tools/cli/conversion_options.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

int run_merge(const fs::path& destination, const Common& common) {
  if (is_complete_output(destination) || finish_merge(destination)) {
    if (common.json) {
      print_json({{"destination", destination.string()}, {"was_complete", true}});
    } else if (!common.quiet) {
      print_stdout("{}: was complete\n", destination.string());
    }
    return kDone;
  }
  const fs::path path = task_plan_in(destination);
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw Error(fmt::format("{}: expected a directory that the tasks of a plan wrote, found no {}",
                            destination.string(), path.lexically_relative(destination).string()));
  }
  TaskFile tasks = parse_task_plan(path.string(), read_text(path));
  tasks.destination = destination;  // it may be mounted at a different place here
  const PlannedSource planned = open_planned(destination.string(), tasks);
  ConvertResult result;
  with_progress(common, [&](Progress& progress) { result = merge_tasks(planned, tasks, progress); });
  print_findings(common, result.findings);
  if (common.json) {
    print_json(result_to_json(planned.plan, result, Device::cpu));
  } else if (!common.quiet) {
    const bool edits = bool(planned.plan.recipe.edit);
    print_stdout("{}: {} {} {}, {}, {}: complete\n", destination.string(),
                 edits ? counted(planned.plan.tensors.size(), "tensor")
                       : counted(result.modules.size(), "matrix", "matrices"),
                 edits ? "after" : "in", planned.plan.recipe.what(),
                 counted(planned.plan.files.size(), "file"), format_bytes(result.bytes_kept));
    print_stdout("{}", Lines{weights_text(result, common.verbose)});
    uint64_t written = 0;
    for (const PlannedFile& f : planned_files(planned.source, planned.plan)) {
      written += fs::file_size(destination / f.name);
    }
    print_stdout("{:.2f} s: no weights read or written; {} of other files at {:.3f} GB/s\n", result.seconds,
                 format_bytes(written), static_cast<double>(written) / 1e9 / std::max(result.seconds, 1e-9));
  }
  return kDone;
}

}  // namespace

std::function<int()> setup_merge(Arguments& args, const Common& common) {
  auto destination = std::make_shared<std::string>();
  args.option("DST", *destination, "Directory that the tasks of a plan wrote").required();
  args.footer(
      "Checks the tasks' records against the plan, then writes everything but the weights, at the end the "
      "index and twofour.json. Weights are not read again: twofour validate DST compares their hashes.");
  return [destination, &common] { return run_merge(*destination, common); };
}

}  // namespace twofour
