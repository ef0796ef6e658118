#include <fmt/format.h>

#include <cmath>
#include <mutex>

#include "formats/e4m3.h"
#include "kernels/device/check.h"
#include "lib/base/findings/problems.h"
#include "lib/write/methods/layout_matrix.h"
#include "lib/write/transform/expert_packer.h"

namespace twofour {
namespace {

/// Adds the sum of squared weights before folding, and the sum of their squared changes by folding.
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
        results_(matrix.target.sources.size()),
        found_scales_(matrix.scales.computed.size()) {}

  void run(const Unit& unit, Worker& worker, Sink& sink) override {
    source_ = &worker.source;
    if (unit.part == matrix_.part_count()) {
      const auto& scales = matrix_.scales.folded;
      if (sink.only_checks()) return;
      sink.write(unit.part, 0,
                 {reinterpret_cast<const uint8_t*>(scales.data()), scales.size() * sizeof(float)});
      return;
    }
    const auto e = static_cast<int64_t>(unit.index / (pieces_.size() + 1));
    if (!matrix_.is_computed(e)) {
      run_expert(unit, e, worker, sink);
      write_scale(unit, e, sink);
      return;
    }
    try {
      find_scales(e, worker.source);
      run_expert(unit, e, worker, sink);
      write_scale(unit, e, sink);
      sink.add_read(unit.read);
    } catch (const ReadError&) {
      throw;
    } catch (const Error& error) {
      for (const std::string& line : lines_of(error)) sink.refuse(line);
    }
  }

  Json result(Sink& sink) override {
    LayoutResult all;
    for (size_t i = 0; i < results_.size(); ++i) {
      const SourceResult& r = results_[i];
      const bool is_computed = matrix_.scales.is_computed(i);
      const float own = is_computed ? found_scales_[i].multiplier : matrix_.scales.own[i],
                  folded = is_computed ? own : matrix_.scales.folded[i / matrix_.target.sources_per_expert];
      Quality quality;
      quality.add(r.stats, static_cast<double>(folded));
      if (r.fold) {
        add_fold(*r.fold, own, folded, quality);
        check_fold(i, quality, sink);
      }
      all.quality += quality;
      all.slices.push_back({r.codes_hash, r.scales_hash});
    }
    for (const SourceScale& scale : found_scales_) all.global_scales.push_back(scale.raw_bits);
    if (!found_scales_.empty()) all.take_solved(*source_.load(), matrix_.target);
    return all.to_json();
  }

 private:
  void run_expert(const Unit& unit, int64_t e, Worker& worker, Sink& sink) {
    auto& packer = worker.own<ExpertPacker>();
    const uint64_t before = packer.bytes_read();
    const size_t p = unit.index % (pieces_.size() + 1);
    std::vector<SourceResult> found(matrix_.target.sources_per_expert);
    const bool packs = unit.part == Unit::kAllParts && !sink.only_checks();
    if (unit.part == Unit::kNoPart) {
      if (!sink.only_checks()) packer.hash(matrix_, e, found);
    } else if (packs) {
      packer.pack(matrix_, e, pieces_[p], found);
    } else if (p == 0 && !matrix_.is_computed(e)) {
      packer.check(matrix_, e, found);
    }
    sink.add_read(packer.bytes_read() - before);
    merge(e, found, sink);
    if (!packs || sink.only_checks()) return;
    for (int part = 0; part < matrix_.part_count(); ++part) {
      sink.write(part, offset(part, e, pieces_[p]), packer.part(part));
    }
  }

  /// Finds the global scale of an expert that is quantized when it is read. Throws Error if it cannot be
  /// quantized.
  void find_scales(int64_t e, const Checkpoint& source) {
    const size_t each = matrix_.target.sources_per_expert, first = static_cast<size_t>(e) * each;
    std::vector<SourceScale> scales;
    for (size_t i = first; i < first + each; ++i) scales.push_back(read_computed_scale(source, matrix_, i));
    const auto differs = [&](const SourceScale& s) { return s.raw_bits != scales[0].raw_bits; };
    check(std::none_of(scales.begin(), scales.end(), differs), "one global scale of fused matrices");
    const std::lock_guard lock(mutex_);
    std::copy(scales.begin(), scales.end(), found_scales_.begin() + static_cast<std::ptrdiff_t>(first));
  }

  /// Writes the global scale of an expert together with the expert, if the work finds any of the global
  /// scales.
  void write_scale(const Unit& unit, int64_t e, Sink& sink) {
    const bool is_first = unit.part == Unit::kAllParts && unit.index % (pieces_.size() + 1) == 0;
    if (found_scales_.empty() || !is_first || sink.only_checks()) return;
    const auto expert = static_cast<size_t>(e);
    const float scale = matrix_.is_computed(e)
                            ? found_scales_[expert * matrix_.target.sources_per_expert].multiplier
                            : matrix_.scales.folded[expert];
    sink.write(matrix_.part_count(), expert * sizeof(scale),
               {reinterpret_cast<const uint8_t*>(&scale), sizeof(scale)});
  }

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
    if (matrix_.fold_name.empty() || !(error > LayoutMatrix::kMostFoldError)) return;
    const Nvfp4Linear& m = source_.load()->nvfp4_modules()[matrix_.target.sources[i].module];
    sink.refuse(fmt::format(
        "{}: expected a global scale that folds into its pair's ({}) with a change of at most {:.0f} % of "
        "the "
        "weights in relative norm, found {} and {:.3g} %; requantize it, or use {}",
        source_.load()->where(m.global_scale), matrix_.scales.folded[i / matrix_.target.sources_per_expert],
        100 * LayoutMatrix::kMostFoldError, matrix_.scales.own[i], 100 * error, matrix_.fold_name));
  }

  const LayoutMatrix& matrix_;
  const std::vector<Piece> pieces_;
  std::atomic<const Checkpoint*> source_{nullptr};
  std::mutex mutex_;
  std::vector<SourceResult> results_;      ///< one for each source
  std::vector<SourceScale> found_scales_;  ///< one for each computed source; empty if no source is computed
};

}  // namespace

std::unique_ptr<Work> LayoutMatrix::begin() const { return std::make_unique<LayoutWork>(*this); }

}  // namespace twofour
