#pragma once
#include <cstddef>
#include <functional>
#include <vector>

#include "formats/json.h"

namespace twofour {

/// The version of the documents of --json, which tools/JSON.md describes. It increases if a field changes or
/// is removed, but not if a field is added.
inline constexpr int kSchemaVersion = 1;

/// Prints a document on stdout. It is an object that begins with schema_version.
void print_json(const Json& json);

/// A named list of a document, whose elements are made one by one.
struct JsonList {
  const char* name;
  size_t size;
  std::function<Json(size_t)> element;
};
/// Prints a document that ends with long lists, with one element per line. As one document in memory, the
/// lists would take several times the memory of their source.
void print_json(const Json& head, const std::vector<JsonList>& lists);

}  // namespace twofour
