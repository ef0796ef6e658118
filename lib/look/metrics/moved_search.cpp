#include "lib/look/metrics/moved_lines.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "formats/error.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/parallel.h"

namespace twofour {
namespace {

constexpr int64_t kSketchRows = 4, kSketchColumns = 64;  ///< size of a matrix's sketch
/// The largest distance (1 - cosine) of a match, as a multiple of the distance of the matrix of the same
/// name. Experts that grew from one ancestor are similar, but moved weights are much more similar.
constexpr double kCloser = 0.3;
constexpr size_t kMostOrders = 256;  ///< matrices in which the order of rows and columns is searched
constexpr size_t kMostCandidates = 4096;

class Search {
 public:
  Search(const Matrices& a, const Matrices& b, const std::map<std::string, int64_t>* differ)
      : a_(a), b_(b), differ_(differ) {
    const auto reads_across = [](const Linear& m) { return m.reads_across(); };
    for (const Matrices* m : {&a, &b})
      together_ = together_ || std::ranges::any_of(m->modules(), reads_across);
  }

  std::map<std::string, MovedMatrix> run(size_t& compared, std::vector<std::string>& unlike) {
    list(a_, own_);
    list(b_, others_);
    if (differ_ != nullptr)
      std::erase_if(own_, [&](const Located& p) { return !differ_->contains(*p.name); });
    for (size_t i = 0; i < others_.size(); ++i) by_name_[*others_[i].name] = i;
    compare_names(compared);
    sketch_others();
    std::vector<std::optional<MovedMatrix>> found(unlike_.size());
    parallel_workers(unlike_.size(), [&] {
      return [&, a = WeightReader(a_.checkpoint()), b = WeightReader(b_.checkpoint())](size_t i) mutable {
        if (!unlike_[i].some) found[i] = guarded([&] { return find_elsewhere(own_[unlike_[i].own], a, b); });
      };
    });
    std::vector<size_t> rest;
    for (size_t i = 0; i < unlike_.size(); ++i) {
      if (!found[i] && unlike_[i].other) rest.push_back(i);
    }
    // If two models have nothing in common, all their matrices reach this point, so only some are searched.
    const size_t step = (rest.size() + kMostOrders - 1) / kMostOrders;
    parallel_workers(step > 0 ? rest.size() / step : 0, [&] {
      return [&, a = WeightReader(a_.checkpoint()), b = WeightReader(b_.checkpoint())](size_t i) mutable {
        const Unlike& u = unlike_[rest[i * step]];
        found[rest[i * step]] = guarded([&] {
          return find_order(own_[u.own], others_[*u.other], rows_of(own_[u.own]), {a_, a}, {b_, b});
        });
      };
    });
    for (size_t i = 0; i < unlike_.size(); ++i) {
      const std::string& name = *own_[unlike_[i].own].name;
      if (found[i]) {
        moved_[name] = std::move(*found[i]);
      } else if (unlike_[i].other) {
        unlike.push_back(name);
      }
    }
    return std::move(moved_);
  }

 private:
  struct Unlike {
    size_t own;
    std::optional<size_t> other;  ///< the matrix of the same name and shape
    bool some = false;            ///< most rows are similar
  };

  static std::optional<MovedMatrix> guarded(const std::function<std::optional<MovedMatrix>()>& work) {
    check_interrupt();
    try {
      return work();
    } catch (const ReadError&) {
      throw;
    } catch (const Error&) {
      return std::nullopt;  // the scales are invalid, which other findings report
    }
  }

  static void list(const Matrices& matrices, std::vector<Located>& places) {
    for (const auto& [name, matrix] : matrices.all()) {
      const int64_t k = matrices.module_of(matrix).k;
      if (matrix.count > 0 && k >= kFewColumns)
        places.push_back({&name, &matrix, sibling_name(name), matrix.count, k});
    }
  }

  std::vector<int64_t> rows_of(const Located& p) const {
    int64_t extra = -1;
    if (differ_ != nullptr) {
      if (const auto at = differ_->find(*p.name); at != differ_->end()) extra = at->second;
    }
    return choose_rows(p.n, p.k, together_, extra);
  }

