#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>

#include "formats/error.h"
#include "lib/source/linears/linears.h"
#include "tests/support/message.h"
#include "tests/support/weights/stored_int4.h"

namespace int4_test {

using namespace twofour;

namespace {

void check_int4(const Tensors& tensors, const StoredInt4& w, Int4Packing packing,
                const std::string& config = "{}") {
  CAPTURE(config);
  const Scratch scratch;
  const Checkpoint c = open_checkpoint(scratch, tensors, config);
  const Linear m = only(find_weight_modules(c));
  CHECK(m.format == WeightFormat::kInt4);
  CHECK(m.packing == packing);
  CHECK((m.name == "m" && m.e == 1 && m.n == w.n && m.k == w.k && !m.is_table));
  CHECK(m.tensors().size() == tensors.size());
  check_values(c, m, [&](int64_t, int64_t n, int64_t k) { return w.exact(n, k); });
}

/// Why the one module of some tensors is not read; empty if it is.
std::string message(const Tensors& tensors, const std::string& config = "{}") {
  const Scratch scratch;
  const Checkpoint c = open_checkpoint(scratch, tensors, config);
  Problems problems;
  const auto modules = find_weight_modules(c, problems);
  CHECK(modules.empty() == !problems.empty());
  return message_of([&] { problems.refuse(); });
}

TensorData& named(Tensors& tensors, const std::string& name) {
  for (TensorData& t : tensors) {
    if (t.name == name) return t;
  }
  throw Error("no such tensor");
}

/// Cuts a tensor to that shape, or fills it up.
void reshape(Tensors& tensors, const std::string& name, std::vector<int64_t> shape) {
  TensorData& t = named(tensors, name);
  size_t bytes = static_cast<size_t>(dtype_bits(t.dtype)) / 8;
  for (const int64_t d : shape) bytes *= static_cast<size_t>(d);
  t.shape = std::move(shape);
  t.bytes.resize(bytes);
}

const std::string at = "model.safetensors: m.";

}  // namespace

TEST_CASE("INT4 of compressed-tensors: groups and rows, with and without zero points, K that fills no word") {
  struct Case {
    int64_t n, k, group;
    DType scales;
  };
  unsigned seed = 0;
  for (const Case& x :
       {Case{1, 8, 8, DType::kBF16}, Case{12, 64, 32, DType::kBF16}, Case{9, 96, 16, DType::kF16},
        Case{170, 40, 40, DType::kF32}, Case{7, 37, 37, DType::kBF16}, Case{16, 1, 1, DType::kF32}}) {
    for (const bool asymmetric : {false, true}) {
      for (const DType shape_type : {DType::kI64, DType::kI32}) {
        CAPTURE(x.k);
        StoredInt4 w(x.n, x.k, x.group, x.scales, ++seed);
        if (!asymmetric) w.make_symmetric();
        Tensors tensors;
        w.add_packed(tensors, "m", asymmetric, shape_type);
        check_int4(tensors, w, Int4Packing::kAlongK);
      }
    }
  }
}

TEST_CASE("INT4 of compressed-tensors: groups in the order of activations, -1 for none") {
  StoredInt4 w(10, 96, 32, DType::kBF16, 1);
  w.shuffle(2);
  Tensors tensors;
  w.add_packed(tensors, "m", true);
  w.add_index(tensors, "m.weight_g_idx");
  check_int4(tensors, w, Int4Packing::kAlongK);
  const StoredInt4 ordered(10, 96, 32, DType::kBF16, 1);
  named(tensors, "m.weight_g_idx").bytes.assign(96 * 4, 0xFF);
  check_int4(tensors, ordered, Int4Packing::kAlongK);
}

TEST_CASE("a last group that is cut off has the size that the configuration states") {
  StoredInt4 w(6, 80, 32, DType::kF32, 4);
  Tensors tensors;
  w.add_packed(tensors, "m", true);
  check_int4(
      tensors, w, Int4Packing::kAlongK,
      R"({"quantization_config": {"config_groups": {"g": {"weights": {"group_size": 32, "num_bits": 4}}}}})");
  CHECK(message(tensors) ==
        at + "weight_scale: expected scales of groups that divide K = 80 or that the config "
             "states, found F32 [6, 3]");
}

TEST_CASE("INT4 without weight_shape has eight weights in every word") {
  StoredInt4 w(6, 64, 32, DType::kF32, 4);
  Tensors tensors;
  w.add_packed(tensors, "m", true);
  tensors.pop_back();
  check_int4(tensors, w, Int4Packing::kAlongK);
}

TEST_CASE("integers of a group with eight bits are no INT4 of twice the width, without weight_shape either") {
  StoredInt4 w(6, 64, 32, DType::kF32, 4);
  Tensors tensors;
  w.make_symmetric();
  w.add_packed(tensors, "m", true);
  tensors.pop_back();
  const auto config = [](int bits_of_m) {
    return R"({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
        "a": {"targets": ["re:^m$"], "weights": {"num_bits": )" +
           std::to_string(bits_of_m) + R"(, "type": "int"}},
        "b": {"targets": ["Linear"], "weights": {"num_bits": )" +
           std::to_string(12 - bits_of_m) + R"(, "type": "int"}}}}})";
  };
  check_int4(tensors, w, Int4Packing::kAlongK, config(4));
  CHECK(message(tensors, config(8)) == at + "weight_packed: expected integers of 4 bits, found 8 bits");
}

TEST_CASE("INT4 of GPTQ: zero points by the checkpoint's format, groups in any order and of any size") {
  for (const bool v2 : {false, true}) {
    for (const bool shuffled : {false, true}) {
      StoredInt4 w(48, 96, 32, DType::kF16, 3);
      if (!v2) w.raise_zeros();
      if (shuffled) w.shuffle(5);
      Tensors tensors;
      w.add_gptq(tensors, "m", v2 ? 0 : 1);
      w.add_index(tensors, "m.g_idx");
      const char* format =
          v2 ? R"(, "checkpoint_format": "gptq_v2", "desc_act": true)" : R"(, "checkpoint_format": "gptq")";
      check_int4(tensors, w, Int4Packing::kGptq, int4_config("gptq", 32, format));
      if (v2) continue;
      check_int4(tensors, w, Int4Packing::kGptq, "{}");
      check_int4(tensors, w, Int4Packing::kGptq, int4_config("gptq", 32));
      check_int4(tensors, w, Int4Packing::kGptq,
                 int4_config("auto-round", 32, R"(, "packing_format": "auto_round:auto_gptq")"));
      if (!shuffled) {
        tensors.pop_back();
        check_int4(tensors, w, Int4Packing::kGptq, int4_config("gptq", 32));
      }
    }
  }
  StoredInt4 uneven(11, 43, 5, DType::kF32, 3);  // neither N nor K fills words
  uneven.raise_zeros();
  std::fill_n(uneven.index.begin(), 20, 0);
  uneven.shuffle(6);
  Tensors tensors;
  uneven.add_gptq(tensors, "m", 1);
  uneven.add_index(tensors, "m.g_idx");
  check_int4(tensors, uneven, Int4Packing::kGptq);
}

TEST_CASE("INT4 described beside config.json: by AutoGPTQ's and AutoAWQ's files, which must not contradict") {
  StoredInt4 w(48, 96, 32, DType::kF16, 3);
  const auto check = [&](const Tensors& tensors, const std::string& config, const char* file,
                         const std::string& side, Int4Packing packing, const std::string& problem) {
    CAPTURE(config);
    CAPTURE(side);
    const Scratch scratch;
    std::filesystem::create_directories(scratch / "c");
    std::ofstream(scratch / "c" / file) << side;
    const Checkpoint c = open_checkpoint(scratch, tensors, config);
    Problems problems;
    const auto modules = find_weight_modules(c, problems);
    if (!problem.empty()) {
      CHECK(contains(message_of([&] { problems.refuse(); }), problem));
      return;
    }
    problems.refuse();
    const Linear m = only(modules);
    CHECK(m.packing == packing);
    check_values(c, m, [&](int64_t, int64_t n, int64_t k) { return w.exact(n, k); });
  };
  const std::string v2 = R"({"bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"})";
  Tensors gptq, awq;
  w.add_gptq(gptq, "m", 0);
  for (const std::string& config : {std::string("{}"), int4_config("gptq", 32)})
    check(gptq, config, "quantize_config.json", v2, Int4Packing::kGptq, "");
  const auto stated = int4_config("gptq", 32, R"(, "checkpoint_format": "gptq")");
  check(gptq, stated, "quantize_config.json", v2, Int4Packing::kGptq,
        "quantize_config.json: checkpoint_format: expected gptq (config.json), found gptq_v2");
  check(gptq, "{}", "quantize_config.json", R"({"bits": 8, "group_size": 32})", Int4Packing::kGptq,
        "found 8");
  w.add_awq(awq, "m");
  check(awq, "{}", "quant_config.json", R"({"w_bit": 4, "q_group_size": 32, "version": "GEMM"})",
        Int4Packing::kAwq, "");
  check(awq, "{}", "quant_config.json", R"({"w_bit": 4, "q_group_size": 32, "version": "GEMV"})",
        Int4Packing::kAwq, "version: expected gemm, found GEMV");
}

TEST_CASE("INT4 of AWQ: rows interleaved in words") {
  for (const auto& [n, k, group] : {std::tuple{8, 32, 32}, std::tuple{168, 96, 32}, std::tuple{16, 5, 5}}) {
    const StoredInt4 w(n, k, group, DType::kF16, 3);
    Tensors tensors;
    w.add_awq(tensors, "m");
    check_int4(tensors, w, Int4Packing::kAwq);
    check_int4(tensors, w, Int4Packing::kAwq, int4_config("awq", group, R"(, "version": "gemm")"));
    check_int4(tensors, w, Int4Packing::kAwq,
               R"({"quantization_config": {"quant_method": "awq", "w_bit": 4, "version": "GEMM"}})");
    check_int4(tensors, w, Int4Packing::kAwq,
               int4_config("auto-round", group, R"(, "packing_format": "auto_round:auto_awq")"));
  }
}

TEST_CASE("an embedding in INT4 is a table") {
  const StoredInt4 w(12, 64, 32, DType::kBF16, 1);
  Tensors tensors;
  w.add_packed(tensors, "model.embed_tokens_per_layer", true);
  const Scratch scratch;
  const Linear m = only(find_weight_modules(open_checkpoint(scratch, tensors)));
  CHECK((m.is_table && m.format == WeightFormat::kInt4));
}

TEST_CASE("INT4 of compressed-tensors with tensors that disagree is refused") {
  const auto damaged = [](auto&& damage, const std::string& config = "{}") {
    const StoredInt4 w(12, 64, 32, DType::kBF16, 1);
    Tensors tensors;
    w.add_packed(tensors, "m", true);
    w.add_index(tensors, "m.weight_g_idx");
    damage(tensors);
    return message(tensors, config);
  };
  const auto reshaped = [&](const std::string& name, const std::vector<int64_t>& shape) {
    return damaged([&](Tensors& t) { reshape(t, "m." + name, shape); });
  };
  const auto retyped = [&](const std::string& name, DType type, const std::vector<int64_t>& shape) {
    return damaged([&](Tensors& t) {
      named(t, "m." + name).dtype = type;
      reshape(t, "m." + name, shape);
    });
  };
  CHECK(damaged([](Tensors&) {}).empty());
  CHECK(damaged([](Tensors& t) { std::erase_if(t, [](auto& x) { return x.name == "m.weight_scale"; }); }) ==
        at + "weight_packed: expected INT4 codes with their scales beside them, found I32 [12, 8]");
  CHECK(retyped("weight_scale", DType::kI32, {12, 2}) ==
        at + "weight_packed: expected INT4 codes with their scales beside them, found I32 [12, 8]");
  CHECK(reshaped("weight_scale", {12}) == at + "weight_scale: expected [12, K/group], found BF16 [12]");
  CHECK(reshaped("weight_scale", {11, 2}) == at + "weight_scale: expected [12, K/group], found BF16 [11, 2]");
  CHECK(reshaped("weight_scale", {12, 0}) == at + "weight_scale: expected [12, K/group], found BF16 [12, 0]");
  CHECK(reshaped("weight_zero_point", {12, 2}) ==
        at + "weight_zero_point: expected I32 [2, 2], found I32 [12, 2]");
  CHECK(retyped("weight_zero_point", DType::kI8, {2, 2}) ==
        at + "weight_zero_point: expected I32 [2, 2], found I8 [2, 2]");
  CHECK(reshaped("weight_g_idx", {63}) == at + "weight_g_idx: expected I32 [64], found I32 [63]");
  CHECK(reshaped("weight_shape", {3}) == at + "weight_shape: expected [2], N and K, found I64 [3]");
  CHECK(retyped("weight_shape", DType::kF32, {2}) ==
        at + "weight_shape: expected I64 [2] or I32 [2], found F32 [2]");
  CHECK(reshaped("weight_packed", {12, 0}).find("expected at least one weight") != std::string::npos);
  CHECK(reshaped("weight_packed", {12, 9}) == at + "weight_packed: expected I32 [12, 8], found I32 [12, 9]");
  CHECK(reshaped("weight_packed", {12, 16}) ==
        at + "weight_packed: expected integers of 4 bits, found 8 bits");
  CHECK(reshaped("weight_packed", {12, 6}) ==
        at + "weight_packed: expected integers of 4 bits, found 3 bits");
  CHECK(
      damaged(
          [](Tensors&) {},
          R"({"quantization_config": {"config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}}}}})") ==
      at + "weight_packed: expected integers of 4 bits, found 8 bits");
  const auto shape_of = [&](int64_t n, int64_t k) {
    return damaged([&](Tensors& t) {
      std::memcpy(named(t, "m.weight_shape").bytes.data(), &n, 8);
      std::memcpy(named(t, "m.weight_shape").bytes.data() + 8, &k, 8);
    });
  };
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{13, 64}, {12, 0}, {12, -64}, {12, INT64_MAX}}) {
    CHECK(shape_of(n, k) ==
          at + fmt::format(
                   "weight_shape: expected N and K of m.weight_packed, [12, at most 64], found [{}, {}]", n,
                   k));
  }
  CHECK(shape_of(12, 65).find("weight_packed: expected I32 [12, 9], found I32 [12, 8]") != std::string::npos);
}

