#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/findings/error_kinds.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/recipe/statistics/check_statistics.h"
#include "lib/recipe/statistics/imatrix.h"
#include "lib/recipe/statistics/merge_statistics.h"
#include "lib/recipe/statistics/statistics.h"
#include "lib/run/collect/collect.h"
#include "lib/run/eval/windows.h"
#include "lib/write/output/destination.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"
#include "tools/cli/source_options.h"
#include "tools/cli/token_options.h"

namespace twofour {
namespace {

struct StatsArguments {
  std::string action, zero_points;
  std::vector<std::string> paths;
  bool strict = false, force = false, dry_run = false, fisher = false, guided = false;
  TokenOptions input;
  std::string output;
  std::optional<int64_t> context;
  int64_t held_out = 0;
  std::optional<int64_t> limit;
};

/// Counts of the entries that have the same kind, the same K and the same data beside their sums.
struct EntryGroup {
  std::string what;
  size_t entries = 0, linears = 0;
  int64_t least = 0, most = 0;  ///< tokens
};

/// True if the target of a linear that the entry serves is not the linear's own weights.
bool has_targets(const Statistics& s, const StatisticsEntry& e) {
  return std::any_of(e.members.begin(), e.members.end(),
                     [&](auto& m) { return s.find(m) == &e && s.target_offset(m); });
}

std::vector<EntryGroup> group_entries(const Statistics& s, const std::vector<StatisticsEntry>& entries) {
  std::vector<EntryGroup> groups;
  for (const StatisticsEntry& e : entries) {
    const std::string what =
        fmt::format("{}, K {}{}{}", statistics_kind_name(e.kind), e.k,
                    has_targets(s, e) ? ", target_offset" : "", e.fisher ? ", fisher_hessian" : "");
    auto at = std::find_if(groups.begin(), groups.end(), [&](const EntryGroup& g) { return g.what == what; });
    if (at == groups.end()) at = groups.insert(groups.end(), {what, 0, 0, e.count, e.count});
    ++at->entries;
    at->linears += e.members.size();
    at->least = std::min(at->least, e.count);
    at->most = std::max(at->most, e.count);
  }
  return groups;
}

Json entry_to_json(const Statistics& s, const StatisticsEntry& e) {
  return {{"name", e.name},
          {"linears", e.members},
          {"kind", statistics_kind_name(e.kind)},
          {"k", e.k},
          {"tokens", e.count},
          {"target_offset", has_targets(s, e)},
          {"fisher", e.fisher.has_value()}};
}

int inspect_statistics(const std::string& path, const Common& common) {
  const Statistics s = Statistics::open(path);
  if (common.json) {
    Json json = {{"path", path},
                 {"hash_xxh3_128", s.hash().hex()},
                 {"entries", Json::array()},
                 {"heldout_entries", Json::array()}};
    for (const char* key : {"structure", "weights", "tokens", "text", "weighting", "input", "predecessor"})
      json[key] = s.metadata(key);
    for (const StatisticsEntry& e : s.entries()) json["entries"].push_back(entry_to_json(s, e));
    for (const StatisticsEntry& e : s.heldout_entries())
      json["heldout_entries"].push_back(entry_to_json(s, e));
    print_json(json);
    return kDone;
  }
  print_stdout("{}: {} tokens of {}, {}\n", path, s.metadata("tokens"),
               s.metadata("text").empty() ? "a text without a name" : s.metadata("text"),
               s.metadata("weighting").empty() ? "weighting unknown" : s.metadata("weighting"));
  for (const bool heldout : {false, true}) {
    for (const EntryGroup& g : group_entries(s, heldout ? s.heldout_entries() : s.entries())) {
      print_stdout("{}{}: {} of {}, {} tokens each\n", heldout ? "held out: " : "", g.what,
                   counted(g.entries, "entry", "entries"), counted(g.linears, "linear"),
                   g.least == g.most ? fmt::format("{}", g.least) : fmt::format("{} to {}", g.least, g.most));
    }
  }
  return kDone;
}

int check_statistics(const StatsArguments& o, const Common& common) {
  const Statistics s = Statistics::open(o.paths[0]);
  const Checkpoint checkpoint = open_source(o.paths[1]);
  if (o.strict) {
    const std::string others = other_weights(s, checkpoint, true);
    if (!others.empty()) throw Error(others);
  }
  const StatisticsCoverage c = cover(s, checkpoint, common.jobs);
  checkpoint.check_same_files();
  const bool others = c.knows_weights && !c.same_weights;
  const bool sound = c.missing.empty() && c.without_tokens == 0 && c.without_inputs == 0 && c.few == 0 &&
                     c.fewer == 0 && !others;
  if (common.json) {
    print_json({{"linears", c.linears},
                {"served", c.served},
                {"full", c.full},
                {"few_tokens", c.few},
                {"fewer_tokens_than_inputs", c.fewer},
                {"diagonal", c.diagonal},
                {"without_tokens", c.without_tokens},
                {"without_inputs", c.without_inputs},
                {"first_missing", c.missing},
                {"weights", c.knows_weights ? c.same_weights ? "same" : "others" : "unknown"}});
    return sound ? kDone : kFound;
  }
  print_stdout("{}: serves {} of {} linears of {}\n", o.paths[0], c.served, c.linears, o.paths[1]);
  const auto line = [](size_t count, const char* what) {
    if (count > 0) print_stdout("  {} {}\n", count, what);
  };
  line(c.full, "with a full Hessian of at least 4 tokens an input: joint or gptq with descent");
  line(c.few, "with 1 to 4 tokens an input: damping 0.1, no descent");
  line(c.fewer, "with fewer tokens than inputs: the diagonal alone");
  line(c.diagonal, "with a diagonal: wanda or rtn");
  line(c.without_tokens, "without tokens: as without statistics");
  line(c.without_inputs, "with tokens whose inputs are all 0: as without statistics");
  for (const std::string& name : c.missing) print_stdout("  none of {}\n", printable_line(name));
  if (!c.knows_weights) print_stdout("  nothing says of which weights they are\n");
  if (others) print_stdout("  of other weights: the final norm differs\n");
  return sound ? kDone : kFound;
}

/// Throws Error if the output exists. With --force, an earlier output of the same kind may exist.
void refuse_earlier(const StatsArguments& o, const std::string& out, const std::string& advice) {
  std::error_code error;
  if (!o.force && std::filesystem::exists(out, error))
    throw ExistsError(fmt::format("{}: expected no file, found a statistics file{}", out, advice));
}

void check_output(const StatsArguments& o) {
  const std::string& out = o.paths[0];
  for (size_t i = 1; i < o.paths.size(); ++i) {
    std::error_code error;
    if (std::filesystem::equivalent(out, o.paths[i], error))
      throw Error(fmt::format("{}: expected an output that is no input, found one", out));
  }
  check_output_file(out, "statistics file", is_statistics_file);
  refuse_earlier(o, out, fmt::format("; stats {} writes its first PATH, and --force replaces it", o.action));
}

int import_statistics(const StatsArguments& o, const Common& common) {
  const ImportedMatrix found = import_imatrix(o.paths[1], open_source(o.paths[2]), o.paths[0]);
  if (common.json) return inspect_statistics(o.paths[0], common);
  if (common.quiet) return kDone;
  print_stdout("{}: diagonals of {}{}{}; nothing says of which weights they are\n", o.paths[0],
               counted(found.entries, "linear"),
               found.empty > 0 ? fmt::format(", {} of them without tokens", found.empty) : "",
               found.unknown > 0
                   ? fmt::format("; {} of no known linear are left out", counted(found.unknown, "tensor"))
                   : "");
  return inspect_statistics(o.paths[0], common);
}

/// The input of collect. Its windows are adjacent pieces of the texts.
CollectInput collect_input(const StatsArguments& o, const Decoder& model) {
  CollectInput input;
  input.text = std::filesystem::path(o.input.file()).filename().string();
  const int64_t context = context_or_default(o.context, model.shape().positions);
  for (const std::vector<int32_t>& text : read_texts(o.input, o.paths[0], model.shape().vocabulary)) {
    const int64_t left = o.limit.value_or(INT64_MAX) - static_cast<int64_t>(input.windows.size());
    for (EvalWindow& w : cut_windows(text, context, context, left))
      input.windows.push_back(std::move(w.tokens));
  }
  input.held_out = o.held_out;
  input.gradients.fisher = o.fisher;
  input.gradients.guided = o.guided;
  if (input.windows.empty())
    throw Error(fmt::format("{}: expected a text of two tokens and more, found none", o.input.file()));
  if (static_cast<int64_t>(input.windows.size()) <= o.held_out) {
    throw Error(fmt::format("{}: expected more than the {} windows of --held-out, found {}", o.input.file(),
                            o.held_out, input.windows.size()));
  }
  return input;
}

int collect(const StatsArguments& o, const Common& common) {
  check_output_file(o.output, "statistics file", is_statistics_file);
  refuse_earlier(o, o.output, "; --force replaces it");
  const Device device = choose_device(common);
  Decoder model = Decoder::open(o.paths[0], parse_zero_points(o.zero_points));
  const CollectInput input = collect_input(o, model);
  if (o.dry_run) {
    const CollectPlan plan = plan_collection(model, input);
    if (common.json) {
      Json json = {{"dry_run", true},
                   {"path", o.output},
                   {"device", device_name(device)},
                   {"windows", input.windows.size()},
                   {"tokens", plan.tokens},
                   {"held_out_tokens", plan.held_out_tokens},
                   {"entries", plan.entries},
                   {"bytes_read", plan.weights_read},
                   {"bytes_written", plan.file_bytes},
                   {"peak_memory", plan.peak_memory}};
      if (plan.work_bytes > 0) json["work_bytes"] = plan.work_bytes;
      print_json(json);
    } else {
      print_stdout("{}: {}, {} tokens of {}, {} held out\n", o.output,
                   counted(plan.entries, "entry", "entries"), plan.tokens,
                   counted(input.windows.size(), "window"), plan.held_out_tokens);
      print_stdout(
          "would read {} of weights and write {}, with at most {} of memory beside their mapped files\n",
          format_bytes(plan.weights_read), format_bytes(plan.file_bytes), format_bytes(plan.peak_memory));
      if (plan.work_bytes > 0)
        print_stdout("would run backward from {} of residual streams in a file that goes\n",
                     format_bytes(plan.work_bytes));
    }
    return kDone;
  }
  if (device == Device::cuda) model.use_cuda();
  with_progress(common, [&](Progress& progress) { collect_statistics(model, input, o.output, progress); });
  return common.quiet && !common.json ? kDone : inspect_statistics(o.output, common);
}

/// Throws Error for options that only collect has, if the action is not collect.
void check_collect_options(const StatsArguments& o) {
  const bool collects = o.action == "collect";
  const auto refuse = [&](const char* option) {
    throw Error(fmt::format("{}: expected with collect, found with {}", option, o.action));
  };
  if (!collects && !o.input.tokens.empty()) refuse("--tokens");
  if (!collects && !o.input.text.empty()) refuse("--text");
  if (!collects && !o.output.empty()) refuse("--output");
  if (!collects && o.held_out > 0) refuse("--held-out");
  if (!collects && o.limit) refuse("--limit");
  if (!collects && o.fisher) refuse("--fisher");
  if (!collects && o.guided) refuse("--guided");
  if (!collects && o.dry_run) refuse("--dry-run");
  if (!collects && !o.zero_points.empty()) refuse("--zero-points");
  if (!collects) return;
  if (o.input.tokens.empty() == o.input.text.empty())
    throw Error("stats collect: expected one of --tokens and --text, found " +
                std::string(o.input.text.empty() ? "none" : "both"));
  if (o.output.empty()) throw Error("stats collect: expected --output, found none");
}

int run_stats(const StatsArguments& o, const Common& common) {
  check_collect_options(o);
  const auto demand = [&](size_t count, const char* what) {
    if (o.paths.size() != count)
      throw Error(fmt::format("stats {}: expected {}, found {} paths", o.action, what, o.paths.size()));
  };
  if (o.strict && o.action != "check")
    throw Error(fmt::format("--strict-stats: expected with check, found with {}", o.action));
  if (o.force && o.action != "merge" && o.action != "import" && o.action != "collect")
    throw Error(fmt::format("--force: expected with collect, merge or import, found with {}", o.action));
  if (o.action == "collect") {
    demand(1, "MODEL");
    return collect(o, common);
  }
  check_device(common, "stats " + o.action);
  if (o.action == "inspect") {
    demand(1, "FILE");
    return inspect_statistics(o.paths[0], common);
  }
  if (o.action == "check") {
    demand(2, "FILE and CHECKPOINT");
    return check_statistics(o, common);
  }
  if (o.action == "import") {
    demand(3, "OUT, IMATRIX and CHECKPOINT");
    check_output(o);
    return import_statistics(o, common);
  }
  if (o.paths.size() < 3)
    throw Error(
        fmt::format("stats merge: expected OUT and two files or more, found {} paths", o.paths.size()));
  check_output(o);
  merge_statistics({o.paths.begin() + 1, o.paths.end()}, o.paths[0]);
  return common.quiet && !common.json ? kDone : inspect_statistics(o.paths[0], common);
}

}  // namespace

std::function<int()> setup_stats(Arguments& args, const Common& common) {
  auto o = std::make_shared<StatsArguments>();
  args.option("ACTION", o->action,
              "collect MODEL; inspect FILE; check FILE CHECKPOINT; merge OUT FILE FILE ...; import OUT "
              "IMATRIX CHECKPOINT")
      .one_of({"collect", "inspect", "check", "merge", "import"})
      .required();
  args.option("PATH", o->paths, "Files and checkpoints; ACTION says which and how many")
      .required()
      .tells_count();
  add_token_options(args, o->input);
  args.option("-o,--output", o->output, "collect: statistics file to write").value_name("FILE");
  add_context_option(args, o->context, "collect: tokens of a window; a last window of one token is left out");
  args.option("--limit", o->limit, "collect: at most so many windows").range(1, 1 << 30).default_text("all");
  args.option("--held-out", o->held_out, "collect: windows at the end of which the sums are kept apart")
      .range(0, 1 << 30);
  args.flag(
      "--fisher", o->fisher,
      "collect: fisher_hessian and fisher_rows as well, by a backward pass: what a change costs the model, "
      "for --budget");
  args.flag(
      "--guided", o->guided,
      "collect: weigh each token by the root of the squared gradient of the loss in a linear's outputs, by a "
      "backward pass");
  add_zero_points_option(args, o->zero_points, "of the model that collect runs");
  args.flag("--dry-run", o->dry_run, "collect: say what would be written, and how much memory that takes");
  args.flag("--strict-stats", o->strict,
            "check: refuse statistics of other weights of the same model, or of weights that nothing names");
  args.flag("--force", o->force, "collect, merge, import: replace the file if it is a statistics file");
  args.footer(
      "A statistics file says which inputs each linear saw; quantize --stats chooses weights by it. "
      "lib/recipe/statistics/README.md describes it.\n"
      "collect runs a whole model where --device says (lib/run/decoder/README.md lists the families) and "
      "writes "
      "one; examples/statistics makes one with transformers. A backward pass runs on the CPU, behind a pass "
      "where --device says, for all families but those with linear attention and DeepSeek-V4. All else runs "
      "on the CPU.\n"
      "check says what of a checkpoint a file serves, and reads all sums and targets. It ends with 1 where "
      "linears have no statistics, too few tokens, inputs that are all 0, or statistics of other weights, "
      "and "
      "with 2 where the file is of another model or holds numbers that are no statistics of it.\n"
      "merge adds the sums of runs over different texts, and never averages.\n"
      "import takes the sums of squares of an importance matrix of llama.cpp (GGUF), which serve wanda and "
      "rtn. It holds no hash of the weights that it is of.");
  return [o, &common] { return run_stats(*o, common); };
}

}  // namespace twofour
