#include "lib/look/diff/pairs.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "lib/look/metrics/row_blocks.h"
#include "lib/look/metrics/value_error.h"
#include "lib/source/linears/linears.h"
#include "lib/source/linears/tensor_values.h"

namespace twofour {
namespace {

/// The number of elements of a tensor that a thread compares at once.
constexpr int64_t kBlockElements = 1 << 20;
/// The largest relative difference between products of equal codes and scales with neighbouring multipliers.
/// It covers the multipliers' last bit and two roundings.
constexpr double kReciprocalTolerance = 0x1p-22;

/// The relation of two multipliers. kNeighbours are adjacent float32 numbers.
enum class Multipliers { kSame, kNeighbours, kOther };

Multipliers relate(float a, float b) {
  const auto x = std::bit_cast<int32_t>(a), y = std::bit_cast<int32_t>(b);
  if (x == y) return Multipliers::kSame;
  const bool neighbours = a > 0 && b > 0 && (x - y == 1 || y - x == 1);
  return neighbours ? Multipliers::kNeighbours : Multipliers::kOther;
}

/// Reads parts of one checkpoint's tensors. Each thread has its own.
class PartReader {
 public:
  explicit PartReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  DType dtype(const TensorPart& part) const { return checkpoint_.tensors()[part.tensor].dtype; }

  /// The bytes of elements [begin, end) of a part, in their stored form.
  std::span<const uint8_t> bytes(const TensorPart& part, int64_t begin, int64_t end) {
    const int64_t width = element_bytes(dtype(part));
    const int64_t first = part.first + begin * part.step, last = part.first + (end - 1) * part.step + 1;
    bytes_.resize(static_cast<size_t>((last - first) * width));
    checkpoint_.read(part.tensor, static_cast<uint64_t>(first * width), bytes_);
    if (part.step == 1) return bytes_;
    for (int64_t i = 0; i < end - begin; ++i) {
      std::memmove(bytes_.data() + i * width, bytes_.data() + i * part.step * width,
                   static_cast<size_t>(width));
    }
    return std::span(bytes_).first(static_cast<size_t>((end - begin) * width));
  }

  /// The float values of elements [begin, end) of a part. Input scales become multipliers.
  std::span<const float> values(const TensorPart& part, int64_t begin, int64_t end) {
    const auto stored = bytes(part, begin, end);
    values_.resize(static_cast<size_t>(end - begin));
    to_floats(dtype(part), stored.data(), values_);
    if (part.divides) {
      for (float& v : values_) v = 1.0f / v;
    }
    return values_;
  }

 private:
  const Checkpoint& checkpoint_;
  std::vector<uint8_t> bytes_;
  std::vector<float> values_;
};

/// Converts a position in a tensor of any rank to a place. The last dimension is k, the dimension before it
/// is n, and all others together are e.
void place_in(const std::vector<int64_t>& shape, WeightDifference& at) {
  if (at.e < 0 || shape.size() < 2) return;
  const int64_t k = shape.back(), n = shape[shape.size() - 2], i = at.k;
  at.k = i % k;
  at.n = i / k % n;
  at.e = i / k / n;
}

class Comparison {
 public:
  Comparison(const Matrices& a, const Matrices& b, double tolerance, Progress& progress,
             std::vector<DiffPair>& pairs)
      : a_(a), b_(b), tolerance_(tolerance), progress_(progress), pairs_(pairs), states_(pairs.size()) {}

  void run_on_headers() {
    for (DiffPair& p : pairs_) {
      if (settle_by_headers(p)) continue;
      const bool alike = p.entry.a.format == p.entry.b.format;
      settle(p.entry, alike ? DiffClass::kUnread : DiffClass::kType, alike ? "" : "unlike formats");
    }
  }

  void run() {
    std::vector<size_t> open;
    for (size_t i = 0; i < pairs_.size(); ++i) {
      if (!settle_by_headers(pairs_[i])) open.push_back(i);
    }
    progress_.phase = "comparing bytes";
    compare_bytes(open);
    std::erase_if(open, [&](size_t i) { return settle_by_bytes(i); });
    progress_.phase = "comparing values";
    compare_values(open);
    for (const size_t i : open) settle_by_values(i);
  }

 private:
  /// The state of a pair during the comparison.
  struct State {
    std::atomic<bool> unlike{false};  ///< some bytes differ; the rest need not be read
    Multipliers multipliers = Multipliers::kSame;
    bool failed = false;
  };
  struct ByteResult {
    bool same = false;
    Multipliers multipliers = Multipliers::kSame;
    std::string failure{};
  };
  struct ValueResult {
    ValueError error{};
    FirstValues first{};
    std::string failure{};
  };
  struct Readers {
    PairReader matrices;
    PartReader a, b;
  };

