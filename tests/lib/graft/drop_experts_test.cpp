#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "formats/naming.h"
#include "lib/graft/kept_experts.h"
#include "tests/support/edits.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace drop_experts_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;
using Kept = std::map<std::string, std::vector<int64_t>>;

Edit keep(Kept kept) { return {.kind = Edit::Kind::kDropExperts, .experts = std::move(kept)}; }

std::string config_of(int64_t experts, const std::string& more = "", const std::string& key = "num_experts") {
  return fmt::format(R"({{"num_hidden_layers": 2, "hidden_size": 32, "{}": {}, "num_experts_per_tok": 2{}}})",
                     key, experts, more);
}

TensorData f32(const std::string& name, const std::vector<float>& values) {
  TensorData t{name, DType::kF32, {static_cast<int64_t>(values.size())}, {}};
  t.bytes.resize(4 * values.size());
  std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  return t;
}

/// Rows of a tensor's outermost dimension, written down here once more.
ReadTensor rows_of(const ReadTensor& t, size_t axis, const std::vector<int64_t>& rows) {
  ReadTensor out{t.dtype, t.shape, {}};
  const auto size = static_cast<std::ptrdiff_t>(t.bytes.size()) / t.shape[axis];
  for (const int64_t r : rows)
    out.bytes.insert(out.bytes.end(), t.bytes.begin() + r * size, t.bytes.begin() + (r + 1) * size);
  out.shape[axis] = static_cast<int64_t>(rows.size());
  return out;
}

}  // namespace

TEST_CASE("experts of every naming are renumbered, and their routers lose the same rows") {
  const std::vector<int64_t> first{1, 2, 4, 5}, second{0, 1, 3, 4};
  for (const NamingRule& rule : naming_rules()) {
    for (const std::string dialect : {"modelopt", "compressed-tensors", "bf16", "fp8"}) {
      CAPTURE(rule.models);
      CAPTURE(dialect);
      const Scratch scratch;
      Tensors tensors;
      ReadTensors expected;
      unsigned seed = 0;
      const auto note = [&](size_t from, const std::function<std::string(const std::string&)>& name) {
        for (size_t i = from; i < tensors.size(); ++i)
          expected[name(tensors[i].name)] = {tensors[i].dtype, tensors[i].shape, tensors[i].bytes};
      };
      Kept kept;
      for (int l = 0; l < 2; ++l) {
        const std::string block = fmt::format("model.layers.{}.{}", l, rule.routed);
        const std::string home = block.substr(0, block.rfind('.'));
        const auto& stay = kept[block] = l == 0 ? first : second;
        for (int64_t e = 0; e < 6; ++e) {
          const size_t from = tensors.size();
          for (const char* p : {rule.gate, rule.up, rule.down}) {
            if (p == nullptr) continue;
            const std::string module = fmt::format("{}.{}.{}", block, e, p);
            const bool down = p == rule.down;
            const Nvfp4Matrix m = random_matrix(down ? 32 : 16, down ? 16 : 32, ++seed);
            if (dialect == "modelopt") {
              add_modelopt(tensors, module, m);
            } else if (dialect == "compressed-tensors") {
              add_compressed_tensors(tensors, module, m);
            } else if (dialect == "bf16") {
              add_bf16(tensors, module + ".weight", {m.n, m.k}, seed);
            } else {
              tensors.push_back({module + ".weight", DType::kF8E4M3, {m.n / 2, m.k}, m.codes});
              tensors.push_back(f32(module + ".weight_scale", {1.0f + static_cast<float>(seed)}));
            }
          }
          const auto at = std::find(stay.begin(), stay.end(), e);
          if (at != stay.end()) {
            const std::string old = fmt::format("{}.{}.", block, e),
                              now = fmt::format("{}.{}.", block, at - stay.begin());
            note(from, [&](const std::string& n) { return now + n.substr(old.size()); });
          }
        }
        const size_t from = tensors.size();
        add_bf16(tensors, home + ".gate.weight", {6, 32}, ++seed);
        add_bf16(tensors, home + ".gate.bias", {6}, ++seed);
        tensors.push_back(f32(home + ".gate.e_score_correction_bias", {.5f, 1, 2, 3, 4, 5}));
        add_bf16(tensors, home + ".moe_statics.e_score_correction_bias", {1, 6}, ++seed);
        const std::string shared =
            home + "." +
            (rule.shared ? std::string(rule.shared).substr(std::string(rule.shared).rfind('.') + 1)
                         : "other");
        add_bf16(tensors, shared + "." + rule.up + ".weight", {6, 32}, ++seed);
        note(from, [](const std::string& n) { return n; });
        for (const char* r : {".gate.weight", ".gate.bias", ".gate.e_score_correction_bias"})
          expected[home + r] = rows_of(expected[home + r], 0, stay);
        ReadTensor& biases = expected[home + ".moe_statics.e_score_correction_bias"];
        biases = rows_of(biases, 1, stay);
      }
      add_bf16(tensors, "model.norm.weight", {32});
      note(tensors.size() - 1, [](const std::string& n) { return n; });
      write_checkpoint(scratch / "src", {tensors}, config_of(6));
      write_edited(scratch / "src", {}, keep(kept), scratch / "out");
      CHECK((read_tensors(scratch / "out") == expected));
      CHECK(json_at(scratch / "out/config.json")["num_experts"] == 4);
      CHECK(differences_of_edit(scratch / "out", scratch / "src") == "");
    }
  }
}

