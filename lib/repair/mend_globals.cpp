#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/naming.h"
#include "lib/base/threads/parallel.h"
#include "lib/repair/repair.h"
#include "lib/source/linears/linears.h"

namespace twofour {
namespace {

/// Folding by a larger factor would make a scale permanent that was never set.
constexpr float kMostToFold = 10;

/// A module with one global scale that is positive and finite, and so is its multiplier.
struct Scaled {
  const Nvfp4Linear* module;
  float stored, multiplier;
};

std::vector<Scaled> scaled_modules(const Checkpoint& c) {
  std::vector<Scaled> all;
  for (const Nvfp4Linear& m : c.nvfp4_modules()) {
    const std::vector<float> values =
        m.dialect->stacked ? std::vector<float>{} : floats_of(c, m.global_scale);
    if (values.size() != 1) continue;
    const float multiplier = global_scale_multiplier(*m.dialect, values[0]);
    const bool is_valid =
        std::isfinite(values[0]) && values[0] > 0 && std::isfinite(multiplier) && multiplier > 0;
    if (is_valid) all.push_back({&m, values[0], multiplier});
  }
  return all;
}

Repair::NewTensor with_value(const Checkpoint& c, size_t tensor, float value) {
  const TensorInfo& t = c.tensors()[tensor];
  return {t.name, t.dtype, t.shape, bytes_of({value})};
}

}  // namespace

namespace {

/// Modules by the group of linears that engines fuse.
using Groups = std::map<std::pair<std::string, size_t>, std::vector<Scaled>>;

/// The number of which a scale is the reciprocal. Two numbers may have one reciprocal. The one that a fused
/// linear has comes first.
float reciprocal_of(const Scaled& s, const Groups& groups) {
  const auto group = fused_group(s.module->name);
  if (group) {
    for (const Scaled& other : groups.at(*group)) {
      if (other.module != s.module && 1 / other.stored == s.stored) return other.stored;
    }
  }
  return 1 / s.stored;
}

}  // namespace

bool mend_reciprocals(Repair& r, MendRecord& record) {
  if (!r.wants("suspicious-scale")) return false;
  const Checkpoint& c = r.view();
  std::map<std::string, std::vector<Scaled>> kinds;
  Groups groups;
  for (const Scaled& s : scaled_modules(c)) {
    kinds[kind_of(s.module->name)].push_back(s);
    if (const auto group = fused_group(s.module->name)) groups[*group].push_back(s);
  }
  std::vector<Repair::NewTensor> changed;
  for (const auto& [kind, modules] : kinds) {
    float low = INFINITY, high = 0;
    std::vector<Repair::NewTensor> turned;
    for (const Scaled& s : modules) {
      const bool turns = is_beyond_weights(s.multiplier);
      const float value = turns ? 1 / s.multiplier : s.multiplier;
      low = std::min(low, value);
      high = std::max(high, value);
      if (turns) turned.push_back(with_value(c, s.module->global_scale, reciprocal_of(s, groups)));
    }
    if (turned.empty()) continue;
    if (high > 2 * low) {
      for (const Repair::NewTensor& t : turned)
        r.leave(
            "suspicious-scale", t.name,
            fmt::format("its reciprocal is not within an octave of its siblings' scales ({:.3g} to {:.3g})",
                        low, high));
      continue;
    }
    std::move(turned.begin(), turned.end(), std::back_inserter(changed));
  }
  if (changed.empty()) return false;
  record.rules = {"suspicious-scale"};
  r.set(std::move(changed), record);
  return true;
}

namespace {

/// The squares of the changes of a module's weights, and of its weights, in units of the global scale.
struct FoldLoss {
  double changed = 0, all = 0;
};

FoldLoss fold_loss(const Checkpoint& c, const Scaled& s, const ByteTable& table, float folded) {
  const Nvfp4Linear& m = *s.module;
  std::array<double, 256> energy{};  // of the codes under each block scale
  std::array<float, 256> squares{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    const float low = e2m1_to_float(byte & 15), high = e2m1_to_float(byte >> 4);
    squares[byte] = low * low + high * high;
  }
  constexpr uint64_t kBlocks = 1u << 16, kCodes = 8;  // bytes of codes in a block
  const uint64_t blocks = c.tensors()[m.block_scale].bytes();
  std::vector<uint8_t> scales, codes;
  for (uint64_t at = 0; at < blocks; at += kBlocks) {
    scales.resize(std::min(kBlocks, blocks - at));
    codes.resize(scales.size() * kCodes);
    c.read(m.block_scale, at, scales);
    c.read(m.codes, at * kCodes, codes);
    for (size_t b = 0; b < scales.size(); ++b) {
      float sum = 0;
      for (uint64_t i = 0; i < kCodes; ++i) sum += squares[codes[b * kCodes + i]];
      energy[scales[b]] += sum;
    }
  }
  FoldLoss loss;
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (energy[byte] == 0 || !e4m3_is_block_scale(static_cast<uint8_t>(byte))) continue;
    const double before = double{e4m3_to_float(static_cast<uint8_t>(byte))} * s.multiplier;
    const double after = double{e4m3_to_float(table[byte])} * folded;
    loss.changed += energy[byte] * (after - before) * (after - before);
    loss.all += energy[byte] * before * before;
  }
  return loss;
}

/// The block scales for another global scale, by the stored byte.
ByteTable folded_scales(float own, float folded) {
  ByteTable table{};
  const float factor = own / folded;
  for (unsigned i = 0; i < 256; ++i) {
    const auto byte = static_cast<uint8_t>(i);
    table[i] = e4m3_is_block_scale(byte) ? e4m3_from_float(e4m3_to_float(byte) * factor) : byte;
  }
  return table;
}

}  // namespace

