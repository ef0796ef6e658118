#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "formats/half.h"
#include "tests/support/faults/large_model.h"

// Faults within matrices of real size, and what looks alike and must not be found.

namespace lint_regions_test {

using namespace twofour;
using Edit = LargeModel::Edit;
using Span = std::span<uint8_t>;

namespace {

constexpr size_t kPage = 64 << 10;
const std::string kUp = "model.layers.1.mlp.up_proj.weight", kDown = "model.layers.2.mlp.down_proj.weight",
                  kO = "model.layers.1.self_attn.o_proj.weight";

/// Fills bytes [at, at + count) with what `f` returns.
Edit fill(size_t at, size_t count, std::function<uint8_t(size_t, std::mt19937&)> f) {
  return [=](Span b, size_t, std::mt19937& random) {
    for (size_t i = 0; i < count; ++i) b[at + i] = f(i, random);
  };
}
Edit noise(size_t at, size_t count) {
  return fill(at, count, [](size_t, std::mt19937& random) { return static_cast<uint8_t>(random()); });
}
Edit constant(size_t at, size_t count, uint8_t byte) {
  return fill(at, count, [=](size_t, std::mt19937&) { return byte; });
}
Edit text(size_t at, size_t count) {
  return fill(at, count, [](size_t i, std::mt19937&) {
    constexpr std::string_view kText =
        "<!DOCTYPE html><html><head><title>503 Service Unavailable</title></head>\n<body><p>The server is "
        "busy. "
        "Please try again later, or write to us; reference 8f31c0.</p></body></html>\n";
    return static_cast<uint8_t>(kText[(i * i / 977 + i) % kText.size()]);
  });
}
Edit copy(size_t to, size_t from, size_t count) {
  return [=](Span b, size_t, std::mt19937&) { std::memmove(&b[to], &b[from], count); };
}
/// Each byte in rows [first, last) of `rows`.
Edit in_rows(double first, double last, std::function<uint8_t(uint8_t, std::mt19937&)> f) {
  return [=](Span b, size_t row, std::mt19937& random) {
    const auto rows = static_cast<double>(b.size() / row);
    for (size_t r = static_cast<size_t>(first * rows); r < static_cast<size_t>(last * rows); ++r) {
      for (size_t i = 0; i < row; ++i) b[r * row + i] = f(b[r * row + i], random);
    }
  };
}
/// Each BF16 number: f(number, row, column).
Edit bf16(std::function<float(float, size_t, size_t)> f) {
  return [=](Span b, size_t row, std::mt19937&) {
    for (size_t i = 0; i < b.size(); i += 2) {
      uint16_t half = 0;
      std::memcpy(&half, &b[i], 2);
      half = bf16_from_float(f(bf16_to_float(half), i / row, i % row / 2));
      std::memcpy(&b[i], &half, 2);
    }
  };
}
Edit f32(std::function<float(float, size_t)> f) {
  return [=](Span b, size_t, std::mt19937&) {
    for (size_t i = 0; i < b.size(); i += 4) {
      float x = 0;
      std::memcpy(&x, &b[i], 4);
      x = f(x, i / 4);
      std::memcpy(&b[i], &x, 4);
    }
  };
}
/// Each byte: f(byte, row, column).
Edit cells(std::function<uint8_t(uint8_t, size_t, size_t)> f) {
  return [=](Span b, size_t row, std::mt19937&) {
    for (size_t i = 0; i < b.size(); ++i) b[i] = f(b[i], i / row, i % row);
  };
}

using Edits = std::vector<std::pair<std::string, Edit>>;

/// The findings of lint in a changed model.
std::string lines(const char* format, const Edits& edits) {
  return lines_of(LargeModel::get(format).lint_changed(edits));
}

size_t count_lines(const std::string& text) { return static_cast<size_t>(std::ranges::count(text, '\n')); }
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A finding is of the rule and names the module.
void found(const char* format, const std::string& rule, const std::string& tensor, const Edits& edits) {
  CAPTURE(std::string(format));
  const std::string all = lines(format, edits), module = tensor.substr(0, tensor.rfind('.'));
  CAPTURE(all);
  CHECK(has("\n" + all, "\n" + rule + ": " + module));
}

void harmless(const char* format, const Edits& edits) {
  CAPTURE(std::string(format));
  CHECK(lines(format, edits) == "");
}

}  // namespace

TEST_CASE("large models without a change: nothing above a note") {
  for (const char* format : {"bf16", "nvfp4", "fp8", "mxfp8", "mxfp4"}) harmless(format, {});
}

TEST_CASE("a page of NVFP4 codes: noise, 0xFF, text, zeros, written twice") {
  for (const size_t at : {size_t{0}, size_t{100} << 10, (size_t{100} << 10) + 1000}) {
    CAPTURE(at);
    found("nvfp4", "odd-region", kUp, {{kUp, noise(at, kPage)}});
    found("nvfp4", "odd-region", kUp, {{kUp, constant(at, kPage, 0xFF)}});
    found("nvfp4", "odd-region", kUp, {{kUp, text(at, kPage)}});
    found("nvfp4", "odd-region", kDown, {{kDown, copy(at + kPage, at, kPage / 2)}});
  }
  found("nvfp4", "zero-regions", kUp, {{kUp, constant((100 << 10) + 1000, kPage, 0)}});
  found("nvfp4", "zero-regions", kUp, {{kUp, constant((100 << 10) + 1000, 4096, 0)}});
  found("nvfp4", "zero-regions", kDown, {{kDown, constant(100 << 10, kPage, 0)}});
}

TEST_CASE("half of the rows of NVFP4: random codes, no signs") {
  found(
      "nvfp4", "odd-region", kUp,
      {{kUp, in_rows(0.5, 1, [](uint8_t, std::mt19937& random) { return static_cast<uint8_t>(random()); })}});
  found("nvfp4", "odd-region", kUp,
        {{kUp, in_rows(0, 0.5, [](uint8_t b, std::mt19937&) { return static_cast<uint8_t>(b & 0x77); })}});
}

TEST_CASE("parts of BF16: written twice, never written, no signs") {
  for (const size_t at : {size_t{0}, (size_t{512} << 10) + 300}) {
    found("bf16", "odd-region", kUp, {{kUp, copy(at + kPage, at, kPage)}});
    found("bf16", "odd-region", kDown, {{kDown, copy(at + kPage, at, kPage)}});
  }
  found("bf16", "zero-regions", kUp, {{kUp, constant((4 << 20) - (16 << 10), 16 << 10, 0)}});
  found("bf16", "zero-regions", kDown, {{kDown, constant((4 << 20) - (16 << 10), 16 << 10, 0)}});
  found("bf16", "odd-region", kUp, {{kUp, cells([](uint8_t b, size_t row, size_t column) {
                                       return row < 512 && column % 2 == 1 ? b & 0x7F : b;
                                     })}});
}

TEST_CASE("one value, one row: which, and how large") {
  for (const std::string& name : {kUp, std::string("model.embed_tokens.weight")}) {
    const std::string all = lines(
        "bf16", {{name, bf16([](float x, size_t r, size_t c) { return r == 700 && c == 9 ? 1e4f : x; })}});
    CHECK(count_lines(all) == 1);
    CHECK(all.starts_with("outlier-weight: " + name.substr(0, name.rfind('.'))));
    CHECK(has(all, "found 9984 in row 700"));
  }
  for (const float factor : {1000.0f, 2000.0f}) {
    const std::string all =
        lines("bf16", {{kDown, bf16([=](float x, size_t r, size_t) { return r == 77 ? x * factor : x; })}});
    CHECK(count_lines(all) == 1);
    CHECK(all.starts_with("outlier-weight: "));
    CHECK(has(all, "row 77"));
  }
}

TEST_CASE("ranks with other scales, in one matrix or in all") {
  const auto rows = [](size_t of, size_t part, float factor) {
    return bf16([=](float x, size_t r, size_t) { return r / (2048 / of) == part ? x * factor : x; });
  };
  found("bf16", "uneven-parts", kUp, {{kUp, rows(2, 1, 8)}});
  found("bf16", "uneven-parts", kUp, {{"model.layers.*.mlp.up_proj.weight", rows(2, 1, 8)}});
  found("bf16", "uneven-parts", kUp, {{kUp, rows(4, 2, 4.5f)}});
  found("bf16", "uneven-parts", kUp, {{kUp, rows(8, 0, 0.125f)}});
  found("bf16", "uneven-parts", kDown,
        {{kDown, bf16([](float x, size_t, size_t c) { return c < 1024 ? 8 * x : x; })}});
  const auto scales = [](double first, double last) {
    return in_rows(first, last,
                   [](uint8_t b, std::mt19937&) { return static_cast<uint8_t>(std::max(b - 24, 1)); });
  };
  found("nvfp4", "uneven-parts", kUp, {{kUp + "_scale", scales(0.5, 1)}});
  found("nvfp4", "uneven-parts", kUp, {{"model.layers.*.mlp.up_proj.weight_scale", scales(0.25, 0.5)}});
  found("mxfp8", "uneven-parts", kUp, {{kUp + "_scale", in_rows(0.5, 1, [](uint8_t b, std::mt19937&) {
                                          return static_cast<uint8_t>(b + 3);
                                        })}});
}

TEST_CASE("one scale: of FP8 times 1000, of E8M0 twenty octaves higher") {
  found("fp8", "outlier-weight", kUp,
        {{kUp + "_scale*", f32([](float x, size_t i) { return i == 5 ? 1000 * x : x; })}});
  for (const char* format : {"mxfp8", "mxfp4"}) {
    found(format, "suspicious-scale", kUp, {{kUp + "*_scale", [](Span b, size_t, std::mt19937&) {
                                               b[5000] = static_cast<uint8_t>(b[5000] + 20);
                                             }}});
  }
}

TEST_CASE("FP8 that was cut off") {
  found("fp8", "cut-off-weights", kUp,
        {{kUp, cells([](uint8_t b, size_t row, size_t column) {
            const unsigned hash = static_cast<unsigned>(row * 7919 + column * 104729);
            return hash % 100 < 8 ? static_cast<uint8_t>((b & 0x80) | 0x7E) : b;
          })}});
}

TEST_CASE("BF16 that holds codes, an identity, a uniform draw, or differences") {
  found("bf16", "odd-numbers", kUp, {{kUp, bf16([](float x, size_t, size_t) {
                                        constexpr float kCodes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
                                        return std::copysign(
                                            kCodes[std::min(7, static_cast<int>(std::fabs(x) * 100))], x);
                                      })}});
  found("bf16", "odd-numbers", kO,
        {{kO, bf16([](float, size_t r, size_t c) { return r == c ? 1.0f : 0.0f; })}});
  found("bf16", "odd-numbers", kDown, {{kDown, [](Span b, size_t, std::mt19937& random) {
                                          for (size_t i = 0; i < b.size(); i += 2) {
                                            const float x =
                                                (static_cast<float>(random() % 20001) - 10000) * 2e-6f;
                                            const uint16_t half = bf16_from_float(x);
                                            std::memcpy(&b[i], &half, 2);
                                          }
                                        }}});
  const auto times = [](float factor) { return bf16([=](float x, size_t, size_t) { return factor * x; }); };
  found("bf16", "implausible-weights", "model.layers.0.",
        {{"*_proj.weight", times(1e-3f)}, {"*norm.weight", times(7e-4f)}});
  found("bf16", "implausible-weights", "model.layers.0.", {{"*norm.weight", times(7e-4f)}});
}

TEST_CASE("vectors: norms too small by one") {
  found("bf16", "odd-numbers", "model.layers.0.",
        {{"model.layers.*norm.weight", bf16([](float x, size_t, size_t) { return x - 1.2f; })}});
}

TEST_CASE("columns of zeros, halves of an embedding, scales of blocks of 32, tiles of scales") {
  found("bf16", "zero-regions", kUp,
        {{kUp, bf16([](float x, size_t, size_t c) { return c >= 256 && c < 512 ? 0 : x; })}});
  found("bf16", "repeated-rows", "model.embed_tokens.weight",
        {{"model.embed_tokens.weight", copy(1 << 20, 0, 1 << 20)}});
  found("nvfp4", "copied-scale", kUp, {{kUp + "_scale", [](Span b, size_t, std::mt19937&) {
                                          for (size_t i = 0; i < b.size(); i += 2) b[i + 1] = b[i];
                                        }}});
  found("nvfp4", "copied-scale", kUp, {{kUp + "_scale", [](Span b, size_t, std::mt19937&) {
                                          for (size_t i = 512; i < b.size(); ++i) b[i] = b[i % 512];
                                        }}});
}

TEST_CASE("a page of other formats: noise, text, zeros, 0xFF, scales that are there twice") {
  for (const char* format : {"fp8", "mxfp8"}) {
    found(format, "not-finite", kUp, {{kUp, noise(100 << 10, kPage)}});
    const Edit finite = fill(100 << 10, kPage, [](size_t, std::mt19937& random) {
      return static_cast<uint8_t>(random() % 0x7F | (random() % 2) << 7);
    });
    found(format, "odd-region", kUp, {{kUp, finite}});
    found(format, "odd-region", kUp, {{kUp, text(100 << 10, kPage)}});
    found(format, "odd-region", kUp, {{kUp, copy(164 << 10, 100 << 10, kPage / 2)}});
    found(format, "zero-regions", kUp, {{kUp, constant((100 << 10) + 1000, kPage, 0)}});
  }
  found("mxfp4", "odd-region", kUp, {{kUp, noise(100 << 10, kPage)}});
  found("mxfp4", "odd-region", kUp, {{kUp, text(100 << 10, kPage)}});
  found("mxfp4", "odd-region", kUp, {{kUp, constant(100 << 10, kPage, 0xFF)}});
  found("mxfp4", "odd-region", kUp, {{kUp, copy(164 << 10, 100 << 10, kPage / 2)}});
  found("nvfp4", "copied-scale", kUp, {{kUp + "_scale", copy(36 << 10, 32 << 10, 4096)}});
}

TEST_CASE("bytes that are exchanged or shifted are named") {
  const auto named = [](const Edit& edit) {
    return has(lines("bf16", {{kUp, edit}}), "exchanged or shifted");
  };
  CHECK(named([](Span b, size_t, std::mt19937&) {
    for (size_t i = 0; i < b.size(); i += 2) std::swap(b[i], b[i + 1]);
  }));
  CHECK(named([](Span b, size_t, std::mt19937&) { std::memmove(&b[0], &b[1], b.size() - 1); }));
  CHECK_FALSE(named(noise(0, 4 << 20)));
}

TEST_CASE("scales multiplied twice in all modules: the sound minority is not blamed") {
  const Edit square = f32([](float x, size_t) { return x * x; });
  const std::string all = lines("nvfp4", {{"*.weight_scale_2", square}});
  CHECK(count_lines(all) == 1);
  CHECK(all.starts_with("implausible-weights: model.layers."));
  CHECK(has(all, "twice"));
}

TEST_CASE("pruned, padded and dead: nothing above a note") {
  // Unstructured, by chance and by magnitude.
  for (const unsigned percent : {50u, 80u, 90u, 95u}) {
    CAPTURE(percent);
    const auto drop = [=](size_t r, size_t c) {
      uint64_t x = (r * 2048 + c) * 0x9E3779B97F4A7C15u;
      x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
      return (x ^ x >> 27) % 100 < percent;
    };
    harmless("bf16", {{"model.layers.*_proj.weight",
                       bf16([=](float x, size_t r, size_t c) { return drop(r, c) ? 0 : x; })}});
    const float least = percent == 50 ? 0.013f : percent == 80 ? 0.026f : percent == 90 ? 0.036f : 0.046f;
    harmless("bf16", {{"model.layers.*_proj.weight",
                       bf16([=](float x, size_t, size_t) { return std::fabs(x) < least ? 0 : x; })}});
    harmless("nvfp4", {{kUp, cells([=](uint8_t b, size_t r, size_t c) {
                          return static_cast<uint8_t>(
                              b & ((drop(r, 2 * c) ? 0 : 15) | (drop(r, 2 * c + 1) ? 0 : 0xF0)));
                        })}});
    harmless("nvfp4", {{"model.layers.*_proj.weight", cells([=](uint8_t b, size_t r, size_t c) {
                          return static_cast<uint8_t>(
                              b & ((drop(r, 2 * c) ? 0 : 15) | (drop(r, 2 * c + 1) ? 0 : 0xF0)));
                        })}});
  }
  // Whole channels: of all MLPs, and a few dead ones of one.
  harmless("bf16", {{"model.layers.*.mlp.up_proj.weight",
                     bf16([](float x, size_t r, size_t) { return r % 2 == 1 ? 0 : x; })},
                    {"model.layers.*.mlp.gate_proj.weight",
                     bf16([](float x, size_t r, size_t) { return r % 2 == 1 ? 0 : x; })},
                    {"model.layers.*.mlp.down_proj.weight",
                     bf16([](float x, size_t, size_t c) { return c % 2 == 1 ? 0 : x; })}});
  harmless("bf16", {{kUp, bf16([](float x, size_t r, size_t) { return r % 200 == 7 ? 0 : x; })}});
  // Sixteen inputs of NVFP4 are zero, with the smallest scale.
  harmless("nvfp4",
           {{kUp, cells([](uint8_t b, size_t, size_t c) { return c >= 64 && c < 72 ? uint8_t{0} : b; })},
            {kUp + "_scale", cells([](uint8_t b, size_t, size_t c) { return c == 8 ? uint8_t{1} : b; })}});
  // Rows and columns that training made large, and one large weight.
  harmless("bf16", {{kUp, bf16([](float x, size_t r, size_t) { return r == 33 ? 12 * x : x; })},
                    {kDown, bf16([](float x, size_t, size_t c) { return c == 1500 ? 10 * x : x; })},
                    {kO, bf16([](float x, size_t r, size_t c) { return r == 5 && c == 6 ? 4 : x; })}});
  // Heads of another size.
  harmless("bf16", {{"model.layers.1.self_attn.q_proj.weight",
                     bf16([](float x, size_t r, size_t) { return r / 128 == 3 ? 4 * x : x; })}});
}

TEST_CASE("a sector of text or of one pattern, a page of noise, text in scales") {
  const Edit words = fill((100 << 10) + 40, 512, [](size_t i, std::mt19937&) {
    constexpr std::string_view kText = "{\"error\": \"Access to this repository is gated, please log in\"}\n";
    return static_cast<uint8_t>(kText[i % kText.size()]);
  });
  for (const char* format : {"nvfp4", "fp8", "mxfp4"}) {
    found(format, "odd-region", kUp, {{kUp, words}});
    if (std::string_view(format) != "fp8")
      found(format, "odd-region", kUp, {{kUp, constant(100 << 10, 512, 0x6B)}});
  }
  found("mxfp4", "odd-region", kUp, {{kUp, noise((100 << 10) + 1000, 4096)}});
  found("nvfp4", "odd-region", kUp, {{kUp, noise((100 << 10) + 1000, 4096)}});
  const Edit page = fill(32 << 10, 4096, [](size_t i, std::mt19937&) {
    constexpr std::string_view kText = "Too many requests, please try again later. ";
    return static_cast<uint8_t>(kText[i % kText.size()]);
  });
  found("nvfp4", "odd-region", kUp, {{kUp + "_scale", page}});
}

TEST_CASE("a matrix as it was initialized is found, a layer that adds nothing is not") {
  const Edit normal = [](Span b, size_t, std::mt19937& random) {
    std::normal_distribution<float> draw(0, 0.02f);
    for (size_t i = 0; i < b.size(); i += 2) {
      const uint16_t half = bf16_from_float(draw(random));
      std::memcpy(&b[i], &half, 2);
    }
  };
  found("bf16", "odd-numbers", kUp, {{kUp, normal}});
  const Edit zeros = bf16([](float, size_t, size_t) { return 0.0f; });
  const std::string layer = "model.layers.3.", o = layer + "self_attn.o_proj.weight",
                    down = layer + "mlp.down_proj.weight";
  harmless("bf16", {{o, zeros}, {down, zeros}});
  found("bf16", "zero-weights", o, {{o, zeros}});
}

}  // namespace lint_regions_test
