#include "lib/lint/lint.h"

#include <map>
#include <string>
#include <vector>

#include "lib/base/names/natural.h"
#include "lib/base/threads/stopwatch.h"
#include "lib/lint/bytes/checks.h"
#include "lib/lint/bytes/downloads.h"
#include "lib/lint/config/checks.h"
#include "lib/lint/content/checks.h"
#include "lib/lint/files/checks.h"
#include "lib/lint/siblings/checks.h"
#include "lib/lint/weights/written_weights.h"

namespace twofour {

namespace {

/// Computes the figures of the modules whose bytes are complete.
Figures lint_figures(const LintInput& input, int jobs) {
  std::map<std::string, std::vector<Nvfp4Linear>> kinds;
  for (const Nvfp4Linear& m : input.modules) {
    if (input.is_whole(m)) kinds[split_numbers(m.name).name_template].push_back(m);
  }
  const auto read = [&](size_t tensor, uint64_t offset, std::span<uint8_t> out) {
    input.read(tensor, offset, out);
  };
  Figures figures;
  for (const auto& [name_template, modules] : kinds)
    figures.add(read_module_stats(modules, input.tensors, read, jobs));
  return figures;
}

}  // namespace

LintReport lint(const std::filesystem::path& path, const LintOptions& options, Progress& progress) {
  const Stopwatch watch;
  LintReporter reporter(options.levels);
  if (options.baseline != nullptr) reporter.expect(*options.baseline, !options.headers_only);
  progress.phase = "reading headers";
  const LintInput input = open_lint_subject(path, reporter);
  std::vector<NeededToken> needed;
  const auto lint_headers = [&] {
    const std::vector<CodedModule> coded = find_coded_modules(input);
    lint_modules(input, coded, options.headers_only, reporter);
    if (input.is_directory) {
      lint_config(input, coded, reporter);
      lint_config_types(input, reporter);
      lint_group_size(input, coded, reporter);
      needed = lint_auxiliary_files(input, reporter);
    }
    lint_types(input, reporter);
    lint_parts(input, reporter);
  };
  if (options.headers_only) {
    lint_headers();
  } else {
    progress.phase = "reading weights";
    const auto lint_small = [&] {
      lint_headers();
      lint_zero_tails(input, reporter);
      lint_scalars(input, reporter);
      lint_promised_values(input, reporter);
      if (input.is_directory) lint_hub_blobs(input, reporter);
      lint_token_rows(input, needed, reporter);
    };
    const std::vector<MatrixFigures> figures =
        lint_weights(input, options.jobs, lint_small, options.written, reporter, progress);
    progress.phase = "comparing weights";
    std::vector<Member> members = list_members(input, figures);
    for (const auto check :
         {lint_values, lint_content, lint_regions, lint_lost_pages, lint_repeated_heads, lint_full_scale,
          lint_outliers, lint_layer_vectors, lint_turned, lint_untrained, lint_copied_scales,
          lint_sibling_scales, lint_zero_point_order, lint_identical, lint_scale_fit, lint_channels}) {
      drop_reported(reporter, members);
      check(input, members, reporter);
    }
  }
  if (!options.against.empty()) lint_against(input, path, options.against, reporter);
  LintReport report;
  reporter.move_to(report);
  report.bytes = progress.done;
  report.seconds = watch.seconds();
  if (options.figures && !options.headers_only) {
    progress.phase = "reading figures";
    report.figures = lint_figures(input, options.jobs);
  }
  report.files = input.shards.size();
  report.tensors = input.tensors.size();
  return report;
}

LintReport lint_outline(const Checkpoint& view, const LintLevels& levels) {
  LintReporter reporter(levels);
  const LintInput input = lint_subject_of(view, reporter);
  const std::vector<CodedModule> coded = find_coded_modules(input);
  lint_modules(input, coded, false, reporter);
  lint_config(input, coded, reporter);
  lint_group_size(input, coded, reporter);
  lint_types(input, reporter);
  lint_parts(input, reporter);
  lint_scalars(input, reporter);
  LintReport report;
  reporter.move_to(report);
  report.files = input.shards.size();
  report.tensors = input.tensors.size();
  return report;
}

}  // namespace twofour
