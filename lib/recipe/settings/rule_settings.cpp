#include "lib/recipe/settings/rule_settings.h"

#include "lib/recipe/settings/setting_forms.h"
#include "lib/source/dialects/output_dialect.h"

namespace twofour {
namespace {

constexpr unsigned kEncodes = kToNvfp4 | kToLayout;  // a layout takes NVFP4, which other formats become first
constexpr unsigned kSolved = kEncodes | kToFp8 | kToMx;  // formats that statistics choose codes of
constexpr unsigned kConverting = kConverts | kPlans, kWriting = kConverting | kQuantizes,
                   kSolving = kWriting | kPrunes | kCompresses;
constexpr const char* kInputScales = "keep, none, constant, constant=NUMBER, neighbours or from FILE";
constexpr const char* kDialectFallback =
    "nvfp4: the dialect that the source does not have, for an artifact that of its source; fp8 and mxfp6: "
    "compressed-tensors; mxfp8 and mxfp4: modelopt";
constexpr HelpPart kLayoutsOnly = {kConverts, ". Layouts only, which quantize what is not NVFP4"};

Chosen<DraftExperts>& draft_experts_of(Rule& rule) { return rule.selection.draft_experts; }

std::vector<std::string> dialects(unsigned command) {
  if (command == kCompresses) return {"modelopt", "compressed-tensors"};
  return output_dialect_names(command == kQuantizes);
}

std::vector<std::string> solving_methods(unsigned command) {
  std::vector<std::string> words = all_value_names<SolveBy>(command);
  words.pop_back();  // sparsegpt, which only twofour.json may have
  if (command == kPrunes) std::erase_if(words, [](auto& w) { return w == "gptq" || w == "rtn"; });
  if (command == kCompresses) words.pop_back();  // magnitude
  return words;
}

/// A layout folds either every module of a rule or none, so this setting is always recorded.
RuleSetting fold_name(UserForm asked) {
  asked.values = all_value_names<Fold>;
  asked.is_named_with_value = true;
  RuleSetting word = user_setting<&Rule::fold>("fold", std::move(asked));
  word.is_required = true;
  return word;
}

bool take_input_scale(const JsonPlace& place, const Json& json, Rule& rule) {
  const auto text = json.get<std::string>();
  const auto known = InputScale::parse(place.is_recipe_file && text == "constant" ? "constant=1.0" : text);
  // "given" stands for a file that has been read, so users cannot write it in a recipe file.
  if (!known || (place.is_recipe_file && known->kind() == InputScale::Kind::kGiven)) return false;
  rule.input_scale = *known;
  return true;
}

RuleSetting input_scale_word(UserForm asked) {
  asked.form = UserForm::Form::kText;
  asked.values = [](unsigned) { return std::vector<std::string>{kInputScales}; };
  asked.expected = [](std::string_view found, bool is_file) {
    return is_file ? fmt::format("{}, the number positive and finite in float32", kInputScales)
                   : InputScale::expected(found);
  };
  return {"input_scale", [](const Rule& r) { return value_json(r.input_scale.text()); }, take_input_scale,
          std::move(asked)};
}

/// The setting is a path until the scales of that checkpoint are read. Afterwards, the scales are recorded
/// instead.
RuleSetting keep_global_scale_word(UserForm asked) {
  asked.form = UserForm::Form::kText;
  RuleSetting word = user_setting<&Rule::keep_global_scale>("keep_global_scale", std::move(asked));
  word.write = [](const Rule& r) { return value_json(r.kept.scales.empty() ? r.keep_global_scale : "read"); };
  word.is_recorded = false;
  return word;
}

RuleSetting shrink_word(UserForm asked) {
  asked.form = UserForm::Form::kText;
  asked.values = [](unsigned) { return std::vector<std::string>{"0 to 1"}; };
  asked.expected = [](std::string_view, bool) { return std::string("a number from 0 to 1"); };
  asked.is_of_statistics = true;
  return user_setting<&Rule::shrink>("shrink", std::move(asked));
}

RuleSetting from_default_word() {
  return {
      "from_default", [](const Rule& r) { return r.selection.from_default ? Json() : Json(false); },
      [](const JsonPlace&, const Json& json, Rule& r) { return take_value(json, r.selection.from_default); }};
}

RuleSetting roles_word() {
  return {"roles",
          [](const Rule& r) {
            Json roles;
            for (const ModuleRole role : r.selection.roles) roles.push_back(role_name(role));
            return roles;
          },
          [](const JsonPlace& place, const Json& json, Rule& r) {
            for (const Json& role : json) {
              const auto known = role_from_name(role.get<std::string>());
              if (!known) place.refuse("a role of modules", role);
              r.selection.roles.push_back(*known);
            }
            return true;
          }};
}

RuleSetting to_word() {
  RuleSetting word = recorded_setting<&Rule::to>("to");
  word.is_required = true;
  return word;
}

std::vector<RuleSetting> table() {
  return {
      to_word(),
      pattern_setting<&Selection::include>("include"),
      pattern_setting<&Selection::exclude>("exclude"),
      pattern_setting<&Selection::also>("also"),
      fold_name({.methods = kToLayout,
                 .place = {1, 17},
                 .help = {{kConverting,
                           "What to do if gate and up have different global scales: a layout stores one. "
                           "larger folds both to the larger and refuses if that changes a matrix by more "
                           "than 10 %; strict refuses; any folds at any cost",
                           "larger"}},
                 .file_help = "as {fold}"}),
      user_setting<&Rule::pattern>(
          "pattern",
          {.methods = kToLayout | kDropsCodes | kToNvfp4,
           .files = ~kToLayout,
           .place = {7, 9},
           .help = {{kPrunes, "", "2:4"},
                    {kPrunes | kPlans,
                     "2:4 keeps two codes of each four, 4:8-paired two aligned pairs of each eight"},
                    {kPlans, "; with quantize, ", "prune: 2:4; quantize: "},
                    {kQuantizes | kPlans,
                     "2:4 prunes the weights before quantizing, so that block scales fit the kept weights, "
                     "and reports the gain; with {stats} both patterns are chosen by it",
                     "none"},
                    {kCompresses, "nvfp4: prune to 2:4 or 4:8-paired", "none; a layout has its own"}},
           .file_help =
               "prune; nvfp4 before quantizing, where 4:8-paired needs convert {stats}; keep NVFP4 as it is",
           .file_fallback = "none"}),
      user_setting<&Rule::dialect>("dialect",
                                   {.methods = kToDialect | kToFp8 | kToMx | kToNvfp4,
                                    .place = {6},
                                    .help = {{kConverting, "", kDialectFallback},
                                             {kPlans, "", "; quantize: "},
                                             {kWriting, "Names and configuration to write"},
                                             {kConverting, "; deepseek with fp8 only"},
                                             {kCompresses, "nvfp4: names and configuration to write"},
                                             {kPlans | kQuantizes | kCompresses, "", "modelopt"}},
                                    .values = dialects}),
      user_setting<&Rule::granularity>(
          "granularity",
          {.methods = kToFp8,
           .place = {2, 1},
           .help =
               {{kConverting,
                 "fp8: which weights share a scale. block is the only choice for deepseek and deepseek-v4",
                 "row; deepseek, deepseek-v4 and with {block}: block"}},
           .file_help = "which weights share a scale",
           .file_fallback = "row; with dialect deepseek, block or scale_dtype: block"}),
      user_setting<&Rule::block>(
          "block",
          {.methods = kToFp8,
           .place = {3, 2},
           .help = {{kConverting,
                     "fp8: rows and columns of blocks, 128x128, 32x32 or 1x128; modelopt has the first alone",
                     "128x128"}},
           .file_help = "rows and inputs of a block",
           .value_name = "NxK"}),
      user_setting<&Rule::scale_dtype>(
          "scale_dtype",
          {.methods = kToFp8,
           .place = {4, 3},
           .help = {{kConverting,
                     "fp8: type of the scales, f32, bf16 or e8m0 (powers of two, for blocks). modelopt has "
                     "f32 alone, compressed-tensors and deepseek f32 and bf16, deepseek-v4 f32 and e8m0",
                     "f32; deepseek-v4: e8m0 beside experts that stay in four bits"}},
           .file_help = "type of the scales of blocks",
           .file_fallback = "f32; of DeepSeek-V4 e8m0 beside experts that stay in four bits",
           .value_name = "TYPE"}),
      user_setting<&Rule::odd_blocks>(
          "odd_blocks",
          {.methods = kToFp8,
           .place = {5, 4},
           .help = {{kConverting,
                     "fp8: what to do about linears with N or K that is no multiple of 128, which engines "
                     "refuse in blocks: refuse them too; keep them as they are; write them for an engine "
                     "that takes them",
                     "refuse"}},
           .file_help = "linears with N or K that is no multiple of 128, which engines refuse in blocks"}),
      user_setting<&Rule::exact>(
          "exact",
          {.methods = kToFp8 | kToMx | kEncodes,
           .place = {9, 5},
           .help = {{kWriting,
                     "What to do about sources in MXFP4 and NVFP4, which other formats often hold without "
                     "loss: best keeps the values where that is so, and counts where not; strict refuses "
                     "quantized sources that lose anything; off quantizes them as if they were floats",
                     "best"}},
           .file_help = "casts between formats: the best that the new one holds; refused if that loses "
                        "anything; or sources taken as floats",
           .leaves_default = true}),
      user_setting<&Rule::arithmetic>(
          "arithmetic",
          {.methods = kToMx | kEncodes,
           .place = {8, 6},
           .help = {{kWriting,
                     "Rounding to reproduce bit for bit: ModelOpt's (0.45 and later) or llm-compressor's",
                     "the dialect's"}},
           .file_help = "rounding to reproduce bit for bit"}),
      user_setting<&Rule::block_scale>(
          "block_scale",
          {.methods = kEncodes,
           .place = {13, 7},
           .help = {{kWriting,
                     "How the scale of 16 weights is chosen: max fits the largest weight; mse tries all and "
                     "takes the one with the least squared error; four-over-six takes the better of two. No "
                     "producer has the last two in compressed-tensors' arithmetic",
                     "max"},
                    kLayoutsOnly,
                    {kPlans, ". Layouts and quantize only"}},
           .file_help = "how the scale of 16 weights is chosen"}),
      user_setting<&Rule::zero_block>(
          "zero_block",
          {.methods = kEncodes,
           .place = {14, 8},
           .help = {{kWriting,
                     "What to write for a block if its scale rounds to zero: producer writes the scale that "
                     "the producer writes, zero writes a zero scale and zero codes",
                     "producer"},
                    kLayoutsOnly,
                    {kPlans, ". Layouts and quantize only"}},
           .file_help = "what is written if a block's scale rounds to zero"}),
      user_setting<&Rule::method>(
          "method",
          {.files = kDropsCodes | kSolved,
           .place = {16, 10},
           .help = {{kPrunes,
                     "How: joint chooses mask, scales and codes together; wanda reads the diagonal alone; "
                     "magnitude leaves the statistics out",
                     "joint where the file holds a full Hessian of enough tokens, else wanda"},
                    {kWriting,
                     "How: joint chooses mask, scales and codes together, gptq the last two without a "
                     "pattern; wanda and rtn read the diagonal alone; magnitude leaves the statistics out",
                     "joint or gptq where the file holds a full Hessian of enough tokens, else wanda or rtn"},
                    {kCompresses, "How weights are chosen, see twofour help quantize", "joint or gptq"}},
           .file_help = "how weights are chosen by convert {stats}: joint or wanda with pattern or a layout "
                        "that holds one, gptq or rtn without; magnitude leaves the statistics out",
           .file_fallback = "as quantize {method}",
           .values = solving_methods,
           .is_of_statistics = true}),
      user_setting<&Rule::sweeps>(
          "sweeps", {.files = kDropsCodes | kSolved,
                     .place = {17, 11},
                     .help = {{kPrunes, "", "4"},
                              {kWriting | kCompresses, "", "4 with a pattern, fp8: 0, else 2"},
                              {kWriting | kPrunes | kCompresses, "Sweeps of descent once weights are chosen"},
                              {kWriting | kPrunes, "; a row rests once a sweep gains less than 0.5 %"}},
                     .file_help = "sweeps of descent",
                     .file_fallback = "as quantize {sweeps}",
                     .most = 64,
                     .is_of_statistics = true}),
      shrink_word({.files = kDropsCodes | kSolved,
                   .place = {18, 12},
                   .help = {{kSolving, "Share taken off products of two inputs",
                             "0.5, with a pattern 0.1; by guided statistics 0.2, with a pattern 0.05"}},
                   .file_help = "share taken off products of two inputs",
                   .file_fallback = "as quantize {shrink}",
                   .value_name = "SHARE"}),
      user_setting<&Rule::scale_search>(
          "scale_search",
          {.files = kDropsCodes | kEncodes | kToMx,
           .place = {19, 13},
           .help = {{kSolving, "Codes tried above the largest weight's scale", "7; powers of two: 1"}},
           .file_help = "codes tried above the largest weight's scale",
           .file_fallback = "7; powers of two: 1",
           .most = 16,
           .is_of_statistics = true}),
      recorded_setting<&Rule::statistics_hash>("statistics_xxh3_128"),
      recorded_setting<&Rule::statistics_from>("statistics_from"),
      recorded_setting<&Rule::statistics_input>("statistics_input_xxh3_128"),
      recorded_setting<&Rule::mask_hash>("masks_xxh3_128"),
      scale_setting<&Rule::kept>("kept_global_scales"),
      input_scale_word(
          {.methods = kKeeps | kToDialect | kToNvfp4,
           .place = {10, 14},
           .help =
               {{kWriting,
                 "nvfp4, quantize: scales of activations, which W4A4 kernels need. keep those of the source; "
                 "none; constant=X for every module (1.0 is an amax of 2688); neighbours: modules without "
                 "one take the largest of their projection in the layer; from FILE, a safetensors file with "
                 "M.amax F32 [] for each module M (examples/input_scales)",
                 "nvfp4: keep; quantize: none; deepseek-v4: neighbours, and 1.0 where the layer has none"}},
           .file_help =
               "scales of inputs, as {input_scale}; NVFP4 that a rule to: nvfp4 matches keeps those it has",
           .file_fallback = "as {input_scale}",
           .value_name = "WORD"}),
      scale_setting<&Rule::input_scales>("input_scales"),
      user_setting<&Rule::one_input_scale_a_layer>(
          "one_input_scale_a_layer", {.methods = kKeeps | kToDialect | kToNvfp4,
                                      .place = {11, 15},
                                      .help = {{kWriting,
                                                "Experts of a layer share the largest input scale, of gate "
                                                "and up and of down, as kernels fuse them"}},
                                      .file_help = "experts of a layer share the largest",
                                      .file_fallback = "false"}),
      from_default_word(),
      setting_at<draft_experts_of>(
          "draft_experts", {.files = ~unsigned{kKeeps | kDropsCodes},
                            .place = {12, 16},
                            .help = {{kWriting,
                                      "Routed experts of layers that predict further tokens (DeepSeek-V4's "
                                      "mtp): keep leaves them as they are, which SGLang reads beside NVFP4 "
                                      "experts; cast converts them as the others, which vLLM expects",
                                      "as {include} and {also} say"}},
                            .file_help = "experts of layers that predict further tokens stay as they are, or "
                                         "are chosen as the others are",
                            .file_fallback = "chosen by name, not as experts"}),
      roles_word(),
      keep_global_scale_word(
          {.methods = kToNvfp4,
           .place = {15},
           .help =
               {{kQuantizes | kPlans,
                 "Take the global scales from this NVFP4 checkpoint (directory or file), matched by module "
                 "name, and compare all codes and block scales with its own. A weight of -0 stays -0"}},
           .value_name = "PATH"})};
}

}  // namespace

std::vector<RuleSetting>& rule_settings() {
  static std::vector<RuleSetting> all = table();
  return all;
}

}  // namespace twofour
