#pragma once
#include <vector>

#include "lib/jobs/convert/convert.h"
#include "lib/recipe/artifact/recipe.h"

namespace twofour {

/// A recipe of one rule, to be filled in.
struct OneRule : Rule {
  uint64_t max_shard_size = Recipe().max_shard_size;
  operator Recipe() const { return {*this, max_shard_size}; }  // NOLINT: it stands for one
};

/// The cost of pruning, a figure a module that has one.
inline std::vector<Quality> qualities(const ConvertResult& result) {
  std::vector<Quality> all;
  for (const ModuleReport& m : result.modules) {
    if (m.quality) all.push_back(*m.quality);
  }
  return all;
}

/// The results of quantizing, one a module that was quantized.
inline std::vector<EncodedResult> encoded(const ConvertResult& result) {
  std::vector<EncodedResult> all;
  for (const ModuleReport& m : result.modules) {
    if (m.encoded) all.push_back(*m.encoded);
  }
  return all;
}

}  // namespace twofour
