#include <doctest/doctest.h>

#include <fstream>

#include "formats/error.h"
#include "lib/lint/lint.h"
#include "lib/look/inspect/inspect.h"
#include "lib/look/inspect/slice.h"
#include "tests/support/conversion.h"
#include "tests/support/diff_of.h"
#include "tests/support/message.h"
#include "tests/support/weights/stored_int4.h"

namespace int4_sources_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// An INT4 model as one producer stores it, and the same weights in F32.
struct Int4Model {
  Tensors coded, plain;
  std::string config;
};

/// 64 numbers of ordinary size.
void add_vector(Tensors& to, const std::string& name, unsigned seed) {
  to.push_back(
      {name, DType::kBF16, {64}, float_bytes_as(DType::kBF16, random_floats(1, 64, seed, 0.5f).values)});
}

Int4Model make_model(const std::string& how) {
  Int4Model model;
  unsigned seed = 0;
  const auto add = [&](const std::string& name, int64_t n, int64_t k) {
    StoredInt4 w(n, k, 32, how == "awq" ? DType::kF16 : DType::kBF16, ++seed);
    if (how == "symmetric") w.make_symmetric();
    if (how == "gptq") w.raise_zeros();
    if (how == "gptq" || how == "act-order") w.shuffle(seed);
    if (how == "awq") {
      w.add_awq(model.coded, name);
    } else if (how.starts_with("gptq")) {
      w.add_gptq(model.coded, name, how == "gptq" ? 1 : 0);
      w.add_index(model.coded, name + ".g_idx");
    } else {
      w.add_packed(model.coded, name, how != "symmetric");
      if (how == "act-order") w.add_index(model.coded, name + ".weight_g_idx");
    }
    FloatMatrix floats{n, k, {}};
    for (int64_t i = 0; i < n * k; ++i) floats.values.push_back(static_cast<float>(w.exact(i / k, i % k)));
    add_floats(model.plain, name, floats, DType::kF32);
  };
  const std::string layer = "model.layers.0.";
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"})
    add(layer + name, 24, 64);
  add(layer + "mlp.gate_proj", 104, 64);
  add(layer + "mlp.up_proj", 104, 64);
  add(layer + "mlp.down_proj", 64, 96);
  for (Tensors* tensors : {&model.coded, &model.plain}) {
    add_vector(*tensors, layer + "mlp.down_proj.bias", 5);
    add_floats(*tensors, "model.embed_tokens", random_floats(40, 64, 6));
    add_floats(*tensors, "lm_head", random_floats(40, 64, 7));
    add_vector(*tensors, layer + "input_layernorm.weight", 8);
  }
  model.config = how == "awq"    ? int4_config("awq", 32, R"(, "version": "gemm", "zero_point": true)")
                 : how == "gptq" ? int4_config("gptq", 32, R"(, "desc_act": true)")
                 : how == "gptq_v2"
                     ? int4_config("gptq", 32, R"(, "checkpoint_format": "gptq_v2")")
                     : R"({"quantization_config": {"quant_method": "compressed-tensors",
      "format": "pack-quantized", "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"],
      "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, )" +
                           std::string(how == "act-order" ? R"("actorder": "group", )" : "") +
                           R"("symmetric": )" + std::string(how == "symmetric" ? "true" : "false") + "}}}}}";
  return model;
}

constexpr const char* kProducers[] = {"symmetric", "asymmetric", "act-order", "awq", "gptq", "gptq_v2"};

OneRule quantize_to(const std::string& to, const std::string& dialect) {
  OneRule recipe;
  recipe.to = to;
  recipe.dialect = dialect;
  if (to == "fp8" && dialect == "deepseek") recipe.odd_blocks = "write";
  return recipe;
}

}  // namespace

