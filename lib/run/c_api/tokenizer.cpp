#include "lib/source/tokenizer/tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/error.h"
#include "lib/run/runtime/c_guard.h"
#include "lib/run/runtime/twofour.h"

using namespace twofour;

struct twofour_tokenizer {
  Tokenizer tokenizer;
};

int twofour_open_tokenizer(const char* path, twofour_tokenizer** tokenizer) {
  return guarded([&] {
    given(tokenizer, "tokenizer") = nullptr;
    *tokenizer = new twofour_tokenizer{Tokenizer::load(&given(path, "path"))};
  });
}

void twofour_close_tokenizer(twofour_tokenizer* tokenizer) { delete tokenizer; }

int64_t twofour_vocabulary_size(const twofour_tokenizer* tokenizer) {
  return tokenizer == nullptr ? 0 : tokenizer->tokenizer.vocabulary_size();
}

int twofour_encode(const twofour_tokenizer* tokenizer, const char* text, uint64_t bytes, int32_t add_special,
                   int32_t* ids, int64_t room, int64_t* count) {
  return guarded([&] {
    given(count, "count") = 0;
    if (room < 0) throw Error(fmt::format("room: expected 0 or more, found {}", room));
    const std::string_view all(bytes == 0 ? "" : &given(text, "text"), static_cast<size_t>(bytes));
    const std::vector<int32_t> found = given(tokenizer, "tokenizer").tokenizer.encode(all, add_special != 0);
    const auto copied_ids = std::min(found.size(), static_cast<size_t>(room));
    if (copied_ids > 0) std::copy_n(found.begin(), copied_ids, &given(ids, "ids"));
    *count = static_cast<int64_t>(found.size());
  });
}

int twofour_decode(const twofour_tokenizer* tokenizer, const int32_t* ids, int64_t count,
                   int32_t skip_special, char** text, uint64_t* bytes) {
  return guarded([&] {
    given(text, "text") = nullptr;
    if (count < 0) throw Error(fmt::format("count: expected 0 or more, found {}", count));
    const Tokenizer& from = given(tokenizer, "tokenizer").tokenizer;
    const std::span some(count == 0 ? ids : &given(ids, "ids"), static_cast<size_t>(count));
    const std::string all = from.decode(some, skip_special != 0);
    *text = copied(all);
    if (bytes != nullptr) *bytes = all.size();
  });
}

int twofour_token(const twofour_tokenizer* tokenizer, int32_t id, char** text, uint64_t* bytes) {
  return guarded([&] {
    given(text, "text") = nullptr;
    const std::string token(given(tokenizer, "tokenizer").tokenizer.token(id));
    *text = copied(token);
    if (bytes != nullptr) *bytes = token.size();
  });
}

int twofour_find_token(const twofour_tokenizer* tokenizer, const char* token, int32_t* id) {
  return guarded(
      [&] { given(id, "id") = given(tokenizer, "tokenizer").tokenizer.find(&given(token, "token")); });
}