TEST_CASE("stacks lose slices: codes, scales, global scales, biases, of any format") {
  for (const bool k_outer : {false, true}) {
    for (const std::vector<int64_t>& globals : {std::vector<int64_t>{5}, {5, 1, 1}, {1}, {}}) {
      const Scratch scratch;
      const std::string block = "model.layers.0.mlp.experts";
      const ExpertSet set = random_experts(5, 16, 32, 3);
      std::vector<Nvfp4Matrix> gate_up;
      for (size_t e = 0; e < 5; ++e) {
        gate_up.push_back(stack_rows(set.gate[e], set.up[e]));
        gate_up.back().global = static_cast<float>(e + 1);
      }
      Tensors tensors;
      add_stack(tensors, block + ".gate_up_proj", gate_up, k_outer, globals);
      add_stack(tensors, block + ".down_proj", set.down, k_outer, globals);
      add_bf16(tensors, block + ".gate_up_proj_bias", {5, 32}, 5);
      add_bf16(tensors, "model.layers.0.mlp.router.weight", {5, 32}, 6);
      add_bf16(tensors, "model.layers.0.mlp.router.bias", {5}, 7);
      write_checkpoint(scratch / "src", {tensors},
                       R"({"text_config": )" + config_of(5, "", "num_local_experts") + "}");
      write_edited(scratch / "src", {}, keep({{block, {0, 2, 4}}}), scratch / "out");
      ReadTensors expected = read_tensors(scratch / "src");
      for (auto& [name, t] : expected) {
        if (!t.shape.empty() && t.shape[0] == 5) t = rows_of(t, 0, {0, 2, 4});
      }
      CHECK((read_tensors(scratch / "out") == expected));
      CHECK(json_at(scratch / "out/config.json")["text_config"]["num_local_experts"] == 3);
      CHECK(differences_of_edit(scratch / "out", scratch / "src") == "");
    }
  }
}

TEST_CASE("stacks beside a router of their own, and tensors of a router that are not one an expert") {
  const Scratch scratch;
  Tensors tensors;
  add_bf16(tensors, "model.layers.0.block_sparse_moe.input_linear.weight", {4, 16, 32}, 1);
  add_bf16(tensors, "model.layers.0.block_sparse_moe.output_linear.weight", {4, 32, 8}, 2);
  add_bf16(tensors, "model.layers.0.block_sparse_moe.router.layer.weight", {4, 32}, 3);
  add_bf16(tensors, "model.layers.1.experts.gate_up_proj", {4, 16, 4}, 4);
  add_bf16(tensors, "model.layers.1.experts.down_proj", {4, 4, 8}, 5);
  add_bf16(tensors, "model.layers.1.router.proj.weight", {4, 4}, 6);
  add_bf16(tensors, "model.layers.1.router.scale", {4}, 7);  // of the hidden state, as large by chance
  add_bf16(tensors, "model.layers.1.router.per_expert_scale", {4}, 8);
  write_checkpoint(scratch / "src", {tensors}, config_of(4));
  write_edited(scratch / "src", {},
               keep({{"model.layers.0.block_sparse_moe", {0, 1, 3}}, {"model.layers.1.experts", {1, 2, 3}}}),
               scratch / "out");
  ReadTensors expected = read_tensors(scratch / "src");
  for (auto& [name, t] : expected) {
    if (name.ends_with("router.scale")) continue;
    t = rows_of(
        t, 0,
        name.starts_with("model.layers.0.") ? std::vector<int64_t>{0, 1, 3} : std::vector<int64_t>{1, 2, 3});
  }
  CHECK((read_tensors(scratch / "out") == expected));
  CHECK(differences_of_edit(scratch / "out", scratch / "src") == "");
}

