#include <doctest/doctest.h>

#include <cmath>

#include "formats/error.h"
#include "lib/source/config/configured_quantization.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/linears/linears.h"
#include "tests/support/message.h"
#include "tests/support/weights/stored_int4.h"

namespace zero_points_test {

using namespace twofour;

namespace {

/// A producer's INT4 with a config that says symmetric, by zero points that are stored as `stored`.
struct Producer {
  const char* name;
  int offset;  ///< that its format adds
  std::string symmetric, asymmetric;
};

std::string groups_config(bool symmetric) {
  return std::string(
             R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
      "config_groups": {"a": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 16,
      "symmetric": )") +
         (symmetric ? "true" : "false") + "}}}}}";
}

const Producer kProducers[] = {
    {"gptq", 1, int4_config("gptq", 16, R"(, "sym": true, "checkpoint_format": "gptq")"),
     int4_config("gptq", 16, R"(, "sym": false, "checkpoint_format": "gptq")")},
    {"gptq_v2", 0, int4_config("gptq", 16, R"(, "sym": true, "checkpoint_format": "gptq_v2")"),
     int4_config("gptq", 16, R"(, "checkpoint_format": "gptq_v2")")},
    {"awq", 0, int4_config("awq", 16, R"(, "zero_point": false)"),
     int4_config("awq", 16, R"(, "zero_point": true)")},
    {"compressed-tensors", 0, groups_config(true), groups_config(false)},
    {"auto-round", 1,
     int4_config("auto-round", 16, R"(, "sym": true, "packing_format": "auto_round:auto_gptq")"),
     int4_config("auto-round", 16, R"(, "sym": false, "packing_format": "auto_round:auto_gptq")")},
};

/// `stored` everywhere, as the producer packs it.
Tensors stored_as(const Producer& p, StoredInt4& w, int stored) {
  w.zeros.assign(w.zeros.size(), stored);
  Tensors tensors;
  const std::string name = p.name;
  if (name == "awq") w.add_awq(tensors, "m");
  if (name == "compressed-tensors") w.add_packed(tensors, "m", true);
  if (tensors.empty()) w.add_gptq(tensors, "m", 0);
  return tensors;
}

Checkpoint open(const Scratch& scratch, const Tensors& tensors, const std::string& config, ZeroPoints how) {
  write_checkpoint(scratch / "c", {tensors}, config);
  return Checkpoint::open(scratch / "c", Io::kCached, how);
}

/// The weights as they are with zero points of `zero`.
void check_zero(const Checkpoint& c, StoredInt4 w, int zero) {
  w.zeros.assign(w.zeros.size(), zero);
  check_values(c, only(find_weight_modules(c)), [&](int64_t, int64_t n, int64_t k) { return w.exact(n, k); });
}

}  // namespace

TEST_CASE("zero points that the config contradicts are refused with both readings, or read as a word says") {
  for (const Producer& p : kProducers) {
    CAPTURE(p.name);
    for (const int stored : {0, 7, 8, 9, 14}) {
      CAPTURE(stored);
      StoredInt4 w(40, 48, 16, DType::kF16, 3);
      const Tensors tensors = stored_as(p, w, stored);
      const int read = stored + p.offset;
      {
        const Scratch scratch;
        check_zero(open(scratch, tensors, p.asymmetric, ZeroPoints::kAsStated), w, read);
      }
      {
        const Scratch scratch;
        const Checkpoint c = open(scratch, tensors, p.symmetric, ZeroPoints::kAsStated);
        const Linear m = only(find_weight_modules(c));
        WeightReader reader(c);
        std::vector<float> row(static_cast<size_t>(m.k));
        if (read == 8) {
          check_zero(c, w, 8);
          CHECK_NOTHROW(reader.check_zero_points(m));
        } else {
          const std::string why = message_of([&] { reader.read_rows(m, 0, 3, 4, row); });
          CHECK(contains(why, "expected zero points of 8 as the config's " + m.symmetry + " says, found " +
                                  std::to_string(stored)));
          if (p.offset > 0) CHECK(contains(why, "as " + std::to_string(read) + " with"));
          CHECK(contains(why, p.offset > 0 ? "--zero-points stored, symmetric or v2 decides"
                                           : "--zero-points stored or symmetric decides"));
          CHECK(!message_of([&] { reader.check_zero_points(m); }).empty());
        }
      }
      for (const auto& [how, zero] :
           {std::pair{ZeroPoints::kStored, read}, {ZeroPoints::kSymmetric, 8}, {ZeroPoints::kV2, stored}}) {
        CAPTURE(zero_points_word(how));
        for (const std::string& config : {p.symmetric, p.asymmetric}) {
          const Scratch scratch;
          check_zero(open(scratch, tensors, config, how), w, zero);
        }
      }
    }
  }
}

TEST_CASE("one zero point of many is found, in the last row and group, too") {
  const Producer& p = kProducers[1];
  for (const int64_t n : {int64_t{40}, int64_t{4096}, int64_t{4104}}) {
    for (const bool last : {false, true}) {
      StoredInt4 w(n, 48, 16, DType::kF16, 3);
      w.make_symmetric();
      (last ? w.zeros.back() : w.zeros.front()) = 7;
      Tensors tensors;
      w.add_gptq(tensors, "m", 0);
      const Scratch scratch;
      const Checkpoint c = open(scratch, tensors, p.symmetric, ZeroPoints::kAsStated);
      const Linear m = only(find_weight_modules(c));
      WeightReader reader(c);
      const std::string place = last ? "row " + std::to_string(n - 1) + ", group 2" : "row 0, group 0";
      CHECK(contains(message_of([&] { reader.check_zero_points(m); }), place));
      std::vector<float> row(48);
      CHECK_NOTHROW(reader.read_rows(m, 0, 20, 21, row));
    }
  }
}

TEST_CASE("the words of GPTQ count under any method's name, and a name without them is refused") {
  StoredInt4 w(40, 48, 16, DType::kF16, 3);
  Tensors tensors;
  w.add_gptq(tensors, "m", 0);
  const std::string words = R"(, "sym": false, "checkpoint_format": "gptq_v2")";
  for (const char* method : {"gptq", "gptq_bitblas", "gptq_marlin_24", "gptaq", ""}) {
    CAPTURE(method);
    const Scratch scratch;
    const Checkpoint c = open(scratch, tensors, int4_config(method, 16, words), ZeroPoints::kAsStated);
    CHECK(only(find_weight_modules(c)).zero_offset == 0);
  }
  {
    const Scratch scratch;
    write_checkpoint(scratch / "c", {tensors}, "{}");
    write_text(scratch / "c" / "quantize_config.json", int4_config("gptq", 16, words));
    CHECK(only(find_weight_modules(Checkpoint::open(scratch / "c"))).zero_offset == 0);
  }
  const Scratch scratch;
  const std::string unknown = int4_config("marlin", 16, R"(, "sym": false)");
  CHECK(contains(
      message_of([&] { find_weight_modules(open(scratch, tensors, unknown, ZeroPoints::kAsStated)); }),
      "quant_method: expected gptq, awq or auto-round (zero points depend on it), found \"marlin\""));
  const Scratch other;
  CHECK(only(find_weight_modules(open(other, tensors, unknown, ZeroPoints::kV2))).zero_offset == 0);
}

TEST_CASE("what a config says of a module's zero points") {
  const auto find = [](const char* quantization, const char* module) {
    return std::string(SourceGroups(parse_json("config", quantization))->symmetry_of(module));
  };
  CHECK(find(R"({"quant_method": "gptq", "sym": true})", "m") == "sym: true");
  CHECK(find(R"({"quant_method": "gptq", "sym": false})", "m").empty());
  CHECK(find(R"({"quant_method": "gptq", "sym": "true"})", "m").empty());
  CHECK(find(R"({"quant_method": "gptq"})", "m").empty());
  CHECK(find("null", "m").empty());
  CHECK(find(R"({"quant_method": "awq", "zero_point": false, "sym": false})", "m") == "zero_point: false");
  CHECK(find(R"({"quant_method": "awq", "zero_point": true, "sym": true})", "m").empty());
  // Exceptions for single modules.
  const char* dynamic =
      R"({"quant_method": "gptq", "sym": true, "dynamic": {"+:.*down.*": {"sym": false}, "-:x": {}}})";
  CHECK(find(dynamic, "layers.0.down_proj").empty());
  CHECK(find(dynamic, "layers.0.up_proj") == "sym: true");
  const char* extra =
      R"({"quant_method": "auto-round", "sym": false, "extra_config": {"a.b": {"bits": 4, "sym": true}}})";
  CHECK(find(extra, "a.b") == "sym: true");
  CHECK(find(extra, "a.c").empty());
  // Groups of compressed-tensors: the one with the module's name comes before the one with its class.
  const char* groups = R"({"quant_method": "compressed-tensors", "config_groups": {
      "a": {"targets": ["re:.*down_proj$"], "weights": {"symmetric": false}},
      "b": {"targets": ["Linear"], "weights": {"symmetric": true}}}})";
  CHECK(find(groups, "layers.0.down_proj").empty());
  CHECK(find(groups, "layers.0.up_proj") == "symmetric: true");
  const char* unconfigured = R"({"quant_method": "compressed-tensors", "config_groups": {
      "a": {"targets": ["Linear"], "weights": {"num_bits": 4}}, "b": {"targets": ["re:.*down.*"]}}})";
  CHECK(find(unconfigured, "layers.0.up_proj") == "default, symmetric: true,");
  CHECK(find(unconfigured, "layers.0.down_proj").empty());
  // An artifact keeps the source's words.
  CHECK(find(R"({"quant_method": "twofour", "base": {"quant_method": "gptq", "sym": true}})", "m") ==
        "sym: true");
}

