#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/support/faults/lint_changed.h"

// Content that no trained weights have, or that is elsewhere in another checkpoint: what fires, and what
// looks alike and must not.

namespace lint_content_test {

using namespace twofour;
using namespace twofour::spoil;
using enum Base;

namespace {

using Rules = std::set<std::string>;

/// Both codes of every byte.
Change map_codes(std::string pattern, std::function<unsigned(unsigned)> f) {
  return map_bytes(std::move(pattern), [=](uint8_t byte, size_t, auto&) {
    return static_cast<uint8_t>(f(byte & 15u) | f(byte >> 4) << 4);
  });
}

/// Row r becomes row f(r), in all tensors of the module that have rows.
Change pick_rows(const std::vector<std::string>& names, std::function<int64_t(int64_t)> f) {
  return [=](Save& s, auto&) {
    for (const std::string& name : names) {
      TensorData& t = s.at(name);
      const size_t row = row_bytes(t);
      const std::vector<uint8_t> old = t.bytes;
      for (int64_t r = 0; r < t.shape[0]; ++r)
        std::memcpy(t.bytes.data() + static_cast<size_t>(r) * row,
                    old.data() + static_cast<size_t>(f(r)) * row, row);
    }
  };
}

Change zero_rows(std::string pattern, std::function<bool(int64_t)> f) {
  return map_rows(std::move(pattern), [=](int64_t row, uint8_t* bytes, size_t count) {
    if (f(row)) std::memset(bytes, 0, count);
  });
}

const std::string kUp = "model.layers.1.mlp.up_proj.weight", kOut = "model.layers.1.self_attn.o_proj.weight";

}  // namespace

TEST_CASE("identical-weights: equal to the last byte, in codes alone, or in another order of rows") {
  const std::string from = "model.layers.1.mlp.gate_proj.", to = "model.layers.1.mlp.up_proj.";
  const Change codes_alone = [&](Save& s, auto&) { s.at(to + "weight").bytes = s.at(from + "weight").bytes; };
  CHECK(rules_of_change(kLlama, codes_alone).count("identical-weights") == 1);
  CHECK(rules_of_change(kLlama, copy_bytes(from, to)) == Rules{"identical-weights"});
  CHECK(rules_of_change(kLlama, all_of({copy_bytes(from, to),
                                        pick_rows({to + "weight", to + "weight_scale"}, [](int64_t r) {
                                          return 511 - r;
                                        })})) == Rules{"identical-weights"});
  CHECK(rules_of_change(kLlama, all_of({copy_bytes(from, to),
                                        edit_tensors(to + "weight",
                                                     [](TensorData& t) {
                                                       for (size_t i = 0; i < t.bytes.size(); ++i)
                                                         t.bytes[i] ^= static_cast<uint8_t>(i % 3 == 0);
                                                     }),
                                        edit_tensors(to + "weight_scale",
                                                     [](TensorData& t) {
                                                       for (uint8_t& b : t.bytes)
                                                         b = static_cast<uint8_t>(std::max(8, b - 1));
                                                     })}))
            .count("identical-weights") == 0);
}

TEST_CASE("odd-codes: other formats of four bits, constants, noise; not what E2M1 may be") {
  constexpr double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const auto as_int4 = [&](unsigned code) {
    const auto q = static_cast<int>(std::lround(magnitudes[code & 7u] * 7 / 6));
    return (code & 8u) != 0 ? -q : q;
  };
  const Rules odd{"odd-codes"};
  CHECK(rules_of_change(kLlama, map_codes(kUp, [](unsigned c) { return c & 7u; })) == odd);
  CHECK(rules_of_change(kLlama, map_codes(kUp, [&](unsigned c) {
                          return static_cast<unsigned>(as_int4(c)) & 15u;
                        })) == odd);
  CHECK(rules_of_change(kLlama, map_codes(kUp, [&](unsigned c) {
                          return static_cast<unsigned>(as_int4(c) + 8);
                        })) == odd);
  CHECK(rules_of_change(kLlama, map_codes(kUp, [&](unsigned c) {
                          const int q = as_int4(c);
                          return q < 0 ? 8u | static_cast<unsigned>(-q) : static_cast<unsigned>(q);
                        })) == odd);
  CHECK(rules_of_change(kLlama, map_bytes(kUp, [](uint8_t, size_t, auto& r) {
                          return static_cast<uint8_t>(r());
                        })) == odd);
  CHECK(
      rules_of_change(kLlama, map_bytes(kUp + "_scale", [](uint8_t, size_t, auto&) { return uint8_t{0x60}; }))
          .contains("odd-codes"));
  // -0 as 0, all signs turned, and weights that were whole numbers before: none of 0.5, few of 1.
  CHECK(rules_of_change(kLlama, map_codes(kUp, [](unsigned c) { return c == 8 ? 0u : c; })).empty());
  CHECK(rules_of_change(kLlama, map_codes(kUp, [](unsigned c) { return c ^ 8u; })).empty());
  CHECK(
      rules_of_change(kLlama, map_codes(kUp, [](unsigned c) { return (c & 7u) == 1 ? c & 8u : c; })).empty());
}

TEST_CASE("odd-numbers: bytes of another type, noise; not what was quantized before") {
  const std::string name = "model.layers.2.self_attn.q_proj.weight";  // BF16
  const auto halves = [&](auto f) {
    return edit_tensors(name, [=](TensorData& t) {
      for (size_t i = 0; i < t.bytes.size(); i += 2) {
        uint16_t bits = 0;
        std::memcpy(&bits, &t.bytes[i], 2);
        bits = f(bits);
        std::memcpy(&t.bytes[i], &bits, 2);
      }
    });
  };
  const Rules odd{"odd-numbers"};
  CHECK(rules_of_change(kLlama, halves([](uint16_t x) { return static_cast<uint16_t>(x & 0x7FFF); })) == odd);
  CHECK_FALSE(
      rules_of_change(kLlama, halves([](uint16_t x) { return static_cast<uint16_t>(x << 8 | x >> 8); }))
          .empty());
  const std::string fp8 = "model.layers.3.self_attn.o_proj.weight";
  CHECK(rules_of_change(kDeepSeek, map_bytes(fp8, [](uint8_t, size_t, auto& r) {
                          return static_cast<uint8_t>(r() % 0x7F | (r() % 2) << 7);
                        })) == odd);
  // A grid of few numbers, zero among them.
  CHECK(rules_of_change(kLlama, map_floats(name, [](float x) { return std::round(x / 0.02f) * 0.02f; }))
            .empty());
}

TEST_CASE("zero-regions: halves and stripes, not a tenth") {
  const Rules zero{"zero-regions"};
  CHECK(rules_of_change(kLlama, zero_rows(kOut, [](int64_t r) { return r >= 128; })) == zero);
  CHECK(rules_of_change(kLlama, zero_rows(kOut, [](int64_t r) { return r % 2 == 1; })) == zero);
  CHECK(rules_of_change(
            kLlama, map_rows(kOut, [](int64_t, uint8_t* b, size_t n) { std::memset(b, 0, n / 2); })) == zero);
  CHECK(rules_of_change(kLlama, zero_rows(kOut, [](int64_t r) { return r % 10 == 1; })).empty());
}

TEST_CASE("repeated-rows: a part that was written twice, not a few rows") {
  const Rules repeated{"repeated-rows"};
  CHECK(rules_of_change(kLlama, pick_rows({kUp}, [](int64_t r) { return r % 256; })) == repeated);
  CHECK(rules_of_change(kLlama, pick_rows({kUp}, [](int64_t r) { return r / 2 * 2; })) == repeated);
  CHECK(rules_of_change(kLlama, pick_rows({kUp}, [](int64_t r) { return r < 16 ? 0 : r; })).empty());
  // Heads of keys and values may be there twice, rows may not.
  const std::string values = "model.language_model.layers.3.self_attn.v_proj.weight";
  const auto value_rows = [&](const std::function<int64_t(int64_t)>& from) {
    return rules_of_change(kQwenRow, pick_rows({values, values + "_scale"}, from));
  };
  CHECK(value_rows([](int64_t r) { return r / 2 * 2; }) == repeated);
  CHECK(value_rows([](int64_t r) { return r % 16; }).empty());
}

TEST_CASE("scale-order: transposed and in tiles, not with the rows that they belong to") {
  const Rules order{"scale-order"};
  CHECK(rules_of_change(kLlama, edit_tensors(kUp + "_scale", [](TensorData& t) {
                          const auto rows = static_cast<size_t>(t.shape[0]),
                                     columns = static_cast<size_t>(t.shape[1]);
                          const std::vector<uint8_t> old = t.bytes;
                          for (size_t i = 0; i < old.size(); ++i)
                            t.bytes[i % columns * rows + i / columns] = old[i];
                        })) == order);
  CHECK(rules_of_change(
            kLlama, edit_tensors(kUp + "_scale", [](TensorData& t) {
              const auto columns = static_cast<size_t>(t.shape[1]);
              const std::vector<uint8_t> old = t.bytes;
              for (size_t i = 0; i < old.size(); ++i) {
                const size_t r = i / columns, c = i % columns;
                t.bytes[(r / 128 * (columns / 4) + c / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4] =
                    old[i];
              }
            })) == order);
  CHECK(rules_of_change(kLlama, pick_rows({kUp, kUp + "_scale"}, [](int64_t r) { return r * 37 % 512; }))
            .empty());
}

TEST_CASE("beside another checkpoint: what moved is named, and formats and dialects are not") {
  const auto expert = [](int e) { return "model.layers.1.mlp.experts." + std::to_string(e) + "."; };
  const LintReport report = lint_changed(kMoe, swap_bytes(expert(3), expert(8)), kMoe);
  CHECK(rules_of(report) == Rules{"moved-weights"});
  REQUIRE(report.findings.size() == 1);
  CHECK(report.findings[0].name == "model.layers.1.mlp.experts");
  CHECK(report.findings[0].message.ends_with(
      "expert 3 equals expert 8 of OTHER, expert 8 equals expert 3 of OTHER"));
  CHECK(rules_of_change(kLlama, swap_bytes("model.layers.0.", "model.layers.2."), kLlama) ==
        Rules{"moved-weights"});
  CHECK(rules_of_change(kLlama, pick_rows({kUp, kUp + "_scale"}, [](int64_t r) { return r * 37 % 512; }),
                        kLlama) == Rules{"moved-rows"});
  CHECK(rules_of_change(kLlama, map_codes(kOut, [](unsigned c) { return c ^ 8u; }), kLlama) ==
        Rules{"turned-signs"});
  CHECK(rules_of_change(kLlama, swap_bytes("model.layers.1.mlp.gate_proj.", "model.layers.1.mlp.up_proj."),
                        kLlama) == Rules{"gate-up-swap"});
  CHECK(rules_of_change(kLlama, set_key("rope_theta", 1), kLlama) == Rules{"other-config"});
  CHECK(rules_of_change(kLlama, set_key("use_cache", "x"), kLlama).empty());
  CHECK(rules_of_change(kLlama, {}, kLlamaCt).empty());
  CHECK(rules_of_change(kLlamaCt, {}, kLlama).empty());
  CHECK(rules_of_change(
            kLlama,
            all_of({dequantize("model.layers.1.mlp.up_proj"), ignore_also({"model.layers.1.mlp.up_proj"})}),
            kLlama)
            .count("moved-rows") == 0);
}

TEST_CASE("renumbered-experts: a note where the router's rows went along") {
  const Change renumber = [](Save& s, std::mt19937& random) {
    for (int e = 0; e < 16; e += 2) {
      const std::string block = "model.layers.1.mlp.experts.";
      swap_bytes(block + std::to_string(e) + ".", block + std::to_string(e + 1) + ".")(s, random);
    }
  };
  const Change router = pick_rows({"model.layers.1.mlp.gate.weight"}, [](int64_t r) { return r ^ 1; });
  CHECK(rules_of_change(kMoe, renumber, kMoe) == Rules{"moved-weights"});
  const LintReport report = lint_changed(kMoe, all_of({renumber, router}), kMoe);
  CHECK(rules_of(report).empty());
  REQUIRE(report.findings.size() == 1);
  CHECK(std::string(lint_rules()[report.findings[0].rule].id) == "renumbered-experts");
}

}  // namespace lint_content_test
