#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "formats/weight_format.h"
#include "lib/base/findings/error_kinds.h"
#include "lib/base/io/file.h"
#include "lib/base/io/file_states.h"
#include "lib/jobs/choose/choose_by_size.h"
#include "lib/jobs/compress/compress_checkpoint.h"
#include "lib/recipe/statistics/statistics.h"
#include "lib/report/report.h"
#include "lib/run/eval/evaluate.h"
#include "lib/source/hub/remote_source.h"
#include "lib/write/output/destination.h"
#include "lib/write/transform/open_to_convert.h"
#include "lib/write/view/layout_choice.h"
#include "tools/cli/arguments.h"
#include "tools/cli/conversion_options.h"
#include "tools/cli/recipe_options.h"
#include "tools/cli/size_options.h"
#include "tools/cli/token_options.h"
#include "tools/text/plan_text.h"
#include "tools/text/size_text.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSolvingKeys[] = {keys::kMethod, keys::kSweeps, keys::kShrink, keys::kScaleSearch};

struct CompressArguments {
  ConversionOptions common;
  RecipeOptions recipe;
  SizeOptions size;
  TokenOptions input;
  std::string sequential = "group", token_weights, keep_statistics, budget_statistics;
  std::optional<int64_t> context, limit, recover;
  bool is_guided = false;
};

/// Throws Error if the statistics file to keep is in a folder that will be removed, or would replace an
/// input.
void check_kept(const CompressArguments& o) {
  const auto canonical = [](const fs::path& path) {
    std::error_code error;
    const fs::path found = fs::weakly_canonical(fs::absolute(path, error), error);
    return found.has_filename() ? found : found.parent_path();
  };
  const fs::path kept = canonical(o.keep_statistics);
  for (const fs::path& folder : {fs::path(o.common.destination), work_folder_of(o.common.destination)}) {
    const fs::path to = canonical(folder);
    if (std::mismatch(to.begin(), to.end(), kept.begin(), kept.end()).first != to.end()) continue;
    throw Error(fmt::format("--keep-stats: expected a file outside of {}, which is to be written, found {}",
                            folder.string(), o.keep_statistics));
  }
  for (const std::string& input : {o.budget_statistics, o.token_weights}) {
    if (input.empty() || canonical(input) != kept) continue;
    throw Error(
        fmt::format("--keep-stats: expected an output that is no input, found {}", o.keep_statistics));
  }
}

void take_solving_settings(const CompressArguments& o, Rule& rule) {
  for (const std::string_view key : kSolvingKeys) take_word(o.recipe, key, rule);
}

void check_options(const CompressArguments& o) {
  if (!o.recipe.html.empty()) check_report_file(o.recipe.html);
  check_size_options(o.size);
  const bool has_budget = o.recipe.budget.is_given();
  if (has_budget != !o.budget_statistics.empty() && !o.size.is_given())
    throw Error(fmt::format("{}: expected {} beside it, found none",
                            has_budget ? "--budget" : "--budget-stats",
                            has_budget ? "--budget-stats" : "--budget"));
  Rule configured;
  take_solving_settings(o, configured);
  const bool says_how = std::any_of(std::begin(kSolvingKeys), std::end(kSolvingKeys),
                                    [&](auto key) { return !rule_setting(key).given(configured).empty(); });
  if (!o.recipe.recipe.empty() && says_how) {
    throw Error(
        "--recipe: expected --method, --sweeps, --shrink and --scale-search as words of its rules, found "
        "them as options");
  }
  check_inputs_apart(
      o.common.destination,
      {{"--token-weights", o.token_weights}, {"--text", o.input.text}, {"--tokens", o.input.tokens}});
  if (!o.keep_statistics.empty()) {
    check_kept(o);
    check_output_file(o.keep_statistics, "statistics file", is_statistics_file);
    if (!o.common.force && !o.common.resume && !is_absent(o.keep_statistics))
      throw ExistsError(fmt::format("{}: expected no file, found a statistics file; --force replaces it",
                                    o.keep_statistics));
  }
}

