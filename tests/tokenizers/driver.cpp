// Encodes and decodes texts for tests/tokenizers/compare.py, one thread:
//   tokenizer_driver TOKENIZER TEXTS ADD_SPECIAL SKIP_SPECIAL IDS DECODED
// TEXTS has texts with a byte 0xFF between two. IDS becomes their ids, 32 bits little-endian, with -1 between
// two; DECODED what these decode to, with 0xFF between two. Prints the seconds of loading, encoding and
// decoding.
#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/io/file.h"
#include "lib/source/tokenizer/tokenizer.h"

namespace {

std::vector<std::string_view> split(std::string_view texts) {
  std::vector<std::string_view> all;
  for (size_t begin = 0;;) {
    const size_t end = texts.find('\xFF', begin);
    all.push_back(texts.substr(begin, end - begin));
    if (end == std::string_view::npos) return all;
    begin = end + 1;
  }
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void run(char** argv) {
  const double start = seconds();
  const twofour::Tokenizer tokenizer = twofour::Tokenizer::load(argv[1]);
  const double loaded = seconds();
  const std::string text = twofour::read_text(argv[2], 1u << 30);
  const bool add_special = argv[3] == std::string_view("1"), skip_special = argv[4] == std::string_view("1");
  std::vector<std::vector<int32_t>> ids;
  const std::vector<std::string_view> texts = split(text);
  const double begin = seconds();
  for (const std::string_view one : texts) ids.push_back(tokenizer.encode(one, add_special));
  const double encoded = seconds();
  std::vector<std::string> decoded;
  for (const auto& one : ids) decoded.push_back(tokenizer.decode(one, skip_special));
  const double end = seconds();
  std::string id_bytes, out;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i != 0) ids[i].insert(ids[i].begin(), -1), out += '\xFF';
    id_bytes.append(reinterpret_cast<const char*>(ids[i].data()), ids[i].size() * sizeof(int32_t));
    out += decoded[i];
  }
  twofour::write_text(argv[5], id_bytes);
  twofour::write_text(argv[6], out);
  fmt::print("{:.4f} {:.4f} {:.4f} {}\n", loaded - start, encoded - begin, end - encoded,
             tokenizer.vocabulary_size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  try {
    run(argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 2;
  }
}