TEST_CASE("INT4 of every producer is quantized as its values in F32 are, and proven") {
  for (const std::string how : kProducers) {
    CAPTURE(how);
    const Int4Model model = make_model(how);
    const Scratch scratch;
    write_checkpoint(scratch / "coded", {model.coded}, model.config);
    write_checkpoint(scratch / "plain", {model.plain}, "{}");
    for (const OneRule& recipe :
         {quantize_to("quantize", "modelopt"), quantize_to("quantize", "compressed-tensors"),
          quantize_to("fp8", "compressed-tensors")}) {
      const fs::path to = scratch / (recipe.to + recipe.dialect),
                     from_plain = scratch / (recipe.to + recipe.dialect + "p");
      OneRule of_layers = recipe;
      if (recipe.to == "fp8") of_layers.selection.include = parse_patterns({"re:.*_proj"});
      const ConvertResult result = convert(scratch / "coded", to, of_layers);
      convert(scratch / "plain", from_plain, of_layers);
      CHECK((read_tensors(to) == read_tensors(from_plain)));
      CHECK(findings_of(result.findings, "rounded-twice").size() == 1);
      const ValidateReport report = validate_from(scratch / "coded", to);
      CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
      CHECK(report.source_tensors == model.coded.size());
    }
  }
}

TEST_CASE("INT4 stays beside what a rule makes where the dialect has words for it") {
  for (const std::string how : kProducers) {
    CAPTURE(how);
    const Int4Model model = make_model(how);
    const Scratch scratch;
    write_checkpoint(scratch / "coded", {model.coded}, model.config);
    OneRule mlp = quantize_to("quantize", "compressed-tensors");
    mlp.selection.include = parse_patterns({"re:.*mlp.*"});
    if (how == "awq" || how.starts_with("gptq")) {
      contains(message_of([&] { convert(scratch / "coded", scratch / "out", mlp); }),
               "self_attn.k_proj.qweight: expected a format that the compressed-tensors dialect can name, "
               "found INT4");
      CHECK(!fs::exists(scratch / "out"));
      continue;
    }
    convert(scratch / "coded", scratch / "out", mlp);
    const ReadTensors before = read_tensors(scratch / "coded"), after = read_tensors(scratch / "out");
    for (const auto& [name, tensor] : before) {
      const bool goes = name.find("mlp") != std::string::npos && !name.ends_with(".bias");
      CHECK((goes || (after.contains(name) && after.at(name) == tensor)));
    }
    CHECK(after.contains("model.layers.0.mlp.up_proj.weight_global_scale"));
    const Json config = Checkpoint::open(scratch / "out").config()["quantization_config"];
    CHECK(config["format"] == "mixed-precision");
    CHECK(config["config_groups"].size() == 2);
    CHECK(validate_from(scratch / "coded", scratch / "out").differences.empty());
  }
}

TEST_CASE("files of AutoGPTQ and AutoAWQ stay behind where formats change, and lint compares them") {
  for (const auto& [how, file] : {std::pair{"gptq", "quantize_config.json"}, {"awq", "quant_config.json"}}) {
    CAPTURE(how);
    const Int4Model model = make_model(how);
    const Scratch scratch;
    const fs::path src = scratch / "src";
    write_checkpoint(src, {model.coded}, model.config);
    const auto linted = [&](const std::string& text) {
      std::ofstream(src / file) << text;
      Progress progress;
      std::string all;
      for (const LintFinding& f : lint(src, {}, progress).findings) {
        if (f.file == file) all += f.message;
      }
      return all;
    };
    CHECK(linted(R"({"bits": 4, "group_size": 32})") == "");
    CHECK(contains(linted(R"({"bits": 4, "group_size": 128})"), "expected 32 (config.json), found 128"));
    CHECK(contains(linted(R"({"w_bit": 8, "q_group_size": 32})"), "expected 4 (config.json), found 8"));
    CHECK(contains(linted("[1]"), "found"));
    CHECK(linted(R"({"bits": 4, "group_size": 32})") == "");
    for (const OneRule& recipe : {quantize_to("quantize", "modelopt"), quantize_to("bf16", "")}) {
      const fs::path out = scratch / recipe.to;
      const ConvertResult made = convert(src, out, recipe);
      CHECK(!fs::exists(out / file));
      CHECK(findings_of(made.findings, "stale-config").size() == 1);
      Progress progress;
      CHECK(validate(out, src, {}, progress).differences.empty());
    }
    // Where all stays as it is, so does the file; beside other weights lint says so.
    Rule keep{.to = "keep"};
    keep.selection.include = parse_patterns({"*"});
    const Checkpoint c = Checkpoint::open(src);
    CHECK(make_plan(c, Recipe(keep)).auxiliary_files.contains(file));
    fs::copy_file(src / file, scratch / "bf16" / file);
    Progress progress;
    const LintReport report = lint(scratch / "bf16", {}, progress);
    CHECK(std::any_of(report.findings.begin(), report.findings.end(),
                      [&](const LintFinding& f) { return f.file == file; }));
  }
}