TEST_CASE("AWQ and GPTQ with tensors that disagree, or as the configuration does not say, are refused") {
  const auto damaged = [](bool awq, auto&& damage, const std::string& config = "{}") {
    StoredInt4 w(16, 64, 32, DType::kF16, 1);
    w.raise_zeros();
    if (awq) w.make_symmetric();
    Tensors tensors;
    awq ? w.add_awq(tensors, "m") : w.add_gptq(tensors, "m", 1);
    if (!awq) w.add_index(tensors, "m.g_idx");
    damage(tensors);
    return message(tensors, config);
  };
  const auto none = [](Tensors&) {};
  const auto reshaped = [&](bool awq, const std::string& name, const std::vector<int64_t>& shape) {
    return damaged(awq, [&](Tensors& t) { reshape(t, "m." + name, shape); });
  };
  for (const bool awq : {false, true}) {
    CHECK(damaged(awq, none).empty());
    const char* words = awq ? "I32 [64, 2]" : "I32 [8, 16]";
    CHECK(damaged(awq, [](Tensors& t) { std::erase_if(t, [](auto& x) { return x.name == "m.scales"; }); }) ==
          at + "qweight: expected INT4 codes with their scales beside them, found " + words);
    CHECK(damaged(awq, [](Tensors& t) { std::erase_if(t, [](auto& x) { return x.name == "m.qzeros"; }); }) ==
          at + "qweight: expected qzeros beside it, found " + words);
    CHECK(reshaped(awq, "qzeros", {2, 3}) == at + "qzeros: expected I32 [2, 2], found I32 [2, 3]");
    CHECK(reshaped(awq, "qzeros", {2, 4}) == at + "qweight: expected integers of 4 bits, found 8 bits");
    CHECK(reshaped(awq, "qzeros", {3, 2}) == at + "qzeros: expected I32 [2, 2], found I32 [3, 2]");
    CHECK(reshaped(awq, "scales", {16}) == at + "scales: expected [K/group, N], found F16 [16]");
    CHECK(reshaped(awq, "scales", {2, 17}) ==
          at + "qweight: expected I32 [K/8, 17] (GPTQ) or [K, 3] (AWQ), found " + words);
    CHECK(damaged(awq, none, R"({"quantization_config": {"quant_method": "gptq", "bits": 8}})") ==
          at + "qweight: expected integers of 4 bits, found 8 bits");
    CHECK(damaged(awq, none, int4_config(awq ? "gptq" : "awq", 32)) ==
          at + "qweight: expected I32 " +
              (awq ? "[K/8, N] (quant_method gptq)" : "[K, N/8] (quant_method awq)") + ", found " + words);
    CHECK(damaged(awq, none, int4_config("auto-round", 32)) ==
          at + "qweight: packing_format: expected auto_round:auto_" + (awq ? "awq" : "gptq") +
              ", found none");
  }
  CHECK(damaged(true, none, int4_config("awq", 32, R"(, "version": "gemv")")) ==
        at + "qweight: version: expected gemm, found gemv");
  CHECK(damaged(false, none, int4_config("gptq", 32, R"(, "checkpoint_format": "marlin")")) ==
        at + "qweight: checkpoint_format: expected gptq or gptq_v2, found marlin");
  CHECK(reshaped(false, "g_idx", {65}) == at + "g_idx: expected I32 [64], found I32 [65]");
  CHECK(reshaped(true, "qweight", {64, 4}) == at + "qweight: expected integers of 4 bits, found 8 bits");
}

