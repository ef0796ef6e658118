#pragma once
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "lib/prove/expected/rederive.h"
#include "lib/source/linears/linears.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/slow_float.h"

namespace twofour {

inline constexpr SlowFloat kSlowE2m1{2, 1, 1, 7}, kSlowE4m3{4, 3, 7, 0x7E}, kSlowF16{5, 10, 15, 0x7BFF},
    kSlowBf16{8, 7, 127, 0x7F7F};

/// A tensor of random bytes below `limit`, whose values a test takes apart itself.
struct StoredTensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;

  StoredTensor(DType type, std::vector<int64_t> dims, unsigned seed, unsigned limit = 256)
      : dtype(type), shape(std::move(dims)) {
    std::mt19937 random(seed);
    size_t count = static_cast<size_t>(dtype_bits(type)) / 8;
    for (const int64_t d : shape) count *= static_cast<size_t>(d);
    for (size_t i = 0; i < count; ++i) bytes.push_back(static_cast<uint8_t>(random() % limit));
  }
  void add_to(Tensors& to, const std::string& name) const { to.push_back({name, dtype, shape, bytes}); }

  uint8_t byte(int64_t i) const { return bytes[static_cast<size_t>(i)]; }
  unsigned code(int64_t i) const { return byte(i / 2) >> (i % 2 * 4) & 15u; }
  template <class T>
  T as(int64_t i) const {
    T value;
    std::memcpy(&value, bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    return value;
  }
  double number(int64_t i) const {
    if (dtype == DType::kBF16) return kSlowBf16.value(as<uint16_t>(i));
    if (dtype == DType::kF16) return kSlowF16.value(as<uint16_t>(i));
    if (dtype == DType::kF8E4M3) return kSlowE4m3.value(byte(i));
    if (dtype == DType::kF8E8M0 || dtype == DType::kU8) return std::ldexp(1.0, byte(i) - 127);
    return double{as<float>(i)};
  }
};

/// FP8 weights without the two bytes that are NaN.
inline StoredTensor fp8_weights(std::vector<int64_t> shape, unsigned seed) {
  StoredTensor stored(DType::kF8E4M3, std::move(shape), seed);
  for (uint8_t& byte : stored.bytes) {
    if ((byte & 0x7F) == 0x7F) byte ^= 1;
  }
  return stored;
}

/// Scales of any mantissa between 2^-12 and 2^3, a zero among them; powers of two for E8M0 and U8.
inline StoredTensor random_scales(DType dtype, std::vector<int64_t> shape, unsigned seed) {
  StoredTensor stored(dtype, std::move(shape), seed, 255);
  std::mt19937 random(seed);
  const size_t width = static_cast<size_t>(dtype_bits(dtype)) / 8;
  if (width == 1) return stored;
  for (size_t i = 0; i < stored.bytes.size() / width; ++i) {
    const auto exponent = static_cast<uint32_t>(115 + random() % 15);
    uint32_t bits = exponent << 23 | (random() & 0x7FFFFF);
    if (i == 1) bits = 0;
    if (width == 2) bits >>= 16;
    std::memcpy(stored.bytes.data() + i * width, &bits, width);
  }
  return stored;
}

/// The same, but powers of two at most 2^112: with them BF16 holds all weights of FP8.
inline StoredTensor scales_for_bf16(DType dtype, std::vector<int64_t> shape, unsigned seed) {
  StoredTensor stored = random_scales(dtype, std::move(shape), seed);
  if (dtype_bits(dtype) == 8) {
    for (uint8_t& byte : stored.bytes) byte = byte % 240;
  }
  return stored;
}

/// A checkpoint of these tensors in one file.
inline Checkpoint open_checkpoint(const Scratch& scratch, const Tensors& tensors,
                                  const std::optional<std::string>& config = std::nullopt) {
  write_checkpoint(scratch / "c", {tensors}, config);
  return Checkpoint::open(scratch / "c");
}

inline Linear only(const std::vector<Linear>& modules) {
  REQUIRE(modules.size() == 1);
  return modules[0];
}

/// The exact value of a weight, before rounding.
using ExactValues = std::function<double(int64_t e, int64_t n, int64_t k)>;

/// Reads a module in row blocks of random heights, as commands read it and as `validate` derives it, and
/// compares every bit with the exact value, rounded once.
inline void check_values(const Checkpoint& c, const Linear& m, const ExactValues& exact) {
  CAPTURE(m.name);
  WeightReader reader(c), other(c);
  std::mt19937 random(static_cast<unsigned>(m.n));
  std::vector<float> out;
  for (int64_t e = 0; e < m.e; ++e) {
    for (int64_t n0 = 0; n0 < m.n;) {
      const int64_t n1 = std::min(m.n, n0 + 1 + static_cast<int64_t>(random() % 150));
      out.assign(static_cast<size_t>((n1 - n0) * m.k), std::nanf(""));
      reader.read_rows(m, e, n0, n1, out);
      const std::vector<float> derived = derive_weights(c, other, m, e, n0, n1);
      REQUIRE(derived.size() == out.size());
      for (size_t i = 0; i < out.size(); ++i) {
        const int64_t n = n0 + static_cast<int64_t>(i) / m.k, k = static_cast<int64_t>(i) % m.k;
        const auto expected = static_cast<float>(exact(e, n, k));
        if (bits_of(expected) == bits_of(out[i]) && bits_of(expected) == bits_of(derived[i])) continue;
        FAIL("[" << e << ", " << n << ", " << k << "]: expected " << expected << ", read " << out[i]
                 << ", derived " << derived[i]);
      }
      n0 = n1;
    }
  }
  CHECK(reader.bytes_read() > 0);
}

}  // namespace twofour