bool mend_folds(Repair& r, MendRecord& record) {
  if (!r.wants("unequal-global-scales")) return false;
  const Checkpoint& c = r.view();
  Groups groups;
  for (const Scaled& s : scaled_modules(c)) {
    if (const auto group = fused_group(s.module->name)) groups[*group].push_back(s);
  }
  struct Fold {
    Scaled module;
    float folded;
    std::shared_ptr<const ByteTable> table;
    FoldLoss loss = {};
  };
  std::vector<Fold> folds;
  std::vector<Repair::NewTensor> changed;
  for (const auto& [group, modules] : groups) {
    const auto most = std::max_element(modules.begin(), modules.end(), [](const Scaled& a, const Scaled& b) {
      return a.multiplier < b.multiplier;
    });
    const auto least = std::min_element(modules.begin(), modules.end(), [](const Scaled& a, const Scaled& b) {
      return a.multiplier < b.multiplier;
    });
    if (most->multiplier == least->multiplier) continue;
    if (!r.settings.folds || most->multiplier / least->multiplier >= kMostToFold) {
      r.leave("unequal-global-scales", group.first,
              r.settings.folds ? "too far apart to be folded" : "fold larger folds them, at a loss");
      continue;
    }
    for (const Scaled& s : modules) {
      if (s.multiplier == most->multiplier) continue;
      folds.push_back({s, most->multiplier,
                       std::make_shared<const ByteTable>(folded_scales(s.multiplier, most->multiplier))});
      changed.push_back(with_value(c, s.module->global_scale, most->stored));
    }
  }
  if (folds.empty()) return false;
  parallel_for(folds.size(), [&](size_t i) {
    folds[i].loss = fold_loss(c, folds[i].module, *folds[i].table, folds[i].folded);
  });
  for (const Fold& f : folds) {
    EditedTensor* const scales = r.find(c.tensors()[f.module.module->block_scale].name);
    scales->table = f.table;
    record.tensors[scales->info.name] = "";
    record.bytes += scales->info.bytes();
    record.loss[f.module.module->name] = f.loss.all > 0 ? std::sqrt(f.loss.changed / f.loss.all) : 0;
  }
  record.rules = {"unequal-global-scales"};
  r.set(std::move(changed), record);
  return true;
}

}  // namespace twofour
