#include "formats/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "formats/error.h"
#include "formats/json.h"
#include "formats/json_events.h"

namespace twofour {
namespace {

/// Builds a header from parser events, so that only the tensors themselves take memory.
class HeaderEvents : public JsonEvents {
 public:
  explicit HeaderEvents(std::string_view where) : where_(where) {}
  SafetensorsHeader take() { return std::move(header_); }

  void unsigned_number(uint64_t v) override {
    if (state_ != State::kShape && state_ != State::kOffsets) return unexpected(fmt::format("{}", v));
    if (v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return unexpected(fmt::format("{}", v));
    if (numbers_.size() == kSafetensorsMaxRank) {
      fail(fmt::format("expected at most {} numbers in an array, found more", kSafetensorsMaxRank));
    }
    numbers_.push_back(static_cast<int64_t>(v));
  }

  void string(std::string& text) override {
    if (state_ == State::kMetadata) {
      if (header_.metadata.size() == kSafetensorsMaxMetadata) {
        fail(fmt::format("expected at most {} entries of __metadata__, found more", kSafetensorsMaxMetadata));
      }
      header_.metadata[key_] = std::move(text);
    } else if (state_ == State::kTensor && field_ == Field::kDtype) {
      const auto dtype = dtype_from_name(text);
      if (!dtype) fail(fmt::format("unknown dtype {}", json_quote_short(text)));
      tensor_.dtype = *dtype;
    } else {
      return unexpected(json_quote_short(text));
    }
  }

  void begin_object() override {
    if (state_ == State::kStart) {
      state_ = State::kTop;
    } else if (state_ == State::kTop) {
      if (key_ == "__metadata__") {
        if (metadata_seen_) fail("duplicate key");
        metadata_seen_ = true;
        state_ = State::kMetadata;
      } else {
        tensor_ = TensorInfo{};
        tensor_.name = key_;
        fields_seen_ = 0;
        state_ = State::kTensor;
      }
    } else {
      return unexpected("an object");
    }
  }

  void key(std::string& text) override {
    if (state_ == State::kTensor) {
      field_ = text == "dtype"          ? Field::kDtype
               : text == "shape"        ? Field::kShape
               : text == "data_offsets" ? Field::kOffsets
                                        : Field::kNone;
      if (field_ == Field::kNone) {
        fail(fmt::format("expected dtype, shape and data_offsets, found key {}", json_quote_short(text)));
      }
      const unsigned bit = 1u << static_cast<unsigned>(field_);
      if (fields_seen_ & bit) fail(fmt::format("duplicate key '{}'", text));
      fields_seen_ |= bit;
      return;
    }
    if (text.size() > kSafetensorsMaxName) {
      throw Error(fmt::format("{}: header: expected names of at most {} bytes, found {}", where_,
                              kSafetensorsMaxName, json_quote_short(text)));
    }
    key_ = text;
    if (state_ == State::kMetadata && header_.metadata.count(key_)) fail("duplicate key in __metadata__");
  }

  void end_object() override {
    if (state_ == State::kTensor) {
      if (fields_seen_ != 0b1110u) fail("expected dtype, shape and data_offsets, found fewer");
      header_.tensors.push_back(std::move(tensor_));
      state_ = State::kTop;
    } else if (state_ == State::kMetadata) {
      state_ = State::kTop;
    } else {
      state_ = State::kEnd;
    }
  }

  void begin_array() override {
    if (state_ != State::kTensor || (field_ != Field::kShape && field_ != Field::kOffsets)) {
      return unexpected("an array");
    }
    numbers_.clear();
    state_ = field_ == Field::kShape ? State::kShape : State::kOffsets;
  }

  void end_array() override {
    if (state_ == State::kShape) {
      tensor_.shape.assign(numbers_.begin(), numbers_.end());
    } else {
      if (numbers_.size() != 2) fail(fmt::format("expected two data_offsets, found {}", numbers_.size()));
      tensor_.begin = static_cast<uint64_t>(numbers_[0]);
      tensor_.end = static_cast<uint64_t>(numbers_[1]);
    }
    state_ = State::kTensor;
  }

 private:
  enum class State { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };
  enum class Field { kNone, kDtype, kShape, kOffsets };

  [[noreturn]] void fail(const std::string& message) const {
    throw Error(fmt::format("{}: {}: {}", where_, json_quote(key_), message));
  }
  void unexpected(const std::string& found) override {
    const char* expected = state_ == State::kStart      ? "an object"
                           : state_ == State::kTop      ? "an object that describes a tensor"
                           : state_ == State::kMetadata ? "a string"
                           : state_ == State::kTensor   ? "a dtype, shape or data_offsets"
                                                        : "an unsigned 63-bit integer";
    fail(fmt::format("expected {}, found {}", expected, found));
  }

  std::string_view where_;
  SafetensorsHeader header_;
  State state_ = State::kStart;
  Field field_ = Field::kNone;
  unsigned fields_seen_ = 0;
  bool metadata_seen_ = false;
  std::string key_;
  TensorInfo tensor_;
  std::vector<int64_t> numbers_;
};

void check_names(std::string_view where, const std::vector<TensorInfo>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorInfo& t : tensors) names.push_back(t.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) throw Error(fmt::format("{}: {}: duplicate key", where, json_quote(*twice)));
}

void check_offsets(std::string_view where, const std::vector<TensorInfo>& tensors, uint64_t data_bytes) {
  uint64_t position = 0;
  for (const TensorInfo& t : tensors) {
    const std::string tensor = fmt::format("{}: {}", where, json_quote(t.name));
    if (t.end < t.begin) {
      throw Error(fmt::format("{}: data_offsets run backwards: [{}, {}]", tensor, t.begin, t.end));
    }
    if (t.begin != position) {
      throw Error(
          fmt::format("{}: expected data to begin at {}, where the tensor before it ends, found {} ({})",
                      tensor, position, t.begin, t.begin < position ? "overlap" : "hole"));
    }
    const uint64_t bytes = tensor_bytes(tensor, t.dtype, t.shape);
    if (bytes != t.bytes()) {
      throw Error(fmt::format("{}: expected {} bytes for {}, found {} between its data_offsets", tensor,
                              bytes, describe(t.dtype, t.shape), t.bytes()));
    }
    position = t.end;
  }
  if (position != data_bytes) {
    throw Error(fmt::format("{}: expected {} bytes of data (the header), found {} in the file", where,
                            position, data_bytes));
  }
}

}  // namespace

std::string describe(DType dtype, std::span<const int64_t> shape) {
  return fmt::format("{} [{}]", dtype_name(dtype), fmt::join(shape, ", "));
}

uint64_t tensor_bytes(std::string_view where, DType dtype, std::span<const int64_t> shape) {
  uint64_t bits = static_cast<uint64_t>(dtype_bits(dtype));
  bool empty = false, overflow = false;
  for (const int64_t d : shape) {
    empty = empty || d == 0;
    overflow = __builtin_mul_overflow(bits, static_cast<uint64_t>(d), &bits) || overflow;
  }
  if (empty) return 0;
  if (overflow) throw Error(fmt::format("{}: {} overflows", where, describe(dtype, shape)));
  if (bits % 8 != 0) {
    throw Error(fmt::format("{}: {} does not end on a whole byte", where, describe(dtype, shape)));
  }
  return bits / 8;
}

namespace {

/// Describes the kind of file that begins with `first`, and the remedy. "" if the kind is not known. The
/// upper bytes of a safetensors header's length are zero, so no text begins like a header.
std::string other_format(std::span<const uint8_t> first) {
  const std::string_view head(reinterpret_cast<const char*>(first.data()), first.size());
  const size_t text = std::min(head.find_first_not_of(" \t\r\n"), head.size());
  const auto begins = [&](std::string_view magic) { return head.starts_with(magic); };
  const auto tag = [&](std::string_view name) {
    return head.size() >= text + name.size() &&
           std::equal(name.begin(), name.end(), head.begin() + static_cast<std::ptrdiff_t>(text),
                      [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); });
  };
  const bool has_json = head.size() > kSafetensorsPrefix && head[kSafetensorsPrefix] == '{';
  if (has_json) return "";
  if (begins("version https://git-lfs")) return "a Git LFS pointer: run git lfs pull";
  if (tag("<!doctype html") || tag("<html") || tag("<head"))
    return "an HTML page, which servers send in place of a file that they do not give: download it again";
  if (tag("<?xml") || tag("<error"))
    return "an XML document, which servers send in place of a file that they do not give: download it again";
  if (begins("\x1F\x8B\x08")) return "a gzip archive: unpack it";
  if (begins("PK\x03\x04")) return "a zip archive, as torch.save writes: convert it to safetensors";
  if (begins("\x80\x02") || begins("\x80\x03") || begins("\x80\x04") || begins("\x80\x05"))
    return "a Python pickle: convert it to safetensors";
  if (begins("GGUF")) return "a GGUF file: take the checkpoint that it was made from";
  if (tag("{")) return "JSON without a length before it, perhaps a server's message: download it again";
  // The length of a header is in the first bytes, whose last ones are 0.
  const bool is_text =
      head.size() >= kSafetensorsPrefix && std::all_of(head.begin(), head.end(), [](unsigned char c) {
        return (c >= 0x20 && c < 0x7F) || c == '\n' || c == '\r' || c == '\t';
      });
  return is_text ? "text" : "";
}

}  // namespace

