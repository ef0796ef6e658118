#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <unordered_map>

#include "formats/module_names.h"
#include "lib/base/io/hash.h"
#include "lib/base/names/sibling_name.h"
#include "lib/base/threads/interrupt.h"
#include "lib/lint/content/against_others.h"
#include "lib/source/linears/tensor_values.h"

// Compares the tensors that are not linears with those of another checkpoint: norms, biases, scales of inputs
// and of the cache, embeddings.

namespace twofour {
namespace {

constexpr int64_t kMostNumbers = int64_t{1} << 20;  ///< length of the largest vector that is compared
constexpr int64_t kFewColumns = 16;                 ///< with fewer columns, a cosine is meaningless
/// Relative distance up to which numbers are equal after rounding to BF16 or E4M3.
constexpr double kSame = 0.02;
constexpr double kFactor = 1.6;
constexpr double kLike = 0.6;  ///< smallest cosine of equal rows of a table after rounding

using Numbers = std::vector<float>;

double norm(const Numbers& x) {
  double sum = 0;
  for (const float v : x) sum += double{v} * v;
  return std::sqrt(sum);
}
/// Returns |x - s y| / |x|.
double distance(const Numbers& x, const Numbers& y, double s = 1) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += (x[i] - s * y[i]) * (x[i] - s * y[i]);
  const double size = norm(x);
  return size > 0 ? std::sqrt(sum) / size : sum > 0 ? INFINITY : 0;
}
double product(const Numbers& x, const Numbers& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += double{x[i]} * y[i];
  return sum;
}

int64_t count_of(const TensorInfo& t) { return static_cast<int64_t>(t.bytes()) / element_bytes(t.dtype); }

class OtherTensors {
 public:
  OtherTensors(const Checkpoint& a, const Matrices& a_linears, const Checkpoint& b,
               const std::set<std::string>& moved, LintReporter& reporter)
      : a_(a), b_(b), moved_(moved), reporter_(reporter) {
    for (const Linear& m : a_linears.modules()) {
      linears_.insert(m.weight);
      for (const auto part : {m.scale, m.global_scale, m.zero_points}) {
        if (part) linears_.insert(*part);
      }
    }
  }

  void run() {
    for (size_t i = 0; i < a_.tensors().size(); ++i) {
      check_interrupt();
      const TensorInfo& t = a_.tensors()[i];
      const auto other = b_.find(t.name);
      const bool floats = is_float(t.dtype) || (t.dtype == DType::kI8 && t.shape.size() == 2);
      if (t.dtype == DType::kI64 && other) check_integers(i, *other);
      if (!floats || linears_.contains(i) || moved_.contains(std::string(module_of(t.name))) ||
          t.bytes() == 0 || !other)
        continue;
      const TensorInfo& o = b_.tensors()[*other];
      if (o.shape != t.shape || (!has_float_values(o.dtype) && o.dtype != DType::kI8)) continue;
      if (t.shape.size() == 2 && t.shape[1] >= kFewColumns) {
        check_table(i, *other);
      } else if (count_of(t) <= kMostNumbers) {
        check_vector(i, *other);
      }
    }
  }
  const LayerFactors& norm_factors() const { return factors_; }

  /// Reports norms that differ by a factor which no linear of their layer compensates.
  void report_norms(const LayerFactors& linears) {
    for (const auto& [tensor, factor] : norms_) {
      if (!is_made_up(linears, a_.tensors()[tensor].name, factor))
        report(tensor, "other-weights", fmt::format("its numbers are {:.4g} times those of OTHER", factor));
    }
  }

 private:
  Numbers read(const Checkpoint& c, size_t tensor, int64_t first, int64_t count) const {
    const TensorInfo& t = c.tensors()[tensor];
    const auto size = static_cast<uint64_t>(element_bytes(t.dtype));
    std::vector<uint8_t> bytes(static_cast<size_t>(count) * size);
    c.read(tensor, static_cast<uint64_t>(first) * size, bytes);
    Numbers numbers(static_cast<size_t>(count));
    if (t.dtype == DType::kI8) {
      std::transform(bytes.begin(), bytes.end(), numbers.begin(),
                     [](uint8_t b) { return static_cast<float>(static_cast<int8_t>(b)); });
      return numbers;
    }
    to_floats(t.dtype, bytes.data(), numbers);
    return numbers;
  }
  Numbers read_all(const Checkpoint& c, size_t tensor) const {
    return read(c, tensor, 0, count_of(c.tensors()[tensor]));
  }
  void report(size_t tensor, const char* rule, std::string found) {
    const TensorInfo& t = a_.tensors()[tensor];
    reporter_.add(rule, {a_.shard_of(tensor).name, t.name},
                  "expected the numbers of OTHER under this name, found that {}", found);
  }