/// The rules that the options ask for or that a budget chooses, without statistics.
Recipe rules_of(const CompressArguments& o, Device device, const Common& common) {
  RecipeOptions options = o.recipe;
  options.html.clear();  // the report is of the whole run
  if (options.layout == "nvfp4") options.layout = "quantize";
  if (o.size.is_given()) options.layout = "quantize";
  options.statistics = o.size.is_given() ? "" : o.budget_statistics;
  for (const std::string_view key : kSolvingKeys) options.settings.erase(key);
  options.collects_statistics = true;
  Recipe recipe = make_recipe(options, o.common);
  if (options.budget.is_given()) take_budget(o.common, options, device, common, recipe);
  recipe = without_statistics(std::move(recipe));
  for (Rule& rule : recipe.rules) {
    rule.measures_rounding = !o.recipe.html.empty();
    if (options.recipe.empty() && can_solve(rule)) take_solving_settings(o, rule);
  }
  return recipe;
}

/// The windows that statistics are collected of, and with a report others of the same text.
struct CompressTexts {
  CompressInput input;
  std::vector<EvalWindow> heldout;
};

CompressTexts texts_of(const CompressArguments& o) {
  CompressTexts texts;
  CompressInput& input = texts.input;
  input.token_weights = o.token_weights;
  input.is_guided = o.is_guided;
  input.recover_passes = o.recover.value_or(0);
  input.sequential = o.sequential == "none"    ? Sequential::kNone
                     : o.sequential == "layer" ? Sequential::kLayers
                                               : Sequential::kGroups;
  const ModelShape shape = Decoder::open(o.common.source).shape();
  const auto all = read_texts(o.input, o.common.source, shape.vocabulary);
  const int64_t context = context_or_default(o.context, shape.positions), limit = o.limit.value_or(INT64_MAX);
  input.cut(all, context, limit, o.input.file());
  if (o.recipe.html.empty() || static_cast<int64_t>(input.windows.size()) < limit) return texts;
  constexpr int64_t kMostHeldOut = 8;
  int64_t at = 0;
  for (const std::vector<int32_t>& text : all) {
    for (EvalWindow& w : cut_windows(text, context, context, limit + kMostHeldOut - at)) {
      if (at++ >= limit) texts.heldout.push_back({std::move(w.tokens), 1});
    }
  }
  return texts;
}

void write_compress_report(const CompressArguments& o, const CompressTexts& texts,
                           const CompressedCheckpoint::Written& written,
                           const std::optional<SizeChoice>& choice, Device device, const Common& common) {
  CompressionFacts facts{o.common.source, o.common.destination};
  facts.windows = static_cast<int64_t>(texts.input.windows.size());
  for (const auto& window : texts.input.windows) facts.tokens += static_cast<int64_t>(window.size());
  facts.bytes_before = written.result.source_bytes;
  for (const OutputFile& f : written.plan.files) facts.bytes_after += f.size();
  if (!texts.heldout.empty()) {
    Decoder artifact = Decoder::open(o.common.destination);
    Decoder model = Decoder::open(o.common.source, parse_zero_points(o.common.zero_points));
    if (device == Device::cuda) {
      artifact.use_cuda();
      model.use_cuda();
    }
    with_progress(common, [&](Progress& progress) {
      facts.heldout = evaluate(artifact, &model, texts.heldout, progress);
    });
  }
  Report report = compress_report(written.result.modules, facts);
  if (choice) add_size_choice(*choice, report);
  write_report(o.recipe.html, report);
}

/// The statistics to collect, for --dry-run.
Json needs_to_json(const CompressNeeds& needs, const std::string& destination) {
  return {{"tokens", needs.tokens},
          {"entries", needs.entries},
          {"statistics_bytes", needs.statistics_bytes},
          {"work_bytes", needs.work_bytes},
          {"work", work_folder_of(destination).string()},
          {"peak_memory", needs.peak_memory}};
}

int show_plan(const CompressArguments& o, const Checkpoint& source, const Plan& plan,
              const std::optional<CompressNeeds>& needs, const std::optional<SizeChoice>& choice,
              Device device, const Common& common) {
  if (common.json) {
    Json json = plan_to_json(source, plan, common.jobs, device);
    if (needs) json["compress"] = needs_to_json(*needs, o.common.destination);
    if (choice) json["choice"] = size_choice_to_json(*choice);
    print_json(json);
    return kDone;
  }
  if (choice) print_stdout("{}\n{}", size_summary(*choice), Lines{size_curve_text(*choice)});
  if (needs) {
    print_stdout(
        "would collect {} of {} tokens first, {} of statistics, with {} in {} meanwhile and at most {} of "
        "memory beside the mapped weights\n",
        counted(needs->entries, "entry", "entries"), needs->tokens, format_bytes(needs->statistics_bytes),
        format_bytes(needs->work_bytes), work_folder_of(o.common.destination).string(),
        format_bytes(needs->peak_memory));
  }
  print_planned(o.common.destination, source, plan, device, common);
  return kDone;
}

