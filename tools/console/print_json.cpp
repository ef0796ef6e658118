#include "tools/console/print_json.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "tools/console/console.h"

namespace twofour {

void print_json(const Json& json) {
  const std::string text = json.dump(2);
  write_stdout(
      fmt::format("{{\n  \"schema_version\": {},{}\n", kSchemaVersion, std::string_view(text).substr(1)));
}

void print_json(const Json& head, const std::vector<JsonList>& lists) {
  std::string opened = head.dump(2);
  opened.resize(opened.size() - 2);  // its "\n}"
  write_stdout(
      fmt::format("{{\n  \"schema_version\": {},{}", kSchemaVersion, std::string_view(opened).substr(1)));
  for (const JsonList& list : lists) {
    write_stdout(fmt::format(",\n  \"{}\": [", list.name));
    for (size_t i = 0; i < list.size; ++i) {
      write_stdout(fmt::format("{}\n    {}", i > 0 ? "," : "", json_line(list.element(i))));
    }
    write_stdout(list.size > 0 ? "\n  ]" : "]");
  }
  write_stdout("\n}\n");
}

}  // namespace twofour
