#include <doctest/doctest.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <functional>
#include <map>

#include "lib/look/diff/diff.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/stored_weights.h"

namespace diff_dialects_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

constexpr int64_t kE = 2, kI = 32, kH = 64;
const std::string kBlock = "model.layers.5.mlp.experts";

/// Codes of one matrix, an element each.
struct Codes {
  int64_t n, k;
  std::vector<uint8_t> codes;
  uint8_t& at(int64_t row, int64_t col) { return codes[static_cast<size_t>(row * k + col)]; }
};
struct Expert {
  Codes gate, up, down;
};
using Experts = std::vector<Expert>;

Codes random_codes(int64_t n, int64_t k, unsigned seed) {
  std::mt19937 random(seed);
  Codes c{n, k, std::vector<uint8_t>(static_cast<size_t>(n * k))};
  for (uint8_t& code : c.codes) code = static_cast<uint8_t>(random() % 16);
  return c;
}

Experts random_experts_of_codes() {
  Experts experts;
  for (unsigned e = 0; e < kE; ++e) {
    experts.push_back(
        {random_codes(kI, kH, 3 * e), random_codes(kI, kH, 3 * e + 1), random_codes(kH, kI, 3 * e + 2)});
  }
  return experts;
}

/// The codes as numbers, which every format here has exactly.
FloatMatrix floats_of(const Codes& c) {
  FloatMatrix m{c.n, c.k, {}};
  for (const uint8_t code : c.codes) m.values.push_back(static_cast<float>(kSlowE2m1.value(code)));
  return m;
}

/// With block scales of 1 (0x38) and a global scale of 1.
Nvfp4Matrix nvfp4_of(const Codes& c) {
  Nvfp4Matrix m{c.n, c.k, {}, std::vector<uint8_t>(static_cast<size_t>(c.n * c.k / 16), 0x38), 1.0f};
  for (size_t i = 0; i < c.codes.size(); i += 2) {
    m.codes.push_back(static_cast<uint8_t>(c.codes[i] | c.codes[i + 1] << 4));
  }
  return m;
}

void add_fp8(Tensors& to, const std::string& module, const Codes& c, const std::string& scale) {
  std::vector<uint8_t> bytes;
  for (const float v : floats_of(c).values)
    bytes.push_back(static_cast<uint8_t>(kSlowE4m3.nearest(double{v})));
  to.push_back({module + ".weight", DType::kF8E4M3, {c.n, c.k}, bytes});
  const std::vector<float> ones(scale == "row" ? static_cast<size_t>(c.n) : 1, 1.0f);
  const std::vector<int64_t> shape = scale == "tensor" ? std::vector<int64_t>{}
                                     : scale == "row"  ? std::vector<int64_t>{c.n, 1}
                                                       : std::vector<int64_t>{1, 1};
  to.push_back({module + (scale == "block" ? ".weight_scale_inv" : ".weight_scale"), DType::kF32, shape,
                float_bytes_as(DType::kF32, ones)});
}

void add_mxfp4(Tensors& to, const std::string& module, const Codes& c) {
  to.push_back({module + ".weight_packed", DType::kU8, {c.n, c.k / 2}, nvfp4_of(c).codes});
  to.push_back({module + ".weight_scale",
                DType::kU8,
                {c.n, c.k / 32},
                std::vector<uint8_t>(static_cast<size_t>(c.n * c.k / 32), 127)});
}

void add_gpt_oss(Tensors& to, const std::string& name, const std::vector<Nvfp4Matrix>& experts) {
  const int64_t e = kE, n = experts[0].n, k = experts[0].k;
  std::vector<uint8_t> codes;
  for (const Nvfp4Matrix& m : experts) codes.insert(codes.end(), m.codes.begin(), m.codes.end());
  to.push_back({name + "_blocks", DType::kU8, {e, n, k / 32, 16}, codes});
  to.push_back({name + "_scales",
                DType::kU8,
                {e, n, k / 32},
                std::vector<uint8_t>(static_cast<size_t>(e * n * k / 32), 127)});
}

using AddMatrix = std::function<void(Tensors&, const std::string&, const Codes&)>;

