#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace twofour {

class InputFile;

/// The XXH3-128 hash of some bytes. It detects accidents, not attacks.
struct Hash128 {
  uint64_t high = 0, low = 0;
  bool operator==(const Hash128&) const = default;
  std::string hex() const;  ///< 32 digits, as `xxhsum -H2` prints them
};

/// Parses what hex() returns. Throws Error that names `where` if `hex` is anything else.
Hash128 parse_hash(std::string_view where, const std::string& hex);

/// XXH3-128 of bytes that arrive in pieces.
class Hasher {
 public:
  Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();
  void update(std::span<const uint8_t> bytes);
  void update(std::string_view text);
  Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Hash128 hash_bytes(std::span<const uint8_t> bytes);
/// The XXH3-64 hash, which is faster for a few hundred bytes.
uint64_t hash_bytes_64(std::span<const uint8_t> bytes);
Hash128 hash_text(std::string_view text);
/// Returns a line that begins with the hash of `text`. The hash reveals whether the line was cut or changed
/// later.
std::string seal_line(std::string_view text);
/// The text of a line of seal_line(), given without its line end. Empty if the hash does not match.
std::string_view text_of_line(std::string_view line);
/// Adds an entry at the end of the JSON text of an object, which must not be empty. The entry is the hash of
/// the text before it.
std::string seal_object(std::string text);
/// True if a text came from seal_object() and was neither cut nor changed since.
bool is_sealed_object(std::string_view text);
/// The hash of a whole file, by bounded reads.
Hash128 hash_file(const std::filesystem::path& path);
/// The hash of bytes [begin, begin + bytes) of a file, by bounded reads. Calls `read` with the size of each
/// read in bytes; `read` may count them or throw.
Hash128 hash_range(const InputFile& file, uint64_t begin, uint64_t bytes,
                   const std::function<void(uint64_t)>& read);

}  // namespace twofour
