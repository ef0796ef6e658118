#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <unordered_map>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/error.h"
#include "formats/half.h"
#include "lib/lint/content/checks.h"
#include "lib/threads/interrupt.h"

namespace twofour {
namespace {

/// A matrix of either checkpoint: an NVFP4 module, or a tensor of floats.
struct Matrix {
  const LintInput* input;
  const Nvfp4Linear* module;  ///< nullptr: a tensor of floats
  size_t tensor;
  int64_t e, n, k;
};

/// Bytes [first, first + count) of a tensor that are `stride` apart.
std::vector<uint8_t> read_strided(const LintInput& s, size_t tensor, uint64_t first, uint64_t count,
                                  uint64_t stride) {
  std::vector<uint8_t> bytes(count);
  if (stride == 1) {
    s.read(tensor, first, bytes);
  } else {
    for (uint64_t i = 0; i < count; ++i) s.read(tensor, first + i * stride, {&bytes[i], 1});
  }
  return bytes;
}

/// One row of an NVFP4 module without its global scale, which no comparison of directions needs.
std::vector<float> read_nvfp4_row(const LintInput& s, const Nvfp4Linear& m, int64_t e, int64_t row) {
  const auto k = static_cast<uint64_t>(m.k), n = static_cast<uint64_t>(m.n);
  const auto line = [&](size_t tensor, uint64_t count) {
    const uint64_t expert = static_cast<uint64_t>(e) * n * count;
    const auto r = static_cast<uint64_t>(row);
    return m.k_outer ? read_strided(s, tensor, expert + r, count, n)
                     : read_strided(s, tensor, expert + r * count, count, 1);
  };
  const auto codes = line(m.codes, k / 2), scales = line(m.block_scale, k / 16);
  std::vector<float> values(k);
  for (size_t i = 0; i < values.size(); ++i) {
    const float value = e2m1_to_float((codes[i / 2] >> (i % 2 * 4)) & 15u) * e4m3_to_float(scales[i / 16]);
    values[i] = std::isfinite(value) ? value : 0.0f;
  }
  return values;
}

std::vector<float> read_row(const Matrix& x, int64_t e, int64_t row) {
  if (x.module != nullptr) return read_nvfp4_row(*x.input, *x.module, e, row);
  const TensorInfo& t = x.input->tensors[x.tensor];
  const uint64_t width = t.dtype == DType::kF32 ? 4 : 2, line = static_cast<uint64_t>(x.k) * width;
  const auto bytes = read_strided(*x.input, x.tensor, static_cast<uint64_t>(row) * line, line, 1);
  std::vector<float> values(static_cast<size_t>(x.k));
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    if (width == 4) {
      std::memcpy(&values[i], &bytes[4 * i], 4);
    } else {
      std::memcpy(&bits, &bytes[2 * i], 2);
      values[i] = t.dtype == DType::kBF16 ? bf16_to_float(bits) : fp16_to_float(bits);
    }
    if (!std::isfinite(values[i])) values[i] = 0;
  }
  return values;
}

/// Sums of a cosine, over rows.
struct Cosine {
  double ab = 0, aa = 0, bb = 0;
  void add(const std::vector<float>& a, const std::vector<float>& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      ab += double{a[i]} * b[i];
      aa += double{a[i]} * a[i];
      bb += double{b[i]} * b[i];
    }
  }
  double value() const { return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0; }
};

/// Unrelated weights come to 0, and rounding, pruning included, leaves 0.85 and more.
bool is_swap(const Cosine& same, const Cosine& swapped) {
  return same.value() < 0.5 && swapped.value() > 0.7;
}

std::vector<float> pairs_swapped(std::vector<float> row) {
  for (size_t i = 0; i + 1 < row.size(); i += 2) std::swap(row[i], row[i + 1]);
  return row;
}

