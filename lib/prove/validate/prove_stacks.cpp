#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "formats/families/family.h"
#include "formats/half.h"
#include "lib/base/threads/interrupt.h"
#include "lib/prove/expected/rederive.h"
#include "lib/prove/validate/proof.h"
#include "lib/source/config/model_config.h"
#include "lib/write/methods/stacked_experts.h"

namespace twofour {
namespace {

/// The form of a family's stacks: whether rows of gate and up alternate, and whether columns are outermost.
struct StackForm {
  bool in_turn = false, columns_first = false;
};

StackForm form_of(const Json& config) {
  for (const Json* type : model_settings(config, "model_type")) {
    const ExpertStacks* stacks = type->is_string() ? find_expert_stacks(type->get<std::string>()) : nullptr;
    if (stacks == nullptr || stacks->files == ExpertFiles::kApart) continue;
    return {stacks->rows == GateUpRows::kInterleaved, stacks->files == ExpertFiles::kColumnStacks};
  }
  return {};
}

/// Derives a stack element by element.
class StackCheck {
 public:
  StackCheck(const StackedExperts& all, Proof& proof)
      : all_(all),
        stack_(all.stack()),
        proof_(proof),
        form_(form_of(proof.source.config())),
        reader_(proof.source) {
    e_ = stack_.e;
    rows_ = stack_.rows;
    k_ = stack_.k;
    n_ = rows_ * static_cast<int64_t>(stack_.per_expert);
  }

  Json run() {
    Hasher hasher;
    const int64_t lines = form_.columns_first ? k_ : n_, step = all_.unit_lines();
    for (int64_t e = 0; e < e_; ++e) {
      for (int64_t at = 0; at < lines; at += step) {
        const Hash128 hash = check_lines(e, at, std::min(lines, at + step));
        // The number of columns in one go depends on memory, so all rows are hashed together with the first
        // columns.
        if (!form_.columns_first || at == 0) hasher.update(hash.hex());
      }
    }
    if (stack_.bias) check_bias();
    proof_.finish();
    return {{"weights", hasher.digest().hex()}};
  }

 private:
  /// The row of the expert's N that has a row of gate (0) or up (1). In a stack of downs, 0 is down.
  int64_t place(size_t which, int64_t row) const {
    if (stack_.per_expert == 1) return row;
    return form_.in_turn ? 2 * row + static_cast<int64_t>(which) : row + (which == 1 ? rows_ : 0);
  }

  /// Checks lines [begin, end) of an expert. Lines are rows of N or columns of K.
  Hash128 check_lines(int64_t e, int64_t begin, int64_t end) {
    const int64_t length = form_.columns_first ? n_ : k_;
    std::vector<uint8_t> expected(static_cast<size_t>((end - begin) * length) * 2);
    Hasher hasher;
    for (size_t which = 0; which < stack_.per_expert; ++which) {
      for (int64_t row = 0; row < rows_;) {
        check_interrupt();
        // Rows outside of these lines are skipped. The other rows are read in ranges.
        const auto outside = [&](int64_t r) {
          return !form_.columns_first && (place(which, r) < begin || place(which, r) >= end);
        };
        if (outside(row)) {
          ++row;
          continue;
        }
        int64_t last = row + 1;
        while (last < rows_ && last - row < all_.strip_rows() && !outside(last)) ++last;
        const Linear& m = stack_.matrix(e, which);
        const std::vector<float> weights =
            derive_weights(proof_.source, reader_, m, m.stacked ? e : 0, row, last);
        hasher.update({reinterpret_cast<const uint8_t*>(weights.data()), weights.size() * sizeof(float)});
        const auto count = static_cast<int64_t>(weights.size());
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < count; ++i) {
          const int64_t n = place(which, row + i / k_), k = i % k_;
          const int64_t line = form_.columns_first ? k : n, across = form_.columns_first ? n : k;
          if (line < begin || line >= end) continue;
          const uint16_t bits = bf16_from_float(weights[static_cast<size_t>(i)]);
          const auto to = static_cast<size_t>((line - begin) * length + across) * 2;
          expected[to] = static_cast<uint8_t>(bits);
          expected[to + 1] = static_cast<uint8_t>(bits >> 8);
        }
        row = last;
      }
    }
    const int64_t lines = form_.columns_first ? k_ : n_;
    proof_.hold(0, static_cast<uint64_t>((e * lines + begin) * length) * 2, expected);
    return hasher.digest();
  }

  void check_bias() {
    const int64_t width = dtype_bits(stack_.bias->dtype) / 8;
    std::vector<uint8_t> expected(static_cast<size_t>(e_ * n_ * width));
    for (int64_t e = 0; e < e_; ++e) {
      for (size_t which = 0; which < stack_.per_expert; ++which) {
        std::vector<uint8_t> own(static_cast<size_t>(rows_ * width));
        proof_.source.read(*stack_.matrix(e, which).bias, 0, own);
        for (int64_t i = 0; i < rows_ * width; ++i) {
          const int64_t to = (e * n_ + place(which, i / width)) * width + i % width;
          expected[static_cast<size_t>(to)] = own[static_cast<size_t>(i)];
        }
      }
    }
    proof_.hold(1, 0, expected);
  }

  const StackedExperts& all_;
  const ExpertStack& stack_;
  Proof& proof_;
  const StackForm form_;
  WeightReader reader_;
  int64_t e_ = 0, rows_ = 0, k_ = 0, n_ = 0;
};

}  // namespace

Json StackedExperts::prove(Proof& proof) const { return StackCheck(*this, proof).run(); }

}  // namespace twofour