TEST_CASE("entries of single experts follow: renamed, gone, and patterns that tell them apart spelled out") {
  const Scratch scratch;
  Tensors tensors;
  add_experts(tensors, "model.layers.0.mlp.experts", random_experts(4, 16, 32));
  add_bf16(tensors, "model.layers.0.mlp.gate.weight", {4, 32});
  std::string layers;
  for (int e = 0; e < 4; ++e) {
    layers += fmt::format(
        R"({}"model.layers.0.mlp.experts.{}.up_proj": {{"quant_algo": "NVFP4", "group_size": {}}})",
        e > 0 ? ", " : "", e, 16 + e);
  }
  write_checkpoint(
      scratch / "src", {tensors},
      config_of(4, R"(, "quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
      "ignore": ["*.mlp.gate", "model.layers.0.mlp.experts.1.down_proj", "model.layers.0.mlp.experts.2",
                 "re:.*experts\\.3\\.down_proj$", "re:.*experts\\.\\d+\\.gate_proj$"], "quantized_layers": {)" +
                       layers + "}}"));
  write_edited(scratch / "src", {}, keep({{"model.layers.0.mlp.experts", {0, 2, 3}}}), scratch / "out");
  const Json entry = json_at(scratch / "out/config.json")["quantization_config"];
  CHECK(json_line(entry["ignore"]) ==
        R"(["*.mlp.gate","model.layers.0.mlp.experts.1","model.layers.0.mlp.experts.2.down_proj",)"
        R"("re:.*experts\\.\\d+\\.gate_proj$"])");
  CHECK(entry["quantized_layers"].size() == 3);
  for (const auto& [e, size] : {std::pair{0, 16}, {1, 18}, {2, 19}})
    CHECK(entry["quantized_layers"][fmt::format("model.layers.0.mlp.experts.{}.up_proj", e)]["group_size"] ==
          size);
  CHECK(differences_of_edit(scratch / "out", scratch / "src") == "");
}

TEST_CASE(
    "saliency: the largest stay, ties go to the lower number, -0 ties with 0, groups keep equally many") {
  const Scratch scratch;
  const auto source = [&](const std::string& more, bool is_corrected = false) {
    Tensors tensors;
    add_experts(tensors, "model.layers.0.mlp.experts", random_experts(6, 16, 32));
    add_bf16(tensors, "model.layers.0.mlp.gate.weight", {6, 32});
    if (is_corrected)
      tensors.push_back(f32("model.layers.0.mlp.gate.e_score_correction_bias", {1, 2, 3, 4, 5, 6}));
    write_checkpoint(scratch / "src", {tensors}, config_of(6, more));
    return Checkpoint::open(scratch / "src");
  };
  const auto kept = [&](const Checkpoint& c, int64_t count, const std::vector<float>& saliency) {
    write_safetensors(scratch / "s.safetensors", {f32("model.layers.0.mlp.experts.saliency", saliency)});
    return keep_salient_experts(c, count, scratch / "s.safetensors").experts.at("model.layers.0.mlp.experts");
  };
  const Checkpoint plain = source("");
  CHECK(kept(plain, 3, {1, 5, 2, 5, 5, 5}) == std::vector<int64_t>{1, 3, 4});
  CHECK(kept(plain, 4, {-0.0f, 0, -1, 0, -0.0f, 0}) == std::vector<int64_t>{0, 1, 3, 4});
  CHECK(kept(plain, 2, {0, INFINITY, -INFINITY, 1, 2, 3}) == std::vector<int64_t>{1, 5});
  const Checkpoint groups = source(R"(, "n_group": 3, "topk_group": 2)");
  CHECK(kept(groups, 3, {9, 8, 1, 2, 7, 7}) == std::vector<int64_t>{0, 3, 4});
  CHECK(contains(message_of([&] { kept(groups, 4, {1, 2, 3, 4, 5, 6}); }), "a multiple of the 3 groups"));
  CHECK(contains(message_of([&] {
                   check_kept_experts(groups, find_expert_blocks(groups),
                                      {{"model.layers.0.mlp.experts", {0, 1, 4}}}, "x.json");
                 }),
                 "equally many experts of each of 3 groups, found 2 of 3 in group 0"));
  const Checkpoint narrow = source(R"(, "n_group": 3, "topk_group": 1)");
  CHECK(contains(message_of([&] { kept(narrow, 3, {1, 2, 3, 4, 5, 6}); }), "groups with enough experts"));
  // Routers with a correction score a group by its best two experts.
  const std::string all_groups = R"(, "n_group": 3, "topk_group": 3)";
  CHECK(kept(source(all_groups), 3, {1, 2, 3, 4, 5, 6}) == std::vector<int64_t>{1, 3, 5});
  const Checkpoint corrected = source(all_groups, true);
  contains(message_of([&] {
             kept(corrected, 3, {1, 2, 3, 4, 5, 6});
           }),
           "the scores of two experts rank a group");
}

