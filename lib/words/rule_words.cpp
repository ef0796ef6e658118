#include "lib/words/rule_words.h"

#include "lib/dialects/output_dialect.h"
#include "lib/words/word_forms.h"

namespace twofour {
namespace {

constexpr unsigned kEncodes = kToNvfp4 | kToLayout;  // layouts take NVFP4, and make it of other formats first
constexpr unsigned kTakesScales = kKeeps | kToNvfp4, kConverting = kConverts | kPlans,
                   kWriting = kConverting | kQuantizes, kSolving = kPrunes | kQuantizes | kPlans | kConverts;

/// Every word that has a value says it, for a layout has one without any.
RuleWord fold_word(AskedWord asked) {
  asked.values = all_words<Fold>;
  asked.is_named_with_value = true;
  return {"fold",
          [](const Rule& r) { return Json(word_of(r.fold)); },
          [](const JsonPlace& place, const Json& json, Rule& r) {
            if (!take_value(json, r.fold)) place.refuse(either(value_words<Fold>()), json);
          },
          true,
          [](const Json& json, Author, Rule& r) { return take_value(json, r.fold); },
          [](const Rule& r) { return std::string(r.fold == Fold::kLarger ? "" : word_of(r.fold)); },
          std::move(asked)};
}

constexpr const char* kInputScales = "keep, none, constant, constant=NUMBER, neighbours or from FILE";

RuleWord input_scale_word(AskedWord asked) {
  asked.form = AskedWord::Form::kText;
  asked.values = [](unsigned) { return std::vector<std::string>{kInputScales}; };
  asked.expected = [](std::string_view found, Author author) {
    return author == Author::kPrompt
               ? InputScale::expected(found)
               : fmt::format("{}, the number positive and finite in float32", kInputScales);
  };
  return {"input_scale",
          [](const Rule& r) { return r.input_scale.empty() ? Json() : Json(r.input_scale.text()); },
          [](const JsonPlace& place, const Json& json, Rule& r) {
            const auto known = InputScale::parse(json.get<std::string>());
            if (!known) place.refuse(kInputScales, json);
            r.input_scale = *known;
          },
          false,
          [](const Json& json, Author author, Rule& r) {
            const auto text = json.get<std::string>();
            const bool is_plain = author == Author::kFile && text == "constant";
            const auto known = InputScale::parse(is_plain ? "constant=1.0" : text);
            // "given" is what a file becomes once it is read.
            if (!known || (author == Author::kFile && known->kind() == InputScale::Kind::kGiven))
              return false;
            r.input_scale = *known;
            return true;
          },
          [](const Rule& r) { return r.input_scale.text(); },
          std::move(asked)};
}

/// The path goes once its scales are read, and is not recorded.
RuleWord keep_global_scale_word(AskedWord asked) {
  RuleWord word = asked_text<&Rule::keep_global_scale>("keep_global_scale", std::move(asked));
  word.write = nullptr;
  word.given = [](const Rule& r) {
    return r.kept.scales.empty() ? r.keep_global_scale : std::string("scales that are read");
  };
  word.asked.form = AskedWord::Form::kText;
  return word;
}

Chosen<DraftExperts>& draft_experts_of(Rule& rule) { return rule.selection.draft_experts; }

RuleWord roles_word() {
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
          }};
}

RuleWord from_default_word() {
  return {"from_default", [](const Rule& r) { return r.selection.from_default ? Json() : Json(false); },
          [](const JsonPlace&, const Json& json, Rule& r) { r.selection.from_default = json.get<bool>(); }};
}

std::vector<std::string> dialects(unsigned command) {
  if (command == kCompresses) return {"modelopt", "compressed-tensors"};
  return output_dialect_names(command == kQuantizes);
}

std::vector<std::string> methods_of(unsigned command) {
  std::vector<std::string> words = all_words<SolveBy>(command);
  if (command == kPrunes) std::erase_if(words, [](auto& w) { return w == "gptq" || w == "rtn"; });
  if (command == kCompresses) words.pop_back();  // magnitude
  return words;
}