TEST_CASE("a changed byte of what was made of INT4 is found") {
  const Int4Model model = make_model("awq");
  const Scratch scratch;
  write_checkpoint(scratch / "coded", {model.coded}, model.config);
  convert(scratch / "coded", scratch / "out", quantize_to("quantize", "modelopt"));
  write_checkpoint(scratch / "other", {make_model("gptq").coded}, make_model("gptq").config);
  CHECK(validate_from(scratch / "coded", scratch / "out").differences.empty());
  std::vector<uint8_t>& zeros = const_cast<Tensors&>(model.coded)[1].bytes;
  REQUIRE(model.coded[1].name.ends_with("qzeros"));
  zeros[3] ^= 0x10;
  fs::remove_all(scratch / "coded");
  write_checkpoint(scratch / "coded", {model.coded}, model.config);
  CHECK(!validate_from(scratch / "coded", scratch / "out").differences.empty());
}

TEST_CASE("diff compares INT4 with its values, inspect counts it, lint finds nothing") {
  for (const std::string how : kProducers) {
    CAPTURE(how);
    const Int4Model model = make_model(how);
    const Scratch scratch;
    write_checkpoint(scratch / "coded", {model.coded}, model.config);
    write_checkpoint(scratch / "plain", {model.plain}, "{}");
    const DiffResult same = diff_of(scratch / "coded", scratch / "plain");
    CHECK(same.findings.empty());
    CHECK(same.entries.size() == model.plain.size());
    for (const DiffEntry& e : same.entries) CHECK((e.cls == DiffClass::kEqual));
    CHECK((entry(same, "model.layers.0.mlp.up_proj").a.format == "INT4"));
    const DiffResult itself = diff_of(scratch / "coded", scratch / "coded");
    for (const DiffEntry& e : itself.entries) CHECK((e.cls == DiffClass::kEqual));

    const Checkpoint c = Checkpoint::open(scratch / "coded");
    const InspectReport report = inspect(c, {}, false, 1);
    CHECK((report.formats == std::map<std::string, size_t>{{"INT4", 6}}));
    REQUIRE(!report.other_modules.empty());
    const std::string producer = how == "awq"              ? "AWQ"
                                 : how.starts_with("gptq") ? "GPTQ"
                                                           : "compressed-tensors";
    contains(report.other_modules[0].dialect, "INT4, " + producer + ", groups of 32");
    CHECK(read_slice(c, "model.layers.0.mlp.gate_proj[3, 5]").format == "INT4");

    Progress progress;
    for (const LintFinding& f : lint(scratch / "coded", {}, progress).findings) {
      const std::string id = lint_rules()[f.rule].id;
      // The config says what lint needs of the codes, and nothing of the model. Widths of matrices and sizes
      // of scales are drawn, and do not go together as in a model.
      const bool of_model = id == "no-tokenizer" || (id == "odd-setting" && f.name == "model_type") ||
                            id == "suspicious-scale" ||
                            (id == "config-shape" && f.message.find(" columns (") != std::string::npos);
      CHECK_MESSAGE(of_model, id, ": ", f.where(), ": ", f.message);
    }
  }
}