  static Rows sketch_of(const Located& p, const Rows& rows) {
    Rows sketch;
    const int64_t columns = std::min(kSketchColumns, p.k);
    for (int64_t r = 0; r < std::min(kSketchRows, p.n); ++r) {
      const float* row = rows.data() + r * std::min(kLookedAt, p.n) / std::min(kSketchRows, p.n) * p.k;
      for (int64_t c = 0; c < columns; ++c) sketch.push_back(row[c * p.k / columns]);
    }
    return sketch;
  }

  /// Compares every matrix with the matrix of its name in B. Matrices that neither match nor differ only by
  /// signs or nibbles are added to unlike_.
  void compare_names(size_t& compared) {
    struct Result {
      std::optional<Unlike> unlike;
      std::optional<MovedMatrix> moved;
      bool compared = false;
    };
    std::vector<Result> results(own_.size());
    parallel_workers(own_.size(), [&] {
      return [&, a = WeightReader(a_.checkpoint()), b = WeightReader(b_.checkpoint())](size_t i) mutable {
        Located& own = own_[i];
        const auto other = by_name_.find(*own.name);
        const bool fits =
            other != by_name_.end() && others_[other->second].n == own.n && others_[other->second].k == own.k;
        results[i].compared = fits;
        guarded([&]() -> std::optional<MovedMatrix> {
          const std::vector<int64_t> rows = rows_of(own);
          const Rows x = read_rows(a_, a, own, rows);
          own.sketch = sketch_of(own, x);
          if (!fits) return std::nullopt;
          const Rows y = read_rows(b_, b, others_[other->second], rows);
          others_[other->second].sketch = sketch_of(others_[other->second], y);
          compare_rows(own, rows, x, y, i, other->second, results[i].unlike, results[i].moved);
          // Noise changes the sizes of blocks a little. A matrix without scales may have been decoded with
          // wrong scales.
          const Linear& module = a_.module_of(*own.matrix);
          const bool has_blocks = module.scale && module.scale_cols > 0 && module.scale_cols < module.k;
          const bool scales = results[i].moved && results[i].moved->how == Moved::kScales;
          if (scales && !has_blocks && size_correlation(x, y) > kUnrelated) results[i].moved.reset();
          return std::nullopt;
        });
      };
    });
    for (size_t i = 0; i < results.size(); ++i) {
      compared += results[i].compared;
      if (results[i].unlike) unlike_.push_back(*results[i].unlike);
      if (results[i].moved) moved_[*own_[i].name] = std::move(*results[i].moved);
    }
  }

  static void compare_rows(const Located& own, const std::vector<int64_t>& rows, const Rows& x, const Rows& y,
                           size_t index, size_t other, std::optional<Unlike>& unlike,
                           std::optional<MovedMatrix>& moved) {
    size_t like = 0, known = 0;
    MovedMatrix turned{.how = Moved::kSigns, .count = own.n}, swapped{.how = Moved::kNibbles, .count = own.n};
    Rows pairs(static_cast<size_t>(own.k));
    for (size_t r = 0; r < rows.size(); ++r) {
      const float *p = x.data() + r * pairs.size(), *q = y.data() + r * pairs.size();
      const double c = cosine(p, q, own.k);
      if (std::isnan(c)) continue;
      ++known;
      if (c >= kLike) {
        ++like;
        continue;
      }
      if (c <= -kLike) turned.lines.push_back(rows[r]);
      for (size_t i = 0; i + 1 < pairs.size(); i += 2) pairs[i] = p[i + 1], pairs[i + 1] = p[i];
      if (cosine(pairs.data(), q, own.k) >= kLike) swapped.lines.push_back(rows[r]);
    }
    if (like == known) {
      if (has_other_sizes(x, y)) {
        moved = MovedMatrix{.how = Moved::kScales, .count = own.n};
      } else if (const double factor = factor_of(x, y); factor > kFactor || factor * kFactor < 1) {
        moved = MovedMatrix{.how = Moved::kFactor, .count = own.n, .factor = factor};
      }
      return;
    }
    for (MovedMatrix* m : {&turned, &swapped}) {
      if (m->lines.size() + like == known && !m->lines.empty()) {
        m->places = rows;
        moved = std::move(*m);
        return;
      }
    }
    unlike = Unlike{index, other, 2 * like > known};
  }

