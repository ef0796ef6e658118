// Bytes are the same whichever way they pass.
#include "lib/base/io/direct_io.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "tests/support/scratch.h"

namespace direct_io_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// Cuts [0, size) at random places and around multiples of a page.
std::vector<uint64_t> random_cuts(uint64_t size, std::mt19937& random) {
  std::vector<uint64_t> cuts{0, size};
  for (int i = 0; i < 12; ++i) {
    const uint64_t at = size == 0 ? 0 : random() % size;
    cuts.push_back(at);
    cuts.push_back(std::min(size, at / 4096 * 4096 + i % 3));
  }
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

void write_in_pieces(AtomicFile& file, const std::vector<uint8_t>& bytes, std::mt19937& random) {
  const std::vector<uint64_t> cuts = random_cuts(bytes.size(), random);
  std::vector<size_t> order(cuts.size() - 1);
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  std::atomic<size_t> next{0};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (size_t i; (i = next++) < order.size();) {
        const uint64_t begin = cuts[order[i]];
        file.write(begin, std::span(bytes).subspan(begin, cuts[order[i] + 1] - begin));
      }
    });
  }
}

void check_ranges(const InputFile& file, const std::vector<uint8_t>& bytes, std::mt19937& random) {
  const std::vector<uint64_t> cuts = random_cuts(bytes.size(), random);
  std::vector<uint8_t> guarded;
  for (size_t i = 0; i + 3 < cuts.size(); ++i) {
    for (const uint64_t end : {cuts[i], cuts[i + 1], cuts[i + 3], bytes.size()}) {
      const uint64_t begin = cuts[i], count = end - begin;
      guarded.assign(count + 2, 0xA5);
      file.read(begin, std::span(guarded).subspan(1, count));
      REQUIRE(std::equal(guarded.begin() + 1, guarded.end() - 1, bytes.begin() + static_cast<long>(begin)));
      REQUIRE(guarded.front() == 0xA5);
      REQUIRE(guarded.back() == 0xA5);
    }
  }
}

}  // namespace

TEST_CASE("pieces written in any order and way are the bytes that any way reads") {
  std::mt19937 random(11);
  for (const fs::path& place : {fs::temp_directory_path(), fs::path("/dev/shm")}) {
    if (!fs::exists(place)) continue;
    const std::string name = (place / ("twofour-direct-test-" + std::to_string(::getpid()))).string();
    for (const uint64_t size :
         {uint64_t{0}, uint64_t{1}, uint64_t{4095}, uint64_t{4096}, uint64_t{65'537}, kDirectMinimum + 4096,
          kDirectBuffer - 1, kDirectBuffer + 4096, 3 * kDirectBuffer + 12'345, uint64_t{9} << 20}) {
      std::vector<uint8_t> bytes(size);
      for (const Io io : {Io::kCached, Io::kBuffered, Io::kDirect}) {
        CAPTURE(name);
        CAPTURE(size);
        CAPTURE(static_cast<int>(io));
        std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(random()); });
        AtomicFile file(name, io);
        const bool in_memory = place == "/dev/shm" && io != Io::kCached && file.io() == Io::kCached;
        file.resize(size);
        write_in_pieces(file, bytes, random);
        file.flush();
        std::vector<uint8_t> back(size);
        file.read(0, back);
        CHECK((back == bytes));
        file.commit();
        CHECK(fs::file_size(name) == size);
        const std::string text = read_text(name);
        CHECK(std::equal(text.begin(), text.end(), bytes.begin(),
                         [](char c, uint8_t b) { return static_cast<uint8_t>(c) == b; }));
        for (const Io read : {Io::kCached, Io::kBuffered, Io::kDirect}) {
          const InputFile input(name, read);
          if (in_memory) CHECK(input.io() == Io::kCached);
          if (size > 0) check_ranges(input, bytes, random);
          std::vector<uint8_t> beyond(kDirectMinimum + 1);
          CHECK_THROWS_AS(input.read(size, beyond), Error);
        }
        fs::remove(name);
      }
    }
  }
}

TEST_CASE("a file that is cut while it is read directly is an error") {
  const Scratch scratch;
  const fs::path path = scratch / "file";
  write_text(path, std::string(1u << 20, 'x'));
  const InputFile file(path, Io::kDirect);
  fs::resize_file(path, 300'000);
  std::vector<uint8_t> bytes(1u << 20);
  CHECK_THROWS_WITH_AS(file.read(0, bytes), doctest::Contains("it was truncated while being read"), Error);
}

}  // namespace direct_io_test
