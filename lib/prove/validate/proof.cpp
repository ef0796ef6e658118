#include "lib/prove/validate/proof.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/prove/validate/checks.h"

namespace twofour {

void Proof::read(int part, uint64_t offset, std::span<uint8_t> out) const {
  artifact.read(*artifact.find(info(part).name), offset, out);
}

void Proof::hold(int part, uint64_t offset, std::span<const uint8_t> expected) {
  std::vector<uint8_t> found(expected.size());
  read(part, offset, found);
  progress.done += 2 * found.size();
  auto at = std::mismatch(found.begin(), found.end(), expected.begin());
  for (; at.first != found.end(); at = std::mismatch(at.first + 1, found.end(), at.second + 1)) {
    if (wrong_.size() <= static_cast<size_t>(part)) wrong_.resize(static_cast<size_t>(part) + 1);
    Wrong& w = wrong_[static_cast<size_t>(part)];
    const uint64_t place = offset + static_cast<uint64_t>(at.first - found.begin());
    if (w.count == 0 || place < w.first) {
      w.first = place;
      w.expected = *at.second;
      w.found = *at.first;
    }
    ++w.count;
  }
}

void Proof::finish() {
  for (size_t part = 0; part < wrong_.size(); ++part) {
    const Wrong& w = wrong_[part];
    if (w.count == 0) continue;
    differ(
        static_cast<int>(part),
        fmt::format("{} bytes differ from those derived from the source, the first at {}: expected 0x{:02X}, "
                    "found 0x{:02X}",
                    w.count, w.first, w.expected, w.found));
  }
}

void Proof::differ(int part, std::string what) { differ("bytes", info(part).name, std::move(what)); }

void Proof::differ(const char* id, std::string where, std::string what) {
  found_.differences.push_back({Severity::kError, id, std::move(where), std::move(what)});
}

Hash128 hash_range_of(const Proof& proof, size_t tensor, uint64_t begin, uint64_t bytes) {
  return hash_tensor(proof.source, tensor, begin, bytes, proof.progress);
}

}  // namespace twofour
