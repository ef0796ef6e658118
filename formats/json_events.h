#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "formats/json.h"

namespace twofour {

/// The events of a text while it is parsed, for texts too large to be stored as values. An event that is not
/// overridden is refused.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void null() { unexpected("null"); }
  virtual void boolean(bool) { unexpected("a boolean"); }
  /// A negative integer; all others go to `unsigned_number`.
  virtual void signed_number(int64_t value);
  virtual void unsigned_number(uint64_t value);
  virtual void float_number(double value, std::string_view text);
  virtual void string(std::string& text);
  virtual void begin_object() { unexpected("an object"); }
  virtual void key(std::string& text) = 0;
  virtual void end_object() = 0;
  virtual void begin_array() { unexpected("an array"); }
  virtual void end_array() = 0;

 protected:
  /// Throws Error: `found` is not what the reader expects here.
  virtual void unexpected(const std::string& found) = 0;
};

/// The next piece of a text, valid until the next call; an empty one ends it.
using JsonPieces = std::function<std::string_view()>;

/// Sends the contents of `text` to `events`. The parser does not recurse and stores one bit for each open
/// level. Throws Error naming `where` on text that is not JSON, on zero bytes, and if a string, a number or
/// the text between two takes more than 16 MiB: the parser stores all text since the last one began, and a
/// string several times.
void read_json(std::string_view where, std::string_view text, JsonEvents& events);
void read_json_pieces(std::string_view where, const JsonPieces& next, JsonEvents& events);

/// Throws Error as read_json() does on zero bytes and on long strings, numbers or gaps.
void check_json_text(std::string_view where, std::string_view text);

/// The shortest text that reads back as `value`, which is finite: "0.1", "1.0", "1e-05".
std::string json_float(double value);

/// Called with each object when it ends. If it returns false, the object is dropped from its array or object.
using KeepJson = std::function<bool(Json& object)>;

/// Parses one document that dump() wrote, in pieces, so that only the objects that `keep` accepts need
/// memory. Throws Error naming `where` as read_json() does and on nesting deeper than 80 levels; passes on
/// exceptions of `keep`.
Json parse_json_pieces(std::string_view where, const JsonPieces& next, const KeepJson& keep);

}  // namespace twofour
