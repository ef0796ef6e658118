#include "lib/encode/encode_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace twofour {
namespace {

template <class T>
T option(const char* name, const std::string& text, const std::vector<std::pair<const char*, T>>& known) {
  std::string names;
  for (const auto& [word, value] : known) {
    if (text == word) return value;
    if (*word != '\0') names += (names.empty() ? "" : ", ") + std::string(word);
  }
  throw Error(fmt::format("{}: expected one of {}, found '{}'", name, names, text));
}

constexpr const char* kDefaultFp8Dialect = "compressed-tensors";

/// A word of an option, and what it stands for.
template <class T>
struct OptionWord {
  const char* word;
  T value;
};
struct WeightBlock {
  int64_t rows, cols;
};
constexpr OptionWord<Granularity> kGranularities[] = {
    {"tensor", Granularity::kTensor}, {"row", Granularity::kRow}, {"block", Granularity::kBlock}};
constexpr OptionWord<WeightBlock> kBlocks[] = {
    {"128x128", {128, 128}}, {"32x32", {32, 32}}, {"1x128", {1, 128}}};
constexpr OptionWord<DType> kScaleTypes[] = {
    {"f32", DType::kF32}, {"bf16", DType::kBF16}, {"e8m0", DType::kF8E8M0}};

/// "a, b or c"
std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  }
  return text;
}

/// Gives an option its value: `text`, or the first word that the dialect has. Throws Error where no word is
/// `text`, or the dialect does not have it.
template <class T, size_t count, class Has>
T choose_word(const char* name, std::string& text, const OutputDialect& dialect,
              const OptionWord<T> (&words)[count], const Has& has) {
  std::vector<std::string> all, held;
  const OptionWord<T>* found = nullptr;
  for (const OptionWord<T>& w : words) {
    all.emplace_back(w.word);
    if (has(w.value)) held.emplace_back(w.word);
    if (text == w.word) found = &w;
  }
  if (text.empty() && !held.empty()) {
    text = held[0];
    return choose_word(name, text, dialect, words, has);
  }
  if (found == nullptr) throw Error(fmt::format("{}: expected {}, found {}", name, listed(all), text));
  if (!has(found->value)) {
    throw Error(fmt::format("{}: expected {}, which is all that the {} dialect has, found {}", name,
                            fmt::join(held, ", "), dialect.name, text));
  }
  return found->value;
}

void check_exact(const Rule& r) {
  option<int>("--exact", r.exact, {{"", 0}, {"best", 0}, {"strict", 0}, {"off", 0}});
}

/// Refuses words on statistics that do not go together.
void check_solving_words(const Rule& r) {
  option<int>(
      "--method", r.method,
      {{"", 0}, {"joint", 0}, {"gptq", 0}, {"sparsegpt", 0}, {"wanda", 0}, {"rtn", 0}, {"magnitude", 0}});
  const bool prunes = !r.pattern.empty(), solves = !r.statistics_hash.empty();
  if (!solves && !r.method.empty() && r.method != "magnitude")
    throw Error(fmt::format("--method: expected --stats beside {}, found none", r.method));
  if (!solves && r.sweeps >= 0) throw Error("--sweeps: expected --stats beside it, found none");
  if ((r.method == "joint" || r.method == "wanda" || r.method == "sparsegpt") && !prunes) {
    throw Error(
        fmt::format("--method: expected gptq or rtn where weights are not pruned, found {}", r.method));
  }
  if ((r.method == "gptq" || r.method == "rtn") && prunes) {
    throw Error(fmt::format(
        "--method: expected joint, sparsegpt, wanda or magnitude where weights are pruned, found {}",
        r.method));
  }
  if (solves && r.block_scale != "max" && r.method != "magnitude") {
    throw Error(fmt::format(
        "--block-scale: expected none beside --stats, which chooses block scales itself, found {}",
        r.block_scale));
  }
}

/// The settings of a rule for MXFP8 or MXFP4; fills in its defaults.
EncodeRule mx_rule(Rule& r, WeightFormat format) {
  if (r.dialect.empty()) r.dialect = output_dialects()[0].name;
  EncodeRule rule;
  rule.to = r.to;
  rule.scheme.format = format;
  rule.scheme.granularity = Granularity::kBlock;
  rule.scheme.rows = 1;
  rule.scheme.cols = kMxGroup;
  rule.scheme.scale_type = DType::kU8;
  rule.dialect = &output_dialect(r.dialect, false);
  if (!holds(*rule.dialect, rule.scheme)) {
    std::vector<std::string> names;
    for (const OutputDialect& d : output_dialects()) {
      if (holds(d, rule.scheme)) names.emplace_back(d.name);
    }
    throw Error(fmt::format("--dialect: expected {}, which have {}, found {}", listed(names),
                            encoded_name(rule), r.dialect));
  }
  if (r.arithmetic.empty()) {
    r.arithmetic = r.dialect == "compressed-tensors" ? "compressed-tensors" : "modelopt";
  }
  option<int>("--arithmetic", r.arithmetic, {{"modelopt", 0}, {"compressed-tensors", 0}});
  check_exact(r);
  rule.words = {.exact = r.exact, .arithmetic = r.arithmetic};
  return rule;
}

}  // namespace