TEST_CASE("words of either file and every spelling of a method count") {
  struct Case {
    const char* name;
    std::string config, file, beside;  ///< a file beside config.json, and what it says
    int offset;
    bool awq = false;
  };
  const auto spelled = [](const char* method, const char* more) { return int4_config(method, 16, more); };
  const Case symmetric[] = {
      {"sym of GPTQ beside", spelled("gptq", R"(, "checkpoint_format": "gptq")"), "quantize_config.json",
       R"({"bits": 4, "group_size": 16, "sym": true})", 1},
      {"sym of GPTQ in the second file", spelled("gptq", ""), "quant_config.json",
       R"({"quant_method": "gptq", "bits": 4, "sym": true})", 1},
      {"zero_point of AWQ beside", spelled("awq", ""), "quant_config.json",
       R"({"zero_point": false, "q_group_size": 16, "w_bit": 4, "version": "GEMM"})", 0, true},
      {"all of it beside", "{}", "quantize_config.json",
       R"({"bits": 4, "group_size": 16, "sym": true, "checkpoint_format": "gptq_v2"})", 0},
      {"another spelling", spelled("gptq_marlin", R"(, "sym": true)"), "", "", 1},
      {"of AWQ", spelled("awq_marlin", R"(, "zero_point": false)"), "", "", 0, true}};
  for (const Case& c : symmetric) {
    CAPTURE(c.name);
    for (const int stored : {8 - c.offset, 9 - c.offset}) {
      StoredInt4 w(40, 48, 16, DType::kF16, 3);
      w.zeros.assign(w.zeros.size(), stored);
      Tensors tensors;
      c.awq ? w.add_awq(tensors, "m") : w.add_gptq(tensors, "m", 0);
      const Scratch scratch;
      write_checkpoint(scratch / "c", {tensors}, c.config);
      if (!c.file.empty()) write_text(scratch / "c" / c.file, c.beside);
      const Checkpoint opened = Checkpoint::open(scratch / "c");
      WeightReader reader(opened);
      const Linear m = only(find_weight_modules(opened));
      const std::string why = message_of([&] { reader.check_zero_points(m); });
      CHECK(why.empty() == (stored + c.offset == 8));
      if (!why.empty() && !c.file.empty()) CHECK(contains(why, c.file));
    }
  }
  // Which zero points are stored is a matter of the format, by either key.
  for (const char* method : {"gptq", "gptq_marlin", "gptqmodel", "GPTQ"}) {
    for (const char* key : {"checkpoint_format", "format"}) {
      CAPTURE(method);
      StoredInt4 w(40, 48, 16, DType::kF16, 3);
      Tensors tensors;
      w.add_gptq(tensors, "m", 0);
      const Scratch scratch;
      const std::string more = std::string(R"(, ")") + key + R"(": "gptq_v2")";
      const Checkpoint c = open(scratch, tensors, spelled(method, more.c_str()), ZeroPoints::kAsStated);
      CHECK(only(find_weight_modules(c)).zero_offset == 0);
    }
  }
  StoredInt4 w(40, 48, 16, DType::kF16, 3);
  Tensors tensors;
  w.add_gptq(tensors, "m", 0);
  const Scratch scratch;
  for (const std::string& config :
       {spelled("gptq", R"(, "checkpoint_format": "gptq", "format": "gptq_v2")"),
        spelled("intel/auto-round",
                R"(, "packing_format": "auto_round:auto_gptq", "checkpoint_format": "gptq_v2")")}) {
    const Checkpoint c = open(scratch, tensors, config, ZeroPoints::kAsStated);
    CHECK(contains(message_of([&] { find_weight_modules(c); }), "expected one format in the config"));
  }
}

TEST_CASE("what a config promises beside codes must be there") {
  const auto message = [](const std::string& config, auto add) {
    StoredInt4 w(40, 48, 16, DType::kF16, 3);
    w.make_symmetric();
    Tensors tensors;
    add(w, tensors);
    const Scratch scratch;
    const Checkpoint c = open(scratch, tensors, config, ZeroPoints::kAsStated);
    return message_of([&] { find_weight_modules(c); });
  };
  const auto packed = [&](const std::string& words) {
    return message(R"({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"a":
        {"targets": ["re:m"], "weights": {)" +
                       words + "}}}}}",
                   [](StoredInt4& w, Tensors& to) { w.add_packed(to, "m", false); });
  };
  const std::string usual = R"("num_bits": 4, "group_size": 16, "type": "int")";
  CHECK(packed(usual).empty());
  CHECK(packed(usual + R"(, "symmetric": true, "actorder": "weight")").empty());
  CHECK(contains(packed(usual + R"(, "symmetric": false)"), "expected weight_zero_point beside it"));
  for (const char* order : {"\"group\"", "\"dynamic\"", "true"})
    CHECK(contains(packed(usual + R"(, "actorder": )" + order), "expected weight_g_idx beside it"));
  CHECK(contains(packed(R"("num_bits": 4, "group_size": 16, "type": "float")"), "expected codes of floats"));
  CHECK(contains(packed(R"("group_size": 16, "type": "int")"), "found 8 bits"));
  const auto gptq = [](StoredInt4& w, Tensors& to) { w.add_gptq(to, "m", 1); };
  CHECK(message(int4_config("gptq", 16, R"(, "desc_act": false)"), gptq).empty());
  CHECK(contains(message(int4_config("gptq", 16, R"(, "desc_act": true)"), gptq),
                 "expected g_idx beside it (desc_act: true in the config)"));
}

TEST_CASE("FP8 that the config calls another form, or integers, is refused") {
  Tensors tensors;
  tensors.push_back({"m.weight", DType::kF8E4M3, {4, 32}, std::vector<uint8_t>(128, 0x38)});
  tensors.push_back({"m.weight_scale", DType::kF32, {1}, {0, 0, 128, 63}});
  const auto message = [&](const std::string& words) {
    const Scratch scratch;
    const Checkpoint c =
        open(scratch, tensors, R"({"quantization_config": {)" + words + "}}", ZeroPoints::kAsStated);
    return message_of([&] { find_weight_modules(c); });
  };
  for (const char* format : {"null", "\"e4m3\"", "\"float8_e4m3fn\""})
    CHECK(message(std::string(R"("quant_method": "fp8", "fmt": )") + format).empty());
  for (const char* format : {"\"e4m3fnuz\"", "\"e5m2\"", "\"e5m2fnuz\"", "3"})
    CHECK(contains(message(std::string(R"("quant_method": "fp8", "fmt": )") + format), "FP8 (fmt "));
  const auto group = [&](const std::string& weights) {
    return message(R"("quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["re:m"],
        "weights": {)" +
                   weights + "}}}");
  };
  CHECK(group(R"("num_bits": 8, "type": "float")").empty());
  CHECK(contains(group(R"("num_bits": 8, "type": "int")"), "expected integers of 8 bits"));
  CHECK(contains(group(R"("num_bits": 8)"), "expected integers of 8 bits"));
  CHECK(group(R"("num_bits": 4, "type": "int")").empty());  // of other modules
}

TEST_CASE(
    "a zero point of GPTQ's first version that loaders read in two ways is refused until a word decides") {
  const std::string meta = R"(, "meta": {"quantizer": ["gptqmodel:5.7.0"]})";
  for (const std::string& config : {meta, std::string(), meta + R"(, "checkpoint_format": "gptq")",
                                    meta + R"(, "checkpoint_format": "gptq_v2")"}) {
    CAPTURE(config);
    const bool is_v2 = config.ends_with("_v2\"");
    StoredInt4 w(16, 64, 16, DType::kBF16, 1);
    w.zeros.assign(w.zeros.size(), 3);
    w.zeros[5 * 4 + 2] = 15;
    Tensors tensors;
    w.add_gptq(tensors, "m", 0);
    const auto zero_at = [&](ZeroPoints how) {
      const Scratch scratch;
      const Checkpoint c = open(scratch, tensors, int4_config("gptq", 16, config), how);
      const Linear m = only(find_weight_modules(c));
      std::vector<float> row(64);
      WeightReader reader(c);
      reader.check_zero_points(m);
      reader.read_rows(m, 0, 5, 6, row);
      return w.codes[5 * 64 + 40] - std::lround(row[40] / w.scales.number(5 * 4 + 2));
    };
    CHECK(zero_at(ZeroPoints::kStored) == (is_v2 ? 15 : 16));
    CHECK(zero_at(ZeroPoints::kSymmetric) == 8);
    CHECK(zero_at(ZeroPoints::kV2) == 15);
    if (is_v2 || config.empty()) {
      CHECK(zero_at(ZeroPoints::kAsStated) == (is_v2 ? 15 : 16));  // as AutoGPTQ, its producer, reads it
      continue;
    }
    const std::string problem = message_of([&] { zero_at(ZeroPoints::kAsStated); });
    CHECK(contains(problem, "m.qzeros: expected zero points of 0 to 14"));
    CHECK(contains(problem,
                   "found 15 at row 5, group 2, which AutoGPTQ and vLLM read as 16, and GPTQModel, which "
                   "wrote it, as 0"));
  }
}

TEST_CASE("the words for zero points") {
  CHECK(parse_zero_points("") == ZeroPoints::kAsStated);
  for (const std::string_view word : zero_points_words())
    CHECK(zero_points_word(parse_zero_points(word)) == word);
  CHECK(contains(message_of([] { parse_zero_points("v3"); }),
                 "expected stored, symmetric or v2, found \"v3\""));
}

TEST_CASE("an exception for a module decides its bits, its order and its groups") {
  const auto refusal = [](const std::string& more) {
    const Scratch scratch;
    StoredInt4 w(16, 64, 16, DType::kBF16, 1);
    w.make_symmetric();
    Tensors tensors;
    w.add_gptq(tensors, "a.q_proj", 1);
    const Checkpoint c = open(scratch, tensors, int4_config("gptq", 16, more), ZeroPoints::kAsStated);
    return message_of([&] { find_weight_modules(c); });
  };
  CHECK(contains(refusal(R"(, "dynamic": {"+:.*q_proj": {"desc_act": true}})"),
                 "g_idx beside it (desc_act: true in the config)"));
  CHECK(contains(refusal(R"(, "dynamic": {"+:.*q_proj": {"bits": 8}})"), "expected integers of 4 bits"));
  CHECK(contains(refusal(R"(, "extra_config": {"a.q_proj": {"bits": 3}})"), "expected integers of 4 bits"));
  CHECK(contains(refusal(R"(, "desc_act": true)"), "desc_act: true"));
  for (const char* more : {"", R"(, "dynamic": {"+:.*k_proj": {"desc_act": true, "bits": 8}})",
                           R"(, "desc_act": true, "dynamic": {"+:.*q_proj": {"desc_act": false}})",
                           R"(, "dynamic": {"+:.*q_proj": {"bits": 4, "group_size": 16}})"})
    CHECK_MESSAGE(refusal(more) == "", more);
}

}  // namespace zero_points_test
