#pragma once
#include <cstddef>
#include <functional>
#include <vector>

#include "formats/json.h"

namespace twofour {

/// The version of every document of --json, described in tools/JSON.md. It increases when a field changes or
/// is removed, but not for new fields.
inline constexpr int kSchemaVersion = 1;

/// Prints one document on stdout: an object that begins with its schema_version.
void print_json(const Json& json);

/// The elements of a named list in a document.
struct JsonList {
  const char* name;
  size_t size;
  std::function<Json(size_t)> element;
};
/// Prints a document that ends with long lists, one element per line: as one document in memory they would
/// take several times the memory of their source.
void print_json(const Json& head, const std::vector<JsonList>& lists);

}  // namespace twofour
