#include "lib/plan/tensor_rewrite.h"

#include <algorithm>

namespace twofour {

std::vector<Unit> TensorRewrite::units(int part, uint64_t bytes) const {
  std::vector<Unit> units;
  const uint64_t most = step();
  for (uint64_t at = 0; at < bytes || at == 0; at += most) {
    const uint64_t end = std::min(bytes, at + most);
    units.push_back(
        {.index = at / most, .part = part, .begin = at, .end = end, .read = read_bytes(end - at)});
  }
  return units;
}

KeptTensor::KeptTensor(size_t tensor, bool is_block_scale)
    : tensor_(tensor), is_block_scale_(is_block_scale) {
  set_rule("passes through");
}

std::string KeptTensor::name(const Checkpoint& source) const { return source.tensors()[tensor_].name; }

std::vector<TensorInfo> KeptTensor::outputs(const Checkpoint& source) const {
  return {source.tensors()[tensor_]};
}

std::vector<Unit> KeptTensor::units(const Checkpoint& source) const {
  return CopiedTensor(tensor_, is_block_scale_).units(0, source.tensors()[tensor_].bytes());
}

std::string KeptTensor::origin(const Checkpoint& source, int) const { return source.where(tensor_); }

Json KeptTensor::entries(const Checkpoint&, const Json&, const std::vector<Json>& tensors) const {
  return Json::array({tensors[0]});
}

std::string KeptTensor::content(const Json&, std::span<const Hash128> outputs) const {
  return outputs[0].hex();
}

}  // namespace twofour
