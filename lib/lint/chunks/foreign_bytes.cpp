#include "lib/lint/chunks/foreign_bytes.h"

#include <algorithm>
#include <bit>
#include <bitset>
#include <cstdlib>

#include "lib/lint/chunks/number_kind.h"

namespace twofour {
namespace {

constexpr uint64_t kLook = 16;

bool is_space(uint8_t b) { return b == ' ' || b == '\n' || b == '\r' || b == '\t'; }
bool is_text(uint8_t b) { return (b >= ' ' && b <= '~') || is_space(b); }

/// True if readable bytes are words and not numbers that happen to be readable: they have many letters, and
/// spaces among them.
bool are_words(std::span<const uint8_t> bytes) {
  constexpr uint64_t kLeast = 96;
  constexpr size_t kFewLetters = 12;
  if (bytes.size() < kLeast) return false;
  std::bitset<256> seen;
  uint64_t spaces = 0, letters = 0;
  for (const uint8_t b : bytes) {
    seen.set(b);
    spaces += is_space(b);
    letters += (b | 0x20) >= 'a' && (b | 0x20) <= 'z';
  }
  return seen.count() >= kFewLetters && 64 * spaces >= bytes.size() && 3 * letters >= bytes.size();
}

}  // namespace

void Looks::add(uint64_t offset, std::span<const uint8_t> bytes) {
  constexpr uint64_t kHighBits = 0x8080808080808080u;
  next_ = std::max(next_, (offset + kSector - 1) / kSector * kSector);
  while (next_ + kLook <= offset + bytes.size()) {
    const uint64_t at = next_ - offset;
    const uint64_t a = word_of(&bytes[at]), b = word_of(&bytes[at + 8]);
    next_ += kSector;
    if (scales_) {
      if (at + kSector <= bytes.size()) look_at_scales(bytes.subspan(at, kSector), offset + at);
      continue;
    }
    if ((a | b) == 0) {
      next_ = std::max(next_, offset + take_zeros(bytes, at, offset));
      continue;
    }
    const bool may_be_text = ((a | b) & kHighBits) == 0;
    const bool may_repeat = a == b && (a & kCodeBits) != 0 && a == std::rotl(a, 16);
    if (may_be_text || may_repeat) next_ = std::max(next_, offset + look(bytes, at, offset));
  }
}

/// Measures a run of zeros around `at`. Returns the first byte after it.
uint64_t Looks::take_zeros(std::span<const uint8_t> bytes, uint64_t at, uint64_t offset) {
  uint64_t begin = at, end = at + kLook;
  while (end < bytes.size() && bytes[end] == 0) ++end;
  while (begin > 0 && bytes[begin - 1] == 0) --begin;
  if (end - begin > zeros_.bytes) zeros_ = {end - begin, offset + begin};
  return end;
}

/// Looks at the bytes around `at`. Returns the first byte after what is known now.
uint64_t Looks::look(std::span<const uint8_t> bytes, uint64_t at, uint64_t offset) {
  constexpr uint64_t kLeastRepeated = 256;
  const auto keep = [&](uint64_t begin, uint64_t end, bool text) {
    if (end - begin <= longest_.bytes) return;
    longest_ = {end - begin, offset + begin, text,
                static_cast<uint16_t>(bytes[begin] << 8 | bytes[begin + 1])};
  };
  uint64_t begin = at, end = at;
  while (end < bytes.size() && is_text(bytes[end])) ++end;
  if (end >= at + kLook) {
    while (begin > 0 && is_text(bytes[begin - 1])) --begin;
    if (are_words(bytes.subspan(begin, end - begin))) {
      keep(begin, end, true);
      return end;
    }
  }
  if (((bytes[at] | bytes[at + 1]) & 0x77) == 0) return end;  // pruning gives zeros
  begin = at;
  end = at + 2;
  while (end < bytes.size() && bytes[end] == bytes[end - 2]) ++end;
  while (begin > 0 && bytes[begin - 1] == bytes[begin + 1]) --begin;
  if (end - begin >= kLeastRepeated) keep(begin, end, false);
  return end;
}

/// Block scales, as text is, are readable bytes, so that only whole sectors are judged. Neighbours are within
/// a few octaves of eight bytes each.
void Looks::look_at_scales(std::span<const uint8_t> sector, uint64_t offset) {
  constexpr int kFar = 24, kWide = 40, kTiny = 0x21;  // blocks of zeros have smaller scales
  const auto some = sector.first(kLook);
  const auto [least, most] = std::ranges::minmax(some);
  const bool wide = most - least > kWide;
  if (!wide && std::ranges::none_of(some, is_space)) return;
  const bool text = std::ranges::all_of(sector, is_text) && are_words(sector);
  size_t far = 0;
  for (size_t i = 1; wide && i < sector.size(); ++i) {
    const bool tiny = std::min(sector[i], sector[i - 1]) < kTiny;
    far += !tiny && std::abs(sector[i] - sector[i - 1]) > kFar;
  }
  if (!text && 3 * far < sector.size()) return;
  const bool goes_on = longest_.bytes > 0 && longest_.at + longest_.bytes == offset;
  if (goes_on) {
    longest_.bytes += sector.size();
  } else if (longest_.bytes == 0) {
    longest_ = {sector.size(), offset, text};
  }
}

void Looks::merge(const Looks& other) {
  if (other.longest_.bytes > longest_.bytes) longest_ = other.longest_;
  if (other.zeros_.bytes > zeros_.bytes) zeros_ = other.zeros_;
}

}  // namespace twofour
