#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "formats/half.h"
#include "lib/lint/files/jinja.h"
#include "tests/support/faults/large_model.h"

// Zeros that pruning leaves, beside those of damage; codes and scales that do not belong together.

namespace lint_pruned_test {

using namespace twofour;
using Edit = LargeModel::Edit;
using Edits = std::vector<std::pair<std::string, Edit>>;
using Span = std::span<uint8_t>;

namespace {

const std::string kMlp = "model.layers.1.mlp.", kAttention = "model.layers.1.self_attn.",
                  kUp = kMlp + "up_proj.weight", kGate = kMlp + "gate_proj.weight",
                  kDown = kMlp + "down_proj.weight";

/// Zeros in BF16 where f(row, column) is true.
Edit zeros(std::function<bool(size_t, size_t)> f) {
  return [=](Span b, size_t row, std::mt19937&) {
    for (size_t i = 0; i < b.size(); i += 2)
      if (f(i / row, i % row / 2)) b[i] = b[i + 1] = 0;
  };
}
/// Each byte: f(byte, row, column).
Edit cells(std::function<uint8_t(uint8_t, size_t, size_t)> f) {
  return [=](Span b, size_t row, std::mt19937&) {
    for (size_t i = 0; i < b.size(); ++i) b[i] = f(b[i], i / row, i % row);
  };
}
/// Rows that lie one row lower, the last one first.
Edit rolled() {
  return [](Span b, size_t row, std::mt19937&) {
    std::rotate(b.begin(), b.end() - static_cast<std::ptrdiff_t>(row), b.end());
  };
}

unsigned hash(size_t r, size_t c) {
  uint64_t x = (r * 40503 + c + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  return static_cast<unsigned>((x ^ x >> 27) >> 8);
}

std::string lines(const char* format, const Edits& edits) {
  return lines_of(LargeModel::get(format).lint_changed(edits));
}

/// The only finding is of the rule and names the tensor's module.
void found(const char* format, const std::string& rule, const std::string& tensor, const Edits& edits) {
  CAPTURE(std::string(format));
  const std::string all = lines(format, edits), module = tensor.substr(0, tensor.rfind('.'));
  CAPTURE(all);
  CHECK(all.starts_with(rule + ": " + module));
  CHECK(std::ranges::count(all, '\n') == 1);
}
void harmless(const char* format, const Edits& edits) {
  CAPTURE(std::string(format));
  CHECK(lines(format, edits) == "");
}

}  // namespace

TEST_CASE(
    "neurons are zero in gate, up and down; in gate alone if scattered, else a part was never written") {
  for (const bool scattered : {false, true}) {
    const auto is_gone = [=](size_t i) { return scattered ? hash(i, 7) % 8 == 0 : i >= 512 && i < 768; };
    const Edit rows = zeros([=](size_t r, size_t) { return is_gone(r); }),
               columns = zeros([=](size_t, size_t c) { return is_gone(c); });
    harmless("bf16", {{kGate, rows}, {kUp, rows}, {kDown, columns}});
    harmless("bf16", {{kGate, rows}, {kDown, columns}});
    if (scattered) harmless("bf16", {{kGate, rows}});
    if (scattered) harmless("bf16", {{kDown, columns}});
    if (!scattered) found("bf16", "zero-regions", kGate, {{kGate, rows}});
    if (!scattered) found("bf16", "zero-regions", kDown, {{kDown, columns}});
  }
}

TEST_CASE("heads are zero in q or v, and in o; one of these alone was never written") {
  const Edit rows = zeros([](size_t r, size_t) { return r >= 256 && r < 512; }),
             columns = zeros([](size_t, size_t c) { return c >= 256 && c < 512; });
  for (const char* name : {"q_proj.weight", "v_proj.weight"}) {
    harmless("bf16", {{kAttention + name, rows}, {kAttention + "o_proj.weight", columns}});
    found("bf16", "zero-regions", kAttention + name, {{kAttention + name, rows}});
  }
  found("bf16", "zero-regions", kAttention + "o_proj.weight", {{kAttention + "o_proj.weight", columns}});
}

TEST_CASE("blocks of zeros at random are pruning, a single tile is not") {
  harmless("bf16", {{"model.layers.*.mlp.up_proj.weight",
                     zeros([](size_t r, size_t c) { return hash(r / 64, c / 64) % 10 < 6; })}});
  harmless("bf16", {{kUp, zeros([](size_t r, size_t c) { return hash(r / 64, c / 64) % 2 == 0; })}});
  found("bf16", "zero-regions", kUp,
        {{kUp, zeros([](size_t r, size_t c) { return r >= 256 && r < 384 && c >= 256 && c < 800; })}});
}

TEST_CASE(
    "NVFP4: rows of zeros have scales of zeros, or a page was never written; pruned blocks have any scale") {
  const auto rows = [](uint8_t value) {
    return cells([=](uint8_t b, size_t r, size_t) { return r >= 100 && r < 180 ? value : b; });
  };
  harmless("nvfp4", {{kGate, rows(0)}, {kGate + "_scale", rows(1)}});
  found("nvfp4", "zero-regions", kGate, {{kGate, rows(0)}});
  // Most blocks are zero, and the scales of the others are as their last weight.
  const auto is_gone = [](size_t r, size_t block) { return hash(r, block) % 10 < 9; };
  harmless("nvfp4",
           {{kGate, cells([=](uint8_t b, size_t r, size_t c) { return is_gone(r, c / 8) ? uint8_t{0} : b; })},
            {kGate + "_scale", cells([=](uint8_t b, size_t r, size_t c) {
               return is_gone(r, c) ? uint8_t{1} : static_cast<uint8_t>(b - hash(c, r) % 24);
             })}});
  const auto in_tile = [](size_t r, size_t block) { return hash(r / 64, block / 4) % 2 == 0; };
  harmless("nvfp4", {{"model.layers.*.mlp.gate_proj.weight", cells([=](uint8_t b, size_t r, size_t c) {
                        return in_tile(r, c / 8) ? uint8_t{0} : b;
                      })},
                     {"model.layers.*.mlp.gate_proj.weight_scale",
                      cells([=](uint8_t b, size_t r, size_t c) { return in_tile(r, c) ? uint8_t{1} : b; })}});
}

TEST_CASE("scales of other rows do not fit the codes") {
  for (const char* format : {"nvfp4", "mxfp4", "mxfp8", "fp8"}) {
    const std::string scales = kUp + (std::string_view(format) == "fp8" ? "_scale*" : "*_scale");
    found(format, "odd-codes", kUp, {{scales, rolled()}});
    // All rows together, with their scales, are those of other neurons.
    harmless(format, {{kUp, rolled()}, {scales, rolled()}});
  }
}

TEST_CASE("a bit that is never set: in half of FP8, in all of it") {
  const auto clear = [](size_t from) {
    return cells([=](uint8_t b, size_t r, size_t) { return r >= from ? static_cast<uint8_t>(b & 0xFE) : b; });
  };
  found("fp8", "odd-region", kUp, {{kUp, clear(1024)}});
  found("fp8", "odd-numbers", kUp, {{kUp, clear(0)}});
  harmless("fp8", {{"model.layers.*_proj.weight", clear(0)}});  // all were rounded so
}

TEST_CASE("a tile without signs, beside a few columns of one sign") {
  const auto unsigned_in = [](size_t first, size_t last, uint8_t mask) {
    return cells([=](uint8_t b, size_t r, size_t c) {
      return r >= 512 && r < 640 && c >= first && c < last ? static_cast<uint8_t>(b & mask) : b;
    });
  };
  found("fp8", "odd-region", kUp, {{kUp, unsigned_in(128, 256, 0x7F)}});
  found("nvfp4", "odd-region", kUp, {{kUp, unsigned_in(128, 256, 0x77)}});
  harmless("fp8", {{kUp, unsigned_in(128, 144, 0x7F)}});
}

TEST_CASE("a name of a template that nothing sets is nearly another one") {
  const auto mistyped = [](std::string_view text) { return read_template(text).mistyped; };
  CHECK(mistyped("{% for message in mesages %}{{ message.content }}{% endfor %}") ==
        "line 1: expected messages, found mesages, which nothing sets");
  CHECK(mistyped("{% for message in messages %}{{ message['contnet'] }}{% endfor %}") ==
        "line 1: expected content of a message, found contnet");
  CHECK(mistyped("{{ bos_tokn }}\n{% if add_generation_promt %}x{% endif %}") ==
        "line 2: expected add_generation_prompt, found add_generation_promt, which nothing sets");
  CHECK(mistyped("{% set system_text = 'a' %}{{ system_txt }}") ==
        "line 1: expected system_text, found system_txt, which nothing sets");
  // Names that programs may give, plurals, attributes and arguments.
  for (const std::string_view text :
       {"{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}",
        "{{ date_string }}{{ custom_tools }}",
        "{% if document is defined %}{{ document }}{% endif %}{{ message.contents }}",
        "{% macro f(arg) %}{{ arg }}{% endmacro %}{% set ns = namespace(found=false) %}{% set ns.found = "
        "true %}",
        "{% for k, v in message.items() %}{{ k ~ v }}{{ loop.index0 }}{% endfor %}"}) {
    CAPTURE(text);
    CHECK(mistyped(text) == "");
  }
}

}  // namespace lint_pruned_test
