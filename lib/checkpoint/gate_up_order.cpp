#include "lib/checkpoint/gate_up_order.h"

#include <fmt/format.h>

#include "formats/error.h"
#include "lib/checkpoint/model_config.h"

namespace twofour {

GateUpOrder find_gate_up_order(const Json& config, std::string_view block,
                               const std::function<bool(const std::string&)>& exists) {
  constexpr const char* kAdvice =
      "set model_type in config.json to that of a model with stacks like these: gpt_oss interleaves gate and "
      "up, llama4_text and qwen3_5_moe have them in halves";
  const bool has_bias = exists(std::string(block) + ".gate_up_proj_bias");
  const char* bias = has_bias ? "gate_up_proj_bias" : "none";
  const ModelFamily* family = nullptr;
  const Json* unknown = nullptr;
  for (const Json* type : model_settings(config, "model_type")) {
    const ModelFamily* named =
        type->is_string() ? find_model_family(type->get_ref<const std::string&>()) : nullptr;
    if (named == nullptr) {
      unknown = type;
      continue;
    }
    if (family != nullptr && family->stacks != named->stacks) {
      return {{},
              fmt::format(
                  "expected one model_type, found {} and {}, which order rows of gate and up differently; {}",
                  family->model_type, named->model_type, kAdvice)};
    }
    family = named;
  }
  if (family != nullptr) {
    if (family->has_stack_bias == has_bias) return {family->stacks};
    return {{},
            fmt::format(
                "expected {} beside it as model_type {} has, found {}: whether rows of gate and up are "
                "interleaved or halves is not certain; {}",
                family->has_stack_bias ? "gate_up_proj_bias" : "no bias", family->model_type, bias, kAdvice)};
  }
  if (unknown == nullptr && has_bias) return {GateUpRows::kInterleaved};
  return {{},
          fmt::format("expected a model_type in config.json that determines whether rows of gate and up are "
                      "interleaved or halves, found {} (and {} beside the stack); {}",
                      unknown != nullptr ? quoted_setting(*unknown) : "none",
                      has_bias ? bias : "no gate_up_proj_bias", kAdvice)};
}

GateUpOrder find_gate_up_order(const Checkpoint& c, std::string_view block) {
  return find_gate_up_order(c.config(), block,
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
