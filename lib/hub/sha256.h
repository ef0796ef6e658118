#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace twofour {

/// SHA-256 (FIPS 180-4) of bytes that come in pieces: what the Hub names files of Git LFS by.
class Sha256 {
 public:
  void update(std::span<const uint8_t> bytes);
  /// 64 digits in small letters. Nothing may follow.
  std::string hex();

 private:
  void block(const uint8_t* bytes);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> buffer_{};
  uint64_t bytes_ = 0;
};

}  // namespace twofour
