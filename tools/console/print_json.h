#pragma once
#include <cstddef>
#include <functional>
#include <vector>

#include "formats/json.h"

namespace twofour {

/// The version of every document of --json, described in tools/JSON.md. It counts up when a field changes or
/// goes; new fields leave it.
inline constexpr int kSchemaVersion = 1;

/// One document on stdout: an object, after its schema_version.
void print_json(const Json& json);

/// The elements of a list that a document has under a name.
struct JsonList {
  const char* name;
  size_t size;
  std::function<Json(size_t)> element;
};
/// The same of a document that ends with long lists, an element a line: as one document in memory they would
/// take several times what they are made from.
void print_json(const Json& head, const std::vector<JsonList>& lists);

}  // namespace twofour
