#include <fmt/format.h>

#include <cmath>
#include <mutex>

#include "formats/e4m3.h"
#include "lib/methods/layout_matrix.h"
#include "lib/transform/expert_packer.h"

namespace twofour {
namespace {

/// Adds the sum of squared weights before folding and of their changes by it.
void add_fold(const FoldLoss& loss, float own, float folded, Quality& quality) {
  const auto table = fold_table(own, folded);
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (loss.energy[byte] == 0 || !e4m3_is_block_scale(byte)) continue;
    const double energy = 0.25 * static_cast<double>(loss.energy[byte]);
    const double before = static_cast<double>(e4m3_to_float(byte)) * own;
    const double after = static_cast<double>(e4m3_to_float(table[byte])) * folded;
    quality.fold_energy += energy * before * before;
    quality.fold_error += energy * (after - before) * (after - before);
  }
}

class LayoutWork : public Work {
 public:
  explicit LayoutWork(const LayoutMatrix& matrix)
      : matrix_(matrix),
        pieces_(pieces_of(matrix.target, matrix.tiling)),
        results_(matrix.target.sources.size()) {}

  void run(const Unit& unit, Worker& worker, Sink& sink) override {
    source_ = &worker.source;
    if (unit.part == matrix_.part_count()) {
      const auto& scales = matrix_.scales.folded;
      if (sink.only_checks()) return;
      sink.write(unit.part, 0,
                 {reinterpret_cast<const uint8_t*>(scales.data()), scales.size() * sizeof(float)});
      return;
    }
    auto& packer = worker.own<ExpertPacker>();
    const uint64_t before = packer.bytes_read();
    const auto e = static_cast<int64_t>(unit.index / (pieces_.size() + 1));
    const size_t p = unit.index % (pieces_.size() + 1);
    std::vector<SourceResult> found(matrix_.target.sources_per_expert);
    const bool packs = unit.part == Unit::kAllParts && !sink.only_checks();
    if (unit.part == Unit::kNoPart) {
      if (!sink.only_checks()) packer.hash(matrix_, e, found);
    } else if (packs) {
      packer.pack(matrix_, e, pieces_[p], found);
    } else if (p == 0) {
      packer.check(matrix_, e, found);
    }
    sink.add_read(packer.bytes_read() - before);
    merge(e, found, sink);
    if (!packs || sink.only_checks()) return;
    for (int part = 0; part < matrix_.part_count(); ++part) {
      sink.write(part, offset(part, e, pieces_[p]), packer.part(part));
    }
  }

  Json result(Sink& sink) override {
    LayoutResult all;
    for (size_t i = 0; i < results_.size(); ++i) {
      const SourceResult& r = results_[i];
      const float own = matrix_.scales.own[i],
                  folded = matrix_.scales.folded[i / matrix_.target.sources_per_expert];
      Quality quality;
      quality.add(r.stats, static_cast<double>(folded));
      if (r.fold) {
        add_fold(*r.fold, own, folded, quality);
        check_fold(i, quality, sink);
      }
      all.quality += quality;
      all.slices.push_back({r.codes_hash, r.scales_hash});
    }
    return all.to_json();
  }

 private:
  uint64_t offset(int part, int64_t e, const Piece& piece) const {
    const OutputMatrix& target = matrix_.target;
    const int64_t expert = piece_bytes(matrix_.layout, part, target, whole_piece(target));
    return static_cast<uint64_t>(e * expert + piece_offset(matrix_.layout, part, target, piece));
  }

  void merge(int64_t e, std::span<SourceResult> found, Sink& sink) {
    const OutputMatrix& target = matrix_.target;
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < found.size(); ++i) {
      const size_t at = static_cast<size_t>(e) * target.sources_per_expert + i;
      SourceResult& total = results_[at];
      total.stats += found[i].stats;
      if (found[i].codes_hash != Hash128{}) {
        total.codes_hash = found[i].codes_hash;
        total.scales_hash = found[i].scales_hash;
      }
      if (found[i].fold && !total.fold) {
        total.fold = std::move(found[i].fold);
      } else if (found[i].fold) {
        *total.fold += *found[i].fold;
      }
      if (found[i].first_bad_row >= 0) refuse(target.sources[at], found[i], sink);
    }
  }

  void refuse(const SourceRows& rows, const SourceResult& found, Sink& sink) const {
    const Nvfp4Linear& m = source_.load()->nvfp4_modules()[rows.module];
    const int64_t expert = m.dialect->stacked ? rows.expert : 0;
    const int64_t place = (expert * m.n + found.first_bad_row) * (m.k / kGroup) + found.first_bad_group;
    sink.refuse_scale(
        m.block_scale, expert, {static_cast<uint64_t>(place), found.first_bad_scale},
        fmt::format("{} row {}, block {}", m.dialect->stacked ? fmt::format(" expert {},", expert) : "",
                    found.first_bad_row, found.first_bad_group));
  }

  void check_fold(size_t i, const Quality& quality, Sink& sink) const {
    const double error = std::sqrt(quality.fold_error / quality.fold_energy);
    if (matrix_.any_fold || !(error > LayoutMatrix::kMostFoldError)) return;
    const Nvfp4Linear& m = source_.load()->nvfp4_modules()[matrix_.target.sources[i].module];
    sink.refuse(fmt::format(
        "{}: expected a global scale that folds into its pair's ({}) with a change of at most {:.0f} % of "
        "the "
        "weights in relative norm, found {} and {:.3g} %; requantize it, or use --fold any",
        source_.load()->where(m.global_scale), matrix_.scales.folded[i / matrix_.target.sources_per_expert],
        100 * LayoutMatrix::kMostFoldError, matrix_.scales.own[i], 100 * error));
  }

  const LayoutMatrix& matrix_;
  const std::vector<Piece> pieces_;
  std::atomic<const Checkpoint*> source_{nullptr};
  std::mutex mutex_;
  std::vector<SourceResult> results_;  ///< one a source
};

}  // namespace

std::unique_ptr<Work> LayoutMatrix::begin() const { return std::make_unique<LayoutWork>(*this); }

}  // namespace twofour
