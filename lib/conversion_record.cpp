#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/e4m3.h"
#include "formats/error.h"
#include "lib/convert/conversion.h"
#include "lib/read_in_pieces.h"

namespace twofour {
namespace {

/// Sum of squared weights before folding and of their changes by it.
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

/// Reads back what is before the data of a file that was flushed.
void check_header(const AtomicFile& file, std::string_view header) {
  const auto read = [&](uint64_t at, std::span<uint8_t> piece) { file.read(at, piece); };
  read_in_pieces(header.size(), 1u << 20, read, [&](uint64_t at, std::span<const uint8_t> piece) {
    if (std::equal(piece.begin(), piece.end(), header.substr(at, piece.size()).begin(),
                   [](uint8_t a, char b) { return a == static_cast<uint8_t>(b); }))
      return;
    throw Error(fmt::format("{}: expected the header that was planned, found another when read back",
                            file.path().string()));
  });
}

}  // namespace

uint64_t Conversion::total_bytes() const {
  uint64_t data = 0;
  for (size_t f = 0; f < wanted_.size(); ++f) data += wanted_[f] ? plan_.files[f].data_bytes : 0;
  const double share =
      static_cast<double>(data) / static_cast<double>(std::max<uint64_t>(1, plan_.data_bytes));
  return static_cast<uint64_t>(share * static_cast<double>(plan_.read_bytes)) + (options_.verify ? data : 0);
}

void Conversion::commit(uint32_t f) {
  if (options_.verify) check_header(open(f), plan_.files[f].header);
  open(f).commit();
  result_done(f);
}

void Conversion::result_done(uint32_t f) {
  if (--files_[f].results_left > 0 || refused_) return;
  ShardRecord record = record_of(f);
  const std::lock_guard lock(finished_mutex_);
  finished_(std::move(record));
}

Quality Conversion::quality_of_target(size_t t) const {
  const Target& target = plan_.targets[t];
  const TargetScales& scales = plan_.scales[t];
  Quality quality;
  for (size_t i = 0; i < results_[t].size(); ++i) {
    const SourceResult& r = results_[t][i];
    const float folded = scales.folded[i / target.sources_per_expert];
    quality.add(r.stats, static_cast<double>(folded));
    if (r.fold) add_fold(*r.fold, scales.own[i], folded, quality);
  }
  return quality;
}

ShardRecord Conversion::record_of(uint32_t f) const {
  const OutputFile& file = plan_.files[f];
  const auto first = static_cast<std::ptrdiff_t>(file.first_tensor);
  ShardRecord record;
  record.file = f;
  record.outputs.assign(outputs_.begin() + first,
                        outputs_.begin() + first + static_cast<std::ptrdiff_t>(file.tensor_count));
  std::set<size_t> targets, matrices;
  for (size_t i = file.first_tensor; i < file.first_tensor + file.tensor_count; ++i) {
    const OutputTensor& t = plan_.tensors[i];
    if (t.kind == OutputTensor::Kind::kPart) targets.insert(t.source);
    if (t.kind == OutputTensor::Kind::kEncoded) matrices.insert(t.source);
    if (t.op != Op::kPrune && t.op != Op::kDequantize) continue;
    ShardRecord::Module& module = record.modules.emplace_back();
    module.index = t.module;
    module.source = modules_[t.module];
    for (size_t e = 0; e < rewritten_[t.module].size(); ++e) {
      module.quality.add(rewritten_[t.module][e], plan_.modules[t.module].multipliers[e]);
    }
  }
  for (const size_t t : targets) {
    std::vector<SliceHashes> slices;
    for (const SourceResult& r : results_[t]) slices.push_back({r.codes_hash, r.scales_hash});
    record.targets.push_back({t, quality_of_target(t), std::move(slices)});
  }
  for (const size_t m : matrices) record.matrices.push_back({m, matrices_[m]});
  return record;
}

}  // namespace twofour
