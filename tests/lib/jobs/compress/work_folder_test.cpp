#include "lib/jobs/compress/work_folder.h"

#include <doctest/doctest.h>

#include <fstream>
#include <memory>

#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace work_folder_test {

using namespace twofour;
namespace fs = std::filesystem;

TEST_CASE("one process at a time has the folder of a compression") {
  const Scratch scratch;
  const fs::path path = scratch / "out.compressing";
  auto first = std::make_unique<WorkFolder>(path);
  std::ofstream(path / "statistics.safetensors") << "half";
  const std::string message = message_of([&] { WorkFolder second(path); });
  CHECK_MESSAGE(message.find("expected no other process that compresses into this folder, found one") !=
                    std::string::npos,
                message);
  CHECK(fs::exists(path / "statistics.safetensors"));
  first.reset();  // as a kill does
  {
    const WorkFolder third(path);
    CHECK(fs::exists(path / "statistics.safetensors"));
    third.clear();
    CHECK_FALSE(fs::exists(path / "statistics.safetensors"));
    CHECK_FALSE(message_of([&] { WorkFolder fourth(path); }).empty());
    third.remove();
  }
  CHECK_FALSE(fs::exists(path));
}

TEST_CASE("who removes a folder that others wait for takes nothing of theirs") {
  const Scratch scratch;
  const fs::path path = scratch / "out.compressing";
  const WorkFolder first(path);
  first.remove();
  const WorkFolder second(path);
  std::ofstream(path / "state.json") << "{}";
  CHECK_FALSE(message_of([&] { WorkFolder third(path); }).empty());
  CHECK(fs::exists(path / "state.json"));
}

}  // namespace work_folder_test
