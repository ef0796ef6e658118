#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace twofour {

/// A hash of FIPS 180-4 with blocks of 64 bytes and a state of 32-bit words, of bytes that arrive in pieces.
template <size_t kWords>
class BlockHash {
 public:
  void update(std::span<const uint8_t> bytes);
  /// The hash, 8 digits for each 32-bit word, in small letters. update() must not be called afterwards.
  std::string hex();

 protected:
  using State = std::array<uint32_t, kWords>;
  /// Updates the state with 64 bytes.
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

/// The hash by which the Hub names files of Git LFS: 64 digits.
class Sha256 : public BlockHash<8> {
 public:
  Sha256();
};

/// The hash by which git names all other files, 40 digits. It reveals a damaged file, but no longer one that
/// was made to have the hash of another.
class Sha1 : public BlockHash<5> {
 public:
  Sha1();
};

}  // namespace twofour
