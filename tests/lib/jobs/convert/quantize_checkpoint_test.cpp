#include <doctest/doctest.h>
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <limits>

#include "formats/error.h"
#include "kernels/numbers/quantize.h"
#include "lib/base/io/file.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"

namespace quantize_checkpoint_test {

using namespace twofour;

namespace {

OneRule to_nvfp4(const std::string& dialect = "modelopt") {
  OneRule recipe;
  recipe.to = "quantize";
  recipe.dialect = dialect;
  return recipe;
}

struct Names {
  std::string codes, scales, global;
};
Names names_of(const std::string& dialect) {
  if (dialect == "modelopt") return {".weight", ".weight_scale", ".weight_scale_2"};
  return {".weight_packed", ".weight_scale", ".weight_global_scale"};
}

float largest_of(const std::vector<FloatMatrix>& matrices) {
  float largest = 0;
  for (const FloatMatrix& m : matrices) {
    for (const float x : m.values) largest = std::max(largest, std::fabs(x));
  }
  return largest;
}

/// Weights of every module as the reader gives them.
std::map<std::string, FloatMatrix> decoded(const std::filesystem::path& path) {
  const Checkpoint c = Checkpoint::open(path);
  WeightReader reader(c);
  std::map<std::string, FloatMatrix> all;
  for (const Linear& m : find_weight_modules(c)) {
    if (m.stacked) continue;
    FloatMatrix& to = all[m.name] = {m.n, m.k, std::vector<float>(static_cast<size_t>(m.n * m.k))};
    reader.read_rows(m, 0, 0, m.n, to.values);
  }
  return all;
}

/// Holds matrices that share a global scale against the kernel, run over each whole.
void check_group(const ReadTensors& out, const std::map<std::string, FloatMatrix>& weights,
                 const std::vector<std::string>& names, const std::string& dialect, QuantizeRule rule) {
  rule.arithmetic = dialect == "modelopt" ? Arithmetic::modelopt : Arithmetic::compressed_tensors;
  const Names suffix = names_of(dialect);
  std::vector<FloatMatrix> group;
  for (const std::string& name : names) group.push_back(weights.at(name));
  const GlobalScale global = global_scale_of(rule, largest_of(group));
  for (size_t i = 0; i < names.size(); ++i) {
    CAPTURE(names[i]);
    const FloatMatrix& m = group[i];
    std::vector<uint8_t> codes(m.values.size() / 2), scales(m.values.size() / 16);
    quantize_nvfp4(rule, global, m.values, codes.data(), scales.data());
    const ReadTensor& stored = out.at(names[i] + suffix.codes);
    CHECK(stored.dtype == DType::kU8);
    CHECK((stored.shape == std::vector{m.n, m.k / 2}));
    CHECK((stored.bytes == codes));
    const ReadTensor& block = out.at(names[i] + suffix.scales);
    CHECK(block.dtype == DType::kF8E4M3);
    CHECK((block.shape == std::vector{m.n, m.k / 16}));
    CHECK((block.bytes == scales));
    const ReadTensor& scalar = out.at(names[i] + suffix.global);
    CHECK(scalar.shape.size() == (dialect == "modelopt" ? 0 : 1));
    CHECK(std::bit_cast<uint32_t>(scalar.as<float>()[0]) == std::bit_cast<uint32_t>(global.stored));
  }
}

void check_valid(const std::filesystem::path& source, const std::filesystem::path& artifact) {
  const ValidateReport report = validate_from(source, artifact);
  CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
  CHECK(report.source_tensors == read_tensors(source).size());
  CHECK(validate(artifact).differences.empty());
}

Json quantization_of(const std::filesystem::path& artifact) {
  return parse_json("config", read_text(artifact / "config.json"))["quantization_config"];
}

const std::vector<std::vector<std::string>> kDenseGroups = {
    {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
    {"self_attn.o_proj"},
    {"mlp.gate_proj", "mlp.up_proj"},
    {"mlp.down_proj"}};

}  // namespace

TEST_CASE("a dense model is quantized as the kernel does, fused matrices under one global scale") {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
      CAPTURE(dialect);
      const Scratch scratch;
      write_checkpoint(scratch / "src", {dense_model(dtype)});
      const ConvertResult result = convert(scratch / "src", scratch / "out", to_nvfp4(dialect));
      CHECK(result.modules.size() == 14);
      const ReadTensors out = read_tensors(scratch / "out");
      const auto weights = decoded(scratch / "src");
      QuantizeRule rule;
      rule.weight_type = dtype;
      for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
        for (std::vector<std::string> group : kDenseGroups) {
          for (std::string& name : group) name = layer + name;
          check_group(out, weights, group, dialect, rule);
        }
      }
      CHECK(out.size() == 14 * 3 + 2 + 2);
      const ReadTensors before = read_tensors(scratch / "src");
      for (const char* same : {"lm_head.weight", "model.embed_tokens.weight"}) {
        CHECK((out.at(same) == before.at(same)));
      }
      const Json config = quantization_of(scratch / "out");
      CHECK(config["quant_method"] == dialect);
      CHECK(config["ignore"] == Json::array({"lm_head"}));
      CHECK(config["config_groups"]["group_0"]["input_activations"].is_null());
      check_valid(scratch / "src", scratch / "out");
    }
  }
}

