#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "formats/json.h"

namespace twofour {

/// Receives the events of a text while it is parsed, for texts that are too large to be stored as values. An
/// event whose function is not overridden is refused.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void null() { unexpected("null"); }
  virtual void boolean(bool) { unexpected("a boolean"); }
  /// A negative integer. All other integers go to `unsigned_number`.
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
  /// Throws Error, because the reader does not expect `found` here.
  virtual void unexpected(const std::string& found) = 0;
};

/// Returns the next piece of a text, which is valid until the next call. An empty piece ends the text.
using JsonPieces = std::function<std::string_view()>;

/// Sends the contents of `text` to `events`. The parser does not recurse, and stores one bit for each open
/// level. Throws Error naming `where` on text that is not JSON and on zero bytes. Also throws Error if a
/// string, a number, or the text between two of them takes more than 16 MiB: the parser stores all text since
/// the last of these began, and stores a string several times.
void read_json(std::string_view where, std::string_view text, JsonEvents& events);
void read_json_pieces(std::string_view where, const JsonPieces& next, JsonEvents& events);

/// Checks a text before it is parsed. Throws Error like read_json() on zero bytes and on strings, numbers or
/// gaps that are too long.
void check_json_text(std::string_view where, std::string_view text);

/// Returns the shortest text that reads back as `value`, such as "0.1", "1.0" or "1e-05". `value` is finite.
std::string json_float(double value);

/// A function that is called with each object when the object ends. If it returns false, the object is
/// removed from its array or object.
using KeepJson = std::function<bool(Json& object)>;

/// Parses one document that dump() wrote, in pieces. Only the objects that `keep` accepts take memory. Throws
/// Error naming `where` like read_json(), and on more than 80 levels of nesting. Passes on exceptions of
/// `keep`.
Json parse_json_pieces(std::string_view where, const JsonPieces& next, const KeepJson& keep);

}  // namespace twofour
