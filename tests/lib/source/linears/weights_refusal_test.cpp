#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "lib/source/linears/linears.h"
#include "lib/source/linears/weight_terms.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/stored_weights.h"

namespace weights_refusal_test {

using namespace twofour;

TEST_CASE("tensors of a module that disagree are refused") {
  const auto message = [](const Tensors& tensors, const std::string& config = "{}") {
    const Scratch scratch;
    const Checkpoint c = open_checkpoint(scratch, tensors, config);
    Problems problems;
    CHECK(find_weight_modules(c, problems).empty());
    return message_of([&] { problems.refuse(); });
  };
  const auto fp8_with = [&](const std::string& suffix, DType type, std::vector<int64_t> shape,
                            const std::string& config = "{}") {
    Tensors tensors;
    fp8_weights({130, 192}, 1).add_to(tensors, "m.weight");
    if (!suffix.empty()) random_scales(type, std::move(shape), 2).add_to(tensors, "m" + suffix);
    return message(tensors, config);
  };
  const std::string at = "model.safetensors: m.";
  CHECK(fp8_with("", DType::kF32, {}) ==
        at +
            "weight: expected FP8 weights with .weight_scale_inv, .weight_scale or .scale beside them, found "
            "F8_E4M3 [130, 192]");
  CHECK(fp8_with(".scale", DType::kI32, {2, 2}) == fp8_with("", DType::kF32, {}));
  const std::string blocks =
      "expected one scale, [130, 1] or those of blocks of [128, 128], [32, 32], [1, 128] or [1, 32], found ";
  CHECK(fp8_with(".weight_scale_inv", DType::kF32, {2, 1}) ==
        at + "weight_scale_inv: " + blocks + "F32 [2, 1]");
  CHECK(fp8_with(".weight_scale", DType::kF32, {192}) == at + "weight_scale: " + blocks + "F32 [192]");
  CHECK(fp8_with(".weight_scale", DType::kU8, {130, 12}) == at + "weight_scale: " + blocks + "U8 [130, 12]");
  CHECK(fp8_with(".weight_scale", DType::kBF16, {2, 2, 1, 1}) ==
        at + "weight_scale: " + blocks + "BF16 [2, 2, 1, 1]");
  const auto stated = [&](const char* block) {
    return at + "weight_scale_inv: expected one scale, [130, 1] or those of blocks of " + block +
           ", which the config states, found F32 [2, 2]";
  };
  CHECK(fp8_with(".weight_scale_inv", DType::kF32, {2, 2},
                 R"({"quantization_config": {"weight_block_size": [64, 64]}})") == stated("[64, 64]"));
  CHECK(fp8_with(".weight_scale_inv", DType::kF32, {2, 2},
                 R"({"quantization_config": {"config_groups": {
                      "g": {"weights": {"block_structure": [64, 64]}},
                      "h": {"weights": {"block_structure": "32x32"}}}}})") == stated("[64, 64] or [32, 32]"));
  for (const char* odd :
       {"[128]", "[128,0]", "\"128x\"", "\"128 x 128\"", "{}", "[128,128.5]", "[9223372036854775807,128]"}) {
    CHECK(fp8_with(".weight_scale_inv", DType::kF32, {2, 2},
                   R"({"quantization_config": {"weight_block_size": )" + std::string(odd) + "}}") ==
          stated(odd));
  }
  CHECK(fp8_with(".weight_scale_inv", DType::kF32, {2, 2},
                 R"({"quantization_config": {"config_groups": {
                      "g": {"weights": {"block_structure": [100, 128]}},
                      "h": {"weights": {"block_structure": [128, 128]}}}}})") ==
        at + "weight_scale_inv: expected blocks of one size, not [100, 128] or [128, 128], found F32 [2, 2]");
  CHECK(fp8_with(".weight_scale_inv", DType::kF32, {0, 2}).find("found F32 [0, 2]") != std::string::npos);

  Tensors both;
  fp8_weights({130, 192}, 1).add_to(both, "m.weight");
  random_scales(DType::kF32, {}, 2).add_to(both, "m.weight_scale");
  random_scales(DType::kF32, {2, 2}, 2).add_to(both, "m.weight_scale_inv");
  CHECK(message(both) ==
        at + "weight: expected one scale beside it, found m.weight_scale_inv and m.weight_scale");

  Tensors stale;
  add_bf16(stale, "m.weight", {4, 4});
  random_scales(DType::kF32, {1, 1}, 2).add_to(stale, "m.weight_scale_inv");
  CHECK(message(stale) ==
        at + "weight: expected F8_E4M3 because of m.weight_scale_inv beside it, found BF16 [4, 4]");
  for (const char* name :
       {"scale", "scales", "scale_inv", "weight_scaling_factor", "weights_scaling_factor"}) {
    CAPTURE(name);
    stale.back().name = std::string("m.") + name;
    CHECK(message(stale) ==
          at + "weight: expected F8_E4M3 because of m." + name + " beside it, found BF16 [4, 4]");
    // A vector with that neighbour is a norm's.
    Tensors norm;
    add_bf16(norm, "m.weight", {4});
    norm.push_back(stale.back());
    CHECK(message(norm).empty());
  }

  const auto mxfp4 = [&](const char* weight, DType type, std::vector<int64_t> codes, const char* scale,
                         DType scale_type, std::vector<int64_t> shape) {
    Tensors tensors;
    StoredTensor(type, std::move(codes), 1).add_to(tensors, weight);
    if (*scale != '\0') StoredTensor(scale_type, std::move(shape), 2).add_to(tensors, scale);
    return message(tensors);
  };
  CHECK(mxfp4("m.weight", DType::kI8, {4, 16}, "m.scale", DType::kF8E8M0, {4, 2}) ==
        at + "scale: expected F8_E8M0 [4, 1], found F8_E8M0 [4, 2]");
  CHECK(mxfp4("m.weight_packed", DType::kU8, {4, 20}, "m.weight_scale", DType::kU8, {4, 1}) ==
        at + "weight_packed: expected K a multiple of 32, two codes a byte, found U8 [4, 20]");
  CHECK(mxfp4("m.x_blocks", DType::kU8, {2, 4, 1, 8}, "m.x_scales", DType::kU8, {2, 4, 1}) ==
        at + "x_blocks: expected [E, N, K/32, 16], found U8 [2, 4, 1, 8]");
  CHECK(mxfp4("m.x_blocks", DType::kU8, {2, 4, 1, 16}, "m.x_scales", DType::kU8, {2, 4}) ==
        at + "x_scales: expected U8 [2, 4, 1], found U8 [2, 4]");
  CHECK(mxfp4("m.x_blocks", DType::kU8, {2, 4, 1, 16}, "", DType::kU8, {}) ==
        at + "x_blocks: expected MXFP4 codes with their scales beside them, found U8 [2, 4, 1, 16]");
  CHECK(mxfp4("m.weight", DType::kBF16, {4, 0}, "", DType::kU8, {}) ==
        at + "weight: expected at least one weight, found BF16 [4, 0]");

  Tensors stacks;
  const std::string block = "model.layers.0.mlp.experts.";
  add_bf16(stacks, block + "gate_up_proj", {2, 8, 6});
  add_bf16(stacks, block + "down_proj", {2, 6, 8});
  CHECK(message(stacks, R"({"model_type": "llama4"})") ==
        "model.safetensors: " + block + "gate_up_proj: expected [E, 2I, H] or [E, H, 2I] for " + block +
            "down_proj, BF16 [2, 6, 8] [E, H, I] or [E, I, H], found BF16 [2, 8, 6]");
}

