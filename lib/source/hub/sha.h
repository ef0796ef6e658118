#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace twofour {

/// Computes a hash of FIPS 180-4 that has blocks of 64 bytes and a state of kWords 32-bit words. The bytes
/// may arrive in pieces.
template <size_t kWords>
class BlockHash {
 public:
  void update(std::span<const uint8_t> bytes);
  /// Returns the hash, with 8 hexadecimal digits in lower case per 32-bit word. update() must not be called
  /// afterwards.
  std::string hex();

 protected:
  using State = std::array<uint32_t, kWords>;
  /// A function that updates the state with 64 bytes.
  using Block = void (*)(State& state, const uint8_t* bytes);
  BlockHash(const State& begin, Block block) : state_(begin), block_(block) {}

 private:
  State state_;
  Block block_;
  std::array<uint8_t, 64> buffer_{};
  uint64_t bytes_ = 0;
};
extern template class BlockHash<5>;
extern template class BlockHash<8>;

/// SHA-256, by which the Hub names files of Git LFS. It has 64 digits.
class Sha256 : public BlockHash<8> {
 public:
  Sha256();
};

/// SHA-1, by which git names all other files. It has 40 digits. It reveals a damaged file, but not a file
/// that was made to have the same hash as another.
class Sha1 : public BlockHash<5> {
 public:
  Sha1();
};

}  // namespace twofour
