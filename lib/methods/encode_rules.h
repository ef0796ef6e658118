#pragma once
#include "lib/methods/quantized_group.h"
#include "lib/plan/method.h"

namespace twofour {

/// What a rule's words say of the number format that it makes. Each fills in the words that the rule leaves
/// out, and throws Error where a word is unknown or the dialect has no such format.
EncodeRule fp8_rule(Rule& rule);
EncodeRule mxfp8_rule(Rule& rule);
EncodeRule mxfp4_rule(Rule& rule);
EncodeRule nvfp4_rule(Rule& rule);

/// Whether a dialect writes a scheme as it is.
bool holds(const OutputDialect& dialect, const Scheme& scheme);

}  // namespace twofour
