#pragma once
#include "lib/write/encode/quantized_group.h"
#include "lib/write/plan/method.h"

namespace twofour {

/// The number format that a rule makes, according to its settings. Each function fills in missing settings.
/// It throws Error if a value is unknown or the dialect has no such format.
EncodeRule fp8_rule(Rule& rule);
EncodeRule mx_rule(Rule& rule);  ///< a format of kMxFormats
EncodeRule nvfp4_rule(Rule& rule);
/// The rule by which NVFP4 of a dialect is pruned by statistics. The result is NVFP4 with the same settings.
EncodeRule prune_rule(const Rule& rule, std::string_view dialect);

/// Fills in the settings of a layout's rule that apply to linears which are quantized first.
void complete_quantize_settings(Rule& rule);

/// Fills in the settings by which the statistics of a rule choose weights. A rule without statistics stays as
/// it is. `has_pattern` is true if the weights are pruned. `format` is written.
void complete_solving_settings(Rule& rule, bool has_pattern, WeightFormat format = WeightFormat::kNvfp4);

/// True if a dialect can store a scheme unchanged.
bool holds(const OutputDialect& dialect, const Scheme& scheme);

}  // namespace twofour
