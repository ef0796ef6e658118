#include "lib/manifest_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "formats/error.h"
#include "lib/io/file.h"
#include "lib/artifact/manifest.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// A text read in pieces. What would make the parser's lexer hold much is refused: it has all since the last
/// string or number began.
class Stream {
 public:
  explicit Stream(const InputFile& file) : file_(file) { fill(); }
  bool at_end() const { return at_ == piece_.size(); }
  char current() const { return piece_[at_]; }
  void next() {
    if (++at_ == piece_.size()) fill();
  }

 private:
  void fill() {
    constexpr uint64_t kPiece = 1u << 20;
    piece_.resize(std::min(kPiece, file_.size() - read_));
    file_.read(read_, {reinterpret_cast<uint8_t*>(piece_.data()), piece_.size()});
    for (size_t i = 0; i < piece_.size(); ++i) look(piece_[i], read_ + i);
    read_ += piece_.size();
    at_ = 0;
  }
  void look(char c, uint64_t position) {
    const bool is_number = c == '-' || (c >= '0' && c <= '9');
    if (c == '\0')
      throw Error(fmt::format("{}: not JSON: error at byte {}", file_.path().string(), position + 1));
    if (in_string_) {
      if (!escaped_ && c == '"') in_string_ = false;
      escaped_ = !escaped_ && c == '\\';
    } else if (c == '"') {
      in_string_ = true;
      began_ = position;
    } else if (is_number && !in_number_) {
      began_ = position;
    }
    in_number_ = !in_string_ && (is_number || (in_number_ && (c == '.' || c == 'e' || c == 'E' || c == '+')));
    constexpr uint64_t kMaxBytes = 16u << 20;
    if (position - began_ <= kMaxBytes) return;
    throw Error(fmt::format("{}: expected at most {} bytes in a string or number or between two, found more",
                            file_.path().string(), kMaxBytes));
  }

  const InputFile& file_;
  std::string piece_;
  size_t at_ = 0;
  uint64_t read_ = 0, began_ = 0;
  bool in_string_ = false, escaped_ = false, in_number_ = false;
};

/// What nlohmann-json takes a text from.
class Characters {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  Characters() = default;
  explicit Characters(Stream& stream) : stream_(&stream) {}
  char operator*() const { return stream_->current(); }
  Characters& operator++() {
    stream_->next();
    return *this;
  }
  Characters operator++(int) {
    stream_->next();
    return *this;
  }
  /// The only other there is stands at the end.
  bool operator==(const Characters&) const { return stream_ == nullptr || stream_->at_end(); }

 private:
  Stream* stream_ = nullptr;
};

}  // namespace

ManifestText parse_manifest_text(const fs::path& path, size_t tensors, const TakeJson& take) {
  // A tensor has a line of about 200 bytes, and some more where it is a source of something.
  constexpr uint64_t kBase = 256u << 20, kPerTensor = 1024;
  constexpr size_t kObjects = 1'000'000, kObjectsPerTensor = 4;
  const InputFile file(path);
  const uint64_t most = kBase + kPerTensor * tensors;
  if (file.size() > most) {
    throw Error(fmt::format("{}: expected at most {} bytes for {} tensors, found {}", path.string(), most,
                            tensors, file.size()));
  }
  ManifestText text{nullptr, manifest_damage(file)};
  size_t taken = 0;
  const auto count = [&](int depth, Json::parse_event_t event, Json& json) {
    if (depth > 80) throw Error(fmt::format("{}: nested deeper than a manifest is", path.string()));
    if (take(depth, event, json)) return true;
    if (++taken <= kObjects + kObjectsPerTensor * tensors) return false;
    throw Error(
        fmt::format("{}: expected a manifest of {} tensors, found too many objects", path.string(), tensors));
  };
  Stream stream(file);
  try {
    text.json = Json::parse(Characters(stream), Characters(), count);
  } catch (const nlohmann::detail::parse_error& e) {
    throw Error(fmt::format("{}: not JSON: error at byte {}", path.string(), e.byte));
  }
  return text;
}

uint32_t parse_bits(std::string_view where, const Json& json) {
  const auto hex = json.get<std::string>();
  uint32_t bits = 0;
  const bool read = std::sscanf(hex.c_str(), "%8x", &bits) == 1;
  if (read && fmt::format("{:08x}", bits) == hex) return bits;
  throw Error(fmt::format("{}: expected eight hexadecimal digits, found {}", where, json_quote_short(hex)));
}

}  // namespace twofour
