#include <string_view>
#include <vector>

#include "lib/source/tokenizer/tokenizer.h"
#include "lib/source/tokenizer/unicode.h"
#include "tests/fuzz/fuzz.h"

using namespace twofour;

void twofour::fuzz_tokenizer(const uint8_t* data, size_t size) {
  const std::string_view input = text_of(data, size), file = input.substr(0, input.find('\0'));
  const std::string_view text = input.substr(std::min(file.size() + 1, input.size()));
  expect_error_at_most([&] {
    const Tokenizer tokenizer = Tokenizer::parse("tokenizer.json", file);
    promise(tokenizer.vocabulary_size() > 0 && tokenizer.vocabulary_size() <= 1 << 22);
    const std::vector<int32_t> ids = tokenizer.encode(text, false);
    for (const int32_t id : ids) promise(tokenizer.find(tokenizer.token(id)) == id);
    promise(tokenizer.encode(text, true).size() >= ids.size());
    promise(find_not_utf8(tokenizer.decode(ids, false)) == std::string_view::npos);
    tokenizer.decode(ids, true);
  });
}
