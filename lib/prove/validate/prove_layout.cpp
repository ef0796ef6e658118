#include <fmt/format.h>

#include <array>
#include <optional>
#include <type_traits>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/layouts/layouts.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/parallel.h"
#include "lib/prove/expected/rederive.h"
#include "lib/prove/validate/artifact_pieces.h"
#include "lib/prove/validate/check_on_device.h"
#include "lib/prove/validate/piece_check.h"
#include "lib/prove/validate/proof.h"
#include "lib/write/methods/layout_matrix.h"

namespace twofour {
namespace {

/// The result of checking a piece of an expert.
struct PieceResult {
  int64_t e;
  Piece piece;
  std::vector<PieceCheck::Figures> figures;  ///< one for each source of the expert
  Mismatch mismatch;
};

/// Derives all pieces of a matrix again, as many at a time as the promised memory has room for.
std::vector<PieceResult> check_pieces(const Proof& proof, const LayoutMatrix& matrix) {
  constexpr int64_t kRoom = 192 << 20;
  constexpr int64_t kCopies = 3;  // copies of a piece: from the source, derived, and found in the artifact
  const OutputMatrix& target = matrix.target;
  std::vector<PieceResult> results;
  int64_t largest = 1;
  for (int64_t e = 0; e < target.shape.e; ++e) {
    for (const Piece& piece : pieces_of(target, matrix.tiling)) {
      results.push_back({e, piece, {}, {}});
      largest = std::max<int64_t>(largest, piece.rows * piece.k / kGroup * int64_t{sizeof(DenseGroup)});
    }
  }
  const auto width = static_cast<size_t>(std::max<int64_t>(1, kRoom / (kCopies * largest)));
  for (size_t begin = 0; begin < results.size(); begin += width) {
    parallel_workers(std::min(width, results.size() - begin), [&] {
      return [&, reader = PieceReader(proof, matrix),
              check = PieceCheck(proof.source, matrix)](size_t i) mutable {
        check_interrupt();
        PieceResult& r = results[begin + i];
        const Shape shape = piece_shape(target, r.piece);
        r.figures.resize(target.sources_per_expert);
        const auto parts = reader.read(r.e, r.piece);
        if (!check.run(r.e, r.piece, *LayoutRuns::of(matrix.layout, shape), parts, r.figures)) {
          // The comparison is repeated byte by byte, so that the report names the first wrong byte.
          const auto groups = read_dense_groups(proof.source, target, matrix.scales, r.e, r.piece, true);
          r.mismatch = compare_piece(matrix.layout, shape, groups, parts);
          r.mismatch.k += r.mismatch.k < 0 ? 0 : r.piece.k0;
        }
        proof.progress.done += static_cast<uint64_t>(shape.n * shape.groups()) * sizeof(DenseGroup);
      };
    });
  }
  return results;
}

/// Packs the matrix on a CUDA device, compares it and adds the differences.
void check_on_device(Proof& proof, const LayoutMatrix& matrix, const std::vector<PieceResult>& pieces) {
  PieceReader reader(proof, matrix);
  DeviceDerivation device(matrix.layout);
  for (const PieceResult& p : pieces) {
    check_interrupt();
    const auto groups = read_dense_groups(proof.source, matrix.target, matrix.scales, p.e, p.piece, true);
    device.compare(p.e, piece_shape(matrix.target, p.piece), groups, reader.read(p.e, p.piece));
  }
  if (auto wrong = device.finish()) proof.differ("device-bytes", matrix.target.name, std::move(*wrong));
}

/// The hashes of all sources of a target. `known` has hashes of sources that were read as a whole. Gate and
/// up of one stack form one slice, which is read once.
std::vector<LayoutResult::Slice> hash_sources(const Proof& proof, const OutputMatrix& target,
                                              const std::vector<std::optional<LayoutResult::Slice>>& known) {
  const auto same_as_last = [&](size_t s) {
    return s > 0 && target.sources[s].module == target.sources[s - 1].module &&
           target.sources[s].expert == target.sources[s - 1].expert;
  };
  std::vector<LayoutResult::Slice> slices(target.sources.size());
  parallel_for(slices.size(), [&](size_t s) {
    if (same_as_last(s) && !known[s]) return;
    const Nvfp4Linear& m = proof.source.nvfp4_modules()[target.sources[s].module];
    const auto bytes_of = [&](size_t tensor) {
      return proof.source.tensors()[tensor].bytes() / static_cast<uint64_t>(m.e);
    };
    if (known[s]) {
      slices[s] = *known[s];
      proof.progress.done += bytes_of(m.codes) + bytes_of(m.block_scale);
      return;
    }
    const auto hash = [&](size_t tensor) {
      const uint64_t bytes = bytes_of(tensor);
      return hash_range_of(proof, tensor, static_cast<uint64_t>(target.sources[s].expert) * bytes, bytes);
    };
    slices[s] = {hash(m.codes), hash(m.block_scale)};
  });
  for (size_t s = 0; s < slices.size(); ++s) {
    if (same_as_last(s) && !known[s]) slices[s] = slices[s - 1];
  }
  return slices;
}

/// The change that folding makes to one source, weight by weight, with sums for each block scale.
Quality fold_of(const Checkpoint& source, const LayoutMatrix& matrix, size_t s) {
  Quality quality;
  const OutputMatrix& target = matrix.target;
  const size_t e = s / target.sources_per_expert;
  const float own = matrix.scales.own[s], folded = matrix.scales.folded[e], factor = own / folded;
  if (own == folded) return quality;
  std::array<uint64_t, 256> energy{};
  for (const Piece& piece : pieces_of(target, matrix.tiling)) {
    const auto groups =
        read_dense_groups(source, target, matrix.scales, static_cast<int64_t>(e), piece, false);
    const SourceRows rows = piece_rows(target.sources[s], target, piece);
    const int64_t width = piece.k / kGroup;
    for (int64_t i = rows.n0 * width; i < (rows.n0 + rows.count) * width; ++i) {
      const DenseGroup& group = groups[static_cast<size_t>(i)];
      for (int k = 0; k < kGroup; ++k) {
        const int half = e2m1_halves((group.codes[k / 2] >> 4 * (k % 2)) & 15u);
        energy[group.scale] += static_cast<uint64_t>(half * half);
      }
    }
  }
  for (unsigned byte = 0; byte < energy.size(); ++byte) {
    if (energy[byte] == 0) continue;
    const float value = e4m3_to_float(byte);
    const double weight = 0.25 * static_cast<double>(energy[byte]);
    const double before = static_cast<double>(value) * own;
    const double after = static_cast<double>(e4m3_to_float(e4m3_from_float(value * factor))) * folded;
    quality.fold_energy += weight * before * before;
    quality.fold_error += weight * (after - before) * (after - before);
  }
  return quality;
}

bool is_dense(const std::string& layout) {
  bool dense = false;
  with_layout(layout, [&]<class L>() { dense = std::is_same_v<typename L::Atom, DenseGroup>; });
  return dense;
}

}  // namespace

Json LayoutMatrix::prove(Proof& proof) const {
  WeightReport weights{target.name, target.shape, {}, 0};
  std::vector<PruneStats> stats(target.sources.size());  // sums in the order of the packers, so that even the
                                                         // last bit is equal
  std::vector<std::optional<LayoutResult::Slice>> slices(target.sources.size());
  Mismatch first;
  int64_t first_expert = 0;
  uint64_t wrong = 0, zero_codes = 0;
  const std::vector<PieceResult> pieces = check_pieces(proof, *this);
  for (const PieceResult& p : pieces) {
    for (size_t i = 0; i < p.figures.size(); ++i) {
      const size_t at = static_cast<size_t>(p.e) * p.figures.size() + i;
      stats[at] += p.figures[i].stats;
      zero_codes += p.figures[i].zero_codes;
      slices[at] = p.figures[i].slice;
    }
    if (p.mismatch.count > 0 && wrong == 0) {
      first = p.mismatch;
      first_expert = p.e;
    }
    wrong += p.mismatch.count;
  }
  if (proof.on_device) check_on_device(proof, *this, pieces);
  if (wrong > 0) {
    proof.differ(
        first.part,
        fmt::format("{} bytes differ from those derived from the source, the first at expert {}, row {}, "
                    "column {} (n {}, k {}): expected 0x{:02X}, found 0x{:02X}",
                    wrong, first_expert, first.row, first.col, first.n, first.k, first.expected,
                    first.found));
  }
  LayoutResult result;
  result.global_scales.resize(scales.computed.size());
  std::vector<float> folded(scales.folded.size());
  for (size_t s = 0; s < target.sources.size(); ++s) {
    float& larger = folded[s / target.sources_per_expert];
    if (!scales.is_computed(s)) {
      larger = std::max(larger, scales.own[s]);
      continue;
    }
    const SourceScale found = read_computed_scale(proof.source, *this, s);
    result.global_scales[s] = found.raw_bits;
    larger = std::max(larger, found.multiplier);
  }
  proof.hold(part_count_, 0,
             {reinterpret_cast<const uint8_t*>(folded.data()), folded.size() * sizeof(float)});
  proof.finish();

  for (size_t i = 0; i < stats.size(); ++i) {
    Quality one;
    one.add(stats[i], folded[i / target.sources_per_expert]);
    weights.quality += one;
    // Conversion measures only pruning.
    Quality written = is_dense(layout) ? Quality{} : one;
    written += fold_of(proof.source, *this, i);
    result.quality += written;
  }
  const auto all = static_cast<double>(target.shape.e * target.shape.n * target.shape.k);
  weights.zero_share = static_cast<double>(zero_codes) / all;
  result.slices = hash_sources(proof, target, slices);
  result.take_solved(proof.source, target);
  if (const auto chosen = result.chosen()) weights.chosen = chosen->error;
  proof.add(std::move(weights));
  return result.to_json();
}

}  // namespace twofour
