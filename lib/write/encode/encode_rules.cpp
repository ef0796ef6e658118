#include "lib/write/encode/encode_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/solve/solve.h"
#include "lib/recipe/settings/rule_settings.h"

namespace twofour {
namespace {

constexpr const char* kDefaultFp8Dialect = "compressed-tensors";

/// Sets a setting to the rule's value, or by default to the first value that the dialect supports. Throws
/// Error if the dialect does not support the value.
template <class T, class Has>
T choose_word(const Rule& rule, std::string_view key, Chosen<T>& configured, const OutputDialect& dialect,
              const Has& has) {
  std::vector<std::string_view> held;
  for (const NamedValue<T>& one : kNamedValues<T>) {
    if (!has(one.value)) continue;
    held.push_back(one.word);
    if (configured.empty()) configured = one.value;
  }
  if (configured.empty() || !has(*configured)) {
    throw Error(fmt::format("{}: expected {}, the only choice of the {} dialect, found {}", rule.name(key),
                            fmt::join(held, ", "), dialect.name, configured.text()));
  }
  return *configured;
}

/// Throws Error on settings of statistics that contradict each other.
void check_solving_settings(const Rule& r) {
  const bool prunes = !r.pattern.empty(), solves = r.has_statistics(),
             plain = r.method == SolveBy::kMagnitude;
  const std::string method = r.name(keys::kMethod);
  if (r.method == SolveBy::kSparseGpt) {
    throw Error(
        fmt::format("{}: expected a method of this version, found sparsegpt, which twofour 0.2.0 was the "
                    "last to have; prove its choices with that version, or only by hashes",
                    method));
  }
  if (!solves && !r.method.empty() && !plain)
    throw Error(
        fmt::format("{}: expected {} beside {}, found none", method, options::kStats, r.method.text()));
  for (const std::string_view key : {keys::kSweeps, keys::kShrink, keys::kScaleSearch}) {
    if (!solves && !rule_setting(key).given(r).empty())
      throw Error(fmt::format("{}: expected {} beside it, found none", r.name(key), options::kStats));
  }
  const bool dense = r.method == SolveBy::kGptq || r.method == SolveBy::kRtn;
  if (!r.method.empty() && !plain && !dense && !prunes) {
    throw Error(
        fmt::format("{}: expected gptq or rtn if weights are not pruned, found {}", method, r.method.text()));
  }
  if (dense && prunes) {
    throw Error(fmt::format("{}: expected joint, wanda or magnitude if weights are pruned, found {}", method,
                            r.method.text()));
  }
  if (solves && r.block_scale.or_default() != BlockScale::max && !plain) {
    throw Error(
        fmt::format("{}: expected none beside {}, which chooses block "
                    "scales itself, found {}",
                    r.name(keys::kBlockScale), options::kStats, r.block_scale.text()));
  }
}

/// Gives an encoding without a pattern the statistics of its rule, and completes their settings.
void take_statistics(Rule& r, EncodeRule& rule) {
  const WeightFormat format = rule.format();
  if (has_fixed_scales(format) && r.scale_search >= 0) {
    throw Error(
        fmt::format("{}: expected none with FP8, whose scales follow "
                    "from the largest weights, found {}",
                    r.name(keys::kScaleSearch), r.scale_search));
  }
  complete_solving_settings(r, false, format);
  check_solving_settings(r);
  if (r.solves()) rule.statistics = r.statistics, rule.encoded = r.encoded;
  rule.sweeps = r.sweeps;
}

/// The settings of a rule with every default, as the encoder and the proof read them.
std::shared_ptr<const Rule> settings_of(const Rule& rule) {
  Rule settings = rule;
  settings.selection = {};
  settings.kept = {};
  settings.input_scales = {};
  return std::make_shared<const Rule>(std::move(settings));
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
  if (r.granularity.empty()) r.granularity = r.block.empty() ? granularities[0] : Granularity::kBlock;
  scheme.granularity = choose_word(r, keys::kGranularity, r.granularity, dialect, [&](Granularity g) {
    return std::find(granularities.begin(), granularities.end(), g) != granularities.end();
  });
  const bool by_blocks = scheme.granularity == Granularity::kBlock;
  const auto has_type = [&](DType type) {
    Scheme tried = scheme;
    tried.scale_type = type;
    return (by_blocks || type != DType::kF8E8M0) && holds(dialect, tried);
  };
  if (by_blocks) {
    const WeightBlock block = choose_word(r, keys::kBlock, r.block, dialect, [&](const WeightBlock& b) {
      scheme.rows = b.rows;
      scheme.cols = b.cols;
      return has_type(DType::kF32);
    });
    scheme.rows = block.rows;
    scheme.cols = block.cols;
  } else if (!r.block.empty()) {
    throw Error(fmt::format("{}: expected with {}, found with {}", r.name(keys::kBlock),
                            r.name(keys::kGranularity, "block"), r.granularity.text()));
  }
  scheme.scale_type = choose_word(r, keys::kScaleDtype, r.scale_dtype, dialect, has_type);
  const Spelling spelling = *dialect.spelling(scheme, kFp8Block, kFp8Block);
  scheme.scale = spelling.scale;
  scheme.has_input_scale = spelling.needs_input_scale;
  take_statistics(r, rule);
  rule.settings = settings_of(r);
  return rule;
}

EncodeRule mx_rule(Rule& r) {
  EncodeRule rule;
  rule.to = r.to;
  for (const WeightFormat format : kMxFormats) {
    if (r.to == format->to) rule.scheme.format = format->tiles ? WeightFormat::kFp8 : format;
  }
  rule.scheme.granularity = Granularity::kBlock;
  rule.scheme.rows = 1;
  rule.scheme.cols = kMxGroup;
  rule.scheme.scale_type = DType::kU8;
  std::vector<std::string> names;
  for (const OutputDialect& d : output_dialects()) {
    if (holds(d, rule.scheme)) names.emplace_back(d.name);
  }
  if (r.dialect.empty()) r.dialect = names[0];
  rule.dialect = &output_dialect(r.dialect, false);
  if (!holds(*rule.dialect, rule.scheme)) {
    throw Error(fmt::format("{}: expected {}, which {} {}, found {}", r.name(keys::kDialect), either(names),
                            names.size() == 1 ? "alone has" : "have", encoded_name(rule), r.dialect));
  }
  const bool by_modelopt = holds(output_dialect("modelopt", false), rule.scheme);
  if (!by_modelopt && r.arithmetic == Arithmetic::modelopt) {
    throw Error(
        fmt::format("{}: expected compressed-tensors, which alone defines the rounding of {}, found "
                    "modelopt",
                    r.name(keys::kArithmetic), encoded_name(rule)));
  }
  if (r.arithmetic.empty()) {
    r.arithmetic = r.dialect == "compressed-tensors" ? Arithmetic::compressed_tensors : Arithmetic::modelopt;
  }
  take_statistics(r, rule);
  rule.settings = settings_of(r);
  return rule;
}

EncodeRule nvfp4_rule(Rule& r) {
  if (r.dialect.empty()) r.dialect = output_dialects()[0].name;
  if (r.arithmetic.empty()) r.arithmetic = output_dialect(r.dialect, true).nvfp4->name;
  complete_quantize_settings(r);
  complete_solving_settings(r, !r.pattern.empty());
  EncodeRule rule;
  rule.to = r.to;
  rule.scheme.format = WeightFormat::kNvfp4;
  rule.dialect = &output_dialect(r.dialect, true);
  rule.divides = rule.dialect->nvfp4->divides;
  rule.settings = settings_of(r);
  check_solving_settings(r);
  const bool solves = r.solves(), masked = !r.mask_hash.empty();
  const std::string pattern = r.name(keys::kPattern);
  if (masked && r.pattern.empty())
    throw Error(fmt::format("{}: expected {} beside it, found none", options::kMask, pattern));
  rule.masks = r.masks;
  const bool pairs = r.pattern == PrunePattern::k4of8Paired;
  if (pairs && !solves && !masked) {
    throw Error(r.method == SolveBy::kMagnitude
                    ? fmt::format("{}: expected joint, wanda or {} with 4:8-paired, found magnitude",
                                  r.name(keys::kMethod), options::kMask)
                    : fmt::format("{}: expected {} or {} beside 4:8-paired, found neither", pattern,
                                  options::kStats, options::kMask));
  }
  rule.prune = !pairs && !r.pattern.empty();
  rule.pattern = r.pattern.value();
  if (solves) rule.statistics = r.statistics, rule.encoded = r.encoded;
  rule.sweeps = r.sweeps;
  return rule;
}

void complete_quantize_settings(Rule& rule) {
  rule.arithmetic = rule.arithmetic.or_default();
  rule.block_scale = rule.block_scale.or_default();
  rule.zero_block = rule.zero_block.or_default();
}

void complete_solving_settings(Rule& rule, bool has_pattern, WeightFormat format) {
  if (rule.keeps_absent || !rule.solves() || rule.statistics == nullptr) return;
  if (!rule.shrink) rule.shrink = default_shrink(*rule.statistics, has_pattern);
  // Scales that are given leave little to descent.
  if (has_fixed_scales(format) && rule.sweeps < 0) rule.sweeps = 0;
  if (has_fixed_scales(format) || rule.scale_search >= 0) return;
  rule.scale_search = format->global_scale ? kDefaultScaleSearch : kDefaultPowerSearch;
}

EncodeRule prune_rule(const Rule& r, std::string_view dialect) {
  Rule with_dialect = r;
  with_dialect.dialect = dialect;
  EncodeRule rule = nvfp4_rule(with_dialect);
  rule.in_place = true;
  return rule;
}

}  // namespace twofour
