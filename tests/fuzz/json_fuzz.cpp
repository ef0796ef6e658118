#include "formats/json.h"

#include "tests/fuzz/fuzz.h"

using namespace twofour;

void twofour::fuzz_json(const uint8_t* data, size_t size) {
  expect_error_at_most([&] {
    const Json document = parse_json("file", text_of(data, size));
    const std::string text = format_json(document);
    promise(parse_json("again", text) == document);
    promise(format_json(parse_json("again", text)) == text);
  });
  json_quote_short(text_of(data, size));
}
