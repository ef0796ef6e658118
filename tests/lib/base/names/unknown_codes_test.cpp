#include "lib/base/names/unknown_codes.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace unknown_codes_test {

using namespace twofour;

namespace {

std::string found(std::vector<TensorInfo> tensors, bool is_unlisted = false) {
  std::sort(tensors.begin(), tensors.end(), [](auto& a, auto& b) { return a.name < b.name; });
  std::string names;
  for (const size_t i : find_unknown_codes(tensors, is_unlisted))
    names += (names.empty() ? "" : " ") + tensors[i].name;
  return names;
}

TensorInfo tensor(const std::string& name, DType type, std::vector<int64_t> shape) {
  return {name, type, std::move(shape), 0, 0};
}

}  // namespace

TEST_CASE("codes that no format reads are found by name, by a scale or by the linear") {
  const std::string m = "model.layers.0.mlp.down_proj";
  for (const char* part : {"qweight", "weight_packed", "trellis", "Qidxs", "q_weight", "W_q"})
    for (const DType type : {DType::kU32, DType::kI16, DType::kI64, DType::kU16})
      CHECK(found({tensor(m + "." + part, type, {4, 4, 64})}) == m + "." + part);
  CHECK(found({tensor(m + ".qweight", DType::kI32, {64})}) == m + ".qweight");
  CHECK(found({tensor(m + ".B", DType::kI32, {4, 4}), tensor(m + ".s", DType::kF16, {4, 4})}) == m + ".B");
  // MLX, an embedding's, too
  for (const char* module : {m.c_str(), "model.embed_tokens"}) {
    const std::string x = module;
    CHECK(found({tensor(x + ".weight", DType::kU32, {64, 8}), tensor(x + ".scales", DType::kBF16, {64, 1}),
                 tensor(x + ".biases", DType::kBF16, {64, 1})}) == x + ".weight");
  }
  CHECK(found({tensor(m + ".weight", DType::kI16, {64, 8})}) == m + ".weight");
  CHECK(found({tensor(m + ".weight", DType::kF8E4M3, {4096}),
               tensor(m + ".weight_scale", DType::kF32, {1})}) == m + ".weight");
  const TensorInfo codes = tensor(m + ".codes", DType::kI16, {4, 4});
  CHECK(found({codes}, true) == codes.name);
  CHECK(found({codes}, false).empty());
}

TEST_CASE("codes of known formats and integers that are no weights are not found") {
  for (const bool is_unlisted : {false, true}) {
    CAPTURE(is_unlisted);
    CHECK(found({tensor("m.qweight", DType::kI32, {8, 64}), tensor("m.scales", DType::kF16, {1, 64}),
                 tensor("m.qzeros", DType::kI32, {1, 8}), tensor("m.g_idx", DType::kI32, {64}),
                 tensor("c.weight_packed", DType::kI32, {8, 8}), tensor("c.weight_shape", DType::kI64, {2}),
                 tensor("f.weight", DType::kF8E4M3, {8, 8}), tensor("n.weight_packed", DType::kU8, {8, 8}),
                 tensor("norm.weight", DType::kF8E4M3, {8}), tensor("d.weight", DType::kF64, {8, 8}),
                 tensor("v.embeddings.position_ids", DType::kI64, {1, 577}),
                 tensor("bn.num_batches_tracked", DType::kI64, {}),
                 tensor("model.layers.0.ffn.gate.tid2eid", DType::kI32, {64, 6}),
                 tensor("attn.relative_position_index", DType::kI64, {49, 49}),
                 tensor("rotary.inv_freq_index", DType::kI32, {64}),
                 tensor("model.layers.0.attn.mask", DType::kBool, {8, 8})},
                is_unlisted)
              .empty());
  }
  CHECK(found({tensor("ngram.lookup_table", DType::kI32, {64, 4})}).empty());
}

}  // namespace unknown_codes_test
