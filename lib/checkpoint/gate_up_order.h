#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "formats/naming.h"
#include "lib/checkpoint/checkpoint.h"

namespace twofour {

/// How a stack of gate and up orders its rows; where nothing certain says it, why.
struct GateUpOrder {
  std::optional<GateUpRows> rows;
  std::string problem{};  ///< "expected X, found Y; what to do", without where
};

/// The order of rows of the stack "P.gate_up_proj" of block P, the only place that decides it: by the
/// model_type in `config`, its own or its language model's, with which gate_up_proj_bias beside the stack
/// must agree. Without a model_type the bias says interleaved, as gpt-oss has it; neither says nothing.
/// `exists` says whether the checkpoint has a tensor of a given name.
GateUpOrder find_gate_up_order(const Json& config, std::string_view block,
                               const std::function<bool(const std::string&)>& exists);
GateUpOrder find_gate_up_order(const Checkpoint& checkpoint, std::string_view block);

/// The same. Throws Error, naming the stack, where it is not certain.
GateUpRows gate_up_order(const Checkpoint& checkpoint, std::string_view block);

/// A stack of gate and up with an uncertain order of rows.
struct UncertainStack {
  size_t tensor;        ///< its weights
  std::string problem;  ///< without where
};
/// All of them, whatever format they are in; `tensors` are sorted by name.
std::vector<UncertainStack> find_uncertain_stacks(const Json& config, std::span<const TensorInfo> tensors);

}  // namespace twofour