  /// True if the sizes of groups of sixteen numbers vary differently in B. Rounding and pruning leave a
  /// correlation of about 0.9; with scales in another order, only the variation of whole rows remains.
  static bool has_other_sizes(const Rows& x, const Rows& y) {
    constexpr double kCorrelated = 0.6;
    return size_correlation(x, y) < kCorrelated;
  }
  static constexpr double kUnrelated = 0.5;

  /// The smallest factor between sizes that counts as a change. Rounding leaves sizes unchanged, and pruning
  /// leaves at least four fifths of each.
  static constexpr double kFactor = 1.6;
  static double factor_of(const Rows& x, const Rows& y) {
    const auto count = static_cast<int64_t>(x.size());
    const double other = dot(y.data(), y.data(), count);
    return other > 0 ? std::sqrt(dot(x.data(), x.data(), count) / other) : 1;
  }

  /// The correlation of the logarithms of block sizes. 1 if there are few blocks, or if all have the same
  /// size.
  static double size_correlation(const Rows& x, const Rows& y) {
    constexpr size_t kFewBlocks = 256;
    constexpr double kVaried = 0.1;
    double count = 0, a = 0, b = 0, aa = 0, bb = 0, ab = 0;
    for (size_t i = 0; i + 16 <= x.size(); i += 16) {
      const double p = dot(&x[i], &x[i], 16), q = dot(&y[i], &y[i], 16);
      if (p <= 0 || q <= 0) continue;
      const double u = std::log(p) / 2, v = std::log(q) / 2;
      ++count, a += u, b += v, aa += u * u, bb += v * v, ab += u * v;
    }
    if (count < kFewBlocks) return 1;
    const double va = aa / count - a / count * a / count, vb = bb / count - b / count * b / count;
    const double covariance = ab / count - a / count * b / count;
    return va > kVaried * kVaried && vb > kVaried * kVaried ? covariance / std::sqrt(va * vb) : 1;
  }

  /// Sketches the matrices of B for which A has no matrix of the same name and shape.
  void sketch_others() {
    if (unlike_.empty()) return;
    std::vector<size_t> missing;
    for (size_t i = 0; i < others_.size(); ++i) {
      if (others_[i].sketch.empty()) missing.push_back(i);
    }
    parallel_workers(missing.size(), [&] {
      return [&, b = WeightReader(b_.checkpoint())](size_t i) mutable {
        Located& p = others_[missing[i]];
        guarded([&]() -> std::optional<MovedMatrix> {
          p.sketch = sketch_of(p, read_rows(b_, b, p, rows_of(p)));
          return std::nullopt;
        });
      };
    });
    for (size_t i = 0; i < others_.size(); ++i) {
      by_kind_[others_[i].at.kind].push_back(i);
      by_layer_[{others_[i].at.layer, others_[i].at.expert}].push_back(i);
    }
  }

  /// Groups of candidates, the most likely group first. The order is the other experts of the layer, the same
  /// expert in other layers, other projections beside the matrix, and all experts of all layers.
  std::vector<std::vector<size_t>> candidates_of(const Located& own) const {
    std::vector<std::vector<size_t>> groups(3);
    const auto kind = by_kind_.find(own.at.kind);
    if (kind != by_kind_.end()) {
      for (const size_t i : kind->second) {
        const SiblingName& at = others_[i].at;
        const bool layer = at.layer == own.at.layer, expert = at.expert == own.at.expert;
        if (layer != expert) groups[layer ? 0 : 1].push_back(i);
      }
    }
    const auto layer = by_layer_.find({own.at.layer, own.at.expert});
    if (layer != by_layer_.end()) groups[2] = layer->second;
    if (kind != by_kind_.end() && kind->second.size() <= kMostCandidates) groups.push_back(kind->second);
    return groups;
  }