uint64_t parse_safetensors_prefix(std::string_view where, std::span<const uint8_t> first,
                                  uint64_t file_size) {
  if (const std::string other = other_format(first.first(std::min<size_t>(first.size(), kSafetensorsHead)));
      !other.empty())
    throw Error(fmt::format("{}: expected a safetensors file, found {}", where, other));
  if (file_size < kSafetensorsPrefix || first.size() < kSafetensorsPrefix) {
    throw Error(
        fmt::format("{}: expected at least {} bytes, found {}", where, kSafetensorsPrefix, file_size));
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kSafetensorsPrefix; ++i) length |= uint64_t{first[i]} << (8 * i);
  constexpr uint64_t kNoLength = uint64_t{1} << 40;  // far beyond any header
  if (length > kNoLength) {
    throw Error(fmt::format(
        "{}: expected a safetensors file with a header of at most {} bytes, found one that begins with other "
        "bytes ({:02x})",
        where, kSafetensorsMaxHeader, fmt::join(first.first(kSafetensorsPrefix), " ")));
  }
  if (length > kSafetensorsMaxHeader) {
    throw Error(fmt::format("{}: expected a header of at most {} bytes, found one of {}", where,
                            kSafetensorsMaxHeader, length));
  }
  if (length > file_size - kSafetensorsPrefix) {
    throw Error(fmt::format("{}: expected a header of {} bytes, found {} bytes of file behind its length",
                            where, length, file_size - kSafetensorsPrefix));
  }
  return length;
}

