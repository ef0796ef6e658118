#include "lib/prove/validate/solved_group_proofs.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "formats/error.h"
#include "lib/recipe/artifact/open_unpacked.h"

namespace twofour {

QuantizedRows SolvedGroupProofs::prove(const Checkpoint& source, const QuantizedGroup& group) {
  const std::lock_guard lock(mutex_);
  if (!unpacked_) {
    unpacked_ = std::make_unique<const Checkpoint>(unpacked(open_(), ReadPath::kReference));
    input_scales_ = std::make_unique<ExpectedInputScales>(source);
  }
  const std::vector<TensorInfo> outputs = group.outputs(source);
  QuantizedRows rows;
  std::vector<const TensorInfo*> parts;
  for (const TensorInfo& t : outputs) {
    const std::optional<size_t> at = unpacked_->find(t.name);
    const TensorInfo* found = at ? &unpacked_->tensors()[*at] : nullptr;
    if (found == nullptr || found->dtype != t.dtype || found->shape != t.shape) {
      throw Error(fmt::format("{}: expected {} {} in what the artifact was packed from, found {}",
                              path_.string(), t.name, describe(t.dtype, t.shape),
                              found == nullptr ? "none" : describe(found->dtype, found->shape)));
    }
    parts.push_back(found);
    rows.parts.emplace_back(t.bytes());
    unpacked_->read(*at, 0, rows.parts.back());
  }
  const auto [result, is_new] = results_.try_emplace(group.name(source));
  if (is_new) {
    Proof proof(source, *unpacked_, std::move(parts), *input_scales_, progress_, found_);
    proof.all_rows = all_rows_;
    proof.zeros_are_positive = group.encode_rule().pattern.has_value();
    proof.hessians = hessians_;
    result->second = group.prove(proof);
  }
  for (const Json& one : result->second) rows.results.push_back(encoded_from_json(one));
  return rows;
}

}  // namespace twofour