  std::optional<MovedMatrix> find_elsewhere(const Located& own, WeightReader& a, WeightReader& b) const {
    if (own.sketch.empty()) return std::nullopt;
    const auto count = static_cast<int64_t>(own.sketch.size());
    const auto namesake = by_name_.find(*own.name);
    for (const std::vector<size_t>& group : candidates_of(own)) {
      std::vector<std::pair<double, size_t>> scores;
      for (const size_t i : group) {
        const Located& p = others_[i];
        if (p.n != own.n || p.k != own.k || p.sketch.size() != own.sketch.size()) continue;
        if (namesake != by_name_.end() && namesake->second == i) continue;
        const double c = cosine(own.sketch.data(), p.sketch.data(), count);
        if (c >= kLike) scores.emplace_back(c, i);
      }
      if (scores.empty()) continue;
      std::ranges::sort(scores, std::greater{});
      const std::vector<int64_t> rows = choose_rows(own.n, own.k, together_, -1);
      const Rows x = read_rows(a_, a, own, rows);
      // Candidates with nearly equal sketches are similar, at least in the sketched part.
      std::vector<std::pair<double, size_t>> close;
      constexpr size_t kMost = 8;
      for (const auto& [score, i] : scores) {
        if (close.size() == kMost || 1 - score > 2 * (1 - scores[0].first) + 0.02) break;
        const Rows y = read_rows(b_, b, others_[i], rows);
        if (const auto c = mean_cosine(own, x, y, rows.size())) close.emplace_back(*c, i);
      }
      if (close.empty()) continue;
      std::ranges::sort(close, std::greater{});
      double same = 0;
      if (namesake != by_name_.end() && others_[namesake->second].sketch.size() == own.sketch.size()) {
        same = cosine(own.sketch.data(), others_[namesake->second].sketch.data(), count);
        if (std::isnan(same)) same = 0;
      }
      if (1 - close[0].first > kCloser * (1 - same)) continue;
      MovedMatrix moved;
      std::vector<size_t> equal;
      for (const auto& [c, i] : close) {
        if (close[0].first - c < 1e-3) equal.push_back(i);
      }
      std::ranges::sort(equal);
      for (const size_t i : equal) moved.equals.push_back(*others_[i].name);
      return moved;
    }
    return std::nullopt;
  }

  /// The mean cosine over rows that are not zero. Empty if too few rows are similar.
  static std::optional<double> mean_cosine(const Located& own, const Rows& x, const Rows& y, size_t rows) {
    double sum = 0;
    size_t known = 0, like = 0;
    for (size_t r = 0; r < rows; ++r) {
      const auto at = static_cast<int64_t>(r) * own.k;
      const double c = cosine(x.data() + at, y.data() + at, own.k);
      if (std::isnan(c)) continue;
      ++known;
      like += c >= kLike;
      sum += c;
    }
    if (known == 0 || 10 * like < 9 * known) return std::nullopt;
    return sum / static_cast<double>(known);
  }

  const Matrices &a_, &b_;
  const std::map<std::string, int64_t>* differ_;
  bool together_ = false;
  std::vector<Located> own_, others_;
  std::map<std::string, size_t> by_name_;  ///< in others_
  std::map<std::string, std::vector<size_t>> by_kind_;
  std::map<std::pair<int64_t, int64_t>, std::vector<size_t>> by_layer_;
  std::vector<Unlike> unlike_;
  std::map<std::string, MovedMatrix> moved_;
};

}  // namespace

std::map<std::string, MovedMatrix> search_moved(const Matrices& a, const Matrices& b,
                                                const std::map<std::string, int64_t>* differ,
                                                size_t& compared, std::vector<std::string>& unlike) {
  return Search(a, b, differ).run(compared, unlike);
}

}  // namespace twofour
