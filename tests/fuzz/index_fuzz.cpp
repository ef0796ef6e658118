#include "lib/source/checkpoint/index_file.h"
#include "tests/fuzz/fuzz.h"

using namespace twofour;

void twofour::fuzz_index(const uint8_t* data, size_t size) {
  expect_error_at_most([&] {
    const IndexFile index = parse_index_file("index", text_of(data, size));
    for (const std::string& file : index.files) {
      promise(!file.empty() && file != "." && file != ".." && file.find('/') == file.npos);
    }
    for (size_t i = 0; i < index.entries.size(); ++i) {
      promise(index.entries[i].file < index.files.size());
      promise(i == 0 || index.entries[i - 1].tensor < index.entries[i].tensor);
    }
  });
}
