#include "lib/source/linears/linears.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "tests/support/checkpoint_builder.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/stored_weights.h"

namespace weights_test {

using namespace twofour;

TEST_CASE("every bit pattern of BF16 and F16 is read as the number it stands for") {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    StoredTensor w(type, {256, 256}, 1);
    for (unsigned i = 0; i < 0x10000; ++i) {
      w.bytes[2 * i] = static_cast<uint8_t>(i);
      w.bytes[2 * i + 1] = static_cast<uint8_t>(i >> 8);
    }
    Tensors tensors;
    w.add_to(tensors, "model.layers.0.mlp.down_proj.weight");
    const Scratch scratch;
    const Checkpoint c = open_checkpoint(scratch, tensors);
    const Linear m = only(find_weight_modules(c));
    CHECK(m.format == WeightFormat::kFloat);
    CHECK((m.n == 256 && m.k == 256 && m.e == 1 && !m.stacked && !m.scale));
    std::vector<float> out(0x10000);
    WeightReader(c).read_rows(m, 0, 0, 256, out);
    const SlowFloat& slow = type == DType::kBF16 ? kSlowBf16 : kSlowF16;
    for (unsigned i = 0; i < 0x10000; ++i) {
      const unsigned magnitude = i & 0x7FFF;
      if (magnitude == slow.last + 1) {
        CHECK(std::isinf(out[i]));
        CHECK(std::signbit(out[i]) == (i > 0x7FFF));
      } else if (magnitude > slow.last) {
        CHECK(std::isnan(out[i]));
      } else if (bits_of(out[i]) != bits_of(static_cast<float>(slow.value(i)))) {
        FAIL(i);
      }
    }
  }
}

TEST_CASE("F32 is read as it stands") {
  Tensors tensors;
  const StoredTensor w = random_scales(DType::kF32, {33, 7}, 3);
  w.add_to(tensors, "lm_head.weight");
  StoredTensor bias(DType::kF32, {33}, 4);
  bias.add_to(tensors, "lm_head.bias");
  const Scratch scratch;
  const Checkpoint c = open_checkpoint(scratch, tensors);
  const Linear m = only(find_weight_modules(c));
  CHECK(m.bias == c.find("lm_head.bias"));
  check_values(c, m, [&](int64_t, int64_t n, int64_t k) { return w.number(n * 7 + k); });
}

namespace {

struct Fp8Case {
  const char* suffix;
  DType dtype;
  std::vector<int64_t> shape;
  int64_t rows, cols;  ///< that share a scale
};

/// Reads [n, k] FP8 weights with such scales and compares every value.
void check_fp8(const Fp8Case& x, int64_t n, int64_t k, const std::string& config, unsigned seed) {
  CAPTURE(x.suffix);
  CAPTURE(dtype_name(x.dtype));
  CAPTURE(x.shape.size());
  CAPTURE(config);
  const StoredTensor w = fp8_weights({n, k}, seed);
  StoredTensor s = random_scales(x.dtype, x.shape, seed + 1);
  if (dtype_bits(x.dtype) == 8) {
    for (uint8_t& byte : s.bytes) byte = static_cast<uint8_t>(100 + byte % 40);  // so that nothing overflows
  }
  if (x.dtype == DType::kF16) {
    for (size_t i = 0; i < s.bytes.size(); i += 2) s.bytes[i + 1] &= 0x3F;
  }
  Tensors tensors;
  w.add_to(tensors, "m.weight");
  s.add_to(tensors, std::string("m") + x.suffix);
  random_scales(DType::kF32, {1}, 1).add_to(tensors, "m.input_scale");
  const Scratch scratch;
  const Checkpoint c = open_checkpoint(scratch, tensors, config);
  const Linear m = only(find_weight_modules(c));
  CHECK(m.format == WeightFormat::kFp8);
  CHECK(m.input_scale == c.find("m.input_scale"));
  CHECK((m.scale_rows == x.rows && m.scale_cols == x.cols));
  CHECK(m.tensors() == std::vector{*c.find("m.weight"), *m.scale, *m.input_scale});
  const int64_t cols = (k + x.cols - 1) / x.cols;
  check_values(c, m, [&](int64_t, int64_t i, int64_t j) {
    return w.number(i * k + j) * s.number(i / x.rows * cols + j / x.cols);
  });
}

std::string stating(const std::string& blocks) {
  return R"({"quantization_config": {"weight_block_size": )" + blocks + "}}";
}

}  // namespace