/// Calls work(). If an input changed meanwhile, throws Error about the change instead of the error that it
/// caused.
template <class Work>
int with_inputs(const FileStates& inputs, Work&& work) {
  try {
    return work();
  } catch (const Error&) {
    inputs.check_unchanged("compress again with --force, once nothing writes there");
    throw;
  }
}

/// Collects statistics, solves by them and writes, or with --dry-run shows what would be done.
int collect_and_write(const CompressArguments& o, const Destination& destination, const Recipe& recipe,
                      const CompressTexts& texts, const std::optional<SizeChoice>& choice, Device device,
                      const Common& common) {
  CompressedCheckpoint made(o.common.source, destination, recipe, texts.input, o.keep_statistics,
                            convert_options(o.common, device, common));
  if (o.common.dry_run) {
    const SolvedLinears& linears = made.compression().linears();
    return show_plan(o, linears.source(), linears.plan(), made.compression().needs(), choice, device, common);
  }
  if (o.common.check) with_progress(common, [&](Progress& progress) { check_hashes(o.common, progress); });
  with_progress(common, [&](Progress& progress) { made.collect(progress); });
  if (o.recover) with_progress(common, [&](Progress& progress) { made.recover(progress); });
  std::optional<CompressedCheckpoint::Written> written;
  with_progress(common, [&](Progress& progress) { written = made.write(progress); });
  if (!o.recipe.html.empty()) write_compress_report(o, texts, *written, choice, device, common);
  if (choice && !common.json && !common.quiet) print_stdout("{}\n", size_summary(*choice));
  print_conversion(o.common, written->plan, written->result, device, common);
  return kDone;
}

/// Writes formats that no statistics choose the weights of.
int only_write(const CompressArguments& o, const Destination& destination, const SizeChoice& choice,
               Device device, const Common& common) {
  const Compute compute = solver_of(common, device);
  const MemoryLimits limits = limits_for(compute);
  const Checkpoint source =
      open_to_convert(o.common.source, choice.recipe, parse_io(o.common.io), limits, compute);
  const Plan plan = make_plan(source, choice.recipe, limits);
  if (o.common.dry_run) return show_plan(o, source, plan, std::nullopt, choice, device, common);
  if (!common.json && !common.quiet) print_stdout("{}\n", size_summary(choice));
  return write_checkpoint(destination, o.common, source, plan, nullptr, common);
}

/// Chooses formats by a size, and writes them.
int compress_to_size(const CompressArguments& o, const Destination& destination, const Recipe& base,
                     const CompressTexts& texts, Device device, const Common& common) {
  ConvertOptions options = convert_options(o.common, device, common);
  options.existing = destination.existing();
  SizeChooser chooser(o.common.source, o.common.destination, size_request(o.size, base, o.budget_statistics),
                      texts.input, options);
  std::optional<SizeChoice> choice;
  with_progress(common, [&](Progress& progress) { choice = chooser.choose(progress); });
  for (Rule& rule : choice->recipe.rules) rule.measures_rounding = !o.recipe.html.empty();
  const auto& rules = choice->recipe.rules;
  const bool solves = std::any_of(rules.begin(), rules.end(), [](const Rule& rule) {
    return can_solve(rule) && rule.method != SolveBy::kMagnitude;
  });
  if (!o.recipe.html.empty() && (o.common.dry_run || !solves))
    write_report(o.recipe.html, size_report(*choice, "compress", o.common.source));
  if (o.common.dry_run) chooser.finish_dry_run();
  if (!solves && !o.keep_statistics.empty())
    throw Error("--keep-stats: expected a format whose weights statistics choose, found none in the choice");
  if (!solves && o.recover)
    throw Error("--recover: expected a format whose weights statistics choose, found none in the choice");
  const int code = solves ? collect_and_write(o, destination, choice->recipe, texts, choice, device, common)
                          : only_write(o, destination, *choice, device, common);
  chooser.finish();
  return code;
}

int compress(const CompressArguments& o, const Destination& destination, Device device,
             const Common& common) {
  const Recipe recipe = rules_of(o, device, common);
  const CompressTexts texts = texts_of(o);
  if (o.size.is_given()) return compress_to_size(o, destination, recipe, texts, device, common);
  return collect_and_write(o, destination, recipe, texts, std::nullopt, device, common);
}

