#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "formats/half.h"
#include "lib/base/io/hash.h"
#include "lib/prove/validate/checks.h"

namespace twofour {
namespace {

std::vector<uint8_t> read_whole(const Checkpoint& c, size_t tensor) {
  std::vector<uint8_t> bytes(c.tensors()[tensor].bytes());
  c.read(tensor, 0, bytes);
  return bytes;
}

float number_at(DType dtype, const std::vector<uint8_t>& bytes, size_t i) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, &bytes[i * sizeof value], sizeof value);
    return value;
  }
  uint16_t half = 0;
  std::memcpy(&half, &bytes[i * sizeof half], sizeof half);
  return dtype == DType::kBF16 ? bf16_to_float(half) : fp16_to_float(half);
}

/// True if all numbers are finite, and positive if they are scales.
bool is_valid(const TensorInfo& t, const std::vector<uint8_t>& bytes, bool is_scale) {
  const size_t size = dtype_bits(t.dtype) / 8;
  for (size_t i = 0; i < bytes.size() / size; ++i) {
    const float v = number_at(t.dtype, bytes, i);
    if (!std::isfinite(v) || (is_scale && v <= 0)) return false;
  }
  return true;
}

/// The global scales of an artifact: of NVFP4 modules, and of matrices in a layout.
std::set<std::string> global_scales(const Checkpoint& artifact) {
  std::set<std::string> names;
  for (const Nvfp4Linear& m : artifact.nvfp4_modules()) names.insert(artifact.tensors()[m.global_scale].name);
  for (const TensorInfo& t : artifact.tensors()) {
    const bool is_part = t.name.ends_with("_global_scale") || t.name.ends_with(".global_scale");
    if (is_part && t.dtype == DType::kF32 && t.shape.size() == 1) names.insert(t.name);
  }
  return names;
}

}  // namespace

std::shared_ptr<const TensorBytes> check_recovered(const Checkpoint& artifact, const Checkpoint& source,
                                                   const Manifest& manifest, ValidateReport& report) {
  const auto& recovery = manifest.recipe.recovery;
  if (!recovery || recovery->tuned.empty()) return nullptr;
  const std::set<std::string> scales = global_scales(artifact);
  auto before = std::make_shared<TensorBytes>();
  for (const auto& [name, tuned] : recovery->tuned) {
    const auto refuse = [&](const std::string& what) { differ(report, "recovery", name, what); };
    const auto at = artifact.find(name);
    if (!at) continue;  // reported as missing, if twofour.json lists it
    const TensorInfo& t = artifact.tensors()[*at];
    const bool is_scale = scales.contains(name);
    const bool is_norm = name.ends_with("norm.weight") && t.shape.size() == 1 && is_float(t.dtype);
    if (!is_scale && !is_norm) {
      refuse("expected a norm or a global scale, which recovery tunes, found another tensor");
      continue;
    }
    const std::vector<uint8_t> learned = read_whole(artifact, *at);
    if (!is_valid(t, learned, is_scale))
      refuse(is_scale ? "expected positive finite scales, found others"
                      : "expected finite numbers, found others");
    if (const Hash128 found = hash_bytes(learned); found != tuned.to)
      refuse(fmt::format("expected {} as learned (twofour.json), found {}", tuned.to.hex(), found.hex()));
    std::vector<uint8_t> from(t.bytes());
    if (is_scale) {
      if (tuned.bits.size() * sizeof(uint32_t) != from.size()) {
        refuse(fmt::format("expected the bits of {} global scales (twofour.json), found {}",
                           from.size() / sizeof(uint32_t), tuned.bits.size()));
        continue;
      }
      std::memcpy(from.data(), tuned.bits.data(), from.size());
    } else {
      const auto original = source.find(name);
      if (!original || source.tensors()[*original].dtype != t.dtype ||
          source.tensors()[*original].shape != t.shape) {
        refuse(fmt::format("expected {} in the source, found none", describe(t.dtype, t.shape)));
        continue;
      }
      from = read_whole(source, *original);
    }
    if (const Hash128 found = hash_bytes(from); found != tuned.from)
      refuse(
          fmt::format("expected {} before recovery (twofour.json), found {}", tuned.from.hex(), found.hex()));
    (*before)[name] = std::move(from);
  }
  report.recovered = before->size();
  report.notes.push_back(
      {Severity::kNote, "recovered", kManifestName,
       fmt::format("norms and global scales in {} tensors were learned: held by their hashes; the KL "
                   "divergence from the source of {} held-out tokens is recorded as {:.4g}, before {:.4g}",
                   before->size(), recovery->held_out, recovery->after, recovery->before)});
  return before;
}

}  // namespace twofour
