#include <set>

#include "formats/naming.h"
#include "lib/checkpoint/model_config.h"
#include "lib/dialects/output_dialect.h"

namespace twofour {
namespace {

bool has_tied_head(const Json& config) {
  const auto tied = model_settings(config, "tie_word_embeddings");
  return !tied.empty() && *tied[0] == true;
}

/// The block of routed experts that a linear belongs to, or nothing.
std::string block_of(const std::string& module) {
  const auto parsed = parse_module_name(module);
  return parsed && parsed->kind == BlockKind::kRoutedExperts ? std::string(parsed->block) : "";
}

}  // namespace

std::vector<std::string> unquantized_linears(const WrittenModel& model) {
  std::set<std::string> quantized_blocks, blocks;
  for (const WrittenModule& m : model.modules) {
    if (m.entry) quantized_blocks.insert(block_of(m.name));
  }
  std::vector<std::string> names;
  // Loaders make a linear of a head that shares the embedding's weights.
  if (has_tied_head(model.source->config()) && !model.source->find("lm_head.weight"))
    names.emplace_back("lm_head");
  for (const WrittenModule& m : model.modules) {
    if (m.entry) continue;
    const std::string block = block_of(m.name);
    if (block.empty() || quantized_blocks.count(block)) {
      names.push_back(m.name);
      if (auto other = other_name(model.source->config(), m.name, name_in_transformers); !other.empty())
        names.push_back(std::move(other));
    } else if (blocks.insert(block).second) {
      names.push_back(block + "*");
    }
  }
  return names;
}

}  // namespace twofour
