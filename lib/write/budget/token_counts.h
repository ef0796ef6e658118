#pragma once
#include "lib/recipe/statistics/statistics.h"
#include "lib/write/encode/quantized_group.h"

namespace twofour {

/// The number of tokens that a matrix with this entry sees. The loss of the model by a change is a sum over
/// these tokens. If experts share an entry, each expert gets the count in the entry of its own down, or an
/// equal part if there is no such entry.
double tokens_of(const Statistics& statistics, const StatisticsEntry& entry, const EncodedMatrix& matrix);

/// The number of tokens that the model saw. It is the count of any linear that sees all tokens.
double tokens_of_model(const Statistics& statistics);

}  // namespace twofour
