#include <doctest/doctest.h>

#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/io/file.h"
#include "lib/write/output/file_batch.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace temporary_file_test {

using namespace twofour;
namespace fs = std::filesystem;

TEST_CASE("what a killed run left under the temporary name does not stop the next one") {
  const Scratch scratch;
  const fs::path left = scratch / ".file.unfinished";
  std::ofstream(left) << "half";
  write_text(scratch / "file", "whole");
  CHECK(read_text(scratch / "file") == "whole");
  CHECK_FALSE(fs::exists(left));
  std::ofstream(left) << "longer than what comes now";
  const std::string text = "batch";
  UnflushedFile file(scratch / "file");
  file.write({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  file.commit();
  CHECK(read_text(scratch / "file") == "batch");
  CHECK_FALSE(fs::exists(left));
}

TEST_CASE("a file that is being written is not taken from who writes it") {
  const Scratch scratch;
  AtomicFile first(scratch / "file");
  first.write(0, std::string_view("first"));
  const std::string message = message_of([&] { write_text(scratch / "file", "second"); });
  CHECK_MESSAGE(
      message.find("expected no other process that writes this file, found one") != std::string::npos,
      message);
  first.commit();
  CHECK(read_text(scratch / "file") == "first");
  write_text(scratch / "file", "second");
  CHECK(read_text(scratch / "file") == "second");
}

TEST_CASE("a temporary name that another process took is left to it") {
  // As on a file system without locks, where the other could not see that the name was in use.
  const Scratch scratch;
  const fs::path temporary = scratch / ".file.unfinished";
  write_text(scratch / "file", "before");
  for (const bool commits : {true, false}) {
    {
      AtomicFile file(scratch / "file");
      file.write(0, std::string_view("first"));
      fs::remove(temporary);
      std::ofstream(temporary) << "half of another";
      if (commits) CHECK(message_of([&] { file.commit(); }).find("found one") != std::string::npos);
    }
    CHECK(read_text(scratch / "file") == "before");
    CHECK(read_text(temporary) == "half of another");
  }
}

TEST_CASE("links and folders under the temporary name are refused and stay") {
  const Scratch scratch;
  const fs::path temporary = scratch / ".file.unfinished";
  const auto is_refused = [&] {
    return message_of([&] { write_text(scratch / "file", "new"); }).find("cannot replace") !=
           std::string::npos;
  };
  std::ofstream(scratch / "mine") << "years";
  fs::create_symlink("mine", temporary);
  CHECK(is_refused());
  CHECK(fs::is_symlink(temporary));
  CHECK(read_text(scratch / "mine") == "years");
  fs::remove(temporary);
  fs::create_directory(temporary);
  CHECK(is_refused());
  CHECK(fs::is_directory(temporary));
  fs::remove(temporary);
  REQUIRE(::mkfifo(temporary.c_str(), 0600) == 0);
  CHECK(is_refused());
  CHECK_FALSE(fs::exists(scratch / "file"));
}

TEST_CASE("many that write the same file leave the whole of one at any time") {
  const Scratch scratch;
  const fs::path path = scratch / "file";
  std::atomic<int> written{0}, refused{0}, torn{0};
  std::vector<std::thread> writers;
  for (int w = 0; w < 4; ++w) {
    writers.emplace_back([&, w] {
      const std::string text(20'000, static_cast<char>('a' + w));
      for (int i = 0; i < 100; ++i) {
        const std::string message = message_of([&] { write_text(path, text); });
        if (message.empty()) ++written;
        if (!message.empty()) ++refused;
        if (!message.empty() && message.find("found one") == std::string::npos) ++torn;
        if (!fs::exists(path)) continue;
        const std::string found = read_text(path);
        if (found != std::string(20'000, found.empty() ? ' ' : found[0])) ++torn;
      }
    });
  }
  for (std::thread& t : writers) t.join();
  CHECK(torn == 0);
  CHECK(written > 0);
  CHECK(written + refused == 400);
  CHECK_FALSE(fs::exists(scratch / ".file.unfinished"));
}

}  // namespace temporary_file_test
