#include "lib/validate/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "lib/artifact_reader.h"
#include "lib/device_check.h"
#include "lib/threads/interrupt.h"
#include "lib/layer_check.h"
#include "lib/artifact/manifest.h"
#include "lib/threads/parallel.h"
#include "lib/read_in_pieces.h"
#include "lib/validate/rederive.h"
#include "lib/threads/stopwatch.h"
#include "lib/validate_encode.h"
#include "lib/validate_files.h"
#include "lib/validate_manifest.h"
#include "lib/validate_rewrite.h"
#include "lib/value_check.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

void check_tensor(const Manifest& manifest, const TensorInfo& t, const Hash128& found,
                  ValidateReport& report) {
  const auto it = manifest.outputs.find(t.name);
  if (it == manifest.outputs.end()) {
    differ(report, "not-in-manifest", t.name, "expected in twofour.json, found it only in the files");
    return;
  }
  const std::string type = describe(t.dtype, t.shape);
  if (it->second.type != type) {
    differ(report, "tensor", t.name,
           fmt::format("expected {} as twofour.json says, found {}", it->second.type, type));
  }
  if (it->second.hash != found) {
    differ(report, "hash", t.name,
           fmt::format("expected {} as twofour.json says, found {}", it->second.hash.hex(), found.hex()));
  }
}

/// Share of codes of magnitude 0 among all of a target's, counted while it is derived again.
struct CodeCount {
  uint64_t zero = 0, all = 0;
  void add(std::span<const DenseGroup> groups) {
    const auto count = static_cast<int64_t>(groups.size());
    uint64_t zeros = 0;
#pragma omp parallel for schedule(static) reduction(+ : zeros)
    for (int64_t i = 0; i < count; ++i) {
      for (const uint8_t byte : groups[static_cast<size_t>(i)].codes)
        zeros += ((byte & 0x07) == 0) + ((byte & 0x70) == 0);
    }
    zero += zeros;
    all += groups.size() * kGroup;
  }
};

/// What pruning does to one group, by plain sums over its weights.
PruneStats group_stats(const DenseGroup& group, const DenseGroup& kept) {
  PruneStats stats;
  const uint64_t units = e4m3_units(group.scale);
  uint64_t all = 0, left = 0;
  for (int j = 0; j < 8; ++j) {
    for (const int shift : {0, 4}) {
      const auto a = static_cast<uint64_t>(e2m1_halves((group.codes[j] >> shift) & 15u));
      const auto b = static_cast<uint64_t>(e2m1_halves((kept.codes[j] >> shift) & 15u));
      all += a * a;
      left += b * b;
    }
  }
  for (int q = 0; q < 4; ++q) {
    stats.tied += is_tied_2_4(group.codes[2 * q] | (unsigned{group.codes[2 * q + 1]} << 8));
  }
  stats.quads = 4;
  stats.energy = static_cast<unsigned __int128>(units * units) * all;
  stats.kept_energy = static_cast<unsigned __int128>(units * units) * left;
  return stats;
}

/// What pruning cost some rows. The packers' sums are made another way and must come to the same.
PruneStats sum_stats(std::span<const DenseGroup> groups, const std::string& layout) {
  PruneStats total;
  const auto count = static_cast<int64_t>(groups.size());
#pragma omp parallel
  {
    PruneStats mine;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; ++i) {
      DenseGroup kept = groups[static_cast<size_t>(i)];
      apply_pattern(layout, {&kept, 1});
      mine += group_stats(groups[static_cast<size_t>(i)], kept);
    }
#pragma omp critical
    total += mine;
  }
  return total;
}

void derive_target(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan, size_t t,
                   DeviceDerivation* device, Progress& progress, ValidateReport& report) {
  const Target& target = plan.targets[t];
  PieceReader reader(artifact, plan, t);
  WeightReport weights{target.name, target.shape, {}, 0};
  CodeCount codes;
  std::vector<PruneStats> stats(target.sources.size());  // as the packers sum: the last bit is theirs, too
  Mismatch first;
  int64_t first_expert = 0;
  uint64_t wrong = 0;
  for (int64_t e = 0; e < target.shape.e; ++e) {
    for (const Piece& piece : pieces_of(target, plan.tilings[t])) {
      check_interrupt();
      const auto groups = read_dense_groups(source, target, plan.scales[t], e, piece, true);
      const auto parts = reader.read(e, piece);
      Mismatch m = compare_piece(plan.recipe.layout, piece_shape(target, piece), groups, parts);
      if (m.count > 0 && wrong == 0) {
        m.k += m.k < 0 ? 0 : piece.k0;
        first = m;
        first_expert = e;
      }
      wrong += m.count;
      if (device != nullptr) device->compare(t, e, piece, parts);
      codes.add(groups);
      for (size_t i = 0; i < target.sources_per_expert; ++i) {
        const size_t at = static_cast<size_t>(e) * target.sources_per_expert + i;
        const SourceRows rows = piece_rows(target.sources[at], target, piece);
        const int64_t width = piece.k / kGroup;
        stats[at] += sum_stats(std::span(groups).subspan(static_cast<size_t>(rows.n0 * width),
                                                         static_cast<size_t>(rows.count * width)),
                               plan.recipe.layout);
      }
      progress.done += groups.size() * sizeof(DenseGroup);
    }
  }
  if (device != nullptr) device->finish(t, stats, report);
  if (wrong > 0) {
    const Mismatch& m = first;
    std::string part;
    for (const size_t i : plan.parts_of(t)) {
      if (plan.tensors[i].part == m.part) part = plan.tensors[i].info.name;
    }
    differ(report, "bytes", part,
           fmt::format("{} bytes differ from what the source derives to, the first at expert {}, row {}, "
                       "column {} (n {}, k {}): expected 0x{:02X}, found 0x{:02X}",
                       wrong, first_expert, m.row, m.col, m.n, m.k, m.expected, m.found));
  }
  for (size_t i = 0; i < stats.size(); ++i) {
    weights.quality.add(stats[i], plan.scales[t].folded[i / target.sources_per_expert]);
  }
  weights.zero_share = codes.all > 0 ? static_cast<double>(codes.zero) / static_cast<double>(codes.all) : 0;
  report.weights.push_back(std::move(weights));
}

