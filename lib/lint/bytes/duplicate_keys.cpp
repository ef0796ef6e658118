#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "lib/base/findings/and_more.h"
#include "lib/base/io/file.h"
#include "lib/lint/bytes/input.h"

namespace twofour {
namespace {

/// Looks for objects that have a key twice. It stores 64 bits for each key of an open object.
class KeyEvents : public JsonEvents {
 public:
  size_t found = 0;   ///< number of repeated keys
  std::string first;  ///< path of the first repeated key: "quantization_config.ignore"

  void null() override {}
  void boolean(bool) override {}
  void signed_number(int64_t) override {}
  void unsigned_number(uint64_t) override {}
  void float_number(double, std::string_view) override {}
  void string(std::string&) override {}
  void begin_object() override { open(); }
  void end_object() override { open_.pop_back(); }
  void begin_array() override { open(); }
  void end_array() override { open_.pop_back(); }
  void key(std::string& text) override {
    Level& level = open_.back();
    level.key = text.substr(0, kShown);
    if (level.keys.insert(hash_text(text).low).second || found++ > 0) return;
    for (const Level& l : open_) first += (first.empty() || l.key.empty() ? "" : ".") + l.key;
  }

 private:
  static constexpr size_t kShown = 256;
  struct Level {
    std::string key{};  ///< the last key; empty for an array
    std::unordered_set<uint64_t> keys{};
  };
  void unexpected(const std::string&) override {}
  /// Notes a new level. The search ends at the depth that readers refuse.
  void open() {
    constexpr size_t kDeepest = 80;
    if (open_.size() == kDeepest) throw Error("nested too deep");
    open_.emplace_back();
  }
  std::vector<Level> open_;
};

}  // namespace

void read_json_file(const std::filesystem::path& directory, const std::string& name, JsonEvents& events) {
  constexpr uint64_t kPiece = 1u << 20;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  const InputFile file(directory / name);
  std::string piece;
  uint64_t at = 0;
  read_json_pieces(
      name,
      [&] {
        piece.resize(std::min(kPiece, file.size() - at));
        file.read(at, {reinterpret_cast<uint8_t*>(piece.data()), piece.size()});
        const bool marked = at == 0 && piece.starts_with(kByteOrderMark);
        at += piece.size();
        return std::string_view(piece).substr(marked ? kByteOrderMark.size() : 0);
      },
      events);
}

void check_duplicate_keys(const std::filesystem::path& directory, const std::string& name,
                          LintReporter& reporter) {
  KeyEvents events;
  try {
    read_json_file(directory, name, events);
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) {
    return;  // another check reports this
  }
  if (events.found == 0) return;
  reporter.add("duplicate-key", {name, events.first}, "expected each key of an object once, found it again{}",
               and_more(events.found, "; {} more keys occur again"));
}

std::string_view rule_of_damage(std::string_view message, std::string_view rule) {
  return message.find("duplicate key") != message.npos ? "duplicate-key" : rule;
}

}  // namespace twofour
