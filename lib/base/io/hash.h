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

/// XXH3-128 of some bytes; detects accidents, not attacks.
struct Hash128 {
  uint64_t high = 0, low = 0;
  bool operator==(const Hash128&) const = default;
  std::string hex() const;  ///< 32 digits, as `xxhsum -H2` prints them
};

/// The hash that hex() wrote. Throws Error naming `where` on anything else.
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
/// XXH3-64, which takes less time for some hundred bytes.
uint64_t hash_bytes_64(std::span<const uint8_t> bytes);
Hash128 hash_text(std::string_view text);
/// A line that begins with the hash of its text, which reveals a line that was cut or changed.
std::string seal_line(std::string_view text);
/// The text of such a line, given without its line end; empty if the hash does not match.
std::string_view text_of_line(std::string_view line);
/// The JSON text of an object, not an empty one, with one more entry at its end: the hash of the text before
/// it.
std::string seal_object(std::string text);
/// True if a text is one of seal_object() that was neither cut nor changed.
bool is_sealed_object(std::string_view text);
/// The hash of a whole file, by bounded reads.
Hash128 hash_file(const std::filesystem::path& path);
/// The hash of bytes [begin, begin + bytes) of a file, by bounded reads; `read` is called with the size of
/// each, and may count them or throw.
Hash128 hash_range(const InputFile& file, uint64_t begin, uint64_t bytes,
                   const std::function<void(uint64_t)>& read);

}  // namespace twofour
