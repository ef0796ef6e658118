#include "lib/validate_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <type_traits>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/layouts/layouts.h"
#include "lib/transform/encoder.h"
#include "lib/threads/interrupt.h"
#include "lib/threads/parallel.h"
#include "lib/piece.h"
#include "lib/validate/rederive.h"
#include "lib/validate_files.h"

namespace twofour {
namespace {

/// Of expert `e` of a module, or of the whole module with e < 0.
SliceHashes hash_slice(const Checkpoint& c, const Nvfp4Module& m, int64_t e, Progress& progress) {
  const auto hash = [&](size_t tensor) {
    const uint64_t bytes = c.tensors()[tensor].bytes() / static_cast<uint64_t>(e < 0 ? 1 : m.e);
    return hash_tensor(c, tensor, static_cast<uint64_t>(std::max<int64_t>(e, 0)) * bytes, bytes, progress);
  };
  return {hash(m.codes), hash(m.block_scale)};
}

/// Of all sources of a target. Gate and up of one stack are one slice, which is read once.
std::vector<SliceHashes> hash_sources(const Checkpoint& source, const Target& target, Progress& progress) {
  const auto same_as_last = [&](size_t s) {
    return s > 0 && target.sources[s].module == target.sources[s - 1].module &&
           target.sources[s].expert == target.sources[s - 1].expert;
  };
  std::vector<SliceHashes> slices(target.sources.size());
  parallel_for(slices.size(), [&](size_t s) {
    const SourceRows& rows = target.sources[s];
    if (!same_as_last(s)) {
      slices[s] = hash_slice(source, source.nvfp4_modules()[rows.module], rows.expert, progress);
    }
  });
  for (size_t s = 0; s < slices.size(); ++s) {
    if (same_as_last(s)) slices[s] = slices[s - 1];
  }
  return slices;
}

/// Adds what folding one source changed, weight by weight, sums kept by block scale.
void add_fold(const Checkpoint& source, const Plan& plan, size_t t, size_t s, Quality& quality) {
  const Target& target = plan.targets[t];
  const TargetScales& scales = plan.scales[t];
  const size_t e = s / target.sources_per_expert;
  const float own = scales.own[s], folded = scales.folded[e], factor = own / folded;
  if (own == folded) return;
  std::array<uint64_t, 256> energy{};
  for (const Piece& piece : pieces_of(target, plan.tilings[t])) {
    const auto groups = read_dense_groups(source, target, scales, static_cast<int64_t>(e), piece, false);
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
}

/// What encoding cost, by encoding once more: the bytes are proven already, the figures are those of the same
/// sums.
void derive_encoded(const Checkpoint& source, const Plan& plan, Progress& progress,
                    ConversionRecord& record) {
  if (plan.groups.empty()) return;
  record.matrices.resize(plan.matrices.size());
  parallel_workers(plan.groups.size(), [&] {
    return [&, encoder = Encoder(source, plan, nullptr, best_isa())](size_t g) mutable {
      check_interrupt();
      const uint64_t before = encoder.bytes_read();
      std::vector<EncodedResult> results = encoder.encode(g, [](size_t, std::span<const uint8_t>) {});
      std::move(results.begin(), results.end(),
                record.matrices.begin() + static_cast<std::ptrdiff_t>(plan.groups[g].first));
      progress.done += encoder.bytes_read() - before;
    };
  });
}

ConversionRecord derive_record(const Checkpoint& source, const Plan& plan, const Manifest& manifest,
                               const ValidateReport& report, Progress& progress) {
  ConversionRecord record;
  // Tensors and files were held against these already.
  for (const OutputTensor& t : plan.tensors) record.outputs.push_back(manifest.outputs.at(t.info.name).hash);
  record.files = manifest.files;
  std::map<std::string, Quality> quality;
  // Only pruning is measured when converting.
  bool dense = false;
  with_layout(plan.recipe.layout, [&]<class L>() { dense = std::is_same_v<typename L::Atom, DenseGroup>; });
  for (const WeightReport& w : report.weights) quality[w.target] = dense ? Quality{} : w.quality;
  for (size_t t = 0; t < plan.targets.size(); ++t) {
    const Target& target = plan.targets[t];
    record.slices.push_back(hash_sources(source, target, progress));
    Quality& q = record.quality.emplace_back(quality[target.name]);
    for (size_t s = 0; s < target.sources.size(); ++s) add_fold(source, plan, t, s, q);
  }
  record.modules.resize(plan.modules.size());
  parallel_for(plan.modules.size(), [&](size_t i) {
    record.modules[i] = hash_slice(source, source.nvfp4_modules()[plan.modules[i].module], -1, progress);
  });
  for (const ModulePlan& p : plan.modules) {
    record.quality.push_back(quality[source.nvfp4_modules()[p.module].name]);
  }
  derive_encoded(source, plan, progress, record);
  return record;
}

/// Some of a line around the byte at `at`.
std::string excerpt(std::string_view text, size_t at) {
  constexpr size_t kBefore = 40, kLength = 80;
  const size_t newline = text.rfind('\n', at == 0 ? 0 : at - 1);
  const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
  const size_t begin = std::max(line, at < kBefore ? 0 : at - kBefore);
  const std::string_view rest = text.substr(std::min(begin, text.size()), kLength);
  return std::string(rest.substr(0, rest.find('\n')));
}

}  // namespace

void check_manifest(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                    const Manifest& manifest, Progress& progress, ValidateReport& report) {
  progress.phase = "manifest";
  progress.total += plan.read_bytes;
  const ConversionRecord record = derive_record(source, plan, manifest, report, progress);
  const InputFile file(artifact.path() / kManifestName);
  uint64_t position = 0;
  bool differs = false;
  const auto compare = [&](std::string_view expected) {
    if (differs || expected.empty()) return;
    std::string found(std::min<uint64_t>(expected.size(), file.size() - position), '\0');
    file.read(position, {reinterpret_cast<uint8_t*>(found.data()), found.size()});
    if (found != expected) {
      differs = true;
      const auto at = static_cast<size_t>(
          std::mismatch(found.begin(), found.end(), expected.begin(), expected.end()).first - found.begin());
      differ(report, "manifest", kManifestName,
             fmt::format("byte {}: expected ...{}..., found ...{}...", position + at, excerpt(expected, at),
                         excerpt(found, at)));
    }
    position += found.size();
  };
  format_manifest(source, plan, record, {manifest.version, manifest.commit}, compare);
  if (!differs && position < file.size()) {
    differ(report, "manifest", kManifestName,
           fmt::format("expected {} bytes, found {}", position, file.size()));
  }
}

}  // namespace twofour