TEST_CASE("every rule of block scales is passed on") {
  for (const auto& [word, block_scale] :
       {std::pair{"mse", BlockScale::mse}, {"four-over-six", BlockScale::four_over_six}}) {
    for (const bool zero : {false, true}) {
      const Scratch scratch;
      write_checkpoint(scratch / "src", {dense_model()});
      OneRule recipe = to_nvfp4();
      recipe.block_scale = word;
      recipe.zero_block = zero ? "zero" : "producer";
      convert(scratch / "src", scratch / "out", recipe);
      QuantizeRule rule;
      rule.weight_type = DType::kBF16;
      rule.block_scale = block_scale;
      rule.zero_block = zero ? ZeroBlock::zero : ZeroBlock::producer;
      check_group(read_tensors(scratch / "out"), decoded(scratch / "src"),
                  {"model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj"}, "modelopt", rule);
      check_valid(scratch / "src", scratch / "out");
    }
  }
}

TEST_CASE("arithmetic and dialect may be of different producers") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {dense_model()});
  OneRule recipe = to_nvfp4("modelopt");
  recipe.arithmetic = "compressed-tensors";
  convert(scratch / "src", scratch / "mixed", recipe);
  convert(scratch / "src", scratch / "pure", to_nvfp4("compressed-tensors"));
  const ReadTensors mixed = read_tensors(scratch / "mixed"), pure = read_tensors(scratch / "pure");
  const std::string name = "model.layers.0.mlp.down_proj";
  CHECK((mixed.at(name + ".weight").bytes == pure.at(name + ".weight_packed").bytes));
  CHECK((mixed.at(name + ".weight_scale").bytes == pure.at(name + ".weight_scale").bytes));
  CHECK(mixed.at(name + ".weight_scale_2").as<float>()[0] ==
        1.0f / pure.at(name + ".weight_global_scale").as<float>()[0]);
  check_valid(scratch / "src", scratch / "mixed");
}

TEST_CASE("stacks become the matrices that the same experts in tensors of their own become") {
  const std::string block = "model.layers.0.mlp.experts";
  std::vector<FloatMatrix> gates, ups, downs, halves, interleaved;
  Tensors single;
  for (unsigned e = 0; e < 3; ++e) {
    gates.push_back(random_floats(32, 48, 10 * e + 1, 0.01f));
    ups.push_back(random_floats(32, 48, 10 * e + 2, 0.03f));
    downs.push_back(random_floats(48, 32, 10 * e + 3));
    halves.push_back(join_rows(gates[e], ups[e], false));
    interleaved.push_back(join_rows(gates[e], ups[e], true));
    add_floats(single, fmt::format("{}.{}.gate_proj", block, e), gates[e]);
    add_floats(single, fmt::format("{}.{}.up_proj", block, e), ups[e]);
    add_floats(single, fmt::format("{}.{}.down_proj", block, e), downs[e]);
  }
  for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
    const Scratch scratch;
    write_checkpoint(scratch / "single", {single});
    convert(scratch / "single", scratch / "expected", to_nvfp4(dialect));
    const ReadTensors expected = read_tensors(scratch / "expected");
    CHECK(expected.size() == 27);
    const Names suffix = names_of(dialect);
    CHECK((expected.at(block + ".1.gate_proj" + suffix.global) ==
           expected.at(block + ".1.up_proj" + suffix.global)));
    for (const std::string form : {"halves", "k_outer", "interleaved"}) {
      CAPTURE(form);
      Tensors tensors;
      add_float_stack(tensors, block + ".gate_up_proj", form == "interleaved" ? interleaved : halves,
                      form == "k_outer");
      add_float_stack(tensors, block + ".down_proj", downs, form == "k_outer");
      const FloatMatrix bias = random_floats(3, 64, 5), down_bias = random_floats(3, 48, 6);
      if (form == "interleaved") {
        tensors.push_back(
            {block + ".gate_up_proj_bias", DType::kBF16, {3, 64}, float_bytes_as(DType::kBF16, bias.values)});
        tensors.push_back({block + ".down_proj_bias",
                           DType::kBF16,
                           {3, 48},
                           float_bytes_as(DType::kBF16, down_bias.values)});
      }
      // One row block, and row blocks of a few rows.
      for (const uint64_t piece : {64u << 20, 24u * 48u * 5u}) {
        CAPTURE(piece);
        const std::filesystem::path src = scratch / fmt::format("{}-{}", form, piece),
                                    dst = src.string() + "-out";
        write_checkpoint(src, {tensors});
        MemoryLimits limits;
        limits.piece = piece;
        convert(src, dst, to_nvfp4(dialect), {}, limits);
        ReadTensors out = read_tensors(dst);
        if (form == "interleaved") {
          std::vector<uint16_t> gate_bias;
          for (size_t i = 64; i < 128; i += 2) gate_bias.push_back(bf16_from_float(bias.values[i]));
          CHECK((out.at(block + ".1.gate_proj.bias").as<uint16_t>() == gate_bias));
          std::vector<uint16_t> last(down_bias.values.size() / 3);
          for (size_t i = 0; i < last.size(); ++i) last[i] = bf16_from_float(down_bias.values[96 + i]);
          CHECK((out.at(block + ".2.down_proj.bias").as<uint16_t>() == last));
          std::erase_if(out, [](const auto& t) { return t.first.ends_with(".bias"); });
        }
        CHECK((out == expected));
        check_valid(src, dst);
      }
    }
  }
}