class Matrices {
 public:
  explicit Matrices(const LintInput& s) : s_(s) {
    for (const Nvfp4Linear& m : s.modules) by_name_[m.name] = &m;
  }
  std::optional<Matrix> find(const std::string& name) const {
    const auto it = by_name_.find(name);
    if (it != by_name_.end()) {
      const Nvfp4Linear& m = *it->second;
      if (!s_.is_whole(m)) return std::nullopt;
      return Matrix{&s_, &m, m.codes, m.e, m.n, m.k};
    }
    const auto at = s_.find(name + ".weight");
    if (!at || !s_.whole[*at] || s_.tensors[*at].shape.size() != 2) return std::nullopt;
    const TensorInfo& t = s_.tensors[*at];
    const bool is_float = t.dtype == DType::kBF16 || t.dtype == DType::kF16 || t.dtype == DType::kF32;
    if (!is_float) return std::nullopt;
    return Matrix{&s_, nullptr, *at, 1, t.shape[0], t.shape[1]};
  }

 private:
  const LintInput& s_;
  std::unordered_map<std::string_view, const Nvfp4Linear*> by_name_;
};

bool same_shape(const Matrix& a, const Matrix& b) { return a.e == b.e && a.n == b.n && a.k == b.k; }

/// A few rows are enough: no row of hundreds fits by chance.
std::array<int64_t, 4> sample_rows(int64_t n) { return {0, n / 3, 2 * n / 3, n - 1}; }

/// The up that belongs to a gate; "" where `name` is no gate.
std::string up_of(const std::string& name) {
  for (const auto& [gate, up] : {std::pair(".gate_proj", ".up_proj"), std::pair(".w1", ".w3")}) {
    if (name.ends_with(gate)) return name.substr(0, name.size() - std::string_view(gate).size()) + up;
  }
  return "";
}

std::string found(const Cosine& same, const Cosine& swapped) {
  return fmt::format("expected a cosine near 1 as stored, found {:.2f}, and {:.2f} exchanged", same.value(),
                     swapped.value());
}

void compare(const Matrix& own, const Matrix& other, const Matrices& owns, const Matrices& others,
             LintReporter& reporter) {
  const std::string& name = own.module->name;
  const std::string& file = own.input->file_of(own.tensor);
  const bool stack = own.module->dialect->stacked && name.ends_with("gate_up_proj") && own.n % 2 == 0;
  Cosine same, nibbles, halves;
  for (const int64_t row : sample_rows(own.n)) {
    const int64_t e = row * own.e / std::max<int64_t>(own.n, 1) % own.e;
    const auto a = read_row(own, e, row), b = read_row(other, e, row);
    same.add(a, b);
    nibbles.add(pairs_swapped(a), b);
    if (stack) halves.add(a, read_row(other, e, (row + own.n / 2) % own.n));
  }
  if (is_swap(same, nibbles)) reporter.add("nibble-swap", file, name, found(same, nibbles));
  if (stack && is_swap(same, halves)) reporter.add("gate-up-swap", file, name, found(same, halves));
  const std::string up_name = up_of(name);
  if (up_name.empty() || own.module->dialect->stacked) return;
  const auto own_up = owns.find(up_name), other_up = others.find(up_name);
  if (!own_up || !other_up || !same_shape(own, *own_up) || !same_shape(other, *other_up)) return;
  Cosine crossed;
  for (const int64_t row : sample_rows(own.n)) {
    crossed.add(read_row(own, 0, row), read_row(*other_up, 0, row));
    crossed.add(read_row(*own_up, 0, row), read_row(other, 0, row));
  }
  if (is_swap(same, crossed)) reporter.add("gate-up-swap", file, name, found(same, crossed));
}

}  // namespace

void lint_against(const LintInput& s, const std::filesystem::path& path, LintReporter& reporter) {
  LintReporter silent;
  const LintInput reference = open_lint_subject(path, silent);
  const Matrices owns(s), others(reference);
  size_t compared = 0;
  for (const Nvfp4Linear& m : s.modules) {
    check_interrupt();
    const auto own = owns.find(m.name), other = others.find(m.name);
    if (!own || !other || !same_shape(*own, *other)) continue;
    ++compared;
    compare(*own, *other, owns, others, reporter);
  }
  if (compared > 0) return;
  throw Error(fmt::format(
      "--against {}: expected modules of the same names and shapes as {} NVFP4 modules of {}, found none",
      path.string(), s.modules.size(), s.path.string()));
}

}  // namespace twofour