Tensors single(const Experts& experts, const AddMatrix& add) {
  Tensors t;
  for (size_t e = 0; e < experts.size(); ++e) {
    const std::string prefix = fmt::format("{}.{}.", kBlock, e);
    add(t, prefix + "gate_proj", experts[e].gate);
    add(t, prefix + "up_proj", experts[e].up);
    add(t, prefix + "down_proj", experts[e].down);
  }
  return t;
}

Tensors stacked(const Experts& experts, const std::string& how) {
  const bool turned = how.find("in turn") != how.npos, k_outer = how.find("k outer") != how.npos;
  Tensors t;
  if (how.starts_with("bf16")) {
    std::vector<FloatMatrix> gate_up, down;
    for (const Expert& e : experts) {
      gate_up.push_back(join_rows(floats_of(e.gate), floats_of(e.up), false));
      down.push_back(floats_of(e.down));
    }
    add_float_stack(t, kBlock + ".gate_up_proj", gate_up, k_outer);
    add_float_stack(t, kBlock + ".down_proj", down, k_outer);
    return t;
  }
  std::vector<Nvfp4Matrix> gate_up, down;
  for (const Expert& e : experts) {
    gate_up.push_back((turned ? interleave_rows : stack_rows)(nvfp4_of(e.gate), nvfp4_of(e.up)));
    down.push_back(nvfp4_of(e.down));
  }
  if (how == "gpt-oss, in turn") {
    add_gpt_oss(t, kBlock + ".gate_up_proj", gate_up);
    add_gpt_oss(t, kBlock + ".down_proj", down);
    add_bf16(t, kBlock + ".gate_up_proj_bias", {kE, 2 * kI});  // tells that rows are in turn
    return t;
  }
  add_stack(t, kBlock + ".gate_up_proj", gate_up, k_outer, {kE});
  add_stack(t, kBlock + ".down_proj", down, k_outer, {1});
  if (turned) add_bf16(t, kBlock + ".gate_up_proj_bias", {kE, 2 * kI});
  return t;
}

AddMatrix floats(DType type) {
  return
      [=](Tensors& t, const std::string& name, const Codes& c) { add_floats(t, name, floats_of(c), type); };
}

/// Every way to store the same weights that loses nothing of them. An artifact is made of ModelOpt's.
const std::map<std::string, std::function<Tensors(const Experts&)>> kStorages = {
    {"modelopt",
     [](auto& x) {
       return single(x, [](Tensors& t, auto& name, auto& c) { add_modelopt(t, name, nvfp4_of(c)); });
     }},
    {"compressed-tensors",
     [](auto& x) {
       return single(x,
                     [](Tensors& t, auto& name, auto& c) { add_compressed_tensors(t, name, nvfp4_of(c)); });
     }},
    {"stack", [](auto& x) { return stacked(x, "stack"); }},
    {"stack, k outer", [](auto& x) { return stacked(x, "stack, k outer"); }},
    {"stack, in turn", [](auto& x) { return stacked(x, "stack, in turn"); }},
    {"bf16", [](auto& x) { return single(x, floats(DType::kBF16)); }},
    {"f16", [](auto& x) { return single(x, floats(DType::kF16)); }},
    {"f32", [](auto& x) { return single(x, floats(DType::kF32)); }},
    {"bf16 stack", [](auto& x) { return stacked(x, "bf16 stack"); }},
    {"bf16 stack, k outer", [](auto& x) { return stacked(x, "bf16 stack, k outer"); }},
    {"fp8 by tensor",
     [](auto& x) {
       return single(x, [](Tensors& t, auto& name, auto& c) { add_fp8(t, name, c, "tensor"); });
     }},
    {"fp8 by row",
     [](auto& x) { return single(x, [](Tensors& t, auto& name, auto& c) { add_fp8(t, name, c, "row"); }); }},
    {"fp8 by block",
     [](auto& x) {
       return single(x, [](Tensors& t, auto& name, auto& c) { add_fp8(t, name, c, "block"); });
     }},
    {"mxfp4", [](auto& x) { return single(x, add_mxfp4); }},
    {"gpt-oss", [](auto& x) { return stacked(x, "gpt-oss, in turn"); }},
};

