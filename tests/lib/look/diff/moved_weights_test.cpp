#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "lib/look/metrics/moved_weights.h"
#include "tests/support/diff_of.h"
#include "tests/support/weights/stored_weights.h"

// What is elsewhere in another checkpoint is named: by numbers, whatever the format.

namespace moved_weights_test {

using namespace twofour;

namespace {

constexpr int64_t kN = 48, kK = 64;
using Matrix = std::vector<float>;  ///< [kN, kK]

Matrix random_weights(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  Matrix m(kN * kK);
  for (float& x : m) x = normal(random);
  return m;
}

/// A layer with a router, experts of three projections, and attention.
struct Model {
  std::map<std::string, Matrix> matrices;
  Tensors tensors(DType dtype) const {
    Tensors all;
    for (const auto& [name, m] : matrices)
      all.push_back({name + ".weight", dtype, {kN, kK}, float_bytes_as(dtype, m)});
    return all;
  }
};

std::string expert_name(int layer, int64_t expert, const char* projection) {
  return fmt::format("model.layers.{}.mlp.experts.{}.{}", layer, expert, projection);
}

constexpr const char* kProjections[] = {"gate_proj", "up_proj", "down_proj"};

Model sound_model(int layers, int64_t experts) {
  Model model;
  unsigned seed = 0;
  for (int layer = 0; layer < layers; ++layer) {
    model.matrices[fmt::format("model.layers.{}.self_attn.o_proj", layer)] = random_weights(++seed);
    for (int64_t e = 0; e < experts; ++e) {
      for (const char* p : kProjections) model.matrices[expert_name(layer, e, p)] = random_weights(++seed);
    }
  }
  return model;
}

std::vector<int64_t> random_order(int64_t count, std::mt19937& random) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

std::vector<MovedWeights> moved_in(const Model& a, const Model& b, DType a_type = DType::kF32) {
  return diff_of(a.tensors(a_type), b.tensors(DType::kF32)).moved;
}

const MovedWeights& only(const std::vector<MovedWeights>& moved) {
  REQUIRE(moved.size() == 1);
  return moved[0];
}

/// Row r becomes row order[r].
Matrix with_rows(const Matrix& m, const std::vector<int64_t>& order) {
  Matrix out;
  for (const int64_t r : order) out.insert(out.end(), m.begin() + r * kK, m.begin() + (r + 1) * kK);
  return out;
}

}  // namespace

TEST_CASE("nothing has moved in what is equal, rounded, or another model") {
  const Model sound = sound_model(2, 4);
  CHECK(moved_in(sound, sound).empty());
  CHECK(moved_in(sound, sound, DType::kBF16).empty());
  Model other = sound;
  unsigned seed = 1000;
  for (auto& [name, m] : other.matrices) m = random_weights(++seed);
  CHECK(moved_in(other, sound).empty());
  Model near = sound;
  std::mt19937 random(3);
  for (auto& [name, m] : near.matrices) {
    for (float& x : m) x *= 1 + 0.1f * static_cast<float>(random() % 3);
  }
  CHECK(moved_in(near, sound).empty());
}

TEST_CASE("any permutation of a layer's experts is one finding, with each expert's number") {
  const int64_t experts = 6;
  const Model sound = sound_model(2, experts);
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    const std::vector<int64_t> order = random_order(experts, random);
    Model changed = sound;
    std::vector<std::pair<std::string, std::string>> pairs;
    for (int64_t e = 0; e < experts; ++e) {
      for (const char* p : kProjections) {
        const int64_t from = order[static_cast<size_t>(e)];
        changed.matrices[expert_name(1, e, p)] = sound.matrices.at(expert_name(1, from, p));
        if (from != e) pairs.emplace_back(expert_name(1, e, p), expert_name(1, from, p));
      }
    }
    const auto moved = moved_in(changed, sound, round % 2 == 0 ? DType::kF32 : DType::kBF16);
    if (pairs.empty()) {
      CHECK(moved.empty());
      continue;
    }
    const MovedWeights& m = only(moved);
    CHECK(m.how == Moved::kExperts);
    CHECK(m.name == "model.layers.1.mlp.experts");
    auto found = m.pairs;
    std::ranges::sort(found);
    std::ranges::sort(pairs);
    CHECK(found == pairs);
  }
}

