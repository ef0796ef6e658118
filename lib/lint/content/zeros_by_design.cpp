#include "lib/lint/content/zeros_by_design.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "formats/module_roles.h"
#include "lib/lint/bytes/checks.h"

namespace twofour {
namespace {

/// Returns the module that holds experts and their router, "model.layers.3.mlp"; empty: the name has no
/// experts.
std::string block_of(const Member& m) {
  const size_t at = m.module.find(".experts");
  return m.at.expert >= 0 && at != m.module.npos ? m.module.substr(0, at) : "";
}

bool is_zero(const Member& m) {
  return m.figures->plan.lines > 0 && m.figures->zero_lines == m.figures->plan.lines;
}

/// The evidence of a router that an expert is never chosen.
enum class Unused {
  kNo,
  kZeroRow,  ///< its row is zero
  kBias,     ///< its bias keeps it from being chosen
};

std::vector<Unused> unused_of(const LintInput& s, const std::string& block) {
  // The router's other numbers vary by less.
  constexpr float kNever = -100, kFarBelow = 8;
  constexpr uint64_t kMostBytes = 64u << 20;
  std::vector<Unused> unused;
  for (const std::string_view path : router_paths()) {
    const std::string router = fmt::format("{}.{}", block, path);
    const auto weight = s.find(router + ".weight");
    if (!weight || !s.whole[*weight]) continue;
    const TensorInfo& t = s.tensors[*weight];
    if (t.shape.size() != 2 || t.shape[0] <= 0 || !is_float(t.dtype) || t.bytes() > kMostBytes) continue;
    const auto rows = static_cast<size_t>(t.shape[0]);
    std::vector<uint8_t> bytes(t.bytes());
    s.read(*weight, 0, bytes);
    const size_t row = bytes.size() / rows, width = row / static_cast<size_t>(t.shape[1]);
    unused.assign(rows, Unused::kNo);
    for (size_t e = 0; e < rows; ++e) {
      bool zero = true;
      for (size_t i = 0; i < row && zero; ++i)
        zero = (bytes[e * row + i] & (i % width == width - 1 ? 0x7F : 0xFF)) == 0;
      if (zero) unused[e] = Unused::kZeroRow;
    }
    for (const char* name : {".bias", ".e_score_correction_bias"}) {
      const auto bias = s.find(router + name);
      if (!bias || !s.whole[*bias]) continue;
      const std::vector<float> numbers = read_scales(s, *bias);
      const auto middle = static_cast<float>(median_of(numbers));
      for (size_t e = 0; e < std::min(rows, numbers.size()); ++e) {
        if (numbers[e] <= kNever || numbers[e] < middle - kFarBelow) unused[e] = Unused::kBias;
      }
    }
    break;
  }
  return unused;
}

}  // namespace

std::string layer_name_of(const Member& m) {
  return m.at.layer < 0 ? "" : fmt::format("{}.{}", layers_of(m.module), m.at.layer);
}

bool writes_residual(const std::string& module) {
  const std::string leaf = module.substr(module.rfind('.') + 1);
  for (const char* name : {"o_proj", "down_proj", "out_proj", "w2", "wo", "dense", "fc2", "c_proj",
                           "dense_4h_to_h", "wo_b", "o_b_proj"}) {
    if (leaf == name) return true;
  }
  return false;
}

ZerosByDesign::ZerosByDesign(const LintInput& s, std::span<const Member> members) {
  if (std::ranges::none_of(members, [](const Member& m) { return m.is_linear && is_zero(m); })) return;
  find_padding(s, members);
  find_added_layers(members);
}

/// Experts of zeros pad if a bias keeps the router from each, or if they have zeros in the router, too, and
/// are less than half of its experts.
void ZerosByDesign::find_padding(const LintInput& s, std::span<const Member> members) {
  std::map<std::string, std::map<int64_t, bool>> blocks;  // true if all matrices of an expert are zero
  for (const Member& m : members) {
    const std::string block = block_of(m);
    if (block.empty() || !m.is_linear) continue;
    bool& zero = blocks[block].try_emplace(m.at.expert, true).first->second;
    zero = zero && is_zero(m);
  }
  for (const auto& [name, experts] : blocks) {
    if (std::ranges::none_of(experts, [](const auto& expert) { return expert.second; })) continue;
    const std::vector<Unused> unused = unused_of(s, name);
    std::set<int64_t> by_bias, by_row;
    for (const auto& [expert, zero] : experts) {
      const auto e = static_cast<size_t>(expert);
      if (!zero || e >= unused.size() || unused[e] == Unused::kNo) continue;
      (unused[e] == Unused::kBias ? by_bias : by_row).insert(expert);
    }
    if (2 * by_row.size() < unused.size()) by_bias.insert(by_row.begin(), by_row.end());
    if (!by_bias.empty()) padding_[name] = std::move(by_bias);
  }
}

/// A layer adds nothing if all linears that write to the residual stream are zero, and no other one is.
void ZerosByDesign::find_added_layers(std::span<const Member> members) {
  struct Layer {
    size_t zero_writers = 0, writers = 0, others = 0;
    bool zero_others = false;
  };
  std::map<std::string, Layer> layers;
  for (const Member& m : members) {
    if (!m.is_linear || m.at.layer < 0) continue;
    Layer& layer = layers[layer_name_of(m)];
    if (writes_residual(m.module)) {
      ++layer.writers;
      layer.zero_writers += is_zero(m);
    } else {
      ++layer.others;
      layer.zero_others = layer.zero_others || is_zero(m);
    }
  }
  constexpr size_t kFewest = 2;
  for (const auto& [name, layer] : layers) {
    if (layer.writers >= kFewest && layer.zero_writers == layer.writers && layer.others >= kFewest &&
        !layer.zero_others)
      added_.insert(name);
  }
}

bool ZerosByDesign::covers(const Member& m) const {
  if (!m.is_linear) return false;
  if (added_.contains(layer_name_of(m))) return writes_residual(m.module);
  const auto block = padding_.find(block_of(m));
  return block != padding_.end() && block->second.contains(m.at.expert);
}

uint64_t ZerosByDesign::padding_rows(const Member& router) const {
  for (const auto& [block, experts] : padding_) {
    if (router.module.starts_with(block + ".")) return experts.size();
  }
  return 0;
}

}  // namespace twofour
