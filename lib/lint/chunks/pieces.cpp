#include "lib/lint/chunks/pieces.h"

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
  next_ = std::max(next_, (offset + piece_ - 1) / piece_ * piece_);
  for (; next_ + kLooked <= offset + bytes.size(); next_ += piece_) take(next_, &bytes[next_ - offset]);
}

void Pieces::take(uint64_t offset, const uint8_t* bytes) {
  const uint64_t a = word_of(bytes), b = word_of(bytes + 8);
  if ((a & kCodeBits) == 0 || (b & kCodeBits) == 0 || a == b) return;  // zeros and constants repeat by nature
  ++count_;
  uint64_t hash = (a ^ std::rotl(b, 29)) * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 32;
  hash *= 0xBF58476D1CE4E5B9u;
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