TEST_CASE("experts are renumbered only with all that belongs to their numbers") {
  const Model sound = sound_model(1, 4);
  Model changed = sound;
  for (const char* p : kProjections)
    std::swap(changed.matrices[expert_name(0, 0, p)], changed.matrices[expert_name(0, 2, p)]);
  // A router of as many rows as experts, and a bias for their choice.
  const auto with_router = [](const Model& model, const std::vector<int>& rows,
                              const std::vector<int>& biases) {
    Tensors all = model.tensors(DType::kF32);
    const Matrix numbers = random_weights(99);
    Matrix router, bias;
    for (const int r : rows)
      router.insert(router.end(), numbers.begin() + r * kK, numbers.begin() + (r + 1) * kK);
    for (const int b : biases) bias.push_back(static_cast<float>(b));
    const std::string gate = "model.layers.0.mlp.gate.";
    all.push_back({gate + "weight", DType::kF32, {4, kK}, float_bytes_as(DType::kF32, router)});
    all.push_back({gate + "e_score_correction_bias", DType::kF32, {4}, float_bytes_as(DType::kF32, bias)});
    return all;
  };
  const std::vector<int> plain = {0, 1, 2, 3}, exchanged = {2, 1, 0, 3};
  const Tensors b = with_router(sound, plain, plain);
  CHECK(only(diff_of(with_router(changed, exchanged, exchanged), b).moved).how == Moved::kRenumbered);
  const auto stayed = diff_of(with_router(changed, exchanged, plain), b).moved;
  CHECK(only(stayed).how == Moved::kExperts);
  CHECK(stayed[0].text.find("e_score_correction_bias is not") != std::string::npos);
  // One projection alone is no expert.
  Model down = sound;
  std::swap(down.matrices[expert_name(0, 0, "down_proj")], down.matrices[expert_name(0, 2, "down_proj")]);
  for (const MovedWeights& m : moved_in(down, sound)) CHECK(m.how == Moved::kOther);
  CHECK(moved_in(down, sound).size() == 2);
}

TEST_CASE("experts that are alike in B are both named, and none is where its own number fits") {
  Model sound = sound_model(1, 4);
  for (const char* p : kProjections)
    sound.matrices[expert_name(0, 2, p)] = sound.matrices.at(expert_name(0, 1, p));
  Model changed = sound;
  const auto exchange = [&](int64_t x, int64_t y) {
    for (const char* p : kProjections)
      std::swap(changed.matrices[expert_name(0, x, p)], changed.matrices[expert_name(0, y, p)]);
  };
  exchange(1, 2);
  CHECK(moved_in(changed, sound).empty());
  exchange(0, 2);  // 0 is now one of the two, 2 is what was 0
  const auto moved = moved_in(changed, sound);
  const MovedWeights& m = only(moved);
  CHECK(m.text == "expert 0 equals experts 1 and 2, which are alike of B, expert 2 equals expert 0 of B");
  CHECK(m.pairs.size() == 6);
  for (const auto& [a, b] : m.pairs)
    CHECK((a.find("experts.0.") == a.npos || b.find("experts.0.") == b.npos));
}

TEST_CASE("experts that are renumbered together with the router's rows are told apart") {
  Model sound = sound_model(1, kN);
  sound.matrices["model.layers.0.mlp.gate"] = random_weights(999);
  std::mt19937 random(5);
  const std::vector<int64_t> order = random_order(kN, random);
  Model changed = sound;
  for (int64_t e = 0; e < kN; ++e) {
    for (const char* p : kProjections)
      changed.matrices[expert_name(0, e, p)] =
          sound.matrices.at(expert_name(0, order[static_cast<size_t>(e)], p));
  }
  CHECK(only(moved_in(changed, sound)).how == Moved::kExperts);
  changed.matrices["model.layers.0.mlp.gate"] =
      with_rows(sound.matrices.at("model.layers.0.mlp.gate"), order);
  CHECK(only(moved_in(changed, sound)).how == Moved::kRenumbered);
  std::swap(changed.matrices[expert_name(0, 3, "up_proj")], changed.matrices[expert_name(0, 4, "up_proj")]);
  for (const MovedWeights& m : moved_in(changed, sound)) CHECK(m.how != Moved::kRenumbered);
}

TEST_CASE("layers in another order are one finding") {
  const Model sound = sound_model(4, 2);
  Model changed;
  for (const auto& [name, m] : sound.matrices) {
    const int layer = name[std::string("model.layers.").size()] - '0';
    std::string to = name;
    to[std::string("model.layers.").size()] = static_cast<char>('0' + (layer == 1   ? 2
                                                                       : layer == 2 ? 1
                                                                                    : layer));
    changed.matrices[to] = m;
  }
  const MovedWeights m = only(moved_in(changed, sound));
  CHECK(m.how == Moved::kLayers);
  CHECK(m.name == "model.layers.1");
  CHECK(m.text == "layer 1 equals layer 2 of B, layer 2 equals layer 1 of B");
  CHECK(m.pairs.size() == 14);
}

