#include "tools/cli/recipe_options.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "lib/artifact/layout_names.h"
#include "lib/artifact/recipe_file.h"
#include "lib/artifact/yaml.h"
#include "lib/dialects/output_dialect.h"
#include "lib/io/file.h"
#include "lib/plan/method.h"
#include "lib/view/layout_choice.h"
#include "tools/cli/arguments.h"
#include "tools/cli/suggest.h"

namespace twofour {
namespace {

/// What --to takes, a line each.
std::string layouts_text(bool all) {
  std::string text = "--to writes:";
  const auto add = [&](const char* name, const char* summary) {
    text += fmt::format("\n  {:<10} {}", name, summary);
  };
  for_each_layout([&]<class L>() { add(L::name, L::summary); });
  add("nvfp4", "NVFP4 in a dialect that engines load, without loss");
  add("fp8", "E4M3 weights with a scale for each tensor, row or block");
  add("mxfp8", "E4M3 weights with a power of two for each 32");
  add("mxfp4", "E2M1 weights with a power of two for each 32");
  add("bf16", "dequantized weights");
  if (all) add("prune", "what twofour prune writes");
  if (all) add("quantize", "what twofour quantize writes");
  return text;
}

void add_convert_options(Arguments& args, RecipeOptions& o, bool all) {
  std::vector<std::string> layouts;
  for_each_layout([&]<class L>() { layouts.push_back(L::name); });
  layouts.insert(layouts.end(), {"nvfp4", "fp8", "mxfp8", "mxfp4", "bf16"});
  if (all) layouts.insert(layouts.end(), {"prune", "quantize"});
  args.option("--to", o.layout, "Layout or format to write; see below").one_of(layouts);
  args.footer(layouts_text(all));
  args.option("--fold", o.fold,
              "What to do if gate and up have different global scales: a layout stores one. larger folds "
              "both to the larger and refuses if that changes a matrix by more than 10 %; strict refuses; "
              "any folds at any cost")
      .one_of({std::begin(kFoldWords), std::end(kFoldWords)});
  args.option("--granularity", o.granularity,
              "fp8: which weights share a scale. block is the only choice for deepseek and deepseek-v4")
      .one_of({"tensor", "row", "block"})
      .default_text("row; deepseek, deepseek-v4 and with --block: block");
  args.option("--block", o.block,
              "fp8: rows and columns of blocks, 128x128, 32x32 or 1x128; modelopt has the first alone")
      .value_name("NxK")
      .default_text("128x128");
  args.option(
          "--scale-dtype", o.scale_dtype,
          "fp8: type of the scales, f32, bf16 or e8m0 (powers of two, for blocks). modelopt has f32 alone, "
          "compressed-tensors and deepseek f32 and bf16, deepseek-v4 f32 and e8m0")
      .value_name("TYPE")
      .default_text("f32; deepseek-v4: e8m0 beside experts that stay in four bits");
  args.option("--odd-blocks", o.odd_blocks,
              "fp8: what to do about linears with N or K that is no multiple of 128, which engines refuse in "
              "blocks: refuse them too; keep them as they are; write them for an engine that takes them")
      .one_of({"refuse", "keep", "write"})
      .default_text("refuse");
}

void add_exact(Arguments& args, RecipeOptions& o) {
  args.option(
          "--exact", o.exact,
          "What to do about sources in MXFP4 and NVFP4, which other formats often hold without loss: best "
          "keeps the values where that is so, and counts where not; strict refuses quantized sources that "
          "lose anything; off quantizes them as if they were floats")
      .one_of({"best", "strict", "off"})
      .default_text("best");
}

void add_dialect(Arguments& args, RecipeOptions& o, bool converts, bool quantizes) {
  const std::vector<std::string> dialects = output_dialect_names(!converts);
  std::vector<std::string> defaults;
  if (converts) {
    defaults.push_back(
        "nvfp4: the dialect that the source does not have, for an artifact that of its source; fp8: "
        "compressed-tensors; mxfp8 and mxfp4: modelopt");
  }
  if (quantizes) defaults.push_back(converts ? "quantize: modelopt" : "modelopt");
  args.option("--dialect", o.dialect,
              fmt::format("Names and configuration to write{}", converts ? "; deepseek with fp8 only" : ""))
      .one_of(dialects)
      .default_text(fmt::format("{}", fmt::join(defaults, "; ")));
}

void add_pattern(Arguments& args, RecipeOptions& o, bool prunes, bool quantizes) {
  std::vector<std::string> patterns{"2:4"};
  if (prunes || quantizes) patterns.push_back("4:8-paired");
  std::string help;
  if (prunes) help = "2:4 keeps two codes of each four, 4:8-paired two aligned pairs of each eight";
  if (quantizes) {
    help += fmt::format(
        "{}2:4 prunes the weights before quantizing, so that block scales fit the kept weights, and reports "
        "the gain; with --stats both patterns are chosen by it",
        prunes ? "; with quantize, " : "");
  }
  const char* without = quantizes ? prunes ? "prune: 2:4; quantize: none" : "none" : "2:4";
  args.option("--pattern", o.pattern, help).one_of(patterns).default_text(without);
}

void add_arithmetic(Arguments& args, RecipeOptions& o) {
  args.option("--arithmetic", o.arithmetic,
              "Rounding to reproduce bit for bit: ModelOpt's (0.45 and later) or llm-compressor's")
      .one_of({"modelopt", "compressed-tensors"})
      .default_text("the dialect's");
}

void add_input_scales(Arguments& args, RecipeOptions& o) {
  args.option(
          "--input-scale", o.input_scale,
          "nvfp4, quantize: scales of activations, which W4A4 kernels need. keep those of the source; none; "
          "constant=X for every module (1.0 is an amax of 2688); neighbours: modules without one take the "
          "largest of their projection in the layer; from FILE, a safetensors file with M.amax F32 [] for "
          "each module M (examples/input_scales)")
      .value_name("WORD")
      .default_text("nvfp4: keep; quantize: none; deepseek-v4: neighbours, and 1.0 where the layer has none");
  args.flag(
      "--one-input-scale-a-layer", o.one_input_scale_a_layer,
      "Experts of a layer share the largest input scale, of gate and up and of down, as kernels fuse them");
}

void add_draft_experts(Arguments& args, RecipeOptions& o) {
  args.option(
          "--draft-experts", o.draft_experts,
          "Routed experts of layers that predict further tokens (DeepSeek-V4's mtp): keep leaves them as "
          "they are, which SGLang reads beside NVFP4 experts; cast converts them as the others, which vLLM "
          "expects")
      .one_of({"keep", "cast"})
      .default_text("as --include and --also say");
}

void add_quantize_options(Arguments& args, RecipeOptions& o, bool converts, bool quantizes) {
  const std::string with = !converts   ? ""
                           : quantizes ? ". Layouts and quantize only"
                                       : ". Layouts only, which quantize what is not NVFP4";
  args.option("--block-scale", o.block_scale,
              "How the scale of 16 weights is chosen: max fits the largest weight; mse tries all and takes "
              "the one with the least squared error; four-over-six takes the better of two. No producer has "
              "the last two in compressed-tensors' arithmetic" +
                  with)
      .one_of({"max", "mse", "four-over-six"})
      .default_text("max");
  args.option("--zero-block", o.zero_block,
              "What to write for a block if its scale rounds to zero: producer writes the scale that the "
              "producer writes, zero writes a zero scale and zero codes" +
                  with)
      .one_of({"producer", "zero"})
      .default_text("producer");
  if (!quantizes) return;
  args.option("--keep-global-scale", o.keep_global_scale,
              "Take the global scales from this NVFP4 checkpoint (directory or file), matched by module "
              "name, and compare all codes and block scales with its own. A weight of -0 stays -0")
      .value_name("PATH");
}

}  // namespace

void add_recipe_options(Arguments& args, RecipeOptions& o, unsigned kinds) {
  const bool converts = kinds & kConverts, prunes = kinds & kPrunes, quantizes = kinds & kQuantizes;
  if (converts) add_convert_options(args, o, prunes && quantizes);
  if (converts || quantizes) add_dialect(args, o, converts, quantizes);
  if (prunes || quantizes) add_pattern(args, o, prunes, quantizes);
  if (converts || quantizes) {
    add_arithmetic(args, o);
    add_exact(args, o);
    add_input_scales(args, o);
    add_draft_experts(args, o);
  }
  if (converts || quantizes) add_quantize_options(args, o, converts, quantizes);
  if (!converts) return;
  args.option(
          "--recipe", o.recipe,
          "Rules in place of --to: a YAML or JSON file, or a name that twofour recipes lists; see twofour "
          "help recipes")
      .value_name("FILE");
  exclude_rule_words(args, "--recipe");
}

void add_statistics_options(Arguments& args, RecipeOptions& o, RecipeKind kind) {
  const char* what = kind == kConverts
                         ? "Choose the weights that are quantized to NVFP4 or pruned, for a "
                           "layout too, by the statistics of their inputs in this file "
                           "(lib/statistics/README.md, examples/statistics); of --recipe, method "
                           "and sweeps of a rule say how"
                         : "Choose weights by the statistics of their inputs in this file "
                           "(lib/statistics/README.md, examples/statistics). Block scales are "
                           "chosen with them";
  args.option("--stats", o.statistics, what).value_name("FILE").default_text("none: each weight for itself");
  args.flag("--strict-stats", o.strict_statistics,
            "Refuse statistics of other weights of the same model, as those of the BF16 model for its "
            "quantized copy, or of weights that nothing names");
  const bool prunes = kind == kPrunes;
  args.option(
          "--method", o.method,
          prunes
              ? "How: joint chooses mask, scales and codes together; sparsegpt masks first, to compare with; "
                "wanda reads the diagonal alone; "
                "magnitude leaves the statistics out"
              : "How: joint chooses mask, scales and codes together, gptq the last two without a "
                "pattern; sparsegpt masks first, to compare with; wanda and rtn read the diagonal alone; "
                "magnitude leaves the statistics out")
      .one_of(prunes ? std::vector<std::string>{"joint", "sparsegpt", "wanda", "magnitude"}
                     : std::vector<std::string>{"joint", "gptq", "sparsegpt", "wanda", "rtn", "magnitude"})
      .default_text(prunes ? "joint where the file holds a full Hessian of enough tokens, else wanda"
                           : "joint or gptq where the file holds a full Hessian of enough tokens, else wanda "
                             "or rtn");
  args.option("--sweeps", o.sweeps,
              "Sweeps of descent after that; a row rests once a sweep gains less than 0.5 %")
      .range(0, 64)
      .default_text(prunes ? "4" : "4 with a pattern, else 2");
}

void add_mask_option(Arguments& args, RecipeOptions& o, RecipeKind kind) {
  const char* where = kind == kConverts    ? "With a layout or rules that hold a pattern: "
                      : kind == kQuantizes ? "With --pattern: "
                                           : "";
  args.option("--mask", o.mask,
              fmt::format("{}prune by the masks of this file, as MaskLLM makes them: safetensors with M.mask "
                          "or M, U8 or BOOL [N, K], for each module M that is pruned; 1 stays",
                          where))
      .value_name("FILE")
      .default_text("masks are chosen");
}

void add_budget_options(Arguments& args, RecipeOptions& o, RecipeKind kind) {
  args.option("--budget", o.budget,
              fmt::format(
                  "Prune this share of the bytes, 0 to 1, and {} the rest: with a pattern and --stats, whose "
                  "fisher_hessian says what each costs the model. The cheapest a byte come first; what is "
                  "fused stays together. --dry-run prints the curve",
                  kind == kPrunes     ? "leave"
                  : kind == kConverts ? "hold all weights of"
                                      : "only quantize"))
      .value_name("SHARE")
      .default_text("all is pruned");
  args.option("--max-loss", o.max_loss, "Likewise, as much as stays below this expected loss")
      .value_name("X")
      .default_text("any")
      .excludes("--budget");
  add_html_option(args, o.html);
}

void exclude_rule_words(Arguments& args, const std::string& option) {
  for (const char* word : {"--to", "--include", "--exclude", "--also", "--fold", "--granularity", "--block",
                           "--scale-dtype", "--odd-blocks", "--dialect", "--pattern", "--arithmetic",
                           "--exact", "--input-scale", "--one-input-scale-a-layer", "--draft-experts",
                           "--block-scale", "--zero-block", "--keep-global-scale"})
    args.at(option).excludes(word);
}

namespace {

/// The statistics of --stats go to a rule that it is for.
void take_statistics(const RecipeOptions& o, const std::shared_ptr<const Statistics>& statistics,
                     Rule& rule) {
  rule.strict_statistics = o.strict_statistics;
  rule.statistics = statistics;
  rule.statistics_hash = statistics->hash().hex();
  rule.statistics_from = statistics->collected_on();
  rule.statistics_input = statistics->metadata("input");
}

std::shared_ptr<const Statistics> open_statistics_file(const RecipeOptions& o) {
  if (!o.statistics.empty()) return std::make_shared<const Statistics>(Statistics::open(o.statistics));
  if (o.strict_statistics) throw Error("--strict-stats: expected --stats beside it, found none");
  return nullptr;
}

/// The masks of --mask go to the rules that prune.
void take_masks(const RecipeOptions& o, std::vector<Rule*> rules) {
  if (o.mask.empty()) return;
  const auto masks = std::make_shared<const MaskFile>(MaskFile::open(o.mask));
  const std::string hash = masks->hash().hex();
  size_t taken = 0;
  for (Rule* rule : rules) {
    const bool prunes = rule->to == "prune" || !layout_pattern(rule->to).empty() ||
                        (rule->to == "quantize" && !rule->pattern.empty());
    if (!prunes) continue;
    rule->masks = masks;
    rule->mask_hash = hash;
    ++taken;
  }
  if (taken == 0)
    throw Error("--mask: expected a layout, rule or command with a pattern beside it, found none");
}

Recipe find_recipe(const std::string& name) {
  std::error_code error;
  if (name.find_first_of("/.") != name.npos || std::filesystem::exists(name, error))
    return read_recipe(name, read_text(name, kLongestYaml));
  if (const ShippedRecipe* shipped = find_shipped_recipe(name)) return read_recipe(name, shipped->text);
  std::vector<std::string> names;
  for (const ShippedRecipe& r : shipped_recipes()) names.emplace_back(r.name);
  throw Error(fmt::format("--recipe: expected a file, or a name that twofour recipes lists, found '{}'{}",
                          name, did_you_mean(name, names)));
}

}  // namespace

Recipe open_recipe(const RecipeOptions& o) {
  if (!o.method.empty() || o.sweeps >= 0) {
    throw Error(fmt::format("{}: expected as a word of rules with --recipe, found as an option",
                            o.method.empty() ? "--sweeps" : "--method"));
  }
  Recipe recipe = find_recipe(o.recipe);
  std::vector<Rule*> rules;
  for (Rule& rule : recipe.rules) rules.push_back(&rule);
  take_masks(o, rules);
  const auto statistics = open_statistics_file(o);
  if (!statistics) return recipe;
  size_t taken = 0;
  for (Rule& rule : recipe.rules) {
    if (!can_solve(rule) || rule.method == "magnitude") continue;
    take_statistics(o, statistics, rule);
    ++taken;
  }
  if (taken == 0)
    throw Error(fmt::format(
        "--stats: expected a rule to: nvfp4, {}, or keep with a pattern, found none in the recipe",
        layout_names()));
  return recipe;
}

Rule make_rule(const RecipeOptions& o) {
  Rule rule;
  rule.to = o.layout;
  rule.pattern = o.pattern;
  rule.dialect = o.dialect;
  rule.granularity = o.granularity;
  rule.block = o.block;
  rule.scale_dtype = o.scale_dtype;
  rule.exact = o.exact;
  rule.odd_blocks = o.odd_blocks;
  rule.arithmetic = o.arithmetic;
  rule.block_scale = o.block_scale;
  rule.zero_block = o.zero_block;
  rule.input_scale = o.input_scale;
  rule.one_input_scale_a_layer = o.one_input_scale_a_layer;
  rule.selection.draft_experts = parse_draft_experts(o.draft_experts);
  rule.method = o.method;
  rule.sweeps = static_cast<int>(o.sweeps);
  take_masks(o, {&rule});
  if (const auto statistics = open_statistics_file(o)) {
    if (!can_solve(rule)) {
      throw Error(
          fmt::format("--stats: expected with --recipe, quantize, prune or --to {}, found with --to {}",
                      layout_names(), rule.to));
    }
    take_statistics(o, statistics, rule);
  }
  rule.fold = parse_fold(o.fold).value();
  Rule checked = rule;
  if (!o.keep_global_scale.empty()) checked.kept.scales.push_back({});
  if (o.collects_statistics && can_solve(rule)) checked.statistics_hash = "collected later";
  make_method(checked);  // refuses words that the method has no use for
  return rule;
}

}  // namespace twofour
