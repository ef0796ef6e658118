#include <doctest/doctest.h>

#include "lib/source/linears/weight_terms.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/weights/stored_weights.h"

namespace table_terms_test {

using namespace twofour;

namespace {

/// Names of the tensors that are terms, of an embedding "t" in two pieces with a scale that both share.
std::vector<std::string> terms_with(const TensorData& other, bool has_shared = true) {
  Tensors tensors{{"t.shard_0.weight", DType::kF8E4M3, {2, 2}, {1, 2, 3, 4}},
                  {"t.shard_1.weight", DType::kF8E4M3, {2, 2}, {5, 6, 7, 8}}};
  if (has_shared) add_bf16(tensors, "t.weight_scale", {1});
  tensors.push_back(other);
  const Scratch scratch;
  const Checkpoint c = open_checkpoint(scratch, tensors);
  std::vector<std::string> names;
  for (const WeightTerm& term : find_weight_terms(access_to(c)))
    names.push_back(c.tensors()[term.tensor].name);
  return names;
}

}  // namespace

TEST_CASE("what is named as a part of an embedding in pieces is found beside the scale that they share") {
  for (const char* name : {"t.shard_0_weight_scale", "t.weight_scale.1", "t.shard_scales", "t.rotation",
                           "t.shard_1.weight_scale", "t.shard_0.weight_scale_inv", "t.weight_scale_shard_0",
                           "t.weight_zero_point", "t.scales_of_rows"}) {
    CAPTURE(name);
    CHECK(terms_with({name, DType::kBF16, {1}, {0x80, 0x3f}}) == std::vector<std::string>{name});
  }
  for (const char* name : {"t.norm.weight", "t.proj.bias", "u.rotation", "tt.shard_scales", "t.input_scale"})
    CHECK(terms_with({name, DType::kBF16, {1}, {0x80, 0x3f}}).empty());
  // Each piece may have its own scale.
  CHECK(terms_with({"t.shard_1.weight_scale", DType::kBF16, {1}, {0x80, 0x3f}}, false).empty());
}

}  // namespace table_terms_test