  Readers make_readers() const {
    return {PairReader(a_, b_), PartReader(a_.checkpoint()), PartReader(b_.checkpoint())};
  }
  DType a_type(const DiffPair& p) const { return a_.checkpoint().tensors()[p.a->tensor].dtype; }
  DType b_type(const DiffPair& p) const { return b_.checkpoint().tensors()[p.b->tensor].dtype; }
  static bool is_nvfp4(const Matrices& c, const StoredMatrix& m) { return c.module_of(m).nvfp4.has_value(); }

  static bool settle(DiffEntry& entry, DiffClass cls, std::string message = "") {
    entry.cls = cls;
    entry.message = std::move(message);
    return true;
  }

  bool settle_by_headers(DiffPair& p) const {
    DiffEntry& e = p.entry;
    if (!e.b.is_there()) return settle(e, DiffClass::kRemoved);
    if (!e.a.is_there()) return settle(e, DiffClass::kAdded);
    const auto is_scalar = [](const std::vector<int64_t>& shape) {
      return std::all_of(shape.begin(), shape.end(), [](int64_t d) { return d == 1; }) && shape.size() < 2;
    };
    if (e.a.shape != e.b.shape && !(is_scalar(e.a.shape) && is_scalar(e.b.shape))) {
      return settle(e, DiffClass::kShape, "unlike shapes");
    }
    if (p.matrices.a) return false;
    if (a_type(p) != b_type(p) && !(has_float_values(a_type(p)) && has_float_values(b_type(p)))) {
      return settle(e, DiffClass::kType, "types without common values");
    }
    return false;
  }

  bool bytes_may_match(const DiffPair& p) const {
    return p.matrices.a ? stored_alike(a_, b_, p.matrices)
                        : a_type(p) == b_type(p) && p.a->divides == p.b->divides;
  }
  uint64_t bytes_of(const DiffPair& p, int64_t count) const {
    if (p.matrices.a) return stored_bytes(a_, *p.matrices.a, count) + stored_bytes(b_, *p.matrices.b, count);
    return static_cast<uint64_t>(count * (element_bytes(a_type(p)) + element_bytes(b_type(p))));
  }
  RowBlockItem item_of(size_t i) const {
    const DiffPair& p = pairs_[i];
    if (p.matrices.a) return {i, p.matrices.a->count, block_rows(a_.module_of(*p.matrices.a).k)};
    return {i, p.a->count, kBlockElements};
  }

  void compare_bytes(const std::vector<size_t>& open) {
    std::vector<RowBlockItem> items;
    for (const size_t i : open) {
      if (bytes_may_match(pairs_[i])) {
        items.push_back(item_of(i));
        progress_.total += bytes_of(pairs_[i], items.back().length);
      } else {
        states_[i].unlike = true;
        items.push_back({i, 1, 1});  // for its multipliers
      }
    }
    const auto make_worker = [&] {
      return [this, readers = make_readers()](const RowBlock& s) mutable { return match(readers, s); };
    };
    for_each_row_block<ByteResult>(items, make_worker, [&](const RowBlock& s, ByteResult result) {
      State& state = states_[s.item];
      if (s.begin == 0) state.multipliers = result.multipliers;
      note_failure(s.item, result.failure);
    });
  }

  ByteResult match(Readers& readers, const RowBlock& s) {
    const DiffPair& p = pairs_[s.item];
    State& state = states_[s.item];
    ByteResult result;
    if (s.begin == 0 && p.matrices.a && is_nvfp4(a_, *p.matrices.a) && is_nvfp4(b_, *p.matrices.b)) {
      result.multipliers = relate(multiplier(a_, *p.matrices.a), multiplier(b_, *p.matrices.b));
    }
    if (!bytes_may_match(p)) return result;
    progress_.done += bytes_of(p, s.end - s.begin);
    if (state.unlike) return result;
    const bool same = p.matrices.a ? readers.matrices.same_bytes(p.matrices, s.begin, s.end)
                                   : std::ranges::equal(readers.a.bytes(*p.a, s.begin, s.end),
                                                        readers.b.bytes(*p.b, s.begin, s.end));
    if (!same) state.unlike = true;
    return result;
  }

  static float multiplier(const Matrices& c, const StoredMatrix& s) {
    return read_multiplier(c.checkpoint(), c.module_of(s), s.e);
  }

  void note_failure(size_t i, const std::string& failure) {
    if (failure.empty() || states_[i].failed) return;
    states_[i].failed = true;
    pairs_[i].entry.message = failure;
  }

