#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "lib/base/threads/interrupt.h"
#include "lib/prove/expected/expected_quantization.h"
#include "lib/prove/expected/expected_rows.h"
#include "lib/prove/expected/rederive.h"
#include "lib/prove/validate/proof.h"
#include "lib/write/encode/quantized_group.h"

namespace twofour {

using Floats = std::vector<float>;
using Bytes = std::vector<uint8_t>;

inline Bytes bytes_of(const Floats& values) {
  Bytes bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline float float_in(const Bytes& bytes, size_t i) {
  float value = 0;
  std::memcpy(&value, &bytes[i / sizeof(value) * sizeof(value)], sizeof(value));
  return value;
}

/// The base of the proofs of groups of quantized matrices. It reads the rows of the source and compares them
/// with the artifact.
class GroupReader {
 public:
  GroupReader(const QuantizedGroup& group, Proof& proof)
      : group_(group), proof_(proof), source_(proof.source), reader_(proof.source) {}

 protected:
  template <class F>
  void for_each_row_block(const EncodedMatrix& m, F&& f) {
    const int64_t step = group_.strip_rows(*m.source);
    for (int64_t row = 0; row < m.rows; row += step) {
      check_interrupt();
      f(row, std::min(row + step, m.rows));
    }
  }

  /// Calls f(weights, n, row) for each row of a row block, on all threads. `n` is the index of the row in the
  /// matrix, `row` its index in the row block.
  template <class F>
  static void for_each_row(const EncodedMatrix& m, int64_t begin, const Floats& weights, F&& f) {
    const auto k = static_cast<size_t>(m.k);
    const auto count = static_cast<int64_t>(weights.size() / k);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < count; ++r) {
      f(std::span(weights).subspan(static_cast<size_t>(r) * k, k), begin + r, static_cast<size_t>(r));
    }
  }

  Floats rows(const EncodedMatrix& m, int64_t begin, int64_t end) {
    return matrix_weights(source_, reader_, m, begin, end);
  }

  /// Sets the hash of a matrix's weights in float32, and returns the largest magnitude of these weights.
  float survey(const EncodedMatrix& m, EncodedResult& result) {
    Hasher hasher;
    float largest = 0;
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      const Floats weights = rows(m, begin, end);
      hasher.update({reinterpret_cast<const uint8_t*>(weights.data()), weights.size() * sizeof(float)});
      int32_t here = 0;  // magnitudes sort like their bits; infinity and NaN come last
      const auto count = static_cast<int64_t>(weights.size());
#pragma omp parallel for simd schedule(static) reduction(max : here)
      for (int64_t i = 0; i < count; ++i) {
        here = std::max(here, std::bit_cast<int32_t>(weights[static_cast<size_t>(i)]) & INT32_MAX);
      }
      const auto magnitude = std::bit_cast<float>(here);
      const bool finite = std::isfinite(magnitude);
      if (!finite && not_finite_.empty()) {
        const auto at =
            std::find_if(weights.begin(), weights.end(), [](float x) { return !std::isfinite(x); });
        not_finite_.push_back(fmt::format("{}: expected finite weights, found {} at row {}, k {}", m.name,
                                          *at, begin + (at - weights.begin()) / m.k,
                                          (at - weights.begin()) % m.k));
      }
      if (finite) largest = std::max(largest, magnitude);
    });
    result.source = hasher.digest();
    return largest;
  }

  /// Compares the bytes of a part that begin at `begin`. `place(i, found)` describes the place and the
  /// difference of byte i.
  template <class F>
  void compare(int part, int64_t begin, const Bytes& expected, F&& place) {
    Bytes found(expected.size());
    proof_.read(part, static_cast<uint64_t>(begin), found);
    proof_.progress.done += 2 * found.size();
    if (found == expected) return;
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] == expected[i]) continue;
      Wrong& wrong = wrong_[part];
      if (wrong.count++ > 0) continue;
      wrong.first = fmt::format("{} ({}", begin + static_cast<int64_t>(i), place(i, found));
    }
  }

  /// Compares rows of a matrix. `per_byte` is the number of weights in a byte, or in `bytes` bytes.
  void hold(const EncodedMatrix& m, EncodedPart part, int64_t begin, Bytes expected, int64_t per_byte,
            int64_t bytes = 1) {
    const bool is_code = part == EncodedPart::kValues && per_byte == 2;
    for (size_t i = 0; is_code && proof_.zeros_are_positive && i < expected.size(); ++i) {
      for (const int shift : {0, 4}) {
        if ((expected[i] >> shift & 0x0F) == 0x08) expected[i] &= static_cast<uint8_t>(~(0x0F << shift));
      }
    }
    compare(m.part(part), begin, expected, [&](size_t i, const Bytes& found) {
      const int64_t weight = (begin + static_cast<int64_t>(i)) * per_byte / bytes;
      return fmt::format("row {}, k {}): expected 0x{:02X}, found 0x{:02X}", weight / m.k, weight % m.k,
                         expected[i], found[i]);
    });
  }
  void hold(const EncodedMatrix& m, EncodedPart part, const Floats& values) {
    const Bytes expected = bytes_of(values);
    compare(m.part(part), 0, expected, [&](size_t i, const Bytes& found) {
      return fmt::format("element {}): expected {}, found {}", i / sizeof(float), float_in(expected, i),
                         float_in(found, i));
    });
  }

  static void add(const std::vector<RowError>& rows, EncodeError& sum) {
    for (const RowError& row : rows) {
      sum.energy += row.energy;
      sum.error += row.error;
    }
  }

  StoredCopy stored_fp4(const EncodedMatrix& m, int64_t begin, int64_t end) {
    return matrix_fp4(reader_, m, begin, end);
  }

  /// Rows of a matrix in a tensor of the source, whose rows have `width` bytes.
  Bytes stored(const EncodedMatrix& m, size_t tensor, int64_t width, int64_t begin, int64_t end) {
    return matrix_bytes(source_, m, tensor, width, begin, end);
  }

  void check_bias(const EncodedMatrix& m) {
    if (m.part(EncodedPart::kBias) < 0) return;
    const size_t bias = *m.source->bias;
    const int64_t width = dtype_bits(source_.tensors()[bias].dtype) / 8;
    const Bytes expected = stored(m, bias, width, 0, m.rows);
    compare(m.part(EncodedPart::kBias), 0, expected, [&](size_t i, const Bytes& found) {
      return fmt::format("row {}): expected 0x{:02X}, found 0x{:02X}", static_cast<int64_t>(i) / width,
                         expected[i], found[i]);
    });
  }

  /// Reports the differences.
  void report() {
    for (const auto& [part, wrong] : wrong_) {
      proof_.differ(part, fmt::format("{} bytes differ from those derived from the source, the first at {}",
                                      wrong.count, wrong.first));
    }
    for (const std::string& text : not_finite_) proof_.differ("weights", group_.matrices()[0].name, text);
  }

  const QuantizedGroup& group_;
  Proof& proof_;
  const Checkpoint& source_;
  WeightReader reader_;

 private:
  struct Wrong {
    uint64_t count = 0;
    std::string first;  ///< the place and both values of the first wrong byte
  };
  std::map<int, Wrong> wrong_;  ///< by part
  std::vector<std::string> not_finite_;
};

}  // namespace twofour