/// What a tensor that was copied differs in; empty where it doesn't.
std::string compare_copy(const Checkpoint& artifact, const Checkpoint& source, const OutputTensor& t,
                         Progress& progress) {
  const size_t ours = *artifact.find(t.info.name);
  std::vector<uint8_t> expected;
  uint64_t wrong = 0, first = 0;
  const auto read = [&](uint64_t at, std::span<uint8_t> piece) {
    artifact.read(ours, at, piece);
    progress.done += piece.size();
  };
  read_in_pieces(artifact.tensors()[ours].bytes(), 1 << 20, read,
                 [&](uint64_t at, std::span<const uint8_t> piece) {
                   expected.resize(piece.size());
                   source.read(t.source, at, expected);
                   if (std::memcmp(expected.data(), piece.data(), piece.size()) == 0) return;
                   for (size_t i = 0; i < piece.size(); ++i) {
                     if (expected[i] == piece[i]) continue;
                     if (wrong++ == 0) first = at + i;
                   }
                 });
  if (wrong == 0) return "";
  return fmt::format("{} bytes differ from the source's, the first at {}", wrong, first);
}

void check_copies(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan, Progress& progress,
                  ValidateReport& report) {
  std::vector<const OutputTensor*> copies;
  for (const OutputTensor& t : plan.tensors) {
    if (t.kind == OutputTensor::Kind::kCopy) copies.push_back(&t);
  }
  std::vector<std::string> found(copies.size());
  parallel_for(copies.size(),
               [&](size_t i) { found[i] = compare_copy(artifact, source, *copies[i], progress); });
  for (size_t i = 0; i < copies.size(); ++i) {
    if (!found[i].empty()) differ(report, "bytes", copies[i]->info.name, std::move(found[i]));
  }
}

void check_global_scale(const Checkpoint& artifact, const Plan& plan, const OutputTensor& t,
                        ValidateReport& report) {
  const auto& expected = plan.scales[t.source].folded;
  std::vector<float> found(expected.size());
  artifact.read(*artifact.find(t.info.name), 0,
                {reinterpret_cast<uint8_t*>(found.data()), found.size() * sizeof(float)});
  for (size_t e = 0; e < found.size(); ++e) {
    if (std::bit_cast<uint32_t>(expected[e]) == std::bit_cast<uint32_t>(found[e])) continue;
    differ(report, "bytes", t.info.name,
           fmt::format("expert {}: expected {}, found {}", e, expected[e], found[e]));
    return;
  }
}

/// Whether the artifact has every tensor that the plan names, as it says; without that nothing else can be
/// compared.
bool check_tensors(const Checkpoint& artifact, const Plan& plan, ValidateReport& report) {
  bool sound = true;
  for (const OutputTensor& t : plan.tensors) {
    const auto at = artifact.find(t.info.name);
    const bool same =
        at && artifact.tensors()[*at].dtype == t.info.dtype && artifact.tensors()[*at].shape == t.info.shape;
    if (same) continue;
    sound = false;
    differ(report, "tensor", t.info.name,
           fmt::format("expected {}, found {}", describe(t.info.dtype, t.info.shape),
                       at ? describe(artifact.tensors()[*at].dtype, artifact.tensors()[*at].shape) : "none"));
  }
  return sound;
}

