#include <set>

#include "formats/naming.h"
#include "lib/base/names/lookup_parts.h"
#include "lib/source/config/model_config.h"
#include "lib/source/dialects/output_dialect.h"

namespace twofour {
namespace {

/// Groups of linears that one glob lists if none of them is quantized: a block of routed experts, or latent
/// attention.
class Blocks {
 public:
  Blocks(const std::vector<WrittenModule>& modules, bool with_attention) {
    for (const WrittenModule& m : modules) {
      if (with_attention && is_latent(leaf_of(m.name))) attention_.emplace(parent_of(m.name));
    }
    for (const WrittenModule& m : modules) {
      if (m.entry) quantized_.insert(find(m.name));
    }
  }

  /// Returns the block of a linear if no linear of the block is quantized, otherwise "".
  std::string find_unquantized(const std::string& module) const {
    std::string block = find(module);
    return quantized_.count(block) ? "" : block;
  }

 private:
  static bool is_latent(std::string_view leaf) {
    return leaf == "q_a_proj" || leaf == "q_b_proj" || leaf == "kv_a_proj_with_mqa" || leaf == "kv_b_proj";
  }
  std::string find(const std::string& module) const {
    const auto parsed = parse_module_name(module);
    if (parsed && parsed->kind == BlockKind::kRoutedExperts) return std::string(parsed->block);
    for (std::string_view name = parent_of(module); !name.empty(); name = parent_of(name)) {
      if (attention_.contains(name)) return std::string(name);
    }
    return "";
  }

  std::set<std::string, std::less<>> attention_, quantized_;
};

}  // namespace

std::vector<std::string> unquantized_linears(const WrittenModel& model, const OutputDialect& to) {
  const Blocks blocks(model.modules, to.attention_as_glob != nullptr && to.attention_as_glob(model.entries));
  std::set<std::string> listed;
  std::vector<std::string> names;
  // Loaders create a linear for a head that shares the embedding's weights.
  if (has_tied_head(model.source->config()) && !model.source->find("lm_head.weight"))
    names.emplace_back("lm_head");
  for (const WrittenModule& m : model.modules) {
    if (m.entry) continue;
    const std::string block = blocks.find_unquantized(m.name);
    if (!block.empty() && !listed.insert(block).second) continue;
    const std::string name = block.empty() ? m.name : block, end = block.empty() ? "" : "*";
    names.push_back(name + end);
    if (const auto other = other_name(model.source->config(), name, name_in_transformers); !other.empty())
      names.push_back(other + end);
  }
  return names;
}

}  // namespace twofour