TEST_CASE("FP8: every name, type and rank of scales, of a tensor, rows and blocks with cut-off edges") {
  const int64_t n = 130, k = 192;
  unsigned seed = 10;
  for (const char* suffix : {".weight_scale", ".weight_scale_inv", ".scale"}) {
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E8M0, DType::kU8}) {
      const Fp8Case cases[] = {{suffix, type, {}, n, k},
                               {suffix, type, {1}, n, k},
                               {suffix, type, {1, 1}, n, k},
                               {suffix, type, {n}, 1, k},
                               {suffix, type, {n, 1}, 1, k},
                               {suffix, type, {2, 2}, 128, 128},
                               {suffix, type, {2, 1, 2, 1}, 128, 128},
                               {suffix, type, {5, 6}, 32, 32},
                               {suffix, type, {5, 1, 6, 1}, 32, 32},
                               {suffix, type, {n, 6}, 1, 32},
                               {suffix, type, {n, 2}, 1, 128}};
      for (const Fp8Case& x : cases) check_fp8(x, n, k, "{}", seed += 2);
    }
  }
}

TEST_CASE("FP8: a configuration states which blocks are meant") {
  const Fp8Case large{".weight_scale_inv", DType::kBF16, {2, 2}, 128, 128},
      small{".scale", DType::kF8E8M0, {5, 6}, 32, 32}, mx{".weight_scale_inv", DType::kU8, {130, 6}, 1, 32},
      other{".weight_scale", DType::kF32, {3, 3}, 64, 64};
  check_fp8(large, 130, 192, stating("[128, 128]"), 1);
  check_fp8(small, 130, 192, stating("[32, 32]"), 2);
  check_fp8(mx, 130, 192, stating("[1, 32]"), 3);
  check_fp8(mx, 130, 192, stating("[128, 128]"), 3);  // MXFP8 beside blocks
  check_fp8(other, 130, 192, stating("[64, 64]"), 4);
  check_fp8(large, 130, 192, stating("null"), 5);
  for (const std::string structure : {"[64, 64]", "\"64x64\""}) {
    check_fp8(other, 130, 192,
              R"({"quantization_config": {"config_groups": {
                   "a": {"weights": {"block_structure": null}},
                   "b": {"weights": {"block_structure": [128, 128]}},
                   "c": {"weights": {"block_structure": )" +
                  structure + "}}}}}",
              6);
  }
  // Both cut [100, 100] alike, which is one block.
  check_fp8({".scale", DType::kF32, {1, 1}, 100, 100}, 100, 100, stating("[128, 128]"), 7);
  check_fp8({".scale", DType::kF32, {100, 1}, 1, 100}, 100, 100, stating("[1, 128]"), 8);
}

TEST_CASE("stacks of floats and FP8: shapes of gate_up and down tell which dimension is N") {
  // I = 96 and H = 192: gate_up alone is square, and so says nothing.
  const int64_t e = 3, i = 96, h = 192;
  const std::string block = "model.language_model.layers.3.mlp.experts";
  for (const bool k_outer : {false, true}) {
    for (const char* suffix : {"", ".weight"}) {
      for (const bool fp8 : {false, true}) {
        if (fp8 && *suffix != '\0') continue;
        CAPTURE(k_outer);
        CAPTURE(fp8);
        const auto dims = [&](int64_t n, int64_t k) {
          return k_outer ? std::vector{e, k, n} : std::vector{e, n, k};
        };
        const auto weights = [&](int64_t n, int64_t k, unsigned seed) {
          return fp8 ? fp8_weights(dims(n, k), seed) : random_scales(DType::kBF16, dims(n, k), seed);
        };
        const StoredTensor up = weights(2 * i, h, 1), down = weights(h, i, 2);
        const StoredTensor up_scale = random_scales(DType::kBF16, dims(2, 2), 3),
                           down_scale = random_scales(DType::kF32, dims(2, 1), 4);
        Tensors tensors;
        down.add_to(tensors, block + ".down_proj" + suffix);
        up.add_to(tensors, block + ".gate_up_proj" + suffix);
        if (fp8) up_scale.add_to(tensors, block + ".gate_up_proj_scale_inv");
        if (fp8) down_scale.add_to(tensors, block + ".down_proj_scale_inv");
        const Scratch scratch;
        const Checkpoint c = open_checkpoint(scratch, tensors);
        const auto modules = find_weight_modules(c);
        REQUIRE(modules.size() == 2);
        for (const Linear& m : modules) {
          const bool is_down = m.name == block + ".down_proj";
          const StoredTensor &w = is_down ? down : up, &s = is_down ? down_scale : up_scale;
          CHECK((m.e == e && m.n == (is_down ? h : 2 * i) && m.k == (is_down ? i : h)));
          CHECK(m.stacked);
          CHECK(m.k_outer == k_outer);
          CHECK(m.rows == GateUpRows::kHalves);
          const auto at = [&](int64_t x, int64_t a, int64_t b, int64_t n, int64_t k) {
            return x * n * k + (k_outer ? b * n + a : a * k + b);
          };
          check_values(c, m, [&](int64_t x, int64_t a, int64_t b) {
            const double weight = w.number(at(x, a, b, m.n, m.k));
            return fp8 ? weight * s.number(at(x, a / 128, b / 128, 2, (m.k + 127) / 128)) : weight;
          });
        }
      }
    }
  }
}

TEST_CASE("a stack without its other half is recognized by the hidden size, or refused") {
  const std::string up = "model.layers.0.mlp.experts.gate_up_proj",
                    down = "model.layers.0.mlp.experts.down_proj";
  const auto outer = [&](const std::string& name, std::vector<int64_t> shape, const std::string& config) {
    Tensors tensors;
    StoredTensor(DType::kBF16, std::move(shape), 1).add_to(tensors, name);
    const Scratch scratch;
    return only(find_weight_modules(open_checkpoint(scratch, tensors, config))).k_outer;
  };
  const std::string plain = R"({"model_type": "llama4", "hidden_size": 48})",
                    nested = R"({"model_type": "llama4", "text_config": {"hidden_size": 48}})";
  CHECK(!outer(up, {2, 64, 48}, plain));
  CHECK(outer(up, {2, 48, 64}, nested));
  CHECK(outer(up, {2, 48, 64}, R"({"model_type": "llama4", "llm_config": {"hidden_size": 48}})"));
  CHECK(!outer(down, {2, 48, 32}, nested));
  CHECK(outer(down, {2, 32, 48}, plain));
  CHECK_THROWS_WITH(outer(up, {2, 48, 48}, plain),
                    "model.safetensors: model.layers.0.mlp.experts.gate_up_proj: expected one dimension "
                    "equal to the hidden size, 48, to distinguish N from K, found BF16 [2, 48, 48]");
  CHECK_THROWS_WITH(
      outer(down, {2, 48, 32}, "{}"),
      "model.safetensors: model.layers.0.mlp.experts.down_proj: expected one dimension equal to the hidden "
      "size, which config.json does not state, to distinguish N from K, found BF16 [2, 48, 32]");
}

TEST_CASE("MXFP4 of gpt-oss: blocks of 16 bytes, rows of gate and up in turn as they are stored") {
  const std::string block = "model.layers.0.mlp.experts";
  const StoredTensor codes(DType::kU8, {2, 10, 3, 16}, 1);
  StoredTensor scale(DType::kU8, {2, 10, 3}, 2, 250);
  scale.bytes[0] = 0;  // 2^-127, half of float32's smallest normal
  Tensors tensors;
  codes.add_to(tensors, block + ".gate_up_proj_blocks");
  scale.add_to(tensors, block + ".gate_up_proj_scales");
  add_bf16(tensors, block + ".gate_up_proj_bias", {2, 10});
  const Scratch scratch;
  const Checkpoint c = open_checkpoint(scratch, tensors);
  const Linear m = only(find_weight_modules(c));
  CHECK(m.name == block + ".gate_up_proj");
  CHECK(m.format == WeightFormat::kMxfp4);
  CHECK((m.e == 2 && m.n == 10 && m.k == 96 && m.stacked && !m.k_outer));
  CHECK(m.rows == GateUpRows::kInterleaved);
  CHECK(m.bias == c.find(block + ".gate_up_proj_bias"));
  check_values(c, m, [&](int64_t e, int64_t n, int64_t k) {
    const int64_t at = (e * 10 + n) * 96 + k;
    return kSlowE2m1.value(codes.code(at)) * scale.number(at / 32);
  });
}

TEST_CASE("MXFP4 of DeepSeek-V4, compressed-tensors and ModelOpt") {
  struct Case {
    DType codes;
    const char *weight, *scale;
  };
  for (const Case& x :
       {Case{DType::kI8, ".weight", ".scale"}, Case{DType::kU8, ".weight_packed", ".weight_scale"},
        Case{DType::kU8, ".weight", ".weight_scale"}}) {
    for (const DType type : {DType::kF8E8M0, DType::kU8}) {
      CAPTURE(x.weight);
      const StoredTensor codes(x.codes, {7, 32}, 1), scale(type, {7, 2}, 2, 250);
      Tensors tensors;
      codes.add_to(tensors, "layers.0.mlp.up_proj" + std::string(x.weight));
      scale.add_to(tensors, "layers.0.mlp.up_proj" + std::string(x.scale));
      const Scratch scratch;
      const Checkpoint c = open_checkpoint(scratch, tensors);
      const Linear m = only(find_weight_modules(c));
      CHECK(m.format == WeightFormat::kMxfp4);
      CHECK((m.n == 7 && m.k == 64 && !m.stacked));
      check_values(c, m, [&](int64_t, int64_t n, int64_t k) {
        return kSlowE2m1.value(codes.code(n * 64 + k)) * scale.number(n * 2 + k / 32);
      });
    }
  }
}

TEST_CASE("NVFP4 of both dialects and of stacks either way round") {
  const auto exact = [](const Nvfp4Matrix& m, double global, int64_t n, int64_t k) {
    const auto at = static_cast<size_t>(n * m.k + k);
    return kSlowE2m1.value(m.codes[at / 2] >> (at % 2 * 4) & 15u) * kSlowE4m3.value(m.scales[at / 16]) *
           global;
  };
  const float global = 0.00123f, divisor = 812.7f;
  for (const bool modelopt : {true, false}) {
    const Nvfp4Matrix w = random_matrix(21, 48, 5, global);
    Tensors tensors;
    add_modelopt(tensors, "m", w);
    if (!modelopt) {
      tensors[0].name = "m.weight_packed";
      tensors[2] = {"m.weight_global_scale", DType::kF32, {1}, std::vector<uint8_t>(4)};
      std::memcpy(tensors[2].bytes.data(), &divisor, sizeof(divisor));
    }
    const Scratch scratch;
    const Checkpoint c = open_checkpoint(scratch, tensors);
    const Linear m = only(find_weight_modules(c));
    CHECK(m.format == WeightFormat::kNvfp4);
    CHECK(m.global_scale == c.find(modelopt ? "m.weight_scale_2" : "m.weight_global_scale"));
    const double by = modelopt ? double{global} : double{1.0f / divisor};
    check_values(c, m, [&](int64_t, int64_t n, int64_t k) { return exact(w, by, n, k); });
  }
  for (const bool k_outer : {true, false}) {
    const std::vector<Nvfp4Matrix> experts{random_matrix(24, 64, 1, 0.1f), random_matrix(24, 64, 2, 0.3f)};
    Tensors tensors;
    add_stack(tensors, "model.layers.0.mlp.experts.gate_up_proj", experts, k_outer, {2});
    const Scratch scratch;
    const Checkpoint c = open_checkpoint(scratch, tensors);
    const Linear m = only(find_weight_modules(c));
    CHECK((m.stacked && m.k_outer == k_outer && m.e == 2 && m.n == 24 && m.k == 64));
    check_values(c, m, [&](int64_t e, int64_t n, int64_t k) {
      const Nvfp4Matrix& w = experts[static_cast<size_t>(e)];
      return exact(w, double{w.global}, n, k);
    });
  }
}

TEST_CASE("linears are what is applied as a matrix, in natural order") {
  Tensors tensors;
  for (const char* name : {"lm_head", "model.layers.10.self_attn.q_proj", "model.layers.2.mlp.gate",
                           "model.layers.2.mlp.shared_expert_gate", "layers.0.ffn.gate", "head"}) {
    add_bf16(tensors, name + std::string(".weight"), {4, 6});
  }
  for (const char* name : {"model.embed_tokens", "embed", "transformer.wte", "x.word_embeddings",
                           "model.layers.0.weird_layernorm", "model.layers.0.conv1d"}) {
    add_bf16(tensors, name + std::string(".weight"), {4, 6});
  }
  add_bf16(tensors, "model.norm.weight", {6});
  add_bf16(tensors, "model.layers.0.linear_attn.conv1d.weight", {6, 1, 4});
  add_bf16(tensors, "visual.patch_embed.proj.weight", {6, 3, 2, 4, 4});
  add_bf16(tensors, "model.layers.0.self_attn.table", {4, 6});
  StoredTensor(DType::kI8, {4, 16}, 1).add_to(tensors, "int8.weight");
  StoredTensor(DType::kF32, {4, 1}, 1).add_to(tensors, "int8.weight_scale");
  add_bf16(tensors, "ple.ngram_embedding.shard_0.weight", {4, 6});
  add_modelopt(tensors, "nvfp4.some_norm", random_matrix(16, 16, 1));
  const Scratch scratch;
  std::vector<std::string> names;
  for (const Linear& m : find_weight_modules(open_checkpoint(scratch, tensors))) {
    names.push_back(m.name);
    CHECK(!m.is_table);
  }
  CHECK(names == std::vector<std::string>{"head", "layers.0.ffn.gate", "lm_head", "model.layers.2.mlp.gate",
                                          "model.layers.2.mlp.shared_expert_gate",
                                          "model.layers.10.self_attn.q_proj"});
}

TEST_CASE("quantized embeddings are found as tables, and pieces share their embedding's scale") {
  const std::string ple = "model.layers.1.ple.ple_embedding.ngram_embedding";
  const StoredTensor whole = fp8_weights({20, 8}, 1), row_scale = random_scales(DType::kF32, {20, 1}, 2),
                     first = fp8_weights({6, 8}, 3), second = fp8_weights({5, 8}, 4),
                     third = fp8_weights({4, 8}, 5), shared = random_scales(DType::kBF16, {1}, 6),
                     own = random_scales(DType::kF32, {4, 1}, 7);
  Tensors tensors;
  whole.add_to(tensors, "model.embed_tokens.weight");
  row_scale.add_to(tensors, "model.embed_tokens.weight_scale");
  first.add_to(tensors, ple + ".shard_0.weight");
  second.add_to(tensors, ple + ".shard_1.weight");
  third.add_to(tensors, ple + ".shards.2.weight");
  shared.add_to(tensors, ple + ".weight_scale");
  own.add_to(tensors, ple + ".shards.2.weight_scale");
  add_modelopt(tensors, "nvfp4.embed_tokens", random_matrix(16, 16, 1));
  const Scratch scratch;
  const Checkpoint c = open_checkpoint(scratch, tensors);
  const std::vector<Linear> tables = find_weight_modules(c);
  REQUIRE(tables.size() == 5);
  for (const Linear& m : tables) CHECK(m.is_table);
  const auto check = [&](const Linear& m, const std::string& name, const StoredTensor& w,
                         const StoredTensor& scale) {
    CHECK(m.name == name);
    CHECK(m.scale == c.find((&scale == &shared ? ple : name) + ".weight_scale"));
    check_values(c, m, [&](int64_t, int64_t n, int64_t k) {
      return w.number(n * 8 + k) * scale.number(scale.shape.size() == 1 ? 0 : n);
    });
  };
  check(tables[0], "model.embed_tokens", whole, row_scale);
  check(tables[1], ple + ".shard_0", first, shared);
  check(tables[2], ple + ".shard_1", second, shared);
  check(tables[3], ple + ".shards.2", third, own);
  CHECK(tables[4].format == WeightFormat::kNvfp4);

  // More than one number cannot be that of every piece.
  tensors[5].shape = {2};
  tensors[5].bytes.resize(4);
  const Scratch other;
  Problems problems;
  find_weight_modules(open_checkpoint(other, tensors), problems);
  REQUIRE(problems.lines().size() == 2);
  CHECK(problems.lines()[0] == "model.safetensors: " + ple +
                                   ".shard_0.weight: expected FP8 weights with .weight_scale_inv, "
                                   ".weight_scale or .scale beside them, "
                                   "found F8_E4M3 [6, 8]");
}

}  // namespace weights_test