int run_compress(const CompressArguments& given, const Common& common) {
  check_options(given);
  refuse_remote(given.common.source, "compress runs the model, which reads all weights again and again");
  const Device device = choose_solver_device(common, true);
  CompressArguments o = given;
  take_whole_directory(o.common, common);
  const Destination destination = claim_destination(o.common);
  const FileStates inputs({o.common.source, given.token_weights, given.budget_statistics});
  o.common.inputs = &inputs;
  return with_inputs(inputs, [&] { return compress(o, destination, device, common); });
}

}  // namespace

std::function<int()> setup_compress(Arguments& args, const Common& common) {
  auto o = std::make_shared<CompressArguments>();
  add_conversion_options(args, o->common, false);
  add_token_options(args, o->input);
  args.exactly_one_of({"--text", "--tokens"});
  std::vector<std::string> targets{"nvfp4", "fp8"};
  for (const WeightFormat format : kMxFormats) targets.emplace_back(format->to);
  for_each_layout([&]<class L>() { targets.push_back(L::name); });
  args.option("--to", o->recipe.layout, "Layout or format to write, nvfp4 as quantize writes it")
      .one_of(targets);
  add_word(args, o->recipe, kCompresses, keys::kPattern);
  add_word(args, o->recipe, kCompresses, keys::kDialect);
  args.option("--recipe", o->recipe.recipe, "Rules in place of --to: a YAML or JSON file, or a name")
      .value_name("FILE");
  for (const char* word : {"--to", "--pattern", "--dialect", "--include", "--exclude", "--also"})
    args.at("--recipe").excludes(word);
  add_size_options(args, o->size);
  args.exactly_one_of({"--to", "--recipe", "--bits", "--size"});
  args.option(
          "--sequential", o->sequential,
          "Which model the statistics are of. group: one whose groups of linears before are compressed, as "
          "q, k and v are one; what it lacks by then goes into the targets. layer: the same layer by layer, "
          "in a third of the passes. none: the model as it is")
      .one_of({"group", "layer", "none"});
  args.option("--token-weights", o->token_weights,
              "How much each token counts for each linear: M.token_weights F32 [windows, length], which "
              "examples/statistics/collect.py makes of gradients")
      .value_name("FILE")
      .default_text("1");
  args.flag("--guided", o->is_guided, "Weigh tokens by gradients of the model's loss");
  args.at("--guided").excludes("--token-weights");
  args.option("--recover", o->recover,
              "Then tune norms and global scales by the KL divergence from SRC, in at most so many passes "
              "over the "
              "windows, if it falls for held-out ones")
      .value_name("PASSES")
      .range(1, 1000)
      .default_text("none");
  args.option("--keep-stats", o->keep_statistics,
              "Keep the statistics in this file, for validate --source --stats")
      .value_name("FILE")
      .default_text("none: they go");
  add_context_option(args, o->context, "Tokens of a window");
  args.option("--limit", o->limit, "At most so many windows").range(1, 1 << 30).default_text("all");
  add_word(args, o->recipe, kCompresses, keys::kMethod);
  add_word(args, o->recipe, kCompresses, keys::kSweeps);
  add_word(args, o->recipe, kCompresses, keys::kShrink);
  add_word(args, o->recipe, kCompresses, keys::kScaleSearch);
  args.option("--budget", o->recipe.budget.share,
              "Prune this share of the bytes, 0 to 1, the cheapest by --budget-stats first")
      .value_name("SHARE")
      .default_text("all is pruned");
  args.option("--budget-stats", o->budget_statistics,
              "Statistics with fisher_hessian, which say what pruning costs the model and, with --bits or "
              "--size, formats; without it these rank by the Hessian")
      .value_name("FILE")
      .default_text("none: with --budget required; with --bits or --size collected");
  for (const char* word : {"--bits", "--size"}) args.at(word).excludes("--pattern").excludes("--budget");
  add_html_option(args, o->recipe.html);
  args.footer(
      "Collects statistics of the inputs of a model's linears, chooses weights by them and writes them, "
      "linear by linear on the model as it is compressed so far. --device says where it runs; "
      "lib/run/decoder/README.md lists the families. Backward passes of --guided and --recover run on the "
      "CPU, for all families but those with linear attention and DeepSeek-V4.\n"
      "What is collected is in DST.compressing until DST is whole; a run that ends early goes on behind its "
      "last whole layer with --resume.");
  return [o, &common] { return run_compress(*o, common); };
}

}  // namespace twofour