std::vector<RuleWord> table() {
  return {
      record_word<&Rule::to>("to", true),
      pattern_word<&Selection::include>("include"),
      pattern_word<&Selection::exclude>("exclude"),
      pattern_word<&Selection::also>("also"),
      fold_word(
          {.methods = kToLayout,
           .help = {{kConverting,
                     "What to do if gate and up have different global scales: a layout stores one. larger "
                     "folds both to the larger and refuses if that changes a matrix by more than 10 %; "
                     "strict refuses; any folds at any cost"}},
           .fallback = {{kConverting, "larger"}},
           .option_place = 1,
           .files = kToLayout,
           .file_help = "as {fold}",
           .file_place = 15}),
      choice_word<&Rule::pattern>(
          "pattern",
          {.methods = kToLayout | kDropsCodes | kToNvfp4,
           .help =
               {{kPrunes | kPlans,
                 "2:4 keeps two codes of each four, 4:8-paired two aligned pairs of each eight"},
                {kPlans, "; with quantize, "},
                {kQuantizes | kPlans,
                 "2:4 prunes the weights before quantizing, so that block scales fit the kept weights, and "
                 "reports the gain; with {stats} both patterns are chosen by it"},
                {kCompresses, "nvfp4: prune to 2:4 or 4:8-paired"}},
           .fallback = {{kPrunes, "2:4"},
                        {kPlans, "prune: 2:4; quantize: none"},
                        {kQuantizes, "none"},
                        {kCompresses, "none; a layout has its own"}},
           .option_place = 7,
           .files = kDropsCodes | kToNvfp4,
           .file_help =
               "prune; nvfp4 before quantizing, where 4:8-paired needs convert {stats}; keep NVFP4 as it "
               "is",
           .file_fallback = "none",
           .file_place = 9}),
      asked_text<&Rule::dialect>(
          "dialect",
          {.values = dialects,
           .methods = kToDialect | kToFp8 | kToMx | kToNvfp4,
           .help = {{kWriting, "Names and configuration to write"},
                    {kConverting, "; deepseek with fp8 only"},
                    {kCompresses, "nvfp4: names and configuration to write"}},
           .fallback =
               {{kConverts,
                 "nvfp4: the dialect that the source does not have, for an artifact that of its source; "
                 "fp8: compressed-tensors; mxfp8 and mxfp4: modelopt"},
                {kPlans,
                 "nvfp4: the dialect that the source does not have, for an artifact that of its source; "
                 "fp8: compressed-tensors; mxfp8 and mxfp4: modelopt; quantize: modelopt"},
                {kQuantizes | kCompresses, "modelopt"}},
           .option_place = 6}),
      choice_word<&Rule::granularity>(
          "granularity",
          {.methods = kToFp8,
           .help =
               {{kConverting,
                 "fp8: which weights share a scale. block is the only choice for deepseek and deepseek-v4"}},
           .fallback = {{kConverting, "row; deepseek, deepseek-v4 and with {block}: block"}},
           .option_place = 2,
           .files = kToFp8,
           .file_help = "which weights share a scale",
           .file_fallback = "row; with dialect deepseek, block or scale_dtype: block",
           .file_place = 1}),
      choice_word<&Rule::block>(
          "block",
          {.value_name = "NxK",
           .methods = kToFp8,
           .help =
               {{kConverting,
                 "fp8: rows and columns of blocks, 128x128, 32x32 or 1x128; modelopt has the first alone"}},
           .fallback = {{kConverting, "128x128"}},
           .option_place = 3,
           .files = kToFp8,
           .file_help = "rows and inputs of a block",
           .file_place = 2}),
      choice_word<&Rule::scale_dtype>(
          "scale_dtype",
          {.value_name = "TYPE",
           .methods = kToFp8,
           .help =
               {{kConverting,
                 "fp8: type of the scales, f32, bf16 or e8m0 (powers of two, for blocks). modelopt has f32 "
                 "alone, compressed-tensors and deepseek f32 and bf16, deepseek-v4 f32 and e8m0"}},
           .fallback = {{kConverting, "f32; deepseek-v4: e8m0 beside experts that stay in four bits"}},
           .option_place = 4,
           .files = kToFp8,
           .file_help = "type of the scales of blocks",
           .file_fallback = "f32; of DeepSeek-V4 e8m0 beside experts that stay in four bits",
           .file_place = 3}),
      choice_word<&Rule::odd_blocks>(
          "odd_blocks",
          {.methods = kToFp8,
           .help =
               {{kConverting,
                 "fp8: what to do about linears with N or K that is no multiple of 128, which engines refuse "
                 "in blocks: refuse them too; keep them as they are; write them for an engine that takes "
                 "them"}},
           .fallback = {{kConverting, "refuse"}},
           .option_place = 5,
           .files = kToFp8,
           .file_help = "linears with N or K that is no multiple of 128, which engines refuse in blocks",
           .file_place = 4}),
      choice_word<&Rule::exact>(
          "exact",
          {.methods = kToFp8 | kToMx | kEncodes,
           .help =
               {{kWriting,
                 "What to do about sources in MXFP4 and NVFP4, which other formats often hold without loss: "
                 "best keeps the values where that is so, and counts where not; strict refuses quantized "
                 "sources that lose anything; off quantizes them as if they were floats"}},
           .fallback = {{kWriting, "best"}},
           .option_place = 9,
           .files = kToFp8 | kToMx | kEncodes,
           .file_help =
               "casts between formats: the best that the new one holds; refused if that loses anything; "
               "or sources taken as floats",
           .file_place = 5,
           .leaves_default = true}),
      choice_word<&Rule::arithmetic>(
          "arithmetic",
          {.methods = kToMx | kEncodes,
           .help = {{kWriting,
                     "Rounding to reproduce bit for bit: ModelOpt's (0.45 and later) or llm-compressor's"}},
           .fallback = {{kWriting, "the dialect's"}},
           .option_place = 8,
           .files = kToMx | kEncodes,
           .file_help = "rounding to reproduce bit for bit",
           .file_place = 6}),
      choice_word<&Rule::block_scale>(
          "block_scale",
          {.methods = kEncodes,
           .help =
               {{kWriting,
                 "How the scale of 16 weights is chosen: max fits the largest weight; mse tries all and "
                 "takes "
                 "the one with the least squared error; four-over-six takes the better of two. No producer "
                 "has the last two in compressed-tensors' arithmetic"},
                {kConverts, ". Layouts only, which quantize what is not NVFP4"},
                {kPlans, ". Layouts and quantize only"}},
           .fallback = {{kWriting, "max"}},
           .option_place = 13,
           .files = kEncodes,
           .file_help = "how the scale of 16 weights is chosen",
           .file_place = 7}),
      choice_word<&Rule::zero_block>(
          "zero_block",
          {.methods = kEncodes,
           .help =
               {{kWriting,
                 "What to write for a block if its scale rounds to zero: producer writes the scale that the "
                 "producer writes, zero writes a zero scale and zero codes"},
                {kConverts, ". Layouts only, which quantize what is not NVFP4"},
                {kPlans, ". Layouts and quantize only"}},
           .fallback = {{kWriting, "producer"}},
           .option_place = 14,
           .files = kEncodes,
           .file_help = "what is written if a block's scale rounds to zero",
           .file_place = 8}),
      choice_word<&Rule::method>(
          "method",
          {.values = methods_of,
           .help =
               {{kPrunes,
                 "How: joint chooses mask, scales and codes together; sparsegpt masks first, to compare "
                 "with; "
                 "wanda reads the diagonal alone; magnitude leaves the statistics out"},
                {kConverts | kQuantizes | kPlans,
                 "How: joint chooses mask, scales and codes together, gptq the last two without a pattern; "
                 "sparsegpt masks first, to compare with; wanda and rtn read the diagonal alone; magnitude "
                 "leaves the statistics out"},
                {kCompresses, "How weights are chosen, see twofour help quantize"}},
           .fallback =
               {{kPrunes, "joint where the file holds a full Hessian of enough tokens, else wanda"},
                {kConverts | kQuantizes | kPlans,
                 "joint or gptq where the file holds a full Hessian of enough tokens, else wanda or rtn"},
                {kCompresses, "joint or gptq"}},
           .option_place = 16,
           .is_of_statistics = true,
           .files = kDropsCodes | kEncodes,
           .file_help =
               "how weights are chosen by convert {stats}: joint or wanda with pattern or a layout that "
               "holds one, gptq or rtn without; magnitude leaves the statistics out",
           .file_fallback = "as quantize {method}",
           .file_place = 10}),
      number_word<&Rule::sweeps>(
          "sweeps",
          {.most = 64,
           .help = {{kSolving,
                     "Sweeps of descent after that; a row rests once a sweep gains less than 0.5 %"},
                    {kCompresses, "Sweeps of descent after that"}},
           .fallback = {{kPrunes, "4"},
                        {kConverts | kQuantizes | kPlans | kCompresses, "4 with a pattern, else 2"}},
           .option_place = 17,
           .is_of_statistics = true,
           .files = kDropsCodes | kEncodes,
           .file_help = "sweeps of descent",
           .file_fallback = "as quantize {sweeps}",
           .file_place = 11}),
      record_word<&Rule::statistics_hash>("statistics_xxh3_128"),
      record_word<&Rule::statistics_from>("statistics_from"),
      record_word<&Rule::statistics_input>("statistics_input_xxh3_128"),
      record_word<&Rule::mask_hash>("masks_xxh3_128"),
      scale_word<&Rule::kept>("kept_global_scales"),
      input_scale_word(
          {.value_name = "WORD",
           .methods = kKeeps | kToDialect | kToNvfp4,
           .help =
               {{kWriting,
                 "nvfp4, quantize: scales of activations, which W4A4 kernels need. keep those of the source; "
                 "none; constant=X for every module (1.0 is an amax of 2688); neighbours: modules without "
                 "one "
                 "take the largest of their projection in the layer; from FILE, a safetensors file with "
                 "M.amax F32 [] for each module M (examples/input_scales)"}},
           .fallback = {{kWriting,
                         "nvfp4: keep; quantize: none; deepseek-v4: neighbours, and 1.0 where the layer has "
                         "none"}},
           .option_place = 10,
           .files = kTakesScales,
           .file_help =
               "scales of inputs, as {input_scale}; NVFP4 that a rule to: nvfp4 matches keeps those it "
               "has",
           .file_fallback = "as {input_scale}",
           .file_place = 12}),
      scale_word<&Rule::input_scales>("input_scales"),
      flag_word<&Rule::one_input_scale_a_layer>(
          "one_input_scale_a_layer",
          {.methods = kKeeps | kToDialect | kToNvfp4,
           .help =
               {{kWriting,
                 "Experts of a layer share the largest input scale, of gate and up and of down, as kernels "
                 "fuse them"}},
           .option_place = 11,
           .files = kTakesScales,
           .file_help = "experts of a layer share the largest",
           .file_fallback = "false",
           .file_place = 13}),
      from_default_word(),
      choice_at<DraftExperts, draft_experts_of>(
          "draft_experts",
          {.help =
               {{kWriting,
                 "Routed experts of layers that predict further tokens (DeepSeek-V4's mtp): keep leaves them "
                 "as they are, which SGLang reads beside NVFP4 experts; cast converts them as the others, "
                 "which vLLM expects"}},
           .fallback = {{kWriting, "as {include} and {also} say"}},
           .option_place = 12,
           .files = kEveryMethod & ~(kKeeps | kDropsCodes),
           .file_help =
               "experts of layers that predict further tokens stay as they are, or are chosen as the "
               "others are",
           .file_fallback = "chosen by name, not as experts",
           .file_place = 14}),
      roles_word(),
      keep_global_scale_word(
          {.value_name = "PATH",
           .methods = kToNvfp4,
           .help =
               {{kQuantizes | kPlans,
                 "Take the global scales from this NVFP4 checkpoint (directory or file), matched by module "
                 "name, and compare all codes and block scales with its own. A weight of -0 stays -0"}},
           .option_place = 15})};
}

}  // namespace

std::vector<RuleWord>& rule_words() {
  static std::vector<RuleWord> all = table();
  return all;
}

}  // namespace twofour
