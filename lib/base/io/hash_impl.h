#pragma once
// The file that CMake chooses for the processor includes this file after the xxHash header that suits it.
#include <new>

#include "lib/base/io/hash.h"

namespace twofour {

struct alignas(64) Hasher::State {
  XXH3_state_t xxh;
};

Hasher::Hasher() : state_(new State) { XXH3_128bits_reset(&state_->xxh); }
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;
Hasher::~Hasher() = default;

void Hasher::update(std::span<const uint8_t> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}

Hash128 Hasher::digest() const {
  const XXH128_hash_t h = XXH3_128bits_digest(&state_->xxh);
  return {h.high64, h.low64};
}

uint64_t hash_bytes_64(std::span<const uint8_t> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Hash128 hash_bytes(std::span<const uint8_t> bytes) {
  const XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
  return {h.high64, h.low64};
}

}  // namespace twofour