  bool settle_by_bytes(size_t i) {
    DiffEntry& e = pairs_[i].entry;
    if (states_[i].failed) return settle(e, DiffClass::kUnreadable, e.message);
    if (states_[i].unlike || states_[i].multipliers == Multipliers::kOther) return false;
    if (states_[i].multipliers == Multipliers::kSame) {
      e.same_bytes = true;
      return settle(e, DiffClass::kEqual);
    }
    e.error.weights = static_cast<uint64_t>(e.a.shape[0] * e.a.shape[1]);
    return settle(e, DiffClass::kReciprocal);
  }

  /// The tolerance for a pair. A difference up to it is not counted.
  double tolerance_of(size_t i) const {
    if (pairs_[i].entry.kind == DiffKind::kInputScale) return 0;  // its only value is compared at the end
    const bool reciprocal = states_[i].multipliers == Multipliers::kNeighbours;
    return reciprocal ? std::max(tolerance_, kReciprocalTolerance) : tolerance_;
  }

  void compare_values(const std::vector<size_t>& open) {
    std::vector<RowBlockItem> items;
    for (const size_t i : open) {
      items.push_back(item_of(i));
      progress_.total += bytes_of(pairs_[i], items.back().length);
    }
    const auto make_worker = [&] {
      return [this, readers = make_readers()](const RowBlock& s) mutable { return compare(readers, s); };
    };
    for_each_row_block<ValueResult>(items, make_worker, [&](const RowBlock& s, ValueResult result) {
      DiffEntry& e = pairs_[s.item].entry;
      e.error += result.error;
      if (!e.first) e.first = result.first;
      note_failure(s.item, result.failure);
    });
  }

  ValueResult compare(Readers& readers, const RowBlock& s) {
    const DiffPair& p = pairs_[s.item];
    progress_.done += bytes_of(p, s.end - s.begin);
    const double tolerance = tolerance_of(s.item);
    if (p.matrices.a) return {readers.matrices.compare(p.matrices, s.begin, s.end, tolerance)};
    ValueResult result;
    if (has_float_values(a_type(p)) && has_float_values(b_type(p))) {
      result.error.add_row(readers.a.values(*p.a, s.begin, s.end), readers.b.values(*p.b, s.begin, s.end), 0,
                           0, tolerance);
    } else {
      const ElementError elements = compare_elements(a_type(p), readers.a.bytes(*p.a, s.begin, s.end),
                                                     readers.b.bytes(*p.b, s.begin, s.end), tolerance);
      result.error = elements.error;
      result.first = elements.first;
    }
    result.error.first.k += s.begin;
    return result;
  }

  void settle_by_values(size_t i) {
    DiffPair& p = pairs_[i];
    DiffEntry& e = p.entry;
    if (states_[i].failed) {
      e.error = {};
      settle(e, DiffClass::kUnreadable, e.message);
      return;
    }
    if (e.kind == DiffKind::kInputScale) return settle_input_scale(p);
    if (e.kind == DiffKind::kWeights) {
      if (e.error.first.e >= 0) e.error.first.e = std::max<int64_t>(e.expert, 0);
    } else if (e.kind == DiffKind::kBias) {
      e.error.first.n = std::exchange(e.error.first.k, 0);
    } else if (dtype_bits(a_type(p)) % 8 == 0) {  // else k counts bytes
      place_in(e.a.shape, e.error.first);
    }
    settle(e, e.error.beyond > 0                                   ? DiffClass::kDifferent
              : e.error.different == 0                             ? DiffClass::kEqual
              : states_[i].multipliers == Multipliers::kNeighbours ? DiffClass::kReciprocal
                                                                   : DiffClass::kWithin);
  }

  /// Classifies an input scale, which is a single value.
  void settle_input_scale(DiffPair& p) const {
    DiffEntry& e = p.entry;
    const WeightDifference at = e.error.first;
    if (e.error.beyond == 0) {
      settle(e, DiffClass::kEqual);
    } else if (p.a->nvfp4 && p.b->nvfp4 && relate(at.expected, at.found) == Multipliers::kNeighbours) {
      settle(e, DiffClass::kReciprocal);
    } else {
      e.error = {};
      e.error.add_row({&at.expected, 1}, {&at.found, 1}, std::max<int64_t>(e.expert, 0), 0, tolerance_);
      settle(e, e.error.beyond > 0 ? DiffClass::kDifferent : DiffClass::kWithin);
    }
  }

  const Matrices &a_, &b_;
  double tolerance_;
  Progress& progress_;
  std::vector<DiffPair>& pairs_;
  std::vector<State> states_;
};

}  // namespace

void compare_pairs(const Matrices& a, const Matrices& b, const DiffOptions& options, Progress& progress,
                   std::vector<DiffPair>& pairs) {
  Comparison comparison(a, b, options.tolerance, progress, pairs);
  options.headers_only ? comparison.run_on_headers() : comparison.run();
}

}  // namespace twofour
