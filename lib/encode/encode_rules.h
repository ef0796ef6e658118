#pragma once
#include "lib/encode/quantized_group.h"
#include "lib/plan/method.h"

namespace twofour {

/// What a rule's words say of the number format that it makes. Each fills in the words that the rule leaves
/// out, and throws Error where a word is unknown or the dialect has no such format.
EncodeRule fp8_rule(Rule& rule);
EncodeRule mxfp8_rule(Rule& rule);
EncodeRule mxfp4_rule(Rule& rule);
EncodeRule nvfp4_rule(Rule& rule);
/// What pruning by statistics makes of NVFP4 in a dialect: NVFP4 in the same words.
EncodeRule prune_rule(const Rule& rule, std::string_view dialect);

/// Gives a layout's rule every word of how linears are quantized first.
void complete_quantize_words(Rule& rule);

/// Whether a dialect writes a scheme as it is.
bool holds(const OutputDialect& dialect, const Scheme& scheme);

}  // namespace twofour