void account_for_source(const Checkpoint& source, const Plan& plan, ValidateReport& report) {
  std::vector<int> used(source.tensors().size());
  for (const OutputTensor& t : plan.tensors) {
    const bool whole = t.kind == OutputTensor::Kind::kCopy || t.kind == OutputTensor::Kind::kDerived;
    if (whole) ++used[t.source];
  }
  for (const size_t i : plan.merged) ++used[i];
  for (const WeightModule& m : plan.weights) {
    ++used[m.weight];
    for (const auto& tensor : {m.scale, m.global_scale, m.stacked ? m.bias : std::nullopt}) {
      if (tensor) ++used[*tensor];
    }
  }
  for (const Target& target : plan.targets) {
    std::set<size_t> modules;
    for (const SourceRows& s : target.sources) modules.insert(s.module);
    for (const size_t m : modules) {
      const Nvfp4Module& module = source.nvfp4_modules()[m];
      for (const size_t i : {module.codes, module.block_scale, module.global_scale}) ++used[i];
    }
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i] == 1) {
      ++report.source_tensors;
      report.source_bytes += source.tensors()[i].bytes();
    } else {
      differ(report, "source-tensor", source.tensors()[i].name,
             fmt::format("expected to go into the artifact once, found {} times", used[i]));
    }
  }
}

void check_hashes(const Checkpoint& artifact, const Manifest& manifest, Progress& progress,
                  ValidateReport& report) {
  std::vector<Hash128> found(artifact.tensors().size());
  // The largest first, so that no thread begins one when the others have nothing left.
  std::vector<size_t> order(found.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return artifact.tensors()[a].bytes() > artifact.tensors()[b].bytes();
  });
  parallel_for(found.size(), [&](size_t i) {
    found[order[i]] = hash_tensor(artifact, order[i], 0, artifact.tensors()[order[i]].bytes(), progress);
  });
  for (size_t i = 0; i < found.size(); ++i) {
    check_tensor(manifest, artifact.tensors()[i], found[i], report);
    report.bytes += artifact.tensors()[i].bytes();
  }
  report.tensors = found.size();
}

Checkpoint open_artifact(const fs::path& path, Io io) {
  std::error_code error;
  if (fs::is_directory(path, error) && !fs::exists(path / kManifestName, error) && !error) {
    throw Error(
        fmt::format("{}: expected an artifact of twofour, found no {}", path.string(), kManifestName));
  }
  return Checkpoint::open(path, io);
}

}  // namespace

const char* sound_verdict(bool with_source) {
  return with_source ? "every byte derived again from the source, equal" : "all hashes hold";
}

ValidateReport validate(const fs::path& path, const ValidateOptions& options, Progress& progress) {
  const Stopwatch watch;
  const Checkpoint artifact = open_artifact(path, options.io);
  const Manifest manifest = read_manifest(path / kManifestName, artifact.tensors().size());
  ValidateReport report;
  for (const TensorInfo& t : artifact.tensors()) progress.total += t.bytes();
  progress.phase = "hashing";
  if (!manifest.damage.empty()) differ(report, "manifest", kManifestName, manifest.damage);
  check_names(artifact, manifest, report);
  check_listed_files(artifact, manifest, report);
  check_hashes(artifact, manifest, progress, report);
  if (options.device == Device::cuda) {
    progress.phase = "running layers";
    check_layers_on_cuda(artifact, options, report);
  }
  report.seconds = watch.seconds();
  return report;
}

ValidateReport validate(const fs::path& path, const fs::path& source_path, const ValidateOptions& options,
                        Progress& progress) {
  const Stopwatch watch;
  const Checkpoint artifact = open_artifact(path, options.io);
  const Manifest manifest = read_manifest(path / kManifestName, artifact.tensors().size());
  const Checkpoint source = Checkpoint::open_source(source_path, ReadPath::kReference, {}, options.io);
  const Plan plan = make_plan(source, manifest.recipe);
  ValidateReport report;
  progress.total = 2 * plan.data_bytes + plan.read_bytes;
  progress.phase = "hashing";
  check_names(artifact, manifest, report);
  check_listed_files(artifact, manifest, report);
  check_files(artifact, source, plan, manifest, report);
  check_hashes(artifact, manifest, progress, report);
  if (!check_tensors(artifact, plan, report)) return report;
  account_for_source(source, plan, report);

  progress.phase = "deriving";
  std::optional<DeviceDerivation> device;
  if (options.device == Device::cuda && !plan.targets.empty()) device.emplace(source, plan);
  for (size_t t = 0; t < plan.targets.size(); ++t)
    derive_target(artifact, source, plan, t, device ? &*device : nullptr, progress, report);
  check_copies(artifact, source, plan, progress, report);
  for (const OutputTensor& t : plan.tensors) {
    if (t.kind == OutputTensor::Kind::kGlobalScale) check_global_scale(artifact, plan, t, report);
  }
  check_rewritten(artifact, source, plan, progress, report);
  if (options.device == Device::cuda) check_dequantized_on_cuda(artifact, source, plan, report);
  check_encoded(artifact, source, plan, progress, report);
  if (report.differences.empty()) check_manifest(artifact, source, plan, manifest, progress, report);
  if (plan.targets.empty()) {
    check_values(artifact, source, plan, options, progress, report);
  } else {
    progress.phase = "running layers";
    if (options.tokens > 0) check_layers(artifact, source, plan, options, report);
  }
  if (options.device == Device::cuda) check_layers_on_cuda(artifact, options, report);
  report.seconds = watch.seconds();
  return report;
}

}  // namespace twofour
