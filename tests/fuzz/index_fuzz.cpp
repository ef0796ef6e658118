#include "lib/index_file.h"
#include "tests/fuzz/fuzz.h"

using namespace twofour;

void twofour::fuzz_index(const uint8_t* data, size_t size) {
  expect_error_at_most([&] {
    const IndexFile index = parse_index_file("index", text_of(data, size));
    for (const std::string& file : index.files) {
      promise(!file.empty() && file != "." && file != ".." && file.find('/') == file.npos);
    }
    for (const IndexFile::Entry& entry : index.entries) promise(entry.file < index.files.size());
  });
}