TEST_CASE(
    "weights of zeros get a global scale of 1, those that are not finite are refused with their place") {
  const Scratch scratch;
  Tensors tensors = dense_model();
  FloatMatrix zeros{32, 48, std::vector<float>(32 * 48)};
  zeros.values[5] = -0.0f;
  add_floats(tensors, "model.layers.2.mlp.down_proj", zeros);
  write_checkpoint(scratch / "src", {tensors});
  for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
    const auto to = scratch / dialect;
    const ConvertResult result = convert(scratch / "src", to, to_nvfp4(dialect));
    const auto found = findings_of(result.findings, "zero-weights");
    REQUIRE(found.size() == 1);
    CHECK(found[0].where == "model.layers.2.mlp.down_proj");
    const ReadTensors out = read_tensors(to);
    const Names suffix = names_of(dialect);
    CHECK(out.at(found[0].where + suffix.global).as<float>()[0] == 1);
    for (const std::string& part : {suffix.codes, suffix.scales}) {
      const auto& bytes = out.at(found[0].where + part).bytes;
      CHECK(std::count(bytes.begin(), bytes.end(), 0) == static_cast<int64_t>(bytes.size()));
    }
    check_valid(scratch / "src", to);
  }
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    zeros.values[3 * 48 + 7] = bad;
    tensors.pop_back();
    add_floats(tensors, "model.layers.2.mlp.down_proj", zeros);
    write_checkpoint(scratch / "bad", {tensors});
    CHECK_THROWS_WITH_AS(
        convert(scratch / "bad", scratch / "none", to_nvfp4()),
        fmt::format("model.safetensors: model.layers.2.mlp.down_proj.weight: expected finite "
                    "weights, found {} at row 3, k 7",
                    bad)
            .c_str(),
        Error);
    CHECK(!std::filesystem::exists(scratch / "none"));
  }
}

TEST_CASE("the same bytes for any number of jobs and any strips") {
  const Scratch scratch;
  Tensors tensors = dense_model();
  add_floats(tensors, "model.layers.2.mlp.gate_proj", random_floats(600, 512, 1));
  add_floats(tensors, "model.layers.2.mlp.up_proj", random_floats(600, 512, 2));
  write_checkpoint(scratch / "src", {tensors});
  OneRule recipe = to_nvfp4();
  recipe.max_shard_size = 100'000;
  convert(scratch / "src", scratch / "one", recipe);
  ConvertOptions options;
  options.jobs = 3;
  MemoryLimits limits;
  limits.piece = 24 * 512 * 7;
  convert(scratch / "src", scratch / "three", recipe, options);
  convert(scratch / "src", scratch / "strips", recipe, options, limits);
  const auto expected = read_tree(scratch / "one");
  CHECK((read_tree(scratch / "three") == expected));
  CHECK((read_tree(scratch / "strips") == expected));
  limits.piece = 24 * 511;
  CHECK_THROWS_AS(convert(scratch / "src", scratch / "none", recipe, options, limits), Error);
}

TEST_CASE("one flipped bit is found in whatever tensor") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {dense_model()});
  convert(scratch / "src", scratch / "out", to_nvfp4());
  const Checkpoint c = Checkpoint::open(scratch / "out");
  for (size_t i = 0; i < c.tensors().size(); i += 3) {
    const uint64_t at = c.shard_of(i).data_begin + c.tensors()[i].begin + c.tensors()[i].bytes() - 1;
    flip_bit(c.shard_of(i).file.path(), at, 1);
    const auto found = findings_of(validate_from(scratch / "src", scratch / "out").differences, "bytes");
    REQUIRE(found.size() == 1);
    CHECK(found[0].where == c.tensors()[i].name);
    flip_bit(c.shard_of(i).file.path(), at, 1);
  }
}

}  // namespace quantize_checkpoint_test
