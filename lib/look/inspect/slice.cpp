#include "lib/look/inspect/slice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "formats/error.h"
#include "lib/look/inspect/numbers.h"

namespace twofour {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

class RangeParser {
 public:
  RangeParser(std::string_view where, std::string_view text) : where_(where), text_(text) {}

  SliceRange parse(std::string_view item, int64_t size) const {
    const size_t colon = item.find(':');
    if (colon == item.npos) {
      const int64_t i = number(item, size);
      if (i < 0 || i >= size) fail(fmt::format("a number below {}", size), item);
      return {i, i + 1, true};
    }
    const auto cut = [&](std::string_view end, int64_t otherwise) {
      return trimmed(end).empty() ? otherwise : std::clamp<int64_t>(number(end, size), 0, size);
    };
    const int64_t begin = cut(item.substr(0, colon), 0), end = cut(item.substr(colon + 1), size);
    return {begin, std::max(begin, end)};
  }

  [[noreturn]] void fail(const std::string& expected, std::string_view found) const {
    throw Error(fmt::format("{}[{}]: expected {}, found '{}'", where_, text_, expected, found));
  }

 private:
  int64_t number(std::string_view item, int64_t size) const {
    const std::string_view digits = trimmed(item);
    int64_t value = 0;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || stop != digits.data() + digits.size() || digits.empty()) {
      fail("numbers and begin:end", item);
    }
    return value < 0 ? value + size : value;
  }

  std::string_view where_, text_;
};

int64_t count_of(const std::vector<SliceRange>& ranges) {
  int64_t count = 1;
  for (const SliceRange& r : ranges) {
    if (__builtin_mul_overflow(count, r.end - r.begin, &count)) return kMaxSliceValues + 1;
  }
  return count;
}

/// Parses the ranges of a slice and stores its shape in `out`. Throws Error if the slice is too large.
std::vector<SliceRange> begin_slice(const SliceText& text, SliceValues& out) {
  const auto ranges = parse_slice(text.name, text.ranges, out.whole);
  if (count_of(ranges) > kMaxSliceValues) {
    throw Error(fmt::format("{}: expected a slice of at most {} values, found a larger one of {}", text.name,
                            kMaxSliceValues, out.whole));
  }
  for (const SliceRange& r : ranges) {
    if (!r.single) out.shape.push_back(r.end - r.begin);
  }
  return ranges;
}

/// The slice of a module, or of one of its matrices. Empty if none has that name.
std::optional<SliceValues> slice_weights(const Checkpoint& c, const SliceText& text) {
  const NamedNumbers numbers(c);
  const auto weights = numbers.find(text.name);
  if (!weights) return std::nullopt;
  SliceValues out{text.name, weights->format, weights->shape, {}, {}};
  const auto ranges = begin_slice(text, out);
  std::vector<float> values(static_cast<size_t>(count_of(ranges)));
  numbers.read(*weights, ranges, values);
  out.values.assign(values.begin(), values.end());
  return out;
}

SliceValues slice_tensor(const Checkpoint& c, size_t tensor, const SliceText& text) {
  const TensorInfo& t = c.tensors()[tensor];
  SliceValues out{text.name, std::string(dtype_name(t.dtype)), t.shape, {}, {}};
  out.values = read_elements(c, tensor, begin_slice(text, out));
  return out;
}

/// The slice of a module, matrix or tensor. Empty if none has that name.
std::optional<SliceValues> find_slice(const Checkpoint& c, const SliceText& text) {
  if (auto weights = slice_weights(c, text)) return weights;
  if (const auto tensor = c.find(text.name)) return slice_tensor(c, *tensor, text);
  if (!c.is_view()) return std::nullopt;
  const Checkpoint stored = Checkpoint::open(c.path());
  const auto tensor = stored.find(text.name);
  return tensor ? std::optional(slice_tensor(stored, *tensor, text)) : std::nullopt;
}

}  // namespace

SliceText split_slice(std::string_view text) {
  const size_t open = text.ends_with(']') ? text.rfind('[') : text.npos;
  if (open == text.npos) return {std::string(text), "", false};
  return {std::string(text.substr(0, open)), std::string(text.substr(open + 1, text.size() - open - 2)),
          true};
}

std::vector<SliceRange> parse_slice(std::string_view where, std::string_view text,
                                    const std::vector<int64_t>& shape) {
  const RangeParser parser(where, text);
  std::vector<SliceRange> ranges;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (ranges.size() == shape.size()) parser.fail(fmt::format("at most {} dimensions", shape.size()), text);
    ranges.push_back(parser.parse(text.substr(begin, end - begin), shape[ranges.size()]));
    begin = end + 1;
  }
  while (ranges.size() < shape.size()) ranges.push_back({0, shape[ranges.size()]});
  return ranges;
}

SliceValues read_slice(const Checkpoint& checkpoint, std::string_view expression) {
  if (auto whole = find_slice(checkpoint, {std::string(expression), "", false})) return std::move(*whole);
  const SliceText text = split_slice(expression);
  if (text.has_ranges) {
    if (auto part = find_slice(checkpoint, text)) return std::move(*part);
  }
  throw Error(fmt::format("{}: expected a module or a tensor, found none of that name in {}", text.name,
                          checkpoint.path().string()));
}

}  // namespace twofour
