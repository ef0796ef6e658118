#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "formats/error.h"

// Hostile input. Clang's libFuzzer calls each target on inputs of its own (entry.cpp, TWOFOUR_FUZZ), the
// plain tests on those of corpus/ (corpus_test.cpp). An Error is what bad input should get; any other
// exception or a sanitizer's report is a bug.

namespace twofour {

/// A file: length, header, data.
void fuzz_safetensors(const uint8_t* data, size_t size);
/// A document.
void fuzz_json(const uint8_t* data, size_t size);
/// model.safetensors.index.json.
void fuzz_index(const uint8_t* data, size_t size);
/// config.json and, behind a zero byte, hf_quant_config.json.
void fuzz_config(const uint8_t* data, size_t size);
/// twofour.json.
void fuzz_manifest(const uint8_t* data, size_t size);
/// A recipe file.
void fuzz_recipe(const uint8_t* data, size_t size);
/// plan.json and, behind a zero byte, the record of a weight file.
void fuzz_task(const uint8_t* data, size_t size);
/// A line a tensor, "NAME DTYPE DIMENSION ...".
void fuzz_dialect(const uint8_t* data, size_t size);
/// Layout, rows, groups and whether they are gated, a byte each, then the stored bytes of one expert; zeros
/// where they end.
void fuzz_layouts(const uint8_t* data, size_t size);

/// A statistics file.
void fuzz_statistics(const uint8_t* data, size_t size);

/// tokenizer.json and, behind a zero byte, a text.
void fuzz_tokenizer(const uint8_t* data, size_t size);

/// A condition that must hold for any input.
inline void promise(bool holds) {
  if (!holds) throw std::logic_error("a broken promise");
}

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Runs `f`, which may throw nothing but an Error with a message of reasonable length.
template <class F>
void expect_error_at_most(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    promise(std::string_view(e.what()).size() < 20'000);
  }
}

}  // namespace twofour
