#pragma once
#include <random>
#include <string>
#include <vector>

#include "tests/support/weights/stored_weights.h"

namespace twofour {

/// A matrix of INT4 as numbers, and as the three producers store it.
struct StoredInt4 {
  int64_t n, k, group;
  std::vector<int> codes;      ///< [n, k], 0 to 15
  std::vector<int> zeros;      ///< [n, groups], 0 to 15, or 1 to 16
  std::vector<int32_t> index;  ///< [k], the group of each input
  StoredTensor scales;         ///< [n, groups]

  StoredInt4(int64_t rows, int64_t inputs, int64_t group_size, DType scale_type, unsigned seed)
      : n(rows), k(inputs), group(group_size), scales(random_scales(scale_type, {rows, groups()}, seed)) {
    std::mt19937 random(seed);
    for (int64_t i = 0; i < n * k; ++i) codes.push_back(static_cast<int>(random() % 16));
    for (int64_t i = 0; i < n * groups(); ++i) zeros.push_back(static_cast<int>(random() % 16));
    for (int64_t i = 0; i < k; ++i) index.push_back(static_cast<int32_t>(i / group));
    if (scale_type == DType::kF16) {
      for (size_t i = 1; i < scales.bytes.size(); i += 2) scales.bytes[i] &= 0x3F;  // finite
    }
    scales.bytes.back() |= 0x80;  // some producers have negative ones
  }

  int64_t groups() const { return (k + group - 1) / group; }
  void make_symmetric() { zeros.assign(zeros.size(), 8); }
  /// Zero points of 1 to 16, as are all that GPTQ stores less 1.
  void raise_zeros() {
    for (int& zero : zeros) zero = zero == 0 ? 16 : zero;
  }
  void shuffle(unsigned seed) {
    std::mt19937 random(seed);
    for (size_t i = index.size() - 1; i > 0; --i) std::swap(index[i], index[random() % (i + 1)]);
  }
  double exact(int64_t row, int64_t col) const {
    const int64_t at = row * groups() + index[static_cast<size_t>(col)];
    const int number = codes[static_cast<size_t>(row * k + col)] - zeros[static_cast<size_t>(at)];
    return number * scales.number(at);
  }

  /// compressed-tensors': words along K, zero points along N.
  void add_packed(Tensors& to, const std::string& module, bool asymmetric,
                  DType shape_type = DType::kI64) const {
    const int64_t words = (k + 7) / 8;
    to.push_back(pack(module + ".weight_packed", n, words,
                      [&](int64_t row, int64_t word, int i) { return code(row, 8 * word + i); }));
    scales.add_to(to, module + ".weight_scale");
    if (asymmetric) {
      to.push_back(pack(module + ".weight_zero_point", (n + 7) / 8, groups(),
                        [&](int64_t word, int64_t g, int i) { return zero(8 * word + i, g); }));
    }
    if (shape_type == DType::kI32) {
      to.push_back(numbers<int32_t>(module + ".weight_shape", shape_type,
                                    {static_cast<int32_t>(n), static_cast<int32_t>(k)}));
    } else {
      to.push_back(numbers<int64_t>(module + ".weight_shape", shape_type, {n, k}));
    }
  }
  void add_index(Tensors& to, const std::string& name) const {
    to.push_back(numbers<int32_t>(name, DType::kI32, index));
  }
  /// AutoGPTQ's, with zero points less `offset`.
  void add_gptq(Tensors& to, const std::string& module, int offset) const {
    to.push_back(pack(module + ".qweight", (k + 7) / 8, n,
                      [&](int64_t word, int64_t row, int i) { return code(row, 8 * word + i); }));
    to.push_back(pack(module + ".qzeros", groups(), (n + 7) / 8,
                      [&](int64_t g, int64_t word, int i) { return zero(8 * word + i, g) - offset; }));
    add_turned_scales(to, module);
  }
  /// AutoAWQ's.
  void add_awq(Tensors& to, const std::string& module) const {
    constexpr int kRows[] = {0, 2, 4, 6, 1, 3, 5, 7};
    to.push_back(pack(module + ".qweight", k, n / 8,
                      [&](int64_t col, int64_t word, int i) { return code(8 * word + kRows[i], col); }));
    to.push_back(pack(module + ".qzeros", groups(), n / 8,
                      [&](int64_t g, int64_t word, int i) { return zero(8 * word + kRows[i], g); }));
    add_turned_scales(to, module);
  }

 private:
  int code(int64_t row, int64_t col) const {
    return col < k ? codes[static_cast<size_t>(row * k + col)] : 5;  // what fills a word has no meaning
  }
  int zero(int64_t row, int64_t g) const {
    return row < n ? zeros[static_cast<size_t>(row * groups() + g)] : 5;
  }
  template <class T>
  static TensorData numbers(const std::string& name, DType type, const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    return {name, type, {static_cast<int64_t>(values.size())}, {bytes, bytes + values.size() * sizeof(T)}};
  }
  template <class F>
  static TensorData pack(const std::string& name, int64_t rows, int64_t cols, F&& nibble) {
    TensorData t{name, DType::kI32, {rows, cols}, {}};
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        for (int i = 0; i < 8; i += 2)
          t.bytes.push_back(static_cast<uint8_t>(nibble(row, col, i) + 16 * nibble(row, col, i + 1)));
      }
    }
    return t;
  }
  void add_turned_scales(Tensors& to, const std::string& module) const {
    TensorData t{module + ".scales", scales.dtype, {groups(), n}, {}};
    const size_t width = static_cast<size_t>(dtype_bits(scales.dtype)) / 8;
    for (int64_t g = 0; g < groups(); ++g) {
      for (int64_t row = 0; row < n; ++row) {
        const auto at = scales.bytes.begin() + (row * groups() + g) * static_cast<int64_t>(width);
        t.bytes.insert(t.bytes.end(), at, at + static_cast<int64_t>(width));
      }
    }
    to.push_back(std::move(t));
  }
};

/// A quantization_config of GPTQ or AWQ.
inline std::string int4_config(const std::string& method, int group, const std::string& more = "") {
  return R"({"quantization_config": {"quant_method": ")" + method + R"(", "bits": 4, "group_size": )" +
         std::to_string(group) + more + "}}";
}

}  // namespace twofour
