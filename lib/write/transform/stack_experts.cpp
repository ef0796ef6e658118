#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "formats/half.h"
#include "kernels/numbers/casts.h"
#include "lib/source/linears/linears.h"
#include "lib/write/methods/stacked_experts.h"
#include "lib/write/transform/encoder.h"
#include "lib/write/transform/finite_weights.h"

namespace twofour {
namespace {

/// Buffers of a thread.
struct StackScratch {
  explicit StackScratch(const Worker& worker) : reader(worker.source) {}
  WeightReader reader;
  std::vector<float> rows;
};

void put_bf16(uint8_t* out, float value) {
  const uint16_t bits = bf16_from_float(value);
  std::memcpy(out, &bits, sizeof(bits));
}

/// The work on a stack. Row i of matrix p of an expert is row `first(p) + i * step` of the stack's N.
class StackWork : public Work {
 public:
  explicit StackWork(const StackedExperts& all) : all_(all), stack_(all.stack()) {
    const int64_t lines = stack_.by_columns ? 1 : (stack_.n() + all.unit_lines() - 1) / all.unit_lines();
    hashes_.resize(static_cast<size_t>(stack_.e * lines));
  }

  void run(const Unit& unit, Worker& worker, Sink& sink) override {
    if (unit.part == 1) return run_bias(worker, sink);
    auto& scratch = worker.own<StackScratch>();
    const uint64_t before = scratch.reader.bytes_read();
    const auto out = worker.buffer(unit.end - unit.begin);
    const auto first = static_cast<int64_t>(unit.begin / kBytes);
    const int64_t e = first / (stack_.n() * stack_.k), within = first % (stack_.n() * stack_.k);
    const auto count = static_cast<int64_t>((unit.end - unit.begin) / kBytes);
    if (stack_.by_columns) {
      columns(e, within / stack_.n(), count / stack_.n(), out.data(), scratch);
    } else {
      rows(e, within / stack_.k, count / stack_.k, out.data(), scratch);
    }
    sink.add_read(scratch.reader.bytes_read() - before);
    if (!sink.only_checks()) sink.write(0, unit.begin, out);
  }

  Json result(Sink&) override {
    Hasher all;
    for (const Hash128& hash : hashes_) all.update(hash.hex());
    return {{"weights", all.digest().hex()}};
  }

 private:
  static constexpr uint64_t kBytes = 2;  ///< bytes of a weight

  int64_t step() const { return stack_.interleaved ? 2 : 1; }
  int64_t first_of(size_t matrix) const {
    return stack_.interleaved ? static_cast<int64_t>(matrix) : static_cast<int64_t>(matrix) * stack_.rows;
  }

  std::span<const float> read(StackScratch& s, int64_t e, size_t matrix, int64_t begin, int64_t end) {
    const Linear& m = stack_.matrix(e, matrix);
    s.rows.resize(static_cast<size_t>((end - begin) * stack_.k));
    s.reader.read_rows(m, m.stacked ? e : 0, begin, end, s.rows);
    refuse_beyond_bf16(s.reader.checkpoint().where(m.weight), s.rows, begin, stack_.k);
    return s.rows;
  }

  /// Makes columns [k0, k0 + count) of an expert, [count, N]. The first unit of an expert hashes all rows of
  /// the expert.
  void columns(int64_t e, int64_t k0, int64_t count, uint8_t* out, StackScratch& s) {
    Hasher hasher;
    for (size_t p = 0; p < stack_.per_expert; ++p) {
      for (int64_t row = 0; row < stack_.rows; row += all_.strip_rows()) {
        const int64_t end = std::min(row + all_.strip_rows(), stack_.rows);
        const auto weights = read(s, e, p, row, end);
        if (k0 == 0) hasher.update(bytes_of(weights));
        turn(weights.data() + k0, end - row, count, first_of(p) + row * step(), out);
      }
    }
    if (k0 == 0) hashes_[static_cast<size_t>(e)] = hasher.digest();
  }

  /// Transposes rows [n, count] into columns of `out`, tile by tile. The rows are `count` of K columns and
  /// have a pitch of K.
  void turn(const float* weights, int64_t n, int64_t count, int64_t row, uint8_t* out) const {
    constexpr int64_t kTile = 32;
    for (int64_t k0 = 0; k0 < count; k0 += kTile) {
      for (int64_t n0 = 0; n0 < n; n0 += kTile) {
        for (int64_t k = k0; k < std::min(k0 + kTile, count); ++k) {
          uint8_t* to = out + (k * stack_.n() + row + n0 * step()) * int64_t{kBytes};
          for (int64_t i = n0; i < std::min(n0 + kTile, n); ++i, to += step() * int64_t{kBytes}) {
            put_bf16(to, weights[i * stack_.k + k]);
          }
        }
      }
    }
  }

  /// Makes rows [n0, n0 + count) of an expert, [count, K]. They are hashed matrix by matrix.
  void rows(int64_t e, int64_t n0, int64_t count, uint8_t* out, StackScratch& s) {
    Hasher hasher;
    for (size_t p = 0; p < stack_.per_expert; ++p) {
      // The rows of the matrix that are in the range.
      const auto row_from = [&](int64_t n) {
        return std::clamp<int64_t>((n - first_of(p) + step() - 1) / step(), 0, stack_.rows);
      };
      const int64_t last = row_from(n0 + count);
      for (int64_t row = row_from(n0); row < last; row += all_.strip_rows()) {
        const int64_t end = std::min(row + all_.strip_rows(), last);
        const auto weights = read(s, e, p, row, end);
        hasher.update(bytes_of(weights));
        for (int64_t i = row; i < end; ++i) {
          uint8_t* to = out + (first_of(p) + i * step() - n0) * stack_.k * int64_t{kBytes};
          const float* from = &weights[static_cast<size_t>((i - row) * stack_.k)];
          round_to_bf16({from, static_cast<size_t>(stack_.k)}, to);
        }
      }
    }
    const int64_t units = (stack_.n() + all_.unit_lines() - 1) / all_.unit_lines();
    hashes_[static_cast<size_t>(e * units + n0 / all_.unit_lines())] = hasher.digest();
  }

  /// Writes biases in the order of the rows.
  void run_bias(Worker& worker, Sink& sink) const {
    const TensorInfo& info = *stack_.bias;
    const auto width = static_cast<size_t>(dtype_bits(info.dtype)) / 8;
    const auto out = worker.buffer(info.bytes());
    std::vector<uint8_t> own(static_cast<size_t>(stack_.rows) * width);
    for (int64_t e = 0; e < stack_.e; ++e) {
      for (size_t p = 0; p < stack_.per_expert; ++p) {
        worker.source.read(*stack_.matrix(e, p).bias, 0, own);
        sink.add_read(own.size());
        for (int64_t i = 0; i < stack_.rows; ++i) {
          const int64_t at = e * stack_.n() + first_of(p) + i * step();
          std::copy_n(&own[static_cast<size_t>(i) * width], width, &out[static_cast<size_t>(at) * width]);
        }
      }
    }
    if (!sink.only_checks()) sink.write(1, 0, out);
  }

  const StackedExperts& all_;
  const ExpertStack& stack_;
  std::vector<Hash128> hashes_;  ///< hashes of weights in float32: one per unit of rows; for columns, one per
                                 ///< expert
};

}  // namespace

std::unique_ptr<Work> StackedExperts::begin() const { return std::make_unique<StackWork>(*this); }

}  // namespace twofour