TEST_CASE("scales that are not valid and FP8 weights that are NaN are refused by their place") {
  const auto message = [](const Tensors& tensors) {
    const Scratch scratch;
    const Checkpoint c = open_checkpoint(scratch, tensors);
    const Linear m = only(find_weight_modules(c));
    std::vector<float> out(static_cast<size_t>(m.n * m.k));
    WeightReader reader(c);
    for (int64_t e = 0; e + 1 < m.e; ++e) reader.read_rows(m, e, 0, m.n, out);
    reader.read_rows(m, m.e - 1, 0, 1, std::span(out).first(static_cast<size_t>(m.k)));  // all is well there
    return message_of(
        [&] { reader.read_rows(m, m.e - 1, 1, m.n, std::span(out).subspan(static_cast<size_t>(m.k))); });
  };
  const std::string at = "model.safetensors: m.";
  for (const unsigned nan : {0x7Fu, 0xFFu}) {
    Tensors tensors;
    StoredTensor w = fp8_weights({130, 192}, 1);
    w.bytes[129 * 192 + 7] = static_cast<uint8_t>(nan);
    w.add_to(tensors, "m.weight");
    random_scales(DType::kF32, {}, 2).add_to(tensors, "m.weight_scale");
    CHECK(message(tensors) ==
          at + fmt::format("weight: expected weights that are numbers, found NaN (0x{:02X}) at n 129, k 7",
                           nan));
  }
  const std::pair<float, const char*> bad[] = {{std::nanf(""), "nan"}, {-1.5f, "-1.5"}, {INFINITY, "inf"}};
  for (const auto& [value, text] : bad) {
    Tensors tensors;
    fp8_weights({130, 192}, 1).add_to(tensors, "m.weight");
    StoredTensor s = random_scales(DType::kF32, {2, 2}, 2);
    std::memcpy(s.bytes.data() + 12, &value, sizeof(value));
    s.add_to(tensors, "m.weight_scale_inv");
    CHECK(message(tensors) == at + fmt::format("weight_scale_inv: expected scales that are finite and not "
                                               "negative, found {} at n 128, k 128",
                                               text));
  }
  Tensors e8m0;
  StoredTensor(DType::kU8, {2, 3, 2, 16}, 1).add_to(e8m0, "m.x_blocks");
  StoredTensor s(DType::kU8, {2, 3, 2}, 2, 255);
  s.bytes.back() = 0xFF;
  s.add_to(e8m0, "m.x_scales");
  CHECK(message(e8m0) ==
        at + "x_scales: expected block scales that are numbers, found NaN, 0xFF at expert 1, n 2, k 32");
  for (const unsigned byte : {0x7Fu, 0x80u, 0xFFu}) {
    Nvfp4Matrix w = random_matrix(4, 32, 1);
    w.scales[5] = static_cast<uint8_t>(byte);
    Tensors tensors;
    add_modelopt(tensors, "m", w);
    CHECK(message(tensors) ==
          at +
              fmt::format("weight_scale: expected block scales that are not negative and not NaN, found byte "
                          "0x{:02X} at n 2, k 16",
                          byte));
  }
}

