#include "lib/recipe/artifact/yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/emitterstyle.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>
#include <utility>

#include "formats/error.h"
#include "formats/json.h"

namespace twofour {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_control(char c) {
  return (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F;
}

/// A text with the offsets at which its lines begin.
class TextLines {
 public:
  explicit TextLines(std::string_view text) : text_(text), starts_{0} {
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') starts_.push_back(i + 1);
    }
  }
  /// A node at the parser's line and column, which both count from 0. The parser counts columns in bytes.
  YamlNode node(int line, int column) const {
    const size_t l = std::min(static_cast<size_t>(std::max(line, 0)), starts_.size() - 1);
    const std::string_view before =
        text_.substr(starts_[l]).substr(0, static_cast<size_t>(std::max(column, 0)));
    YamlNode node;
    node.line = l + 1;
    node.column = 1 + static_cast<size_t>(std::count_if(before.begin(), before.end(),
                                                        [](char c) { return (c & 0xC0) != 0x80; }));
    return node;
  }
  YamlNode node(size_t byte) const {
    const auto line = std::upper_bound(starts_.begin(), starts_.end(), byte) - starts_.begin() - 1;
    return node(static_cast<int>(line), static_cast<int>(byte - starts_[static_cast<size_t>(line)]));
  }

 private:
  std::string_view text_;
  std::vector<size_t> starts_;
};

/// Throws Error on bytes that are not permitted in recipes, before the parser reads them.
void check_text(std::string_view where, std::string_view text, const TextLines& lines) {
  for (size_t i = 0; i < text.size();) {
    const int bytes = utf8_bytes(text.substr(i));
    if (bytes <= 0) yaml_error(where, lines.node(i), "expected UTF-8, found other bytes");
    if (is_control(text[i])) {
      yaml_error(
          where, lines.node(i),
          fmt::format("expected text, found the control character 0x{:02X}", static_cast<unsigned>(text[i])));
    }
    i += static_cast<size_t>(bytes);
  }
}

/// Builds the tree from the parser's events.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::string_view where, const TextLines& lines) : where_(where), lines_(lines) {}
  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0) fail(mark, "expected one document, found another");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(node(mark, "", anchor)); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { fail(mark, kAlias); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    YamlNode scalar = node(mark, tag, anchor);
    scalar.kind = YamlNode::Kind::kScalar;
    scalar.quoted = tag == "!";
    scalar.text = text;
    if (std::any_of(text.begin(), text.end(), is_control)) {
      yaml_error(where_, scalar, "expected text, found a control character");
    }
    add(std::move(scalar));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::kSequence);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::kMap);
  }
  void OnMapEnd() override { close(); }

  static constexpr const char* kAlias =
      "expected no alias, found one; write a glob that begins with * in quotes";

 private:
  struct Open {
    YamlNode node;
    std::set<std::string> names = {};  ///< keys of a map
  };

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& problem) const {
    yaml_error(where_, lines_.node(mark.line, mark.column), problem);
  }
  YamlNode node(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    if (anchor != 0) fail(mark, "expected no anchor, found one");
    if (!tag.empty() && tag != "?" && tag != "!")
      fail(mark, fmt::format("expected no tag, found {}", json_quote_short(tag)));
    return lines_.node(mark.line, mark.column);
  }
  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YamlNode::Kind kind) {
    YamlNode opened = node(mark, tag, anchor);
    opened.kind = kind;
    if (open_.size() == kDeepestYaml)
      yaml_error(where_, opened, fmt::format("expected at most {} lists within each other", kDeepestYaml));
    open_.push_back({std::move(opened)});
  }
  void close() {
    YamlNode closed = std::move(open_.back().node);
    open_.pop_back();
    add(std::move(closed));
  }
  void add(YamlNode child) {
    if (open_.empty()) {
      if (child.kind != YamlNode::Kind::kNull) root_ = std::move(child);
      return;
    }
    auto& [parent, names] = open_.back();
    if (parent.kind != YamlNode::Kind::kMap || parent.keys.size() > parent.items.size()) {
      // The parser does not report the place of an empty value, so the place of its key or parent serves.
      if (child.kind == YamlNode::Kind::kNull) {
        const YamlNode& near = parent.keys.empty() ? parent : parent.keys.back();
        child.line = near.line, child.column = near.column;
      }
      parent.items.push_back(std::move(child));
      return;
    }
    if (child.kind != YamlNode::Kind::kScalar)
      yaml_error(where_, child, "expected text for a key, found none");
    if (!names.insert(child.text).second) {
      yaml_error(where_, child,
                 fmt::format("expected each key once, found {} again", json_quote_short(child.text)));
    }
    parent.keys.push_back(std::move(child));
  }

  std::string_view where_;
  const TextLines& lines_;
  YamlNode root_;
  std::vector<Open> open_;
  int documents_ = 0;
};

