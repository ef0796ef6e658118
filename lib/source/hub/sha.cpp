#include "lib/source/hub/sha.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace twofour {
namespace {

constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const uint8_t* b) {
  return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | uint32_t{b[3]};
}

void block_of_sha256(std::array<uint32_t, 8>& state, const uint8_t* bytes) {
  std::array<uint32_t, 64> w;
  for (size_t t = 0; t < 16; ++t) w[t] = big_endian(bytes + 4 * t);
  for (size_t t = 16; t < 64; ++t) {
    const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t t = 0; t < 64; ++t) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t x = h + s1 + ((e & f) ^ (~e & g)) + kRound[t] + w[t];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t y = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + x, d = c, c = b, b = a, a = x + y;
  }
  const std::array<uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < added.size(); ++i) state[i] += added[i];
}

void block_of_sha1(std::array<uint32_t, 5>& state, const uint8_t* bytes) {
  std::array<uint32_t, 80> w;
  for (size_t t = 0; t < 16; ++t) w[t] = big_endian(bytes + 4 * t);
  for (size_t t = 16; t < 80; ++t) w[t] = std::rotl(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
  auto [a, b, c, d, e] = state;
  for (size_t t = 0; t < 80; ++t) {
    const uint32_t f = t < 20   ? (b & c) | (~b & d)
                       : t < 40 ? b ^ c ^ d
                       : t < 60 ? (b & c) | (b & d) | (c & d)
                                : b ^ c ^ d;
    constexpr std::array<uint32_t, 4> kTwenty = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6};
    const uint32_t x = std::rotl(a, 5) + f + e + kTwenty[t / 20] + w[t];
    e = d, d = c, c = std::rotl(b, 30), b = a, a = x;
  }
  const std::array<uint32_t, 5> added = {a, b, c, d, e};
  for (size_t i = 0; i < added.size(); ++i) state[i] += added[i];
}

}  // namespace

template <size_t kWords>
void BlockHash<kWords>::update(std::span<const uint8_t> bytes) {
  const size_t held = bytes_ % 64;
  bytes_ += bytes.size();
  if (held > 0) {
    const size_t taken = std::min(bytes.size(), 64 - held);
    std::memcpy(buffer_.data() + held, bytes.data(), taken);
    if (held + taken < 64) return;
    block_(state_, buffer_.data());
    bytes = bytes.subspan(taken);
  }
  for (; bytes.size() >= 64; bytes = bytes.subspan(64)) block_(state_, bytes.data());
  if (!bytes.empty()) std::memcpy(buffer_.data(), bytes.data(), bytes.size());
}

template <size_t kWords>
std::string BlockHash<kWords>::hex() {
  const uint64_t bits = 8 * bytes_;
  std::array<uint8_t, 72> end{0x80};
  const size_t zeros = (119 - bytes_ % 64) % 64;  // so that the 8 bytes of the length fill the block
  for (size_t i = 0; i < 8; ++i) end[1 + zeros + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  update(std::span(end).first(9 + zeros));
  std::string text;
  for (const uint32_t word : state_) text += fmt::format("{:08x}", word);
  return text;
}

template class BlockHash<5>;
template class BlockHash<8>;

Sha256::Sha256()
    : BlockHash(
          {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19},
          block_of_sha256) {}

Sha1::Sha1() : BlockHash({0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0}, block_of_sha1) {}

}  // namespace twofour
