#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <utility>

#include "formats/json.h"
#include "formats/json_events.h"

namespace twofour {

int utf8_bytes(std::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return 1;
  const int bytes = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  // Accept only the shortest encoding, no surrogates, and nothing above U+10FFFF.
  uint8_t least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (int i = 1; i < bytes; ++i) {
    const auto c = static_cast<size_t>(i) < text.size() ? static_cast<uint8_t>(text[static_cast<size_t>(i)])
                                                        : uint8_t{0};
    if (c < least || c > most) return -i;
    least = 0x80, most = 0xBF;
  }
  return bytes == 0 ? -1 : bytes;
}

namespace {

void write_quoted(std::string& out, std::string_view text) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
    if (const size_t at = kEscaped.find(c); at != kEscaped.npos) {
      out += '\\';
      out += kLetters[at];
      ++i;
    } else if (static_cast<uint8_t>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", c);
      ++i;
    } else if (static_cast<uint8_t>(c) < 0x80) {
      out += c;
      ++i;
    } else {
      const int bytes = utf8_bytes(text.substr(i));
      const auto step = static_cast<size_t>(std::abs(bytes));
      out += bytes > 0 ? text.substr(i, step) : "\xEF\xBF\xBD";
      i += step;
    }
  }
  out += '"';
}

}  // namespace

class JsonWriter {
 public:
  /// `indent` is the number of spaces for each level, or -1 for one line. If `plain` is true, raw numbers are
  /// written unchanged.
  JsonWriter(int indent, bool plain) : indent_(indent), plain_(plain) {}
  std::string take() { return std::move(out_); }

  void write(const Json& json) {
    switch (json.type_) {
      case Json::Type::kNull:
        out_ += "null";
        break;
      case Json::Type::kBoolean:
        out_ += json.boolean_ ? "true" : "false";
        break;
      case Json::Type::kSigned:
        out_ += fmt::format_int(json.signed_).c_str();
        break;
      case Json::Type::kUnsigned:
        out_ += fmt::format_int(json.unsigned_).c_str();
        break;
      case Json::Type::kFloat:
        write_float(json.float_);
        break;
      case Json::Type::kRaw:
        if (plain_) {
          out_ += *json.string_;
        } else {
          write_quoted(out_, std::string(Json::kRawMark) + *json.string_);
        }
        break;
      case Json::Type::kString:
        write_quoted(out_, *json.string_);
        break;
      case Json::Type::kArray:
        write_list('[', *json.array_, ']', [&](const Json& item) { write(item); });
        break;
      case Json::Type::kObject:
        write_list('{', *json.object_, '}', [&](const Json::Member& member) {
          write_quoted(out_, member.first);
          out_ += indent_ < 0 ? ":" : ": ";
          write(member.second);
        });
        break;
    }
  }

 private:
  void write_float(double value) { out_ += std::isfinite(value) ? json_float(value) : "null"; }
  void begin_line() {
    if (indent_ < 0) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(indent_) * level_, ' ');
  }
  template <class Items, class WriteItem>
  void write_list(char opening, const Items& items, char closing, const WriteItem& write_item) {
    out_ += opening;
    ++level_;
    for (const auto& item : items) {
      if (&item != &items.front()) out_ += ',';
      begin_line();
      write_item(item);
    }
    --level_;
    if (!items.empty()) begin_line();
    out_ += closing;
  }

  std::string out_;
  int indent_;
  bool plain_;
  size_t level_ = 0;
};

std::string Json::dump(int indent) const {
  JsonWriter writer(indent, false);
  writer.write(*this);
  return writer.take();
}

std::string format_json(const Json& json) {
  JsonWriter writer(2, true);
  writer.write(json);
  return writer.take() + "\n";
}

std::string json_line(const Json& json) { return json.dump(); }

std::string json_quote_short(std::string_view text) {
  constexpr size_t kShown = 256;
  if (text.size() <= kShown) return json_quote(text);
  return fmt::format("{}... ({} bytes)", json_quote(text.substr(0, kShown)), text.size());
}

std::string json_quote(std::string_view text) {
  std::string out;
  write_quoted(out, text);
  return out;
}

}  // namespace twofour
