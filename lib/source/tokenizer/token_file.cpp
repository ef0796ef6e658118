#include "lib/source/tokenizer/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include "formats/error.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "lib/base/findings/options.h"
#include "lib/base/io/file.h"

namespace twofour {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr uint64_t kMostNpyHeader = 1 << 20;
/// The largest number of ids, which take 4 GiB.
constexpr int64_t kMostTokens = 1 << 30;
constexpr uint64_t kReadStep = 1 << 20;

/// The place of the ids in a file.
struct Ids {
  int64_t count = 0, width = 0;
  uint64_t begin = 0;
  int bytes = 4;  ///< bytes of one id
};

std::string read_part(const InputFile& file, uint64_t offset, uint64_t bytes) {
  std::string part(std::min(bytes, file.size() - std::min(offset, file.size())), '\0');
  file.read(offset, {reinterpret_cast<uint8_t*>(part.data()), part.size()});
  return part;
}

uint64_t little_endian(std::string_view bytes) {
  uint64_t n = 0;
  for (size_t i = bytes.size(); i-- > 0;) n = n << 8 | static_cast<uint8_t>(bytes[i]);
  return n;
}

Ids find_in_safetensors(const InputFile& file) {
  const std::string where = file.path().string();
  const std::string head = read_part(file, 0, kSafetensorsHead);
  const auto bytes_of = [](const std::string& text) {
    return std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  };
  // In safetensors, the first bytes are the header's length. Letters at the beginning of a file make a number
  // above the largest header.
  if (head.size() < kSafetensorsPrefix ||
      little_endian(std::string_view(head).substr(0, kSafetensorsPrefix)) > kSafetensorsMaxHeader) {
    throw Error(
        fmt::format("{}: expected ids of tokens in safetensors or .npy, found neither; {} takes a text",
                    where, options::kText));
  }
  const uint64_t length = parse_safetensors_prefix(where, bytes_of(head), file.size());
  const uint64_t begin = kSafetensorsPrefix + length;
  const SafetensorsHeader header =
      parse_safetensors_header(where, read_part(file, kSafetensorsPrefix, length), file.size() - begin);
  if (header.tensors.size() != 1)
    throw Error(fmt::format("{}: expected one tensor of tokens, found {}", where, header.tensors.size()));
  const TensorInfo& tensor = header.tensors[0];
  if ((tensor.dtype != DType::kI32 && tensor.dtype != DType::kI64) || tensor.shape.size() != 2) {
    throw Error(fmt::format("{}: {}: expected I32 or I64 [W, T], found {}", where, tensor.name,
                            describe(tensor.dtype, tensor.shape)));
  }
  return {tensor.shape[0], tensor.shape[1], begin + tensor.begin, tensor.dtype == DType::kI32 ? 4 : 8};
}

/// Returns the text after `key` in the dictionary of a .npy header, up to `end`. Empty if the key is missing.
std::string_view npy_value(std::string_view header, std::string_view key, char end) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  std::string_view value = header.substr(at + key.size());
  value = value.substr(std::min(value.find_first_not_of(" :"), value.size()));
  const size_t stop = value.find(end);
  return stop == std::string_view::npos ? std::string_view() : value.substr(0, stop + 1);
}

/// Parses "(8, 1024)". Empty for any other text.
std::optional<std::pair<int64_t, int64_t>> npy_shape(std::string_view text) {
  int64_t sizes[2] = {};
  const char *at = text.data(), *end = at + text.size();
  for (int64_t& size : sizes) {
    while (at != end && (*at == '(' || *at == ' ' || *at == ',')) ++at;
    const auto [next, error] = std::from_chars(at, end, size);
    if (error != std::errc() || size < 0) return std::nullopt;
    at = next;
  }
  while (at != end && (*at == ' ' || *at == ',')) ++at;
  if (at == end || *at != ')') return std::nullopt;
  return std::pair(sizes[0], sizes[1]);
}

/// Source: NumPy, numpy.lib.format.
Ids find_in_npy(const InputFile& file) {
  const std::string where = file.path().string();
  const std::string head = read_part(file, 0, 12);
  const auto refuse = [&](std::string_view expected, std::string_view found) {
    throw Error(fmt::format("{}: expected {} in the header, found {}", where, expected,
                            json_quote_short(found.substr(0, found.find_last_not_of(" \n") + 1))));
  };
  const int version = head.size() < 12 ? 0 : head[6];
  if (version != 1 && version != 2)
    throw Error(fmt::format("{}: expected .npy of version 1 or 2, found {}", where, version));
  const uint64_t begin = version == 1 ? 10 : 12;
  const uint64_t length = little_endian(std::string_view(head).substr(8, begin - 8));
  if (length > kMostNpyHeader || begin + length > file.size())
    throw Error(fmt::format("{}: expected a header within the file, found one of {} bytes", where, length));
  const std::string header = read_part(file, begin, length);
  const std::string_view type = npy_value(header, "'descr'", ',');
  const bool narrow = type == "'<i4',";
  if (!narrow && type != "'<i8',") refuse("'descr': '<i4' or '<i8'", header);
  if (npy_value(header, "'fortran_order'", ',') != "False,") refuse("'fortran_order': False", header);
  const auto shape = npy_shape(npy_value(header, "'shape'", ')'));
  if (!shape) refuse("'shape': (W, T)", header);
  return {shape->first, shape->second, begin + length, narrow ? 4 : 8};
}

}  // namespace

TokenWindows read_token_file(const std::filesystem::path& path, int64_t vocabulary_size) {
  const InputFile file(path);
  const bool is_npy = read_part(file, 0, kNpyMagic.size()) == kNpyMagic;
  const Ids ids = is_npy ? find_in_npy(file) : find_in_safetensors(file);
  const std::string where = path.string();
  if (ids.count < 1 || ids.width < 1 || ids.count > kMostTokens / ids.width) {
    throw Error(
        fmt::format("{}: expected 1 to {} tokens, found [{}, {}]", where, kMostTokens, ids.count, ids.width));
  }
  const auto total = static_cast<uint64_t>(ids.count * ids.width), size = static_cast<uint64_t>(ids.bytes);
  if (file.size() - ids.begin != total * size) {
    throw Error(fmt::format("{}: expected {} bytes of tokens [{}, {}], found {}", where, total * size,
                            ids.count, ids.width, file.size() - ids.begin));
  }
  TokenWindows windows{ids.count, ids.width, {}};
  windows.ids.reserve(total);
  read_in_pieces(
      total * size, kReadStep,
      [&](uint64_t at, std::span<uint8_t> piece) { file.read(ids.begin + at, piece); },
      [&](uint64_t, std::span<const uint8_t> piece) {
        for (size_t i = 0; i < piece.size(); i += size) {
          uint64_t bits = 0;
          for (size_t b = 0; b < size; ++b) bits |= uint64_t{piece[i + b]} << 8 * b;
          const int64_t id = size == 4 ? static_cast<int32_t>(bits) : static_cast<int64_t>(bits);
          if (id < 0 || id >= std::min<int64_t>(vocabulary_size, INT32_MAX)) {
            const auto at = static_cast<int64_t>(windows.ids.size());
            throw Error(fmt::format("{}: row {}, column {}: expected an id below {}, found {}", where,
                                    at / ids.width, at % ids.width, vocabulary_size, id));
          }
          windows.ids.push_back(static_cast<int32_t>(id));
        }
      });
  return windows;
}

}  // namespace twofour
