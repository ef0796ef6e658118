#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "formats/half.h"
#include "kernels/device/isa.h"
#include "kernels/numbers/count_ops.h"

namespace count_test {

// Every instruction set counts what slow loops count. Sums of squares are equal in all of them, to the last
// bit.

using namespace twofour;

namespace {

/// Bytes with runs of zeros, of 0x77, and of anything.
std::vector<uint8_t> some_bytes(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(count);
  unsigned kind = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i % 24 == 0) kind = static_cast<unsigned>(random() % 4);
    const auto any = static_cast<uint8_t>(random());
    bytes[i] = kind == 0 ? any : kind == 1 ? static_cast<uint8_t>(any & 0x88) : kind == 2 ? 0x77 : any & 0x33;
  }
  return bytes;
}

}  // namespace

TEST_CASE("codes and blocks: all sizes, all instruction sets") {
  for (const size_t size : {0, 1, 7, 8, 16, 63, 64, 100, 960, 961, 7680, 8000, 70001}) {
    CAPTURE(size);
    const std::vector<uint8_t> bytes = some_bytes(size, static_cast<unsigned>(size) + 1);
    std::array<uint64_t, 16> codes{};
    uint64_t zero = 0, full = 0;
    for (const uint8_t b : bytes) {
      ++codes[b & 15u];
      ++codes[b >> 4u];
    }
    for (size_t block = 0; block + 8 <= size; block += 8) {
      bool is_zero = true, is_full = false;
      for (size_t i = block; i < block + 8; ++i) {
        is_zero = is_zero && (bytes[i] & 0x77) == 0;
        is_full = is_full || (bytes[i] & 7) == 7 || (bytes[i] >> 4 & 7) == 7;
      }
      zero += is_zero;
      full += is_full;
    }
    for (const Isa isa : available_isas()) {
      CAPTURE(std::string(isa_name(isa)));
      CodeCounts counts;
      count_ops(isa).codes(bytes.data(), size, counts);
      for (size_t c = 0; c < codes.size(); ++c) CHECK(counts.codes[c] == codes[c]);
      CHECK(counts.zero_blocks == zero);
      CHECK(counts.full_blocks == full);
    }
  }
}

TEST_CASE("E4M3: upper bits, zeros and the largest numbers") {
  for (const size_t size : {0, 1, 63, 64, 100, 16320, 16384, 70001}) {
    CAPTURE(size);
    std::vector<uint8_t> bytes = some_bytes(size, static_cast<unsigned>(size) + 3);
    for (size_t i = 0; i < size; i += 17) bytes[i] = i % 2 == 0 ? 0xFE : 0x7D;
    std::array<uint64_t, 16> upper{};
    uint64_t zeros = 0, negative_zeros = 0, full = 0, next = 0;
    uint8_t largest = 0;
    for (const uint8_t b : bytes) {
      const auto magnitude = static_cast<uint8_t>(b & 0x7F);
      ++upper[b >> 4u];
      zeros += magnitude == 0;
      negative_zeros += b == 0x80;
      full += magnitude == 0x7E;
      next += magnitude == 0x7D;
      largest = std::max(largest, magnitude);
    }
    for (const Isa isa : available_isas()) {
      CAPTURE(std::string(isa_name(isa)));
      Fp8Counts counts;
      count_ops(isa).fp8(bytes.data(), size, counts);
      for (size_t c = 0; c < upper.size(); ++c) CHECK(counts.upper[c] == upper[c]);
      CHECK(counts.zeros == zeros);
      CHECK(counts.negative_zeros == negative_zeros);
      CHECK(counts.full == full);
      CHECK(counts.next == next);
      CHECK(count_ops(isa).largest(bytes.data(), size) == largest);
    }
  }
}

TEST_CASE("floats: counts, largest and sums of all sizes") {
  for (const size_t count : {1, 15, 16, 17, 255, 1024, 70000}) {
    CAPTURE(count);
    std::mt19937 random(static_cast<unsigned>(count));
    std::normal_distribution<float> normal;
    std::vector<uint16_t> halves;
    std::vector<float> numbers;
    double energy = 0;
    float amax = 0;
    uint64_t zeros = 0, negative = 0;
    for (size_t i = 0; i < count; ++i) {
      halves.push_back(i % 11 == 3   ? uint16_t{0x8000}
                       : i % 13 == 5 ? uint16_t{0}
                                     : bf16_from_float(normal(random)));
      const float x = bf16_to_float(halves.back());
      numbers.push_back(x);
      energy += double{x} * double{x};
      amax = std::max(amax, std::fabs(x));
      zeros += x == 0;
      negative += x < 0;
    }
    std::vector<double> energies;
    for (const Isa isa : available_isas()) {
      CAPTURE(std::string(isa_name(isa)));
      std::vector<float> columns(count, 1);
      FloatCounts of_halves, of_floats;
      count_ops(isa).bf16(halves.data(), count, columns.data(), of_halves);
      count_ops(isa).f32(numbers.data(), count, columns.data(), of_floats);
      for (const FloatCounts& counts : {of_halves, of_floats}) {
        CHECK(counts.amax == amax);
        CHECK(counts.zeros == zeros);
        CHECK(counts.negative == negative);
        energies.push_back(counts.energy);
      }
      for (size_t i = 0; i < count; ++i) {
        const float square = numbers[i] * numbers[i];
        CHECK(columns[i] == 1 + square + square);
      }
    }
    for (const double one : energies) CHECK(one == energies[0]);
    // A sixteenth of the numbers is added to one float, with a rounding of 2^-24 each.
    CHECK(energies[0] ==
          doctest::Approx(energy).epsilon(static_cast<double>(count) * 0x1p-24 / 16 + 0x1p-23));
  }
}

TEST_CASE("sums of bytes that are not small, by line and by column") {
  for (const size_t count : {1, 8, 31, 32, 33, 128, 9000}) {
    CAPTURE(count);
    constexpr uint8_t kLeast = 0x21;
    constexpr size_t kLines = 256;
    std::vector<std::vector<uint8_t>> lines;
    std::vector<uint16_t> sums(count), counts(count);
    for (size_t l = 0; l < kLines; ++l) {
      lines.push_back(some_bytes(count, static_cast<unsigned>(l)));
      for (size_t i = 0; i < count; ++i) {
        uint8_t& b = lines[l][i];
        if (i % 5 == 0) b = 0xFF;
        if (b < kLeast) continue;
        sums[i] = static_cast<uint16_t>(sums[i] + b);
        ++counts[i];
      }
    }
    for (const Isa isa : available_isas()) {
      CAPTURE(std::string(isa_name(isa)));
      std::vector<uint16_t> found(count), number(count);
      for (const std::vector<uint8_t>& line : lines) {
        uint64_t sum = 0, used = 0;
        for (const uint8_t b : line) {
          sum += b >= kLeast ? b : 0;
          used += b >= kLeast;
        }
        const ByteSums all = count_ops(isa).bytes(line.data(), count, kLeast, found.data(), number.data());
        CHECK(all.sum == sum);
        CHECK(all.count == used);
      }
      CHECK(found == sums);
      CHECK(number == counts);
    }
  }
}

}  // namespace count_test
