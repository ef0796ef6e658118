#include "lib/lint/chunks/repeated_pieces.h"

#include <algorithm>
#include <bit>

#include "lib/lint/chunks/number_kind.h"

namespace twofour {

namespace {
constexpr uint64_t kMostPieces = 1u << 13;
constexpr uint64_t kLooked = 16;  ///< number of bytes of a piece that are looked at
}  // namespace

Pieces::Pieces(uint64_t bytes, uint64_t piece) : piece_(piece) {
  while (bytes / piece_ > kMostPieces) piece_ *= 2;
  table_.resize(2 * std::bit_ceil(bytes / piece_ + 1));
}

void Pieces::add(uint64_t offset, std::span<const uint8_t> bytes) {
  constexpr uint64_t kTogether = 32;
  next_ = std::max(next_, (offset + piece_ - 1) / piece_ * piece_);
  while (next_ + kLooked <= offset + bytes.size()) {
    // The places of several pieces in the table are fetched at the same time.
    uint64_t hashes[kTogether], at[kTogether], count = 0;
    for (uint64_t i = 0; i < kTogether && next_ + kLooked <= offset + bytes.size(); ++i, next_ += piece_) {
      const uint8_t* const from = &bytes[next_ - offset];
      const uint64_t a = word_of(from), b = word_of(from + 8);
      // Zeros and constants repeat by nature.
      if ((a & kCodeBits) == 0 || (b & kCodeBits) == 0 || a == b) continue;
      uint64_t hash = (a ^ std::rotl(b, 29)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
      hash *= 0xBF58476D1CE4E5B9u;
      __builtin_prefetch(&table_[(hash >> 8) & (table_.size() - 1)]);
      hashes[count] = hash;
      at[count++] = next_;
    }
    for (uint64_t i = 0; i < count; ++i) take(at[i], hashes[i]);
  }
}

void Pieces::take(uint64_t offset, uint64_t hash) {
  ++count_;
  const auto tag = std::max<uint32_t>(1, static_cast<uint32_t>(hash >> 32));
  size_t at = (hash >> 8) & (table_.size() - 1);
  while (table_[at].tag != 0 && table_[at].tag != tag) at = (at + 1) & (table_.size() - 1);
  const auto place = static_cast<uint32_t>(offset / piece_);
  if (table_[at].tag == 0) {
    table_[at] = {tag, place};
    return;
  }
  ++repeated_;
  const uint64_t from = table_[at].place * piece_;
  const bool goes_on = run_.bytes > 0 && offset == run_.at + run_.bytes && from == run_.from + run_.bytes;
  if (!goes_on) run_ = {0, offset, from};
  run_.bytes += piece_;
  if (run_.bytes > longest_.bytes) longest_ = run_;
}

void Pieces::merge(const Pieces& other) {
  count_ += other.count_;
  repeated_ += other.repeated_;
  if (other.longest_.bytes > longest_.bytes) longest_ = other.longest_;
}

double Pieces::repeated_share() const {
  return count_ > 0 ? static_cast<double>(repeated_) / static_cast<double>(count_) : 0;
}

}  // namespace twofour
