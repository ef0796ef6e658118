#include "lib/base/io/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/base/io/file.h"

namespace twofour {

std::string Hash128::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Hash128 parse_hash(std::string_view where, const std::string& hex) {
  Hash128 hash;
  // Accepts only text that hex() writes, because scanf would also take spaces, signs and capitals.
  const bool read = std::sscanf(hex.c_str(), "%16lx%16lx", &hash.high, &hash.low) == 2;
  if (!read || hash.hex() != hex) {
    throw Error(fmt::format("{}: expected 32 hexadecimal digits, found {}", where, json_quote_short(hex)));
  }
  return hash;
}

void Hasher::update(std::string_view text) {
  update({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

Hash128 hash_text(std::string_view text) {
  return hash_bytes({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

std::string seal_line(std::string_view text) { return fmt::format("{} {}", hash_text(text).hex(), text); }

std::string_view text_of_line(std::string_view line) {
  constexpr size_t kDigits = 32;
  if (line.size() <= kDigits + 1 || line[kDigits] != ' ') return {};
  const std::string_view text = line.substr(kDigits + 1);
  return line.substr(0, kDigits) == hash_text(text).hex() ? text : std::string_view();
}

namespace {

/// The end of the text of an object. `before` is the text of its other entries.
std::string object_seal(std::string_view before) {
  return fmt::format(R"(,"xxh3_128":"{}"}})", hash_text(before).hex());
}

}  // namespace

std::string seal_object(std::string text) {
  text.pop_back();
  return text + object_seal(text);
}

bool is_sealed_object(std::string_view text) {
  static const size_t length = object_seal("").size();
  const std::string_view before = text.substr(0, text.size() - std::min(length, text.size()));
  return text.substr(before.size()) == object_seal(before);
}

Hash128 hash_file(const std::filesystem::path& path) {
  const InputFile file(path);
  return hash_range(file, 0, file.size(), [](uint64_t) {});
}

Hash128 hash_range(const InputFile& file, uint64_t begin, uint64_t bytes,
                   const std::function<void(uint64_t)>& read) {
  Hasher hasher;
  const auto fill = [&](uint64_t at, std::span<uint8_t> piece) { file.read(begin + at, piece); };
  read_in_pieces(bytes, 1u << 20, fill, [&](uint64_t, std::span<const uint8_t> piece) {
    hasher.update(piece);
    read(piece.size());
  });
  return hasher.digest();
}

}  // namespace twofour