TEST_CASE("INT4 as ModelOpt packs it is refused by name") {
  Tensors tensors;
  StoredTensor(DType::kU8, {8, 64}, 1).add_to(tensors, "m.weight");
  random_scales(DType::kBF16, {16, 2}, 2).add_to(tensors, "m.weight_scale");
  CHECK(message(tensors) ==
        at +
            "weight: expected INT4 of compressed-tensors, AWQ or GPTQ, not W4A16_AWQ or W4A8_AWQ as ModelOpt "
            "packs it, found U8 [8, 64]");
}

TEST_CASE("sizes that a configuration states may be absurd") {
  const StoredInt4 w(12, 64, 64, DType::kBF16, 1);
  Tensors tensors;
  w.add_packed(tensors, "m", true);
  for (const char* size :
       {"0", "-1", "-128", "9223372036854775807", "1073741824", "64.5", "\"64\"", "null"}) {
    check_int4(tensors, w, Int4Packing::kAlongK,
               R"({"quantization_config": {"config_groups": {"g": {"weights": {"group_size": )" +
                   std::string(size) + "}}}}}");
  }
}

TEST_CASE("INT4 scales that are no numbers and groups that do not exist are refused by their place") {
  const auto refused = [](auto&& damage) {
    StoredInt4 w(16, 64, 32, DType::kF16, 1);
    w.raise_zeros();
    Tensors tensors;
    w.add_gptq(tensors, "m", 1);
    w.add_index(tensors, "m.g_idx");
    damage(tensors);
    const Scratch scratch;
    const Checkpoint c = open_checkpoint(scratch, tensors);
    const Linear m = only(find_weight_modules(c));
    WeightReader reader(c);
    std::vector<float> out(static_cast<size_t>(m.n * m.k));
    CHECK_THROWS_AS(derive_weights(c, reader, m, 0, 0, m.n), Error);
    return message_of([&] { reader.read_rows(m, 0, 0, m.n, out); });
  };
  CHECK(refused([](Tensors& t) {
          named(t, "m.scales").bytes[2 * 21 + 1] = 0x7C;
        }).starts_with(at + "scales: expected scales that are finite, found"));
  for (const int32_t group : {2, -1, INT32_MIN, INT32_MAX}) {
    CHECK(refused([&](Tensors& t) { std::memcpy(&named(t, "m.g_idx").bytes[4 * 9], &group, 4); }) ==
          at + fmt::format("g_idx: expected groups of 0 to 1, found {} at k 9", group));
  }
}

}  // namespace int4_test
