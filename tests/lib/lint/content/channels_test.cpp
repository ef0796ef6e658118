#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "tests/support/faults/large_model.h"

// Matrices whose codes, columns or layers are those of another place, in a model whose channels differ in
// size.

namespace channels_test {

using namespace twofour;
using Edit = LargeModel::Edit;
using Edits = std::vector<std::pair<std::string, Edit>>;
using Span = std::span<uint8_t>;

namespace {

constexpr size_t kHidden = 1024;
const std::string kLayer = "model.layers.1.", kUp = kLayer + "mlp.up_proj.weight",
                  kGate = kLayer + "mlp.gate_proj.weight", kQueries = kLayer + "self_attn.q_proj.weight";

std::string lines(const char* format, const Edits& edits) {
  return lines_of(LargeModel::get(format).lint_changed(edits));
}
void found(const char* format, const std::string& rule, const std::string& tensor, const Edits& edits) {
  CAPTURE(std::string(format));
  const std::string all = lines(format, edits), module = tensor.substr(0, tensor.rfind('.'));
  CAPTURE(all);
  CHECK(("\n" + all).find("\n" + rule + ": " + module) != std::string::npos);
}
void harmless(const char* format, const Edits& edits) {
  CAPTURE(std::string(format));
  CHECK(lines(format, edits) == "");
}

Edit nibbles() {
  return [](Span b, size_t, std::mt19937&) {
    for (uint8_t& x : b) x = static_cast<uint8_t>(x << 4 | x >> 4);
  };
}
/// The bytes of the transposed matrix of numbers of `width` bytes, under the old shape.
Edit transposed(size_t width) {
  return [=](Span b, size_t row, std::mt19937&) {
    const std::vector<uint8_t> old(b.begin(), b.end());
    const size_t rows = b.size() / row, columns = row / width;
    for (size_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < columns; ++c)
        std::memcpy(&b[(c * rows + r) * width], &old[(r * columns + c) * width], width);
    }
  };
}
/// The columns of BF16 in another order.
Edit shuffled() {
  return [](Span b, size_t row, std::mt19937& random) {
    std::vector<size_t> order(row / 2);
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    const std::vector<uint8_t> old(b.begin(), b.end());
    for (size_t at = 0; at < b.size(); at += row) {
      for (size_t c = 0; c < order.size(); ++c) std::memcpy(&b[at + 2 * c], &old[at + 2 * order[c]], 2);
    }
  };
}
/// Two edits: the first keeps the bytes of a tensor, the second writes them over another one.
std::pair<Edit, Edit> copying() {
  const auto kept = std::make_shared<std::vector<uint8_t>>();
  return {[=](Span b, size_t, std::mt19937&) { kept->assign(b.begin(), b.end()); },
          [=](Span b, size_t, std::mt19937&) { std::copy(kept->begin(), kept->end(), b.begin()); }};
}

}  // namespace

TEST_CASE("channels that differ in size: nothing above a note") {
  for (const char* format : {"channels bf16", "channels nvfp4", "channels mxfp4"}) harmless(format, {});
}

TEST_CASE("the two codes of each byte are exchanged") {
  for (const std::string& name : {kUp, kGate, kQueries})
    found("channels nvfp4", "odd-codes", name, {{name, nibbles()}});
  found("channels mxfp4", "odd-codes", kUp, {{kUp, nibbles()}});
}

TEST_CASE("a matrix that is transposed, square or not, or has its columns in another order") {
  found("channels bf16", "layer-outlier", kUp, {{kUp, transposed(2)}});
  found("channels bf16", "layer-outlier", kGate, {{kGate, transposed(2)}});
  found("channels bf16", "layer-outlier", kQueries, {{kQueries, transposed(2)}});
  found("channels bf16", "layer-outlier", kUp, {{kUp, shuffled()}});
  found("channels bf16", "layer-outlier", kQueries, {{kQueries, shuffled()}});
  // The order of neurons is free.
  harmless("channels bf16", {{kLayer + "mlp.down_proj.weight", shuffled()}});
}

TEST_CASE("a layer that is another one's copy, whole or in one matrix") {
  for (const char* format : {"bf16", "nvfp4", "fp8"}) {
    Edits edits;
    const bool coded = std::string_view(format) != "bf16";
    for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      for (const std::string end : {".weight", ".weight_scale"}) {
        if (end != ".weight" && !coded) continue;
        const auto [keep, write] = copying();

        edits.push_back({kLayer + name + end, keep});
        edits.push_back({"model.layers.2." + std::string(name) + end, write});
      }
    }
    found(format, "identical-weights", "model.layers.2.mlp.up_proj.weight", edits);
  }
  const auto [keep, write] = copying();
  found("bf16", "identical-weights", "model.layers.3.mlp.up_proj.weight",
        {{kUp, keep}, {"model.layers.3.mlp.up_proj.weight", write}});
}

TEST_CASE("a scale of FP8 that was lost: 0 or 1") {
  const auto set = [](float value) {
    return [=](Span b, size_t, std::mt19937&) { std::memcpy(&b[4 * 3], &value, sizeof(value)); };
  };
  found("fp8", "zero-scale", kUp, {{kUp + "_scale*", set(0)}});
  const std::string one = lines("fp8", {{kUp + "_scale*", set(1)}});
  CAPTURE(one);
  CHECK(one.find(kLayer + "mlp.up_proj") != std::string::npos);
}

}  // namespace channels_test