TEST_CASE("one matrix of another name, and gate and up, are named") {
  const Model sound = sound_model(2, 3);
  Model changed = sound;
  changed.matrices["model.layers.0.self_attn.o_proj"] = sound.matrices.at(expert_name(0, 0, "gate_proj"));
  for (const MovedWeights& m : moved_in(changed, sound)) CHECK(m.how == Moved::kOther);
  changed = sound;
  std::swap(changed.matrices[expert_name(1, 2, "gate_proj")], changed.matrices[expert_name(1, 2, "up_proj")]);
  const MovedWeights m = only(moved_in(changed, sound));
  CHECK(m.how == Moved::kGateUp);
  CHECK(m.name == expert_name(1, 2, "gate_proj"));
  CHECK(m.pairs.size() == 2);
}

TEST_CASE("orders of rows and columns are found, and told where they have a rule") {
  const Model sound = sound_model(1, 2);
  const std::string name = "model.layers.0.self_attn.o_proj";
  const Matrix& m = sound.matrices.at(name);
  const auto text_of = [&](const Matrix& matrix, Moved how) {
    Model changed = sound;
    changed.matrices[name] = matrix;
    const MovedWeights moved = only(moved_in(changed, sound));
    CHECK(moved.how == how);
    CHECK(moved.name == name);
    return moved.text;
  };
  std::vector<int64_t> order(kN);
  const auto rows = [&](auto place) {
    for (int64_t r = 0; r < kN; ++r) order[static_cast<size_t>(r)] = place(r);
    return with_rows(m, order);
  };
  CHECK(text_of(rows([](int64_t r) { return (r + kN / 2) % kN; }), Moved::kRows) ==
        "the halves of its 48 rows are exchanged");
  CHECK(text_of(rows([](int64_t r) { return (r + 5) % kN; }), Moved::kRows) ==
        "its 48 rows are rotated by 5");
  CHECK(text_of(rows([](int64_t r) { return kN - 1 - r; }), Moved::kRows) ==
        "its 48 rows are in reverse order");
  CHECK(text_of(rows([](int64_t r) { return r % 2 * (kN / 2) + r / 2; }), Moved::kRows) ==
        "its 48 rows have the halves in turn");
  std::mt19937 random(11);
  for (int round = 0; round < 10; ++round) {
    order = random_order(kN, random);
    CHECK(text_of(with_rows(m, order), Moved::kRows).starts_with("its 48 rows are in another order: "));
    std::vector<int64_t> columns = random_order(kK, random);
    Matrix changed = m;
    for (int64_t r = 0; r < kN; ++r) {
      for (int64_t c = 0; c < kK; ++c)
        changed[static_cast<size_t>(r * kK + c)] =
            m[static_cast<size_t>(r * kK + columns[static_cast<size_t>(c)])];
    }
    CHECK(text_of(changed, Moved::kColumns).starts_with("its 64 columns are in another order: "));
  }
  Matrix pairs = m, turned = m;
  for (size_t i = 0; i + 1 < pairs.size(); i += 2) std::swap(pairs[i], pairs[i + 1]);
  CHECK(text_of(pairs, Moved::kNibbles) == "the two codes of each byte are exchanged");
  for (float& x : turned) x = -x;
  CHECK(text_of(turned, Moved::kSigns) == "signs of all 48 rows are reversed");
}

TEST_CASE("blocks of other sizes are found where signs fit, and rounding makes none") {
  constexpr int64_t n = 32, k = 512;
  std::mt19937 random(13);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> plain(n * k), sizes(n * k / 16);
  for (float& x : plain) x = normal(random);
  for (float& x : sizes) x = std::exp(10 * normal(random));
  const auto tensors = [&](auto size_of) {
    std::vector<float> values = plain;
    for (size_t i = 0; i < values.size(); ++i) values[i] *= size_of(i / 16);
    return Tensors{
        {"model.layers.0.self_attn.o_proj.weight", DType::kF32, {n, k}, float_bytes_as(DType::kF32, values)}};
  };
  const Tensors sound = tensors([&](size_t i) { return sizes[i]; });
  const MovedWeights m =
      only(diff_of(tensors([&](size_t i) { return sizes[sizes.size() - 1 - i]; }), sound).moved);
  CHECK(m.how == Moved::kScales);
  CHECK(diff_of(tensors([&](size_t i) { return sizes[i] * (i % 2 == 0 ? 1.05f : 0.95f); }), sound)
            .moved.empty());
}

}  // namespace moved_weights_test
