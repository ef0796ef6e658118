#pragma once
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lib/look/diff/diff.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"

namespace twofour {

/// Compares, and checks that progress ends and that counts and rows hold each entry once.
inline DiffResult diff_of(const std::filesystem::path& a, const std::filesystem::path& b,
                          const DiffOptions& options = {}) {
  Progress progress;
  DiffResult result = diff(open_source(a), open_source(b), options, progress);
  CHECK(progress.done == progress.total);
  uint64_t counted = 0, in_rows = 0;
  for (const uint64_t count : result.counts) counted += count;
  for (const DiffRow& row : result.rows) in_rows += row.entries();
  CHECK(counted == result.entries.size());
  CHECK(in_rows == result.entries.size());
  return result;
}

/// The same of two checkpoints of these tensors.
inline DiffResult diff_of(const Tensors& a, const Tensors& b, const DiffOptions& options = {}) {
  const Scratch scratch;
  write_checkpoint(scratch / "a", {a});
  write_checkpoint(scratch / "b", {b});
  return diff_of(scratch / "a", scratch / "b", options);
}

inline const DiffEntry& entry(const DiffResult& r, const std::string& name) {
  for (const DiffEntry& e : r.entries) {
    if (e.name == name) return e;
  }
  FAIL("no entry " << name);
  return r.entries[0];
}

inline const DiffEntry& only_entry(const DiffResult& r) {
  REQUIRE(r.entries.size() == 1);
  return r.entries[0];
}

inline TensorData f32(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values) {
  return {name, DType::kF32, std::move(shape), float_bytes_as(DType::kF32, values)};
}

}  // namespace twofour
