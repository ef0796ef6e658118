#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/naming.h"
#include "lib/prove/mends/mended_state.h"

namespace twofour {
namespace {

/// A module with a global scale that is a usable number.
struct GlobalScale {
  std::string module, scale, blocks, codes;  ///< names of the tensors
  float stored, multiplier;
  std::string kind, fused;  ///< fused is empty for a module of no group
};

std::vector<GlobalScale> global_scales(const MendedState& state) {
  std::vector<GlobalScale> all;
  const std::vector<TensorInfo> infos = state.infos();
  for (const Nvfp4Linear& m : sound_modules(infos)) {
    if (m.dialect->stacked) continue;
    const MendedTensor& t = state.tensors.at(infos[m.global_scale].name);
    const std::vector<float> values = t.floats();
    if (t.info.dtype != DType::kF32 || values.size() != 1) continue;
    const float multiplier = m.dialect->divides ? 1.0f / values[0] : values[0];
    if (!(values[0] > 0 && multiplier > 0 && std::isfinite(values[0]) && std::isfinite(multiplier))) continue;
    GlobalScale s{m.name,    t.info.name, infos[m.block_scale].name, infos[m.codes].name,
                  values[0], multiplier,  name_kind(m.name),         {}};
    if (const auto group = fused_group(m.name)) s.fused = fmt::format("{} {}", group->first, group->second);
    all.push_back(std::move(s));
  }
  return all;
}

MendedTensor with_number(const MendedState& state, const std::string& name, float value) {
  MendedTensor t{state.tensors.at(name).info};
  t.bytes.resize(sizeof(value));
  std::memcpy(t.bytes.data(), &value, sizeof(value));
  return t;
}

/// The E4M3 byte nearest to a number that is not negative, and of two the even one.
uint8_t nearest_e4m3(double x) {
  uint8_t best = 0;
  double least = INFINITY;
  for (unsigned byte = 0; byte < kE4m3Nan; ++byte) {
    const double distance = std::fabs(double{e4m3_to_float(byte)} - x);
    if (distance < least || (distance == least && byte % 2 == 0)) {
      best = static_cast<uint8_t>(byte);
      least = distance;
    }
  }
  return best;
}

/// The relative error of a module's weights under other scales, in the Frobenius norm.
double loss_of_fold(const MendedState& state, const GlobalScale& s, const MendedTensor& folded,
                    float multiplier) {
  const MendedTensor &blocks = state.tensors.at(s.blocks), &codes = state.tensors.at(s.codes);
  constexpr uint64_t kPiece = 1u << 14, kCodeBytes = 8;
  const uint64_t count = blocks.info.bytes();
  std::vector<uint8_t> before, after, code;
  double changed = 0, all = 0;
  for (uint64_t at = 0; at < count; at += kPiece) {
    before.resize(std::min(kPiece, count - at));
    after.resize(before.size());
    code.resize(before.size() * kCodeBytes);
    blocks.read(at, before);
    folded.read(at, after);
    codes.read(at * kCodeBytes, code);
    for (size_t b = 0; b < before.size(); ++b) {
      if (before[b] >= kE4m3Nan) continue;
      const double old = double{e4m3_to_float(before[b])} * s.multiplier,
                   now = double{e4m3_to_float(after[b])} * multiplier;
      for (size_t i = 0; i < kCodeBytes; ++i) {
        for (const unsigned nibble :
             {unsigned{code[b * kCodeBytes + i]} & 15, unsigned{code[b * kCodeBytes + i]} >> 4}) {
          const double value = e2m1_to_float(nibble);
          changed += value * value * (now - old) * (now - old);
          all += value * value * old * old;
        }
      }
    }
  }
  return all > 0 ? std::sqrt(changed / all) : 0;
}

}  // namespace

void derive_reciprocals(MendedState& state, const MendNote* note) {
  constexpr float kRange = 6 * 448, kWeight = 1e5f;  // the largest code and block scale; the largest weight
  std::vector<MendedTensor> made;
  if (state.wants("suspicious-scale")) {
    const std::vector<GlobalScale> all = global_scales(state);
    const auto is_turned = [](const GlobalScale& s) { return s.multiplier * kRange > kWeight; };
    std::map<std::string, std::pair<float, float>> span;  // least and most, by kind
    for (const GlobalScale& s : all) {
      const float value = is_turned(s) ? 1.0f / s.multiplier : s.multiplier;
      auto [at, is_new] = span.try_emplace(s.kind, value, value);
      at->second = {std::min(at->second.first, value), std::max(at->second.second, value)};
    }
    for (const GlobalScale& s : all) {
      const auto [least, most] = span.at(s.kind);
      if (!is_turned(s) || most > 2 * least) continue;
      float number = 1.0f / s.stored;
      for (const GlobalScale& other : all) {  // a fused linear may have another number with this reciprocal
        if (s.fused.empty() || other.fused != s.fused || other.module == s.module) continue;
        if (1.0f / other.stored != s.stored) continue;
        number = other.stored;
        break;
      }
      made.push_back(with_number(state, s.scale, number));
    }
  }
  state.make("reciprocals", note, std::move(made));
}

void derive_folds(MendedState& state, const MendNote* note) {
  std::vector<MendedTensor> made;
  std::map<std::string, double> losses;
  if (state.settings.folds && state.wants("unequal-global-scales")) {
    const std::vector<GlobalScale> all = global_scales(state);
    std::map<std::string, std::vector<const GlobalScale*>> groups;
    for (const GlobalScale& s : all) groups[s.fused].push_back(&s);
    for (const GlobalScale& s : all) {
      if (s.fused.empty()) continue;
      const auto& group = groups.at(s.fused);
      const GlobalScale* most = &s;
      float least = s.multiplier;
      for (const GlobalScale* other : group) {
        least = std::min(least, other->multiplier);
        if (other->multiplier > most->multiplier) most = other;
      }
      if (most->multiplier == s.multiplier || most->multiplier / least >= 10) continue;
      const GlobalScale* const first = *std::find_if(
          group.begin(), group.end(), [&](auto* o) { return o->multiplier == most->multiplier; });
      MendedTensor blocks = state.tensors.at(s.blocks);
      blocks.table.emplace();
      const float factor = s.multiplier / most->multiplier;
      for (unsigned byte = 0; byte < 256; ++byte) {
        (*blocks.table)[byte] =
            byte < kE4m3Nan ? nearest_e4m3(e4m3_to_float(byte) * factor) : static_cast<uint8_t>(byte);
      }
      losses[s.module] = loss_of_fold(state, s, blocks, most->multiplier);
      made.push_back(std::move(blocks));
      made.push_back(with_number(state, s.scale, first->stored));
    }
  }
  state.make("fold", note, std::move(made));
  if (note == nullptr) return;
  for (const auto& [module, loss] : losses) {
    constexpr double kTolerance = 1e-5;  // sums of squares in another order, some of them in float32
    const auto stated = note->loss.find(module);
    if (stated == note->loss.end() || !(std::fabs(stated->second - loss) <= kTolerance * loss)) {
      state.differ("mend", module,
                   fmt::format("expected a loss of {:.6g} by fold, found {}", loss,
                               stated == note->loss.end() ? "none" : fmt::format("{:.6g}", stated->second)));
    }
  }
  for (const auto& [module, loss] : note->loss) {
    if (!losses.contains(module)) state.differ("mend", module, "expected no loss by fold, found one");
  }
}

}  // namespace twofour
