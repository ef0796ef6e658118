#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "formats/naming.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The order of the rows in a stack of gate and up, or the reason why it is uncertain.
struct GateUpOrder {
  std::optional<GateUpRows> rows;
  std::string problem{};  ///< "expected X, found Y; what to do", without the place
};

/// Finds the order of the rows in the stack "P.gate_up_proj" of the block P = `block`. No other code decides
/// it. The model_type of `config`, or of its language model, gives the order. If the stack has a
/// gate_up_proj_bias beside it, the bias must agree. Without a model_type, the bias means interleaved rows,
/// as in gpt-oss. Without both, the order is uncertain. `exists` returns true if the checkpoint has a tensor
/// of a name.
GateUpOrder find_gate_up_order(const Json& config, std::string_view block,
                               const std::function<bool(const std::string&)>& exists);
GateUpOrder find_gate_up_order(const Checkpoint& checkpoint, std::string_view block);

/// Returns the order for a stack of a checkpoint. Throws Error, naming the stack, if the order is uncertain.
GateUpRows gate_up_order(const Checkpoint& checkpoint, std::string_view block);

/// A stack of gate and up whose order of rows is uncertain.
struct UncertainStack {
  size_t tensor;        ///< the stack's weights
  std::string problem;  ///< the reason: "expected X, found Y", without the place
};
/// Returns all stacks with an uncertain order, in any format. `tensors` are sorted by name.
std::vector<UncertainStack> find_uncertain_stacks(const Json& config, std::span<const TensorInfo> tensors);

/// The shape of a stack of experts, as the reader of its format reads it.
struct StackShape {
  std::string name;  ///< "P.gate_up_proj" or "P.down_proj"
  size_t weight;     ///< the tensor with the values or the codes
  int64_t e, n, k;
  bool k_outer;  ///< true for [E, K, N]
};

/// Returns the stacks whose N and K cannot be those of their block, by the tensor with the weights, and the
/// reasons, "FILE: TENSOR: expected X, found Y". Scales of blocks show which dimension is K, so codes that
/// were quantized along N are among them. In a block, gate_up is [2I, H] and down is [H, I]. If the family
/// accepts stacks, H is the config's hidden_size. A square matrix fits both ways. If files of the family have
/// stacks, it must have the order of the other stack or of the family.
std::map<size_t, std::string> find_odd_stacks(const Checkpoint& checkpoint,
                                              std::span<const StackShape> stacks);

/// A block of experts whose number config.json does not state.
struct OddExperts {
  std::string block;
  std::vector<size_t> weights;  ///< the tensors with the experts' weights
  std::string problem;          ///< "BLOCK: expected N experts (config.json), found M"
};
/// Returns the blocks with more experts than every number of experts that config.json states at any depth,
/// and, in a directory, the blocks with another number than the stated ones. Empty if it states none.
std::vector<OddExperts> find_odd_experts(const Checkpoint& checkpoint);

}  // namespace twofour