std::string found(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kSequence:
      return "a list";
    case YamlNode::Kind::kMap:
      return "keys and values";
    case YamlNode::Kind::kScalar:
      break;
  }
  return json_quote_short(node.text);
}

}  // namespace

void yaml_error(std::string_view where, const YamlNode& at, const std::string& problem) {
  throw Error(fmt::format("{}:{}:{}: {}", where, at.line, at.column, problem));
}

YamlNode parse_yaml(std::string_view where, std::string_view text) {
  if (text.size() > kLongestYaml) {
    throw Error(fmt::format("{}: expected at most {} bytes, found {}", where, kLongestYaml, text.size()));
  }
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const TextLines lines(text);
  check_text(where, text, lines);
  // The explicit end of the document makes the parser refuse a quote that is still open at the end.
  std::istringstream stream(std::string(text) + "\n...\n");
  TreeBuilder builder(where, lines);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& e) {
    const bool alias = e.msg == YAML::ErrorMsg::UNKNOWN_ANCHOR;
    yaml_error(where, lines.node(e.mark.line, e.mark.column),
               alias ? TreeBuilder::kAlias : fmt::format("expected YAML, found an error: {}", e.msg));
  }
  return builder.take();
}

void YamlPlace::fail(const std::string& problem) const {
  yaml_error(where, node, path.empty() ? problem : fmt::format("{}: {}", path, problem));
}

void YamlPlace::expected(std::string_view what) const {
  fail(fmt::format("expected {}, found {}", what, found(node)));
}

YamlPlace YamlPlace::child(std::string_view key, const YamlNode& value) const {
  return {where, path.empty() ? std::string(key) : fmt::format("{}.{}", path, key), value};
}

YamlPlace YamlPlace::element(size_t i) const {
  return {where, fmt::format("{}[{}]", path, i), node.items[i]};
}

std::optional<YamlPlace> YamlPlace::find(std::string_view key) const {
  for (size_t i = 0; i < node.keys.size(); ++i) {
    if (node.keys[i].text == key) return child(key, node.items[i]);
  }
  return std::nullopt;
}

YamlPlace YamlPlace::required(std::string_view key) const {
  if (const auto place = find(key)) return *place;
  fail(fmt::format("expected the key {}, found none", key));
}

const std::string& YamlPlace::text(std::string_view what) const {
  if (node.kind != YamlNode::Kind::kScalar || node.text.empty()) expected(what);
  return node.text;
}

bool YamlPlace::boolean() const {
  const bool known = node.text == "true" || node.text == "false";
  if (node.kind != YamlNode::Kind::kScalar || node.quoted || !known) expected("true or false");
  return node.text == "true";
}

int64_t YamlPlace::integer(int64_t least, int64_t most) const {
  int64_t number = 0;
  const char* end = node.text.data() + node.text.size();
  const auto [stop, error] = std::from_chars(node.text.data(), end, number);
  const bool is_number = node.kind == YamlNode::Kind::kScalar && !node.quoted && error == std::errc() &&
                         stop == end && !node.text.empty();
  if (!is_number || number < least || number > most)
    expected(fmt::format("a whole number from {} to {}", least, most));
  return number;
}

void YamlPlace::check_map(std::string_view what, const std::vector<std::string>& keys) const {
  if (node.kind != YamlNode::Kind::kMap) expected(what);
  for (const YamlNode& key : node.keys) {
    if (std::find(keys.begin(), keys.end(), key.text) != keys.end()) continue;
    YamlPlace{where, path, key}.expected(fmt::format("one of the keys {}", either(keys)));
  }
}

}  // namespace twofour