/// Writes every storage and g8 below `at`.
void write_all(const fs::path& at, const Experts& experts) {
  for (const auto& [name, store] : kStorages) write_checkpoint(at / name, {store(experts)});
  OneRule recipe;
  recipe.to = "g8";
  convert(at / "modelopt", at / "g8", recipe);
}

std::map<std::string, Checkpoint> open_all(const fs::path& at) {
  std::map<std::string, Checkpoint> all;
  for (const auto& [name, store] : kStorages) all.emplace(name, open_source(at / name));
  all.emplace("g8", open_source(at / "g8"));
  return all;
}

/// Entries of weights alone: only stacks in turn have biases. By one thread: teams of threads would take most
/// of the time that tiny checkpoints need.
std::vector<DiffEntry> weights_of(const Checkpoint& a, const Checkpoint& b) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  Progress progress;
  DiffResult result = diff(a, b, {}, progress);
  omp_set_num_threads(before);
  std::erase_if(result.entries, [](const DiffEntry& e) { return e.kind != DiffKind::kWeights; });
  return result.entries;
}

}  // namespace

TEST_CASE("weights are equal in every pair of dialects and layouts") {
  const Scratch scratch;
  write_all(scratch.path, random_experts_of_codes());
  const auto all = open_all(scratch.path);
  for (const auto& [a_name, a] : all) {
    for (const auto& [b_name, b] : all) {
      CAPTURE(a_name);
      CAPTURE(b_name);
      const auto entries = weights_of(a, b);
      REQUIRE(entries.size() == 3 * kE);
      for (const DiffEntry& e : entries) {
        CAPTURE(e.name);
        CHECK(e.cls == DiffClass::kEqual);
        if (a_name == b_name) CHECK((e.same_bytes && !e.renamed()));
      }
    }
  }
}

TEST_CASE("one flipped code is found at its expert, n and k in every pair of dialects and layouts") {
  const Scratch scratch, flipped_scratch;
  Experts experts = random_experts_of_codes();
  struct Place {
    const char* projection;
    Codes Expert::*matrix;
    int64_t e, n, k;
  };
  const Place places[] = {{"gate_proj", &Expert::gate, 0, 31, 0},
                          {"up_proj", &Expert::up, 1, 7, 41},
                          {"down_proj", &Expert::down, 1, 63, 31}};
  for (const Place& p : places) (experts[static_cast<size_t>(p.e)].*p.matrix).at(p.n, p.k) = 0x3;  // 1.5
  write_all(scratch.path, experts);
  for (const Place& p : places) (experts[static_cast<size_t>(p.e)].*p.matrix).at(p.n, p.k) = 0xC;  // -2
  write_all(flipped_scratch.path, experts);
  const auto all = open_all(scratch.path), flipped = open_all(flipped_scratch.path);
  for (const auto& [a_name, a] : all) {
    for (const auto& [b_name, b] : flipped) {
      CAPTURE(a_name);
      CAPTURE(b_name);
      size_t found = 0;
      for (const DiffEntry& entry : weights_of(a, b)) {
        CAPTURE(entry.name);
        const auto place = std::ranges::find_if(places, [&](const Place& p) {
          return entry.name == fmt::format("{}.{}.{}", kBlock, p.e, p.projection);
        });
        if (place == std::end(places)) {
          CHECK(entry.cls == DiffClass::kEqual);
          continue;
        }
        ++found;
        const ValueError& v = entry.error;
        CHECK(entry.cls == DiffClass::kDifferent);
        CHECK(entry.expert == place->e);
        CHECK(v.beyond == 1);
        CHECK(v.weights == static_cast<uint64_t>(kI * kH));
        CHECK((v.first.e == place->e && v.first.n == place->n && v.first.k == place->k));
        CHECK((v.first.expected == 1.5f && v.first.found == -2.0f));
        CHECK(v.max_abs == 3.5);
        CHECK(v.error == 3.5 * 3.5);
      }
      CHECK(found == std::size(places));
    }
  }
}

}  // namespace diff_dialects_test