TEST_CASE("linears of F64 are terms whatever is read, other tensors of F64 are none") {
  const auto problem = [](const std::string& name, std::vector<int64_t> shape) {
    const Scratch scratch;
    size_t bytes = 8;
    for (const int64_t n : shape) bytes *= static_cast<size_t>(n);
    Tensors tensors{{name, DType::kF64, std::move(shape), std::vector<uint8_t>(bytes)}};
    add_bf16(tensors, "m.weight", {4, 4});
    const Checkpoint c = open_checkpoint(scratch, tensors);
    Problems problems;
    refuse_changed_weights(
        c, [](size_t) { return false; }, {}, problems);
    return message_of([&] { problems.refuse(); });
  };
  for (const auto& [name, shape] : {std::pair{"l.q_proj.weight", std::vector<int64_t>{4, 2}},
                                    {"model.layers.0.mlp.experts.down_proj", {2, 2, 4}}})
    CHECK(contains(problem(name, shape),
                   std::string(name) + ": expected weights in BF16, F16 or F32, found F64"));
  CHECK(problem("l.norm.weight", {4}) == "");
  CHECK(problem("embed_tokens.weight", {4, 2}) == "");
  CHECK(problem("inv_freq", {4}) == "");
}

}  // namespace weights_refusal_test