bool holds(const OutputDialect& dialect, const Scheme& scheme) {
  if (dialect.entry(scheme).is_null()) return false;
  const auto spelling = dialect.spelling(scheme, 128, 128);
  return spelling &&
         (!spelling->scale_type || !scheme.format->tiles || *spelling->scale_type == scheme.scale_type);
}

EncodeRule fp8_rule(Rule& r) {
  if (r.dialect.empty()) r.dialect = kDefaultFp8Dialect;
  const OutputDialect& dialect = output_dialect(r.dialect, false);
  EncodeRule rule;
  rule.to = r.to;
  rule.dialect = &dialect;
  Scheme& scheme = rule.scheme;
  scheme.format = WeightFormat::kFp8;
  const auto granularities = dialect.fp8_granularities;
  if (r.granularity.empty() && !r.block.empty()) r.granularity = "block";
  for (const auto& w : kGranularities) {
    if (r.granularity.empty() && w.value == granularities[0]) r.granularity = w.word;
  }
  scheme.granularity =
      choose_word("--granularity", r.granularity, dialect, kGranularities, [&](Granularity g) {
        return std::find(granularities.begin(), granularities.end(), g) != granularities.end();
      });
  const bool by_blocks = scheme.granularity == Granularity::kBlock;
  const auto has_type = [&](DType type) {
    Scheme tried = scheme;
    tried.scale_type = type;
    return (by_blocks || type != DType::kF8E8M0) && holds(dialect, tried);
  };
  if (by_blocks) {
    const WeightBlock block = choose_word("--block", r.block, dialect, kBlocks, [&](const WeightBlock& b) {
      scheme.rows = b.rows;
      scheme.cols = b.cols;
      return has_type(DType::kF32);
    });
    scheme.rows = block.rows;
    scheme.cols = block.cols;
  } else if (!r.block.empty()) {
    throw Error(fmt::format("--block: expected with --granularity block, found with {}", r.granularity));
  }
  scheme.scale_type = choose_word("--scale-dtype", r.scale_dtype, dialect, kScaleTypes, has_type);
  check_exact(r);
  const Spelling spelling = *dialect.spelling(scheme, kFp8Block, kFp8Block);
  scheme.scale = spelling.scale;
  scheme.has_input_scale = spelling.needs_input_scale;
  rule.words = {
      .granularity = r.granularity, .block = r.block, .scale_dtype = r.scale_dtype, .exact = r.exact};
  return rule;
}

EncodeRule mxfp8_rule(Rule& r) { return mx_rule(r, WeightFormat::kFp8); }

EncodeRule mxfp4_rule(Rule& r) { return mx_rule(r, WeightFormat::kMxfp4); }

EncodeRule nvfp4_rule(Rule& r) {
  if (r.dialect.empty()) r.dialect = output_dialects()[0].name;
  if (r.arithmetic.empty()) r.arithmetic = output_dialect(r.dialect, true).nvfp4->name;
  if (r.block_scale.empty()) r.block_scale = "max";
  if (r.zero_block.empty()) r.zero_block = "producer";
  EncodeRule rule;
  rule.to = r.to;
  rule.scheme.format = WeightFormat::kNvfp4;
  rule.dialect = &output_dialect(r.dialect, true);
  rule.divides = rule.dialect->nvfp4->divides;
  option<int>("--arithmetic", r.arithmetic, {{"modelopt", 0}, {"compressed-tensors", 0}});
  option<int>("--block-scale", r.block_scale, {{"max", 0}, {"mse", 0}, {"four-over-six", 0}});
  option<int>("--zero-block", r.zero_block, {{"producer", 0}, {"zero", 0}});
  check_exact(r);
  rule.words = {.exact = r.exact,
                .arithmetic = r.arithmetic,
                .block_scale = r.block_scale,
                .zero_block = r.zero_block,
                .pattern = r.pattern,
                .method = r.method};
  check_solving_words(r);
  const bool solves = !r.statistics_hash.empty() && r.method != "magnitude", masked = !r.mask_hash.empty();
  if (masked && r.pattern.empty()) throw Error("--mask: expected --pattern beside it, found none");
  rule.masks = r.masks;
  if ((solves || masked) && r.pattern == "4:8-paired") {
    rule.pattern = PrunePattern::k4of8Paired;
  } else {
    if (r.pattern == "4:8-paired" && r.method == "magnitude")
      throw Error("--method: expected joint, sparsegpt, wanda or --mask with 4:8-paired, found magnitude");
    if (r.pattern == "4:8-paired")
      throw Error("--pattern: expected --stats or --mask beside 4:8-paired, found neither");
    rule.prune = option<bool>("--pattern", r.pattern, {{"", false}, {"2:4", true}});
    if (rule.prune) rule.pattern = PrunePattern::k2of4;
  }
  if (solves) rule.statistics = r.statistics, rule.encoded = r.encoded;
  rule.sweeps = r.sweeps;
  return rule;
}

EncodeRule prune_rule(const Rule& r, std::string_view dialect) {
  Rule words = r;
  words.dialect = dialect;
  EncodeRule rule = nvfp4_rule(words);
  rule.in_place = true;
  return rule;
}

}  // namespace twofour