SafetensorsHeader parse_safetensors_entries(std::string_view where, std::string_view json) {
  if (json.empty() || json[0] != '{') {
    throw Error(fmt::format("{}: expected a header that begins with '{{', found {}", where,
                            json.empty() ? std::string("an empty one") : json_quote(json.substr(0, 1))));
  }
  HeaderEvents events(where);
  read_json(fmt::format("{}: header", where), json, events);
  SafetensorsHeader header = events.take();
  check_names(where, header.tensors);
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  return header;
}

SafetensorsHeader parse_safetensors_header(std::string_view where, std::string_view json,
                                           uint64_t data_bytes) {
  SafetensorsHeader header = parse_safetensors_entries(where, json);
  check_offsets(where, header.tensors, data_bytes);
  return header;
}

bool is_stored_before(const TensorInfo& a, const TensorInfo& b) {
  return std::tie(a.dtype, a.name) < std::tie(b.dtype, b.name);
}

uint64_t assign_offsets(std::vector<TensorInfo>& tensors) {
  std::sort(tensors.begin(), tensors.end(), is_stored_before);
  uint64_t position = 0;
  for (TensorInfo& t : tensors) {
    t.begin = position;
    position += tensor_bytes(t.name, t.dtype, t.shape);
    t.end = position;
  }
  return position;
}

std::string format_safetensors_header(std::span<const TensorInfo> tensors,
                                      const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      json += fmt::format("{}{}:{}", json.back() == '{' ? "" : ",", json_quote(key), json_quote(value));
    }
    json += '}';
  }
  for (const TensorInfo& t : tensors) {
    json += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        json.size() == 1 ? "" : ",", json_quote(t.name), dtype_name(t.dtype),
                        fmt::join(t.shape, ","), t.begin, t.end);
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string bytes(kSafetensorsPrefix, '\0');
  for (size_t i = 0; i < kSafetensorsPrefix; ++i)
    bytes[i] = static_cast<char>((json.size() >> (8 * i)) & 0xFF);
  return bytes + json;
}

}  // namespace twofour
