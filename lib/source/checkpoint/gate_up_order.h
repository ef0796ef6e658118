#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "formats/naming.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The order of rows in a stack of gate and up or, if it is uncertain, the reason.
struct GateUpOrder {
  std::optional<GateUpRows> rows;
  std::string problem{};  ///< "expected X, found Y; what to do", without the place
};

/// The order of rows of the stack "P.gate_up_proj" of block P, decided only here, by the model_type of
/// `config` or of its language model. A gate_up_proj_bias beside the stack must agree. Without a model_type
/// the bias means interleaved, as in gpt-oss; without both the order is uncertain. `exists`: true if the
/// checkpoint has a tensor of that name.
GateUpOrder find_gate_up_order(const Json& config, std::string_view block,
                               const std::function<bool(const std::string&)>& exists);
GateUpOrder find_gate_up_order(const Checkpoint& checkpoint, std::string_view block);

/// The same. Throws Error, naming the stack, if the order is uncertain.
GateUpRows gate_up_order(const Checkpoint& checkpoint, std::string_view block);

/// A stack of gate and up with an uncertain order of rows.
struct UncertainStack {
  size_t tensor;        ///< its weights
  std::string problem;  ///< without the place
};
/// Returns all uncertain stacks of any format. `tensors` are sorted by name.
std::vector<UncertainStack> find_uncertain_stacks(const Json& config, std::span<const TensorInfo> tensors);

}  // namespace twofour