  /// Returns the tensors of the other checkpoint that have a shape.
  const std::vector<size_t>& alike(const std::vector<int64_t>& shape) {
    if (by_shape_.empty()) {
      for (size_t i = 0; i < b_.tensors().size(); ++i) {
        const TensorInfo& t = b_.tensors()[i];
        if (has_float_values(t.dtype) && t.bytes() > 0) by_shape_[t.shape].push_back(i);
      }
    }
    return by_shape_[shape];
  }

  void check_vector(size_t own, size_t other) {
    const TensorInfo& t = a_.tensors()[own];
    const Numbers x = read_all(a_, own), y = read_all(b_, other);
    const bool finite = std::ranges::all_of(x, [](float v) { return std::isfinite(v); });
    if (!finite || norm(x) == 0 || distance(x, y) < kSame) return;
    for (const size_t i : alike(t.shape)) {
      const std::string& name = b_.tensors()[i].name;
      if (i == other || distance(x, read_all(b_, i)) > (x.size() == 1 ? 0 : kSame / 4)) continue;
      // When linears with the same input are fused, their input scales become one.
      if (x.size() == 1 && module_of(module_of(name)) == module_of(module_of(t.name))) continue;
      return report(own, "moved-weights", fmt::format("it equals {} of OTHER", name));
    }
    if (x.size() == 1 || norm(y) == 0) return;
    Numbers own_sorted = x, other_sorted = y;
    std::ranges::sort(own_sorted);
    std::ranges::sort(other_sorted);
    if (distance(own_sorted, other_sorted) < kSame / 4)
      return report(own, "moved-rows", "its numbers are in another order");
    const double factor = product(x, y) / product(y, y);
    if (factor == 0 || distance(x, y, factor) > kSame) return;
    if (factor < 0) return report(own, "turned-signs", "all signs are reversed");
    if (factor < kFactor && factor * kFactor > 1) return;
    if (t.shape.size() == 1 && t.name.find("norm") != t.name.npos) {
      factors_[layer_of(t.name)].push_back(factor);
      norms_.push_back({own, factor});
      return;
    }
    report(own, "other-weights", fmt::format("its numbers are {:.4g} times those of OTHER", factor));
  }

  /// Compares tables of integers, such as the table that states the experts of each token.
  void check_integers(size_t own, size_t other) {
    const TensorInfo &t = a_.tensors()[own], &o = b_.tensors()[other];
    if (o.dtype != t.dtype || o.shape != t.shape || t.bytes() == 0) return;
    const Hash128 hash = hash_of(a_, own);
    if (hash == hash_of(b_, other)) return;
    for (size_t i = 0; i < b_.tensors().size(); ++i) {
      const TensorInfo& p = b_.tensors()[i];
      if (p.dtype == t.dtype && p.shape == t.shape && i != other && hash_of(b_, i) == hash)
        return report(own, "moved-weights", fmt::format("it equals {} of OTHER", p.name));
    }
    report(own, "other-weights", "they differ");
  }
  static Hash128 hash_of(const Checkpoint& c, size_t tensor) {
    std::vector<uint8_t> bytes(c.tensors()[tensor].bytes());
    c.read(tensor, 0, bytes);
    return hash_bytes(bytes);
  }

