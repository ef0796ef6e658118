#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "formats/half.h"
#include "kernels/counts/count_ops.h"
#include "kernels/device/isa.h"

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
      count_ops(isa).bf16(halves.data(), count, 1, columns.data(), &of_halves);
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

TEST_CASE("floats: several lines are the same as one after the other") {
  for (const size_t count : {1, 16, 31, 32, 33, 100, 256, 66000}) {
    CAPTURE(count);
    constexpr size_t kLines = 7;
    std::mt19937 random(static_cast<unsigned>(count));
    std::normal_distribution<float> normal;
    std::vector<uint16_t> numbers;
    for (size_t i = 0; i < count * kLines; ++i) {
      const auto any = static_cast<uint16_t>(random() % 50);
      // Zeros are in one line, infinity and NaN in two others.
      const size_t line = i / count;
      numbers.push_back(line == 2 && any < 9   ? static_cast<uint16_t>(any % 2 << 15)
                        : line == 4 && any < 2 ? uint16_t{0xFFC0}
                        : line == 5 && any < 2 ? uint16_t{0xFF80}
                                               : bf16_from_float(normal(random)));
    }
    for (const Isa isa : available_isas()) {
      CAPTURE(std::string(isa_name(isa)));
      const CountOps& ops = count_ops(isa);
      std::vector<float> together(count), apart(count);
      std::array<FloatCounts, kLines> all{}, without{};
      ops.bf16(numbers.data(), count, kLines, together.data(), all.data());
      ops.bf16(numbers.data(), count, kLines, nullptr, without.data());
      for (size_t line = 0; line < kLines; ++line) {
        CAPTURE(line);
        const uint16_t* const from = &numbers[line * count];
        FloatCounts own;
        ops.bf16(from, count, 1, apart.data(), &own);
        HalfRange range;
        uint64_t zeros = 0, negative = 0;
        float amax = 0;
        for (size_t i = 0; i < count; ++i) {
          const auto magnitude = static_cast<uint16_t>(from[i] & 0x7FFFu);
          range = {std::min(range.least, magnitude), std::max(range.most, magnitude),
                   static_cast<uint16_t>(range.bits | from[i])};
          zeros += magnitude == 0;
          negative += from[i] > 0x8000;
          const float x = bf16_to_float(magnitude);
          if (x > amax) amax = x;  // not so for NaN
        }
        const HalfRange found = ops.halves(from, count);
        CHECK(found.least == range.least);
        CHECK(found.most == range.most);
        CHECK(found.bits == range.bits);
        for (const FloatCounts& counts : {own, all[line], without[line]}) {
          CHECK(counts.range.least == range.least);
          CHECK(counts.range.most == range.most);
          CHECK((counts.range.bits & 0x8000) == (range.bits & 0x8000));
          CHECK(counts.zeros == zeros);
          CHECK(counts.negative == negative);
          CHECK(counts.amax == amax);
          const bool both_nan = std::isnan(counts.energy) && std::isnan(own.energy);
          CHECK((both_nan || counts.energy == own.energy));
        }
      }
      CHECK(std::memcmp(together.data(), apart.data(), count * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("logarithms of floats, by line and by column") {
  for (const size_t count : {1, 15, 16, 17, 100, 4097}) {
    CAPTURE(count);
    std::mt19937 random(static_cast<unsigned>(count));
    std::normal_distribution<float> normal;
    std::vector<uint16_t> halves;
    std::vector<float> numbers, sums(count, 0.5f);
    std::vector<uint32_t> used(count, 3);
    double octaves = 0;
    int64_t eighths = 0;
    uint64_t all = 0;
    for (size_t i = 0; i < count; ++i) {
      constexpr uint16_t kUnused[] = {0, 0x8000, 0x0001, 0x7F80, 0xFFC0};
      const bool is_used = random() % 4 != 0;
      halves.push_back(is_used ? bf16_from_float(normal(random) * 0x1p-20f) : kUnused[random() % 5]);
      numbers.push_back(bf16_to_float(halves.back()));
      if (!is_used) continue;
      int exponent = 0;
      const float mantissa = std::frexp(std::fabs(numbers.back()), &exponent);
      const int own = 8 * (exponent - 1) + static_cast<int>((2 * mantissa - 1) * 8);
      octaves += std::log2(std::fabs(double{numbers.back()}));
      eighths += own;
      sums[i] += static_cast<float>(own) / 8;
      ++used[i];
      ++all;
    }
    std::vector<double> products;
    for (const Isa isa : available_isas()) {
      CAPTURE(std::string(isa_name(isa)));
      const auto check_sums = [&](const auto& add, const auto* from, bool has_columns) {
        std::vector<float> columns(count, 0.5f);
        std::vector<uint32_t> numbers_of(count, 3);
        LevelSums line;
        LogSums logs;
        add(from, count, has_columns ? columns.data() : nullptr, has_columns ? numbers_of.data() : nullptr,
            line, logs);
        CHECK(line.eighths == eighths);
        CHECK(line.count == all);
        if (has_columns) {
          CHECK(columns == sums);
          CHECK(numbers_of == used);
        }
        auto found = static_cast<double>(logs.exponents);
        for (const double product : logs.products) {
          found += std::log2(product);
          products.push_back(product);
        }
        CHECK(found == doctest::Approx(octaves).epsilon(1e-9));
      };
      for (const bool has_columns : {true, false}) {
        check_sums(count_ops(isa).bf16_levels, halves.data(), has_columns);
        check_sums(count_ops(isa).f32_levels, numbers.data(), has_columns);
      }
    }
    for (size_t i = 0; i < products.size(); ++i) CHECK(products[i] == products[i % LogSums::kLanes]);
  }
}

TEST_CASE("histograms of bytes: all sizes and ranges") {
  for (const size_t size : {0, 1, 511, 512, 513, 4096, 5000, 70001}) {
    for (const unsigned range : {1u, 3u, 20u, 100u, 256u}) {
      CAPTURE(size);
      CAPTURE(range);
      std::mt19937 random(range);
      std::vector<uint8_t> bytes(size);
      for (uint8_t& b : bytes) b = static_cast<uint8_t>(0x65 + random() % range);
      std::array<uint64_t, 256> expected{};
      for (const uint8_t b : bytes) ++expected[b];
      for (const Isa isa : available_isas()) {
        CAPTURE(std::string(isa_name(isa)));
        uint64_t counts[256] = {5};
        const CountOps& ops = count_ops(isa);
        const auto last = static_cast<uint8_t>(0x64 + range);
        bool is_within = true;
        for (const uint8_t b : bytes) is_within = is_within && b >= 0x66 && b < last;
        CHECK(ops.are_within(bytes.data(), size, 0, 255));
        if (range > 2 && range < 150) {
          CHECK(ops.are_within(bytes.data(), size, 0x65, last));
          CHECK(ops.are_within(bytes.data(), size, 0x66, static_cast<uint8_t>(last - 1)) == is_within);
        }
        std::vector<uint16_t> columns(size, 7);
        const SquareSums sums = ops.squares(bytes.data(), size, columns.data());
        uint64_t sum = 0, squares = 0;
        bool are_columns = true;
        for (size_t i = 0; i < size; ++i) {
          sum += bytes[i];
          squares += uint64_t{bytes[i]} * bytes[i];
          are_columns = are_columns && columns[i] == bytes[i] + 7;
        }
        CHECK(sums.sum == sum);
        CHECK(sums.squares == squares);
        CHECK(are_columns);
        ops.histogram(bytes.data(), size, counts);
        counts[0] -= 5;
        CHECK(std::equal(expected.begin(), expected.end(), counts));
      }
    }
  }
}

TEST_CASE("sums of bytes that are not small, by line and by column") {
  for (const size_t count : {1, 7, 8, 15, 16, 31, 32, 33, 48, 90, 128, 9000}) {
    for (const bool has_small : {true, false}) {
      CAPTURE(count);
      CAPTURE(has_small);
      constexpr uint8_t kLeast = 0x21;
      constexpr size_t kLines = 256;
      std::vector<uint8_t> lines;
      std::vector<uint16_t> sums(count), counts(count);
      std::array<ByteSums, kLines> expected{};
      for (size_t l = 0; l < kLines; ++l) {
        const std::vector<uint8_t> line = some_bytes(count, static_cast<unsigned>(l));
        for (size_t i = 0; i < count; ++i) {
          // Small bytes are in a few lines; without them, sums are the largest ones.
          const bool is_any = l < 200 && i % 5 != 0 && (has_small || line[i] >= kLeast);
          const uint8_t b = lines.emplace_back(is_any ? line[i] : uint8_t{0xFF});
          if (b < kLeast) continue;
          sums[i] = static_cast<uint16_t>(sums[i] + b);
          ++counts[i];
          expected[l].sum += b;
          ++expected[l].count;
        }
      }
      for (const Isa isa : available_isas()) {
        CAPTURE(std::string(isa_name(isa)));
        std::vector<uint16_t> found(count), number(count);
        std::array<ByteSums, kLines> of_lines{};
        size_t line = 0;
        for (const size_t some : {1, 4, 3, 8, 240}) {
          count_ops(isa).bytes(&lines[line * count], count, some, kLeast, found.data(), number.data(),
                               &of_lines[line]);
          line += some;
        }
        for (size_t l = 0; l < kLines; ++l) {
          CHECK(of_lines[l].sum == expected[l].sum);
          CHECK(of_lines[l].count == expected[l].count);
        }
        CHECK(found == sums);
        CHECK(number == counts);
      }
    }
  }
}

}  // namespace count_test