TEST_CASE("bad saliency, lists and counts are refused") {
  const Scratch scratch;
  Tensors tensors;
  for (const char* block :
       {"model.layers.0.mlp.experts", "model.layers.1.mlp.experts", "mtp.layers.0.mlp.experts"}) {
    add_experts(tensors, block, random_experts(4, 16, 32));
    add_bf16(tensors, std::string(block).substr(0, std::string(block).rfind('.')) + ".gate.weight", {4, 32});
  }
  write_checkpoint(scratch / "src", {tensors}, config_of(4));
  const Checkpoint c = Checkpoint::open(scratch / "src");
  const std::vector<float> s{1, 2, 3, 4};
  const auto entry = [&](const std::string& block, const std::vector<float>& v) {
    return f32(block + ".saliency", v);
  };
  const auto by = [&](int64_t count, const Tensors& file) {
    write_safetensors(scratch / "s.safetensors", file);
    return message_of([&] { keep_salient_experts(c, count, scratch / "s.safetensors"); });
  };
  const Tensors whole{entry("model.layers.0.mlp.experts", s), entry("model.layers.1.mlp.experts", s),
                      entry("mtp.layers.0.mlp.experts", s)};
  CHECK(by(3, whole) == "");
  CHECK(contains(by(4, whole), "expected fewer than the 4 experts"));
  CHECK(contains(by(1, whole), "expected at least 2 experts, the count per token"));
  CHECK(contains(by(3, {whole[0], whole[2]}),
                 "expected model.layers.1.mlp.experts.saliency F32 [4], found none"));
  CHECK(contains(by(3, {whole[0], whole[1]}), "drop it first by twofour drop --modules mtp"));
  Tensors more = whole;
  more.push_back(entry("model.layers.7.mlp.experts", s));
  CHECK(contains(by(3, more), "found another entry"));
  Tensors collected = whole;
  collected.push_back(f32("model.layers.0.mlp.experts.0.up_proj.hessian", {1, 2}));
  CHECK(by(3, collected) == "");
  Tensors nan = whole;
  nan[1] = entry("model.layers.1.mlp.experts", {1, NAN, 2, 3});
  CHECK(contains(by(3, nan), "expected numbers, found NaN of expert 1"));
  Tensors narrow = whole;
  narrow[0] = entry("model.layers.0.mlp.experts", {1, 2, 3});
  CHECK(contains(by(3, narrow), "expected F32 [4], found F32 [3]"));
  const auto named = [&](const std::string& text) {
    put_text(scratch / "e.json", text);
    return message_of([&] { keep_named_experts(c, scratch / "e.json"); });
  };
  const auto list = [](const std::string& a, const std::string& b, const std::string& more_blocks = "") {
    return R"({"model.layers.0.mlp.experts": )" + a + R"(, "model.layers.1.mlp.experts": )" + b +
           R"(, "mtp.layers.0.mlp.experts": [0, 1, 2])" + more_blocks + "}";
  };
  CHECK(named(list("[3, 0, 1]", "[0, 1, 2]")) == "");
  CHECK(contains(named(list("[0, 1, 2]", "[0, 1]")), "expected 3 experts (as in the first block), found 2"));
  CHECK(contains(named(list("[0, 1, 4]", "[0, 1, 2]")), "different numbers from 0 to 3, found 4"));
  CHECK(contains(named(list("[0, 1, 1]", "[0, 1, 2]")), "different numbers from 0 to 3, found 1"));
  CHECK(contains(named(list("[0, 1, 2]", "[0, 1, 2]", R"(, "x": [0, 1, 2])")), "none of that name"));
  CHECK(contains(named(R"({"model.layers.0.mlp.experts": [0, 1, 2]})"), "found no entry of it"));
  CHECK(contains(named("[1]"), "a list of expert numbers for each block"));
  CHECK(contains(named(list("[0, 1.5, 2]", "[0, 1, 2]")), "a list of expert numbers for each block"));
}

