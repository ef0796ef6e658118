#include "lib/fused_linears.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace twofour {
namespace {

/// Source: llm-compressor, observers/helpers.py.
constexpr std::array<std::array<std::string_view, 3>, 4> kFused = {{{"gate_proj", "up_proj", ""},
                                                                    {"w1", "w3", ""},
                                                                    {"q_proj", "k_proj", "v_proj"},
                                                                    {"q_a_proj", "kv_a_proj_with_mqa", ""}}};

}  // namespace

std::optional<std::pair<std::string, size_t>> fused_group(const std::string& module) {
  const size_t dot = module.rfind('.');
  if (dot == module.npos) return std::nullopt;
  const std::string_view leaf = std::string_view(module).substr(dot + 1);
  for (size_t g = 0; g < kFused.size(); ++g) {
    if (std::find(kFused[g].begin(), kFused[g].end(), leaf) != kFused[g].end())
      return std::pair(module.substr(0, dot), g);
  }
  return std::nullopt;
}

}  // namespace twofour
