#include <doctest/doctest.h>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>

#include "lib/base/io/descriptor.h"
#include "lib/base/io/file.h"
#include "lib/base/io/work_file.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace descriptor_test {

using namespace twofour;
namespace fs = std::filesystem;

TEST_CASE("a file that ends within what is read is refused, with what is missing and where") {
  const Scratch scratch;
  write_text(scratch / "file", "0123456789");
  const int fd = ::open((scratch / "file").c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(fd >= 0);
  std::array<uint8_t, 4> out{};
  read_at(fd, scratch / "file", 6, out);
  CHECK(out == std::array<uint8_t, 4>{'6', '7', '8', '9'});
  const std::string message = message_of([&] { read_at(fd, scratch / "file", 8, out); });
  CHECK_MESSAGE(message.find("expected 2 more bytes at 10, found the end of the file") != message.npos,
                message);
  CHECK_THROWS_AS(read_at(-1, scratch / "file", 0, out), ReadError);
  // Opened for reading.
  CHECK_THROWS_AS(write_at(fd, scratch / "file", 0, out), Error);
  ::close(fd);
}

TEST_CASE("a descriptor has a name until the file is renamed, removed or replaced") {
  const Scratch scratch;
  const fs::path name = scratch / "file", other = scratch / "other";
  std::ofstream{name};
  const int fd = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(fd >= 0);
  CHECK(has_name(fd, name));
  fs::rename(name, other);
  CHECK_FALSE(has_name(fd, name));
  CHECK(has_name(fd, other));
  std::ofstream{name};
  CHECK_FALSE(has_name(fd, name));
  fs::remove(name);
  fs::create_symlink("other", name);
  CHECK_FALSE(has_name(fd, name));
  ::close(fd);
}

TEST_CASE("a work file keeps its bytes for the run that resumes, and what was not written is zeros") {
  const Scratch scratch;
  const std::array<uint8_t, 3> bytes{1, 2, 3};
  {
    const WorkFile file(scratch / "work", 10);
    file.write(5, bytes);
  }
  const WorkFile again(scratch / "work", 10);
  std::array<uint8_t, 10> out{};
  again.read(0, out);
  CHECK(out == std::array<uint8_t, 10>{0, 0, 0, 0, 0, 1, 2, 3, 0, 0});
  const WorkFile cut(scratch / "work", 6);
  CHECK_THROWS_AS(again.read(0, out), Error);
  fs::create_symlink("work", scratch / "link");
  CHECK_THROWS_AS(WorkFile(scratch / "link", 6), Error);
}

}  // namespace descriptor_test
