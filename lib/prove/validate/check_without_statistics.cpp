#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "formats/layouts/layouts.h"
#include "lib/base/threads/parallel.h"
#include "lib/prove/validate/checks.h"
#include "lib/recipe/artifact/layout_names.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/recipe/selection/chooser.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// Checks that the source has the weight files that twofour.json names, with the same hashes of headers.
void check_sources(const Checkpoint& source, const Manifest& manifest, ValidateReport& report) {
  for (const Manifest::SourceFile& f : manifest.sources) {
    const auto& shards = source.shards();
    const auto at =
        std::find_if(shards.begin(), shards.end(), [&](const Shard& s) { return s.name == f.name; });
    if (at != shards.end() && at->file.size() == f.bytes && at->header_hash == f.header) continue;
    differ(report, "source", f.name,
           fmt::format("expected {} bytes with header {} (twofour.json), found {}", f.bytes, f.header.hex(),
                       at == shards.end()
                           ? "no such file"
                           : fmt::format("{} bytes with header {}", at->file.size(), at->header_hash.hex())));
  }
}

/// True if a tensor belongs to a module that was made. "P.w13_comp" belongs to "P.w13", and "P.q_proj.weight"
/// to "P.q_proj".
bool is_made(const std::string& tensor, const Manifest& manifest) {
  for (size_t end = tensor.find_last_of("._"); end != tensor.npos && end > 0;
       end = tensor.find_last_of("._", end - 1)) {
    if (manifest.shapes.contains(tensor.substr(0, end))) return true;
  }
  return false;
}

/// Checks that kept tensors equal the source's, byte for byte.
void check_kept(const Checkpoint& source, const Manifest& manifest, Progress& progress,
                ValidateReport& report) {
  std::vector<std::pair<size_t, const Manifest::Output*>> kept;
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    const TensorInfo& t = source.tensors()[i];
    const auto at = manifest.outputs.find(t.name);
    if (at != manifest.outputs.end() && !is_made(t.name, manifest)) kept.emplace_back(i, &at->second);
  }
  std::vector<Hash128> found(kept.size());
  parallel_for(kept.size(), [&](size_t i) {
    found[i] = hash_tensor(source, kept[i].first, 0, source.tensors()[kept[i].first].bytes(), progress);
  });
  for (size_t i = 0; i < kept.size(); ++i) {
    const TensorInfo& t = source.tensors()[kept[i].first];
    ++report.source_tensors;
    report.source_bytes += t.bytes();
    if (found[i] == kept[i].second->hash) continue;
    const auto& recovery = manifest.recipe.recovery;
    if (recovery && recovery->tuned.contains(t.name)) continue;  // compared by check_recovered()
    differ(report, "source-tensor", t.name,
           fmt::format("expected {} (as in the artifact), found {} in the source", kept[i].second->hash.hex(),
                       found[i].hex()));
  }
}

/// The pattern that the recipe gives to a module. Empty if it gives none.
std::string pattern_of(const Recipe& recipe, std::vector<Chooser>& choosers, const std::string& module) {
  for (size_t i = 0; i < recipe.rules.size(); ++i) {
    if (!choosers[i].chooses(module, true)) continue;
    const Rule& rule = recipe.rules[i];
    return std::string(is_layout(rule.to)                           ? layout_pattern(rule.to)
                       : rule.to == "prune" && rule.pattern.empty() ? "2:4"
                                                                    : rule.pattern.text());
  }
  return {};
}

/// The index of the first group with more nonzero codes than its pattern allows, or -1.
int64_t first_too_full(std::span<const uint8_t> codes, bool pairs) {
  const size_t bytes = pairs ? 4 : 2;  // bytes of a group
  for (size_t i = 0; i + bytes <= codes.size(); i += bytes) {
    int held = 0;
    for (size_t b = 0; b < bytes; ++b) {
      const bool low = (codes[i + b] & 0x07) != 0, high = (codes[i + b] & 0x70) != 0;
      held += pairs ? low || high : low + high;
    }
    if (held > 2) return static_cast<int64_t>(i / bytes);
  }
  return -1;
}

/// Checks that modules that were made have no more nonzero codes than the pattern allows. Their codes are
/// read through the map of their layout.
void check_patterns(const Checkpoint& shown, const Manifest& manifest, ValidateReport& report) {
  const int64_t layers = model_layers(shown.config());
  std::vector<Chooser> choosers;
  for (const Rule& rule : manifest.recipe.rules) choosers.emplace_back(rule.selection, layers);
  constexpr uint64_t kPiece = 1u << 20;
  std::vector<uint8_t> codes;
  for (const Nvfp4Linear& m : shown.nvfp4_modules()) {
    if (m.k_outer) continue;
    const std::string pattern = pattern_of(manifest.recipe, choosers, m.name);
    const TensorInfo& t = shown.tensors()[m.codes];
    for (uint64_t at = 0; at < t.bytes(); at += kPiece) {
      codes.resize(std::min(kPiece, t.bytes() - at));
      shown.read(m.codes, at, codes);  // throws Error on bytes that the layout does not allow
      if (pattern.empty() || !is_made(t.name, manifest)) continue;
      const int64_t wrong = first_too_full(codes, pattern == "4:8-paired");
      if (wrong < 0) continue;
      const int64_t width = pattern == "4:8-paired" ? 8 : 4;
      const int64_t weight = static_cast<int64_t>(at) * 2 + wrong * width;
      differ(report, "pattern", t.name,
             fmt::format("expected {} (twofour.json), found more at row {}, k {}", pattern, weight / m.k,
                         weight % m.k));
      break;
    }
    report.solved_rows += static_cast<uint64_t>(m.e * m.n);
  }
  report.rows_not_drawn = report.solved_rows;
}

}  // namespace

void check_unsolved(const fs::path& artifact, const fs::path& source, const Manifest& manifest, Io io,
                    Progress& progress, ValidateReport& report) {
  report.without_statistics = true;
  const Checkpoint original = open_source(source, ReadPath::kReference, {}, io);
  check_sources(original, manifest, report);
  check_kept(original, manifest, progress, report);
  check_patterns(open_source(artifact, ReadPath::kReference, {}, io), manifest, report);
}

}  // namespace twofour