TEST_CASE("lint reports INT4 without scales, and terms that its decoders do not know") {
  const auto ids = [](const Tensors& tensors, const std::string& config) {
    const Scratch scratch;
    write_checkpoint(scratch / "c", {tensors}, config);
    Progress progress;
    std::string found;
    for (const LintFinding& f : lint(scratch / "c", {}, progress).findings)
      found += std::string(lint_rules()[f.rule].id) + " " + f.where() + "\n";
    return found;
  };
  for (const auto& [how, part] :
       {std::pair("awq", ".scales"), {"gptq", ".qzeros"}, {"symmetric", ".weight_scale"}}) {
    Int4Model model = make_model(how);
    const std::string module = "model.layers.0.mlp.up_proj";
    std::erase_if(model.coded, [&](const TensorData& t) { return t.name == module + part; });
    contains(ids(model.coded, model.config), "incomplete-module model.safetensors: " + module + "\n");
  }
  Int4Model model = make_model("gptq");
  add_bf16(model.coded, "model.layers.0.mlp.up_proj.pre_quant_scale", {64});
  contains(ids(model.coded, model.config),
           "weight-term model.safetensors: model.layers.0.mlp.up_proj.pre_quant_scale\n");
  const Scratch scratch;
  write_checkpoint(scratch / "c", {model.coded}, model.config);
  contains(message_of([&] { convert(scratch / "c", scratch / "out", quantize_to("quantize", "modelopt")); }),
           "mlp.up_proj.pre_quant_scale: expected weights that consist of values and scales only");
  CHECK(!fs::exists(scratch / "out"));
}

TEST_CASE("FP8 embeddings compare by value with what they were widened to, and are not quantized") {
  const std::string ple = "model.layers.1.ple.ngram_embedding";
  Tensors coded, plain;
  const StoredTensor scale = random_scales(DType::kBF16, {1}, 6);
  for (const std::string shard : {"shard_0", "shard_1"}) {
    const StoredTensor w = fp8_weights({6, 16}, shard.back());
    w.add_to(coded, ple + "." + shard + ".weight");
    FloatMatrix floats{6, 16, {}};
    for (int64_t i = 0; i < 96; ++i)
      floats.values.push_back(static_cast<float>(w.number(i) * scale.number(0)));
    add_floats(plain, ple + "." + shard, floats, DType::kF32);
  }
  scale.add_to(coded, ple + ".weight_scale");
  for (Tensors* t : {&coded, &plain}) add_bf16(*t, "model.layers.0.mlp.up_proj.weight", {16, 32});
  const Scratch scratch;
  write_checkpoint(scratch / "coded", {coded}, "{}");
  write_checkpoint(scratch / "plain", {plain}, "{}");
  const DiffResult result = diff_of(scratch / "coded", scratch / "plain");
  CHECK(result.entries.size() == 3);
  for (const DiffEntry& e : result.entries) CHECK((e.cls == DiffClass::kEqual));
  const InspectReport report = inspect(Checkpoint::open(scratch / "coded"), {}, false, 1);
  REQUIRE(report.other_modules.size() == 2);
  for (const ModuleGroup& m : report.other_modules)
    CHECK(m.dialect == "embedding in FP8, tensor, BF16 scale");
  CHECK(report.other_modules[0].bytes + report.other_modules[1].bytes == 2 * 96 + 2);
  // Whatever its format, an embedding stays as it is.
  for (const std::string dialect : {"modelopt", "compressed-tensors"}) {
    for (const std::string from : {"plain", "coded"}) {
      const fs::path to = scratch / (from + dialect);
      convert(scratch / from, to, quantize_to("quantize", dialect));
      const ReadTensors before = read_tensors(scratch / from), after = read_tensors(to);
      for (const auto& [name, tensor] : before) {
        if (name.starts_with(ple)) CHECK((after.contains(name) && after.at(name) == tensor));
      }
      CHECK(validate_from(scratch / from, to).differences.empty());
    }
  }
}

