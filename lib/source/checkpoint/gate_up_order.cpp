#include "lib/source/checkpoint/gate_up_order.h"

#include <fmt/format.h>

#include "formats/error.h"
#include "formats/families/family.h"
#include "lib/source/checkpoint/model_config.h"

namespace twofour {

GateUpOrder find_gate_up_order(const Json& config, std::string_view block,
                               const std::function<bool(const std::string&)>& exists) {
  constexpr const char* kAdvice =
      "set model_type in config.json to that of a model with such stacks: gpt_oss interleaves gate and up, "
      "llama4_text and qwen3_5_moe store them as halves";
  const bool has_bias = exists(std::string(block) + ".gate_up_proj_bias");
  const char* bias = has_bias ? "gate_up_proj_bias" : "none";
  const ExpertStacks* stacks = nullptr;
  std::string_view model_type;  // model_type of a model with these stacks
  const Json* unknown = nullptr;
  for (const Json* type : model_settings(config, "model_type")) {
    const ExpertStacks* named =
        type->is_string() ? find_expert_stacks(type->get_ref<const std::string&>()) : nullptr;
    if (named == nullptr) {
      unknown = type;
      continue;
    }
    const std::string_view name = type->get_ref<const std::string&>();
    if (stacks != nullptr && stacks->rows != named->rows) {
      return {{},
              fmt::format(
                  "expected one model_type, found {} and {}, which order rows of gate and up differently; {}",
                  model_type, name, kAdvice)};
    }
    stacks = named;
    model_type = name;
  }
  if (stacks != nullptr) {
    if (stacks->has_bias == has_bias) return {stacks->rows};
    return {{},
            fmt::format("expected {} beside it (as in model_type {}), found {}: the order of gate and up "
                        "rows (interleaved or halves) is uncertain; {}",
                        stacks->has_bias ? "gate_up_proj_bias" : "no bias", model_type, bias, kAdvice)};
  }
  if (unknown == nullptr && has_bias) return {GateUpRows::kInterleaved};
  return {{},
          fmt::format("expected a model_type in config.json that determines the order of gate and up rows "
                      "(interleaved or halves), found {} (and {} beside the stack); {}",
                      unknown != nullptr ? quoted_setting(*unknown) : "none",
                      has_bias ? bias : "no gate_up_proj_bias", kAdvice)};
}

GateUpOrder find_gate_up_order(const Checkpoint& c, std::string_view block) {
  return find_gate_up_order(c.config_of_values(), block,
                            [&](const std::string& name) { return c.find(name).has_value(); });
}

GateUpRows gate_up_order(const Checkpoint& c, std::string_view block) {
  const GateUpOrder found = find_gate_up_order(c, block);
  if (!found.rows) throw Error(fmt::format("{}.gate_up_proj: {}", block, found.problem));
  return *found.rows;
}

std::vector<UncertainStack> find_uncertain_stacks(const Json& config, std::span<const TensorInfo> tensors) {
  const auto exists = [&](const std::string& name) { return find_tensor(tensors, name).has_value(); };
  std::vector<UncertainStack> uncertain;
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::string_view name = tensors[i].name;
    if (tensors[i].shape.size() < 3) continue;
    for (const std::string_view suffix : {"_blocks", ".weight"}) {
      if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
    }
    const auto parsed = parse_module_name(name);
    if (!parsed || parsed->projection != Projection::kGateUp) continue;
    GateUpOrder found = find_gate_up_order(config, parsed->block, exists);
    if (!found.rows) uncertain.push_back({i, std::move(found.problem)});
  }
  return uncertain;
}

}  // namespace twofour
