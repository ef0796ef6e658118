#include "lib/model/family_traits.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "lib/model/model_shape.h"

namespace twofour {
namespace {

constexpr FamilyTraits kFamilies[] = {
    {.model_type = "llama", .positions = 2048},
    {.model_type = "mistral", .windows = WindowRule::kAllOrSaid, .window = 4096, .positions = 131072},
    {.model_type = "qwen2", .windows = WindowRule::kFrom, .window = 4096, .positions = 32768},
    {.model_type = "qwen3", .windows = WindowRule::kFrom, .window = 4096, .positions = 32768},
    {.model_type = "qwen2_moe", .windows = WindowRule::kEven, .window = 4096, .positions = 32768},
    {.model_type = "qwen3_moe", .windows = WindowRule::kIfUsed, .window = 4096, .positions = 32768},
    {.model_type = "mixtral",
     .windows = WindowRule::kAll,
     .epsilon = 1e-5,
     .theta = 1e6,
     .positions = 131072},
    {.model_type = "olmoe", .epsilon = 1e-5, .positions = 4096},
    {.model_type = "deepseek_v2", .pairs = RopePairs::kNeighbours, .positions = 2048},
    {.model_type = "deepseek_v3", .pairs = RopePairs::kAsSaid, .positions = 4096},
    {.model_type = "kimi_k2", .pairs = RopePairs::kAsSaid, .positions = 4096},
    {.model_type = "glm4_moe", .epsilon = 1e-5, .rotated = 0.5, .positions = 131072},
    {.model_type = "gpt_oss",
     .windows = WindowRule::kAlternate,
     .window = 128,
     .epsilon = 1e-5,
     .theta = 150000,
     .clamps_gates = true,
     .positions = 131072},
};

}  // namespace

const FamilyTraits* find_family_traits(std::string_view model_type) {
  for (const FamilyTraits& family : kFamilies) {
    if (model_type == family.model_type) return &family;
  }
  return nullptr;
}

std::string decoder_families() {
  std::vector<std::string> names;
  for (const FamilyTraits& family : kFamilies) names.emplace_back(family.model_type);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace twofour