TEST_CASE("quantized embeddings and INT4 are widened, and leave nothing of theirs") {
  const std::string ple = "model.layers.1.ple.ngram_embedding";
  for (const std::string how : kProducers) {
    CAPTURE(how);
    Int4Model model = make_model(how);
    for (const std::string shard : {"shard_0", "shard_1"}) {
      fp8_weights({6, 16}, shard.back()).add_to(model.coded, ple + "." + shard + ".weight");
    }
    random_scales(DType::kBF16, {1}, 6).add_to(model.coded, ple + ".weight_scale");
    const Scratch scratch;
    write_checkpoint(scratch / "coded", {model.coded}, model.config);
    OneRule to_bf16;
    to_bf16.to = "bf16";
    convert(scratch / "coded", scratch / "bf16", to_bf16);
    const ReadTensors out = read_tensors(scratch / "bf16");
    CHECK(out.size() == model.plain.size() + 2);
    for (const auto& [name, tensor] : out) CHECK((tensor.dtype == DType::kBF16));
    CHECK((out.at("model.layers.0.mlp.up_proj.weight").shape == std::vector<int64_t>{104, 64}));
    CHECK(validate_from(scratch / "coded", scratch / "bf16").differences.empty());
    DiffOptions rounded;
    rounded.tolerance = 0x1p-8;
    for (const DiffEntry& e : diff_of(scratch / "coded", scratch / "bf16", rounded).entries)
      CHECK_MESSAGE((e.cls == DiffClass::kEqual || e.cls == DiffClass::kWithin), e.name);
    to_bf16.selection.include = parse_patterns({"re:.*shard_0"});
    contains(message_of([&] { convert(scratch / "coded", scratch / "part", to_bf16); }),
             ple + ".weight_scale: expected one rule for all pieces of an embedding, found none for " + ple +
                 ".shard_1");
  }
}

TEST_CASE("lint finds INT4 that contradicts its config or itself, which conversions refuse") {
  struct Fault {
    const char *producer, *tensor, *message;
    std::function<void(Int4Model&, TensorData&)> plant;
    const char *place = nullptr, *finding = nullptr;  ///< if lint names another place in other words
  };
  const Fault faults[] = {
      {"gptq", ".g_idx", "expected groups of 0 to", [](Int4Model&, TensorData& t) { t.bytes[2] = 1; }},
      {"gptq", ".qweight", "expected integers of 4 bits, found 8 bits",
       [](Int4Model& m, TensorData&) {
         Json config = parse_json("config", m.config);
         config["quantization_config"]["bits"] = 8;
         m.config = config.dump();
       },
       "quantization_config.bits", "expected 4 (as in "},
      {"symmetric", ".weight_shape", "expected N and K of",
       [](Int4Model&, TensorData& t) { t.bytes[0] ^= 0x40; }},
  };
  for (const Fault& f : faults) {
    CAPTURE(std::string(f.tensor));
    Int4Model model = make_model(f.producer);
    const auto at = std::find_if(model.coded.begin(), model.coded.end(),
                                 [&](const TensorData& t) { return t.name.ends_with(f.tensor); });
    REQUIRE(at != model.coded.end());
    f.plant(model, *at);
    const Scratch scratch;
    write_checkpoint(scratch / "src", {model.coded}, model.config);
    Progress progress;
    size_t found = 0;
    std::string all;
    for (const LintFinding& one : lint(scratch / "src", {}, progress).findings) {
      found += one.message.find(f.finding != nullptr ? f.finding : f.message) != std::string::npos &&
               one.name.ends_with(f.place != nullptr ? f.place : f.tensor);
      all += one.where() + ": " + one.message + "\n";
    }
    CHECK_MESSAGE(found > 0, all);
    OneRule rule;
    rule.to = "bf16";
    CHECK(contains(message_of([&] { convert(scratch / "src", scratch / "out", rule); }), f.message));
  }
}

}  // namespace int4_sources_test