  /// Compares some rows of two tables.
  void check_table(size_t own, size_t other) {
    const TensorInfo& t = a_.tensors()[own];
    const int64_t rows = t.shape[0], k = t.shape[1], some = std::min<int64_t>(rows, 64);
    size_t known = 0, like = 0, turned = 0, reordered = 0;
    double sizes = 0;
    std::vector<int64_t> looked;
    for (int64_t i = 0; i < some; ++i) {
      looked.push_back(i * rows / some + (i * 7919) % std::max<int64_t>(1, rows / some));
      Numbers x = read(a_, own, looked.back() * k, k), y = read(b_, other, looked.back() * k, k);
      const double size = norm(x) * norm(y);
      if (!(size > 0)) continue;
      ++known;
      const double cosine = product(x, y) / size;
      like += cosine >= kLike;
      turned += cosine <= -kLike;
      sizes += std::log2(norm(x) / norm(y));
      if (cosine >= kLike) continue;
      std::ranges::sort(x);
      std::ranges::sort(y);
      reordered += distance(x, y) < kSame;
    }
    if (known == 0) return;
    if (2 * like > known) {
      const double factor = std::exp2(sizes / static_cast<double>(known));
      const bool scaled = t.dtype == DType::kI8 || b_.tensors()[other].dtype == DType::kI8;
      if (!scaled && like == known && (factor > kFactor || factor * kFactor < 1))
        report(own, "other-weights", fmt::format("its numbers are {:.4g} times those of OTHER", factor));
      if (like < known && 8 * (known - like) > known) {
        report(own, "other-weights",
               fmt::format("{} of {} compared rows have nothing in common", known - like, known));
      }
      return;
    }
    if (2 * turned > known) return report(own, "turned-signs", "its signs are reversed");
    if (2 * reordered > known) return report(own, "moved-rows", "its columns are in another order");
    if (const auto name = find_table(own, other, looked))
      return report(own, "moved-weights", fmt::format("it equals {} of OTHER", *name));
    if (const auto place = find_rows(own, other, looked)) return report(own, "moved-rows", *place);
    report(own, "other-weights", "the two have nothing in common");
  }

  std::optional<std::string> find_table(size_t own, size_t other, const std::vector<int64_t>& rows) {
    const int64_t k = a_.tensors()[own].shape[1];
    for (const size_t i : alike(a_.tensors()[own].shape)) {
      if (i == other) continue;
      size_t like = 0;
      for (const int64_t row : rows) {
        const Numbers x = read(a_, own, row * k, k), y = read(b_, i, row * k, k);
        like += product(x, y) >= kLike * norm(x) * norm(y);
      }
      if (2 * like > rows.size()) return b_.tensors()[i].name;
    }
    return std::nullopt;
  }

  /// Looks for the rows of one table elsewhere in the other, by equal bytes.
  std::optional<std::string> find_rows(size_t own, size_t other, const std::vector<int64_t>& rows) const {
    const TensorInfo& t = a_.tensors()[own];
    if (b_.tensors()[other].dtype != t.dtype) return std::nullopt;
    const uint64_t row_bytes = t.bytes() / static_cast<uint64_t>(t.shape[0]);
    std::vector<uint8_t> row(row_bytes);
    std::unordered_map<uint64_t, int64_t> places;
    for (const int64_t r : rows) {
      a_.read(own, static_cast<uint64_t>(r) * row_bytes, row);
      places.emplace(hash_bytes(row).low, r);
    }
    size_t found = 0;
    std::string first;
    for (int64_t r = 0; r < t.shape[0]; ++r) {
      b_.read(other, static_cast<uint64_t>(r) * row_bytes, row);
      const auto at = places.find(hash_bytes(row).low);
      if (at == places.end() || at->second == r) continue;
      if (found++ == 0) first = fmt::format("row {} is row {} of OTHER", at->second, r);
    }
    if (2 * found < rows.size()) return std::nullopt;
    return fmt::format("its rows are in another order: {}, and so on", first);
  }

  const Checkpoint &a_, &b_;
  const std::set<std::string>& moved_;
  LintReporter& reporter_;
  std::set<size_t> linears_;
  std::map<std::vector<int64_t>, std::vector<size_t>> by_shape_;
  LayerFactors factors_;
  std::vector<std::pair<size_t, double>> norms_;
};

}  // namespace

std::string layer_of(const std::string& name) {
  const SiblingName at = sibling_name(name);
  return at.layer < 0 ? "" : fmt::format("{}.{}", layers_of(name), at.layer);
}

bool is_made_up(const LayerFactors& factors, const std::string& name, double factor) {
  const auto layer = factors.find(layer_of(name));
  return layer != factors.end() && std::ranges::any_of(layer->second, [&](double other) {
           return std::fabs(std::log2(factor * other)) < 0.1;
         });
}

LayerFactors lint_other_tensors(const Checkpoint& a, const Matrices& linears, const Checkpoint& b,
                                const LayerFactors& factors, const std::set<std::string>& moved,
                                LintReporter& reporter) {
  OtherTensors others(a, linears, b, moved, reporter);
  others.run();
  others.report_norms(factors);
  return others.norm_factors();
}

}  // namespace twofour
