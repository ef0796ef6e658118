#include <doctest/doctest.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/error.h"
#include "lib/base/names/natural.h"
#include "lib/look/diff/gate.h"
#include "tests/support/conversion.h"
#include "tests/support/diff_of.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/stored_weights.h"

namespace diff_test {

using namespace twofour;

namespace {

/// compressed-tensors' names with any stored global scale.
void add_stored(Tensors& to, const std::string& module, const Nvfp4Matrix& m, float stored) {
  to.push_back({module + ".weight_packed", DType::kU8, {m.n, m.k / 2}, m.codes});
  to.push_back({module + ".weight_scale", DType::kF8E4M3, {m.n, m.k / 16}, m.scales});
  to.push_back(f32(module + ".weight_global_scale", {1}, {stored}));
}

/// A number that its reciprocal's reciprocal misses.
float without_way_back() {
  for (float g = 1.1f;; g = std::nextafter(g, 2.0f)) {
    if (1.0f / (1.0f / g) != g) return g;
  }
}

}  // namespace

TEST_CASE("how tensors are sharded does not matter") {
  const Tensors tensors = experts_stored_as("modelopt", "model.layers.0.mlp.experts", 3, 32, 48);
  const Scratch scratch;
  write_checkpoint(scratch / "a", {tensors});
  const auto middle = tensors.begin() + 7;
  write_checkpoint(scratch / "b", {Tensors(middle, tensors.end()), Tensors(tensors.begin(), middle)});
  const DiffResult r = diff_of(scratch / "a", scratch / "b");
  CHECK(r.count(DiffClass::kEqual) == 12);
  CHECK(r.same_bytes == 12);
  CHECK(r.renamed == 0);
  CHECK(default_diff_gate().count(r) == 0);
  REQUIRE(r.files.size() == 2);  // the index names the shards; it is listed, not counted
  CHECK(r.files[0].name == "config.json");
  CHECK(r.files[0].state == DiffFile::State::kSame);
  CHECK(r.files[1].name == "model.safetensors.index.json");
  CHECK(r.files[1].state == DiffFile::State::kOnlyB);
}

TEST_CASE("multipliers that are neighbours are a reciprocal's last bit, farther ones are not") {
  const float g = without_way_back();
  Nvfp4Matrix m = random_matrix(16, 32, 2, g);
  m.scales[3] = 0x30;
  m.codes[3 * 8] = 0x22;
  Tensors a, b;
  add_modelopt(a, "x.down_proj", m);
  add_stored(b, "x.down_proj", m, 1.0f / g);
  const DiffResult r = diff_of(a, b);
  CHECK(only_entry(r).cls == DiffClass::kReciprocal);
  CHECK(r.renamed == 1);
  CHECK(default_diff_gate().count(r) == 0);
  CHECK(parse_diff_gate({"reciprocal"}).count(r) == 1);

  SUBCASE("with 0 for -0 on top") {
    m.codes[3 * 8] = 0x20;
    Tensors c, d;
    add_modelopt(c, "x.down_proj", m);
    m.codes[3 * 8] = 0x28;
    add_stored(d, "x.down_proj", m, 1.0f / g);
    CHECK(only_entry(diff_of(c, d)).cls == DiffClass::kReciprocal);
  }
  SUBCASE("with one code flipped, only that differs") {
    m.codes[3 * 8] = 0x23;
    Tensors d;
    add_stored(d, "x.down_proj", m, 1.0f / g);
    const DiffResult flipped = diff_of(a, d);
    const DiffEntry& e = only_entry(flipped);
    CHECK(e.cls == DiffClass::kDifferent);
    CHECK(e.error.beyond == 1);
    CHECK((e.error.first.e == 0 && e.error.first.n == 1 && e.error.first.k == 16));
  }
  SUBCASE("two steps away everything that is not 0 differs") {
    m.global = std::nextafter(std::nextafter(g, 2.0f), 2.0f);
    Tensors c;
    add_modelopt(c, "x.down_proj", m);
    const DiffEntry e = only_entry(diff_of(a, c));
    CHECK(e.cls == DiffClass::kDifferent);
    CHECK(e.error.beyond > 0);
    CHECK(only_entry(diff_of(a, c, {.tolerance = 0x1p-20})).cls == DiffClass::kWithin);
  }
}

TEST_CASE("input scales are compared as multipliers") {
  const float g = without_way_back();
  const Nvfp4Matrix m = random_matrix(16, 32, 3);
  const auto pair = [&](float stored) {
    Tensors a, b;
    add_modelopt(a, "x.up_proj", m);
    a.push_back(f32("x.up_proj.input_scale", {}, {g}));
    add_compressed_tensors(b, "x.up_proj", m);
    b.push_back(f32("x.up_proj.input_global_scale", {1}, {stored}));
    return entry(diff_of(a, b), "x.up_proj.input_scale");
  };
  CHECK(pair(1.0f / g).cls == DiffClass::kReciprocal);
  CHECK(pair(1.0f / g).kind == DiffKind::kInputScale);
  const DiffEntry wrong = pair(g);
  CHECK(wrong.cls == DiffClass::kDifferent);
  CHECK((wrong.error.first.expected == g && wrong.error.first.found == 1.0f / g));

  Tensors a, b;
  add_modelopt(a, "x.up_proj", m);
  add_modelopt(b, "x.up_proj", m);
  b.push_back(f32("x.up_proj.input_scale", {1}, {g}));
  CHECK(entry(diff_of(a, b), "x.up_proj.input_scale").cls == DiffClass::kAdded);
  a.push_back(f32("x.up_proj.input_scale", {}, {g}));  // a scalar is 0-d or [1]
  CHECK(diff_of(a, b).count(DiffClass::kEqual) == 2);
}

TEST_CASE("tensors of unlike shapes or types are distinguished from unlike values") {
  Tensors a, b;
  add_floats(a, "x.up_proj", random_floats(4, 32, 1));
  add_floats(b, "x.up_proj", random_floats(8, 16, 1));
  add_bf16(a, "norm", {16}, 1);
  add_bf16(b, "norm", {4, 4}, 1);
  a.push_back({"ids", DType::kI32, {2}, {1, 0, 0, 0, 2, 0, 0, 0}});
  b.push_back(f32("ids", {2}, {1, 2}));
  a.push_back({"embed", DType::kBF16, {2}, {0x80, 0x3F, 0x00, 0x40}});
  b.push_back(f32("embed", {2}, {1, 2}));
  a.push_back({"conv.weight", DType::kBF16, {1, 2}, {0x80, 0x3F, 0x00, 0x40}});
  b.push_back({"conv.weight", DType::kBF16, {1, 2, 1}, {0x80, 0x3F, 0x00, 0x40}});
  const DiffResult r = diff_of(a, b);
  CHECK(r.entries.size() == 5);
  CHECK(entry(r, "x.up_proj").cls == DiffClass::kShape);
  CHECK(entry(r, "norm").cls == DiffClass::kShape);
  CHECK(entry(r, "conv.weight").cls == DiffClass::kShape);
  CHECK(entry(r, "ids").cls == DiffClass::kType);
  CHECK(entry(r, "embed").cls == DiffClass::kEqual);
}

TEST_CASE("a tensor whose name is empty is there") {
  const Tensors none{f32("other", {1}, {1})}, one{f32("", {1}, {1})}, two{f32("", {1}, {2})};
  CHECK(only_entry(diff_of(one, one)).cls == DiffClass::kEqual);
  CHECK(only_entry(diff_of(one, two)).cls == DiffClass::kDifferent);
  CHECK(entry(diff_of(one, none), "").cls == DiffClass::kRemoved);
  CHECK(entry(diff_of(none, one), "").cls == DiffClass::kAdded);
}

TEST_CASE("modules whose tensors disagree are compared tensor by tensor") {
  Tensors a;
  add_floats(a, "x.up_proj", random_floats(16, 32, 1));
  a.push_back(f32("x.up_proj.weight_scale", {1}, {2}));
  Tensors b = a;
  b[0].bytes[2 * (3 * 32 + 5) + 1] ^= 0x80;
  const DiffResult r = diff_of(a, b);
  CHECK(findings_of(r.findings, "compared-as-stored").size() == 2);
  REQUIRE(r.entries.size() == 2);
  CHECK(entry(r, "x.up_proj.weight_scale").cls == DiffClass::kEqual);
  const DiffEntry& e = entry(r, "x.up_proj.weight");
  CHECK((e.kind == DiffKind::kTensor && e.cls == DiffClass::kDifferent && e.error.beyond == 1));
  CHECK((e.error.first.e == 0 && e.error.first.n == 3 && e.error.first.k == 5));
}

TEST_CASE("biases of stacks are held against those of single experts") {
  constexpr int64_t kE = 2, kI = 32, kH = 48;
  const std::string block = "model.layers.1.mlp.experts";
  Tensors a = experts_stored_as("stack, interleaved", block, kE, kI, kH), b;
  ExpertSet set = random_experts(kE, kI, kH, 7);
  const auto bias = std::find_if(a.begin(), a.end(), [](auto& t) { return t.name.ends_with("_bias"); });
  for (int64_t e = 0; e < kE; ++e) {
    const auto x = static_cast<size_t>(e);
    set.gate[x].global = set.up[x].global = set.down[x].global = 0.5f + static_cast<float>(e);
    for (const int64_t up : {0, 1}) {
      TensorData t{
          fmt::format("{}.{}.{}.bias", block, e, up ? "up_proj" : "gate_proj"), DType::kBF16, {kI}, {}};
      for (int64_t n = 0; n < kI; ++n) {
        const auto at = bias->bytes.begin() + 2 * (e * 2 * kI + 2 * n + up);
        t.bytes.insert(t.bytes.end(), at, at + 2);
      }
      b.push_back(t);
    }
  }
  add_experts(b, block, set);
  add_bf16(b, "model.norm.weight", {kH});
  CHECK(diff_of(a, b).count(DiffClass::kEqual) == 3 * kE + 2 * kE + 1);
  b[3].bytes[2 * 9] ^= 1;  // expert 1, up
  const DiffResult r = diff_of(a, b);
  const DiffEntry& e = entry(r, block + ".1.up_proj.bias");
  CHECK(r.count(DiffClass::kDifferent) == 1);
  CHECK(e.cls == DiffClass::kDifferent);
  CHECK((e.error.first.n == 9 && e.error.first.k == 0 && e.expert == 1));
}

TEST_CASE("the result is the same for any number of threads") {
  Tensors a, b;
  add_floats(a, "x.up_proj", random_floats(64, 65'536, 1), DType::kF32);
  add_floats(b, "x.up_proj", random_floats(64, 65'536, 2), DType::kF32);
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const DiffResult one = diff_of(a, b);
  omp_set_num_threads(5);
  const DiffResult five = diff_of(a, b);
  omp_set_num_threads(before);
  const ValueError &x = one.entries[0].error, &y = five.entries[0].error;
  CHECK((x.energy == y.energy && x.product == y.product && x.error == y.error && x.beyond == y.beyond));
  CHECK(x.first.k == y.first.k);
}

TEST_CASE("patterns restrict what is compared; one that matches nothing is refused") {
  Tensors a, b;
  for (const char* name : {"model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj", "lm_head"}) {
    add_floats(a, name, random_floats(16, 32, 1));
    add_floats(b, name, random_floats(16, 32, 2));
  }
  const auto names = [&](const DiffOptions& o) {
    std::string text;
    for (const DiffEntry& e : diff_of(a, b, o).entries) text += e.name + " ";
    return text;
  };
  CHECK(names({.include = parse_patterns({"*layers*"}), .exclude = parse_patterns({"re:.*\\.0\\."})}) ==
        "model.layers.1.mlp.up_proj ");
  CHECK(names({.exclude = parse_patterns({"*up_proj.weight"})}) == "lm_head ");
  CHECK_THROWS_WITH_AS(diff_of(a, b, {.include = parse_patterns({"*.q_proj"})}),
                       doctest::Contains("--include '*.q_proj': expected to match a name in "), Error);
}

TEST_CASE("entries and patterns speak the names of the files, whatever the projections are called") {
  const std::string block = "model.layers.0.block_sparse_moe.experts";
  Tensors a, b;
  for (const char* leaf : {"w1", "w2", "w3"}) {
    for (int e = 0; e < 2; ++e) {
      const std::string name = fmt::format("{}.{}.{}", block, e, leaf);
      add_floats(a, name, random_floats(16, 16, static_cast<unsigned>(e)));
      add_floats(b, name, random_floats(16, 16, 7));
    }
  }
  const DiffResult r = diff_of(a, b, {.include = parse_patterns({"*.w3"})});
  REQUIRE(r.entries.size() == 2);
  CHECK(r.entries[0].name == block + ".0.w3");
  CHECK(r.rows[0].projection == "block_sparse_moe.experts.w3");
  const DiffResult all = diff_of(a, b);
  CHECK(std::is_sorted(all.entries.begin(), all.entries.end(),
                       [](auto& x, auto& y) { return natural_less(x.name, y.name); }));
  for (const DiffEntry& e : all.entries) CHECK(e.name.find("_proj") == std::string::npos);
}

TEST_CASE("rows roll up layers and projections, all experts of one together") {
  const std::string block = "model.layers.3.mlp.experts";
  Tensors a = experts_stored_as("modelopt", block, 3, 32, 48), b = a;
  const auto flip = [&](const std::string& tensor) {
    std::find_if(b.begin(), b.end(), [&](auto& t) { return t.name == tensor; })->bytes[0] ^= 0x33;
  };
  flip(block + ".1.up_proj.weight");
  flip(block + ".2.up_proj.weight");
  const DiffResult r = diff_of(a, b);
  const auto row = std::find_if(r.rows.begin(), r.rows.end(),
                                [](auto& x) { return x.projection == "mlp.experts.up_proj"; });
  REQUIRE(row != r.rows.end());
  CHECK(row->layer == "model.layers.3");
  CHECK((row->count(DiffClass::kDifferent) == 2 && row->count(DiffClass::kEqual) == 1));
  const DiffEntry &one = entry(r, block + ".1.up_proj"), &two = entry(r, block + ".2.up_proj");
  CHECK(row->error.error == one.error.error + two.error.error);
  CHECK(row->error.weights == 2 * 32 * 48);
  CHECK(row->error.first.e == 1);
  CHECK(r.entries[row->worst].error.snr_db() == std::min(one.error.snr_db(), two.error.snr_db()));
}

TEST_CASE("what makes a comparison fail can be chosen") {
  const Tensors a{f32("same", {1}, {1}), f32("old", {1}, {1}), f32("w", {2}, {1, 0})},
      b{f32("same", {1}, {1}), f32("new", {1}, {1}), f32("w", {2}, {0.9f, 0.1f})};
  const DiffResult r = diff_of(a, b);  // SNR 17 dB, cosine 0.9939
  const auto failed = [&](const std::vector<std::string>& words) { return parse_diff_gate(words).count(r); };
  CHECK(failed({}) == 3);
  CHECK(failed({"any"}) == 3);
  CHECK(failed({"none"}) == 0);
  CHECK(failed({"removed", "added"}) == 2);
  CHECK(failed({"snr<16"}) == 0);
  CHECK(failed({"snr<18"}) == 1);
  CHECK(failed({"cosine<0.9938"}) == 0);
  CHECK(failed({"cosine<0.994"}) == 1);
  CHECK(failed({"max-abs>0.1001"}) == 0);
  CHECK(failed({"max-abs>0.0999", "added"}) == 2);
  for (const char* word : {"equal", "snr>3", "snr<", "snr<x", "snr<1x", "snr<nan", "", "cosine<1.5",
                           "cosine<-1.01", "max-abs>-1e-9", "max-abs>nan", "max-abs>inf", "snr<1e999",
                           "snr<-inf", "max-abs> 1", "max-abs>1 ", "cosine<0x1p-1", "cosine<0.5,"}) {
    CAPTURE(word);
    CHECK_THROWS_AS(parse_diff_gate({word}), Error);
  }
  for (const char* word : {"cosine<-1", "cosine<1", "snr<-20", "max-abs>0", "max-abs>1e-9"})
    parse_diff_gate({word});
  CHECK(failed({"snr<18", "snr<16"}) == 1);  // what fails either
  CHECK(failed({"max-abs>0.0999", "max-abs>0.1001"}) == 1);

  // Figures that infinite values leave without a number fail every limit.
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const DiffResult infinite =
      diff_of({f32("w", {3}, {kInfinity, 1, 2})}, {f32("w", {3}, {kInfinity, 9, -9})});
  for (const char* word : {"snr<-100", "cosine<-1", "max-abs>10"})
    CHECK(parse_diff_gate({word}).count(infinite) == 1);
}

TEST_CASE("by headers alone names, shapes and formats are compared, and no value") {
  Tensors a, b;
  add_bf16(a, "same", {4, 8}, 1);
  add_bf16(b, "same", {4, 8}, 2);
  add_bf16(a, "shape", {4, 8}, 1);
  add_bf16(b, "shape", {8, 4}, 1);
  add_bf16(a, "format", {4, 8}, 1);
  b.push_back(f32("format", {4, 8}, std::vector<float>(32, 1.0f)));
  add_bf16(a, "gone", {4, 8}, 1);
  add_bf16(b, "new", {4, 8}, 1);
  DiffOptions options;
  options.headers_only = true;
  const DiffResult r = diff_of(a, b, options);
  CHECK(r.headers_only);
  CHECK(entry(r, "same").cls == DiffClass::kUnread);
  CHECK(entry(r, "shape").cls == DiffClass::kShape);
  CHECK(entry(r, "format").cls == DiffClass::kType);
  CHECK(entry(r, "format").message == "unlike formats");
  CHECK(entry(r, "gone").cls == DiffClass::kRemoved);
  CHECK(entry(r, "new").cls == DiffClass::kAdded);
  CHECK(default_diff_gate().count(r) == 4);
  CHECK(entry(diff_of(a, b), "same").cls == DiffClass::kDifferent);
}

}  // namespace diff_test
