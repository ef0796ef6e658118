#include "lib/write/plan/tensor_rewrite.h"

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
  set_rule("is copied unchanged");
}

KeptTensor::KeptTensor(size_t tensor, TensorInfo as, DType from) : tensor_(tensor) {
  ConvertedScalars rewrite(tensor, from, as.dtype, false);
  cast_ = std::make_unique<const Cast>(std::move(as), std::move(rewrite));
  set_rule("belongs to a module to convert");
}

std::vector<TensorInfo> KeptTensor::outputs(const Checkpoint& source) const {
  return {cast_ ? cast_->info : source.tensors()[tensor_]};
}

std::vector<Unit> KeptTensor::units(const Checkpoint& source) const {
  if (cast_) return cast_->rewrite.units(0, cast_->info.bytes());
  return CopiedTensor(tensor_, is_block_scale_).units(0, source.tensors()[tensor_].bytes());
}

std::string KeptTensor::origin(const Checkpoint& source, int) const { return source.where(tensor_); }

Json KeptTensor::entries(const Checkpoint& source, const Json&, const std::vector<Json>& tensors) const {
  return Json::array({with_origin(source, tensor_, tensors[0])});
}

std::string KeptTensor::content(const Json&, std::span<const Hash128> outputs) const {
  return outputs[0].hex();
}

Json with_origin(const Checkpoint& source, size_t from, Json tensor) {
  const std::string& name = source.tensors()[from].name;
  if (tensor.at("name") != name) tensor["from"] = name;
  return tensor;
}

}  // namespace twofour
