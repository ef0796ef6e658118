// The pages that reading and writing leave in the page cache.
#include "lib/base/io/page_cache.h"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <algorithm>
#include <random>

#include "lib/base/io/file.h"
#include "tests/support/scratch.h"

namespace page_cache_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

std::vector<uint8_t> random_bytes(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(count);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(random()); });
  return bytes;
}

std::vector<bool> resident(const fs::path& path) {
  const InputFile file(path);
  return resident_windows(file.descriptor(), file.size());
}

size_t count(const std::vector<bool>& windows) {
  return static_cast<size_t>(std::count(windows.begin(), windows.end(), true));
}

/// A file whose last window is cut, on the disk, with only windows 3 and 7 in the page cache.
struct PartlyCached {
  Scratch scratch;
  fs::path path = scratch / "file";
  std::vector<uint8_t> bytes = random_bytes(12 * kCacheWindow + 12345, 7);
  bool on_disk = false;

  PartlyCached() {
    AtomicFile file(path, Io::kCached);
    file.write(0, bytes);
    file.commit();
    const InputFile input(path);
    on_disk = !is_in_memory(input.descriptor());
    if (!on_disk) MESSAGE("the temporary directory is in memory: nothing to see of the page cache");
    drop_pages(input.descriptor());
    ::posix_fadvise(input.descriptor(), 0, 0, POSIX_FADV_RANDOM);
    uint8_t page[4096];
    input.read(3 * kCacheWindow + 8192, page);
    input.read(7 * kCacheWindow, page);
  }
};

}  // namespace

TEST_CASE("windows in the page cache are found, by cachestat and by mincore alike") {
  const PartlyCached f;
  if (!f.on_disk) return;
  std::vector<bool> expected(13);
  expected[3] = expected[7] = true;
  CHECK((resident(f.path) == expected));
  const InputFile file(f.path);
  CHECK((resident_by_mincore(file.descriptor(), file.size()) == expected));
  if (const auto found = resident_by_cachestat(file.descriptor(), file.size())) {
    CHECK((*found == expected));
  } else {
    MESSAGE("no cachestat here");
  }
  CHECK(resident_windows(file.descriptor(), 0).empty());
}

TEST_CASE("reading leaves the page cache as found unless it is told to keep what it reads") {
  for (const Io io : {Io::kBuffered, Io::kDirect, Io::kCached}) {
    const PartlyCached f;
    if (!f.on_disk) return;
    CAPTURE(static_cast<int>(io));
    const std::vector<bool> before = resident(f.path);
    {
      const InputFile file(f.path, io);
      std::vector<uint8_t> piece;
      for (size_t at = 0, step = 1; at < f.bytes.size(); at += step, step = step * 3 % 1'500'007) {
        piece.resize(std::min(step, f.bytes.size() - at));
        file.read(at, piece);
        REQUIRE(std::equal(piece.begin(), piece.end(), f.bytes.begin() + static_cast<std::ptrdiff_t>(at)));
      }
    }
    if (io == Io::kCached) {
      CHECK(count(resident(f.path)) == before.size());
    } else {
      CHECK((resident(f.path) == before));
    }
  }
}

TEST_CASE("the windows that reading keeps for a second time are few, the oldest go first") {
  const PartlyCached f;
  if (!f.on_disk) return;
  const InputFile file(f.path, Io::kBuffered, std::make_shared<ReadWindows>(2 * kCacheWindow));
  ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_RANDOM);
  std::vector<uint8_t> window(kCacheWindow);
  for (uint64_t w = 0; w < 12; ++w) file.read(w * kCacheWindow, window);
  std::vector<bool> expected(13);
  for (const size_t w : {3, 7, 10, 11}) expected[w] = true;
  CHECK((resident(f.path) == expected));
}

TEST_CASE("what is written goes to the disk and leaves the page cache, so that it is read back from there") {
  const std::vector<uint8_t> bytes = random_bytes(46 * kCacheWindow + 4097, 3);
  for (const Io io : {Io::kBuffered, Io::kDirect}) {
    CAPTURE(static_cast<int>(io));
    const Scratch scratch;
    AtomicFile file(scratch / "file", io);
    if (file.io() == Io::kCached) return;
    file.resize(bytes.size());
    const fs::path unfinished = scratch / ".file.unfinished";
    size_t most = 0;
    for (size_t at = 0, step = 1; at < bytes.size(); at += step, step = step * 5 % 3'000'017) {
      file.write(at, std::span(bytes).subspan(at, std::min(step, bytes.size() - at)));
      most = std::max(most, count(resident(unfinished)));
    }
    // Of 47; where pieces go past the page cache, the pages that two of them share wait in it.
    if (io == Io::kBuffered) CHECK(most < 30);
    file.flush();
    CHECK(count(resident(unfinished)) == 0);
    std::vector<uint8_t> back(bytes.size());
    file.read(0, back);
    CHECK((back == bytes));
    file.commit();
    CHECK(count(resident(scratch / "file")) == 0);
  }
}

}  // namespace page_cache_test