TEST_CASE("checkpoints that cannot lose experts are refused") {
  const std::string block = "layers.0.ffn.experts";
  const auto refused = [&](const std::function<void(Tensors&)>& change, const std::string& config,
                           const std::string& part) {
    const Scratch scratch;
    Tensors tensors;
    add_experts(tensors, block, random_experts(4, 16, 32));
    change(tensors);
    write_checkpoint(scratch / "src", {tensors}, config);
    CHECK(contains(message_of([&] { open_edited(scratch / "src", {}, keep({{block, {0, 1, 2}}})); }), part));
  };
  const auto router = [](Tensors& t) { add_bf16(t, "layers.0.ffn.gate.weight", {4, 32}); };
  refused(
      [&](Tensors& t) {
        router(t);
        t.push_back({"layers.0.ffn.gate.tid2eid", DType::kI32, {8, 2}, std::vector<uint8_t>(64)});
      },
      config_of(4), "a hash layer");
  refused([](Tensors&) {}, config_of(4), "expected a router with a row for each of 4 experts");
  refused(
      [](Tensors& t) {
        add_bf16(t, "layers.0.ffn.gate.weight", {5, 32});
      },
      config_of(4), "expected a row for each of 4 experts");
  refused(router, config_of(6), "expected 6 experts (");
  refused(router, R"({"num_experts_per_tok": 2})", "expected one count of experts");
  refused(
      [&](Tensors& t) {
        router(t);
        std::erase_if(t, [](const TensorData& x) { return x.name.find("experts.1.") != std::string::npos; });
      },
      config_of(4), "expected experts 0 to 3, found 3 of them");
}

TEST_CASE("exceptions of single experts follow by name; patterns that would match others are refused") {
  const Scratch scratch;
  Tensors tensors;
  add_experts(tensors, "model.layers.0.mlp.experts", random_experts(4, 16, 32));
  add_bf16(tensors, "model.layers.0.mlp.gate.weight", {4, 32});
  const auto drop = [&](const std::string& key, const std::string& name) {
    for (const char* old : {"src", "out"}) fs::remove_all(scratch / old);
    write_checkpoint(scratch / "src", {tensors},
                     config_of(4, R"(, "quantization_config": {"quant_method": "auto-round", "bits": 4, ")" +
                                      key + R"(": {")" + name + R"(": {"bits": 8}}})"));
    write_edited(scratch / "src", {}, keep({{"model.layers.0.mlp.experts", {1, 3}}}), scratch / "out");
    return json_line(json_at(scratch / "out/config.json")["quantization_config"][key]);
  };
  for (const char* key : {"dynamic", "extra_config"}) {
    CHECK(contains(drop(key, "model.layers.0.mlp.experts.3.up_proj"), "experts.1.up_proj"));
    CHECK(drop(key, "model.layers.0.mlp.experts.2.up_proj") == "{}");
    CHECK(contains(drop(key, ".*experts.*up_proj"), "up_proj"));
    CHECK(contains(message_of([&] { drop(key, R"(.*experts\\.3\\..*)"); }), "under its new name"));
  }
}

}  // namespace drop_experts_test
