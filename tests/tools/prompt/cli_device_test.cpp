// Which device commands use, and when they ask for one.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "formats/json.h"
#include "tests/support/conversion.h"
#include "tests/support/faults/injected.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"

namespace cli_device_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kGolden = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";

}  // namespace

TEST_CASE("--device cuda is refused in one line by what runs on the CPU alone, device or not") {
  const Scratch scratch;
  const std::string out = (scratch / "out").string();
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"inspect", kGolden},
                                             {"lint", kGolden},
                                             {"prune", kGolden, out, "--pattern", "2:4"},
                                             {"quantize", kGolden, out},
                                             {"convert", kGolden, out, "--to", "v7"},
                                             {"convert", kGolden, out, "--to", "v7-packed"},
                                             {"convert", kGolden, out, "--to", "g8"},
                                             {"convert", kGolden, out, "--to", "bf16"},
                                             {"convert", kGolden, out, "--to", "nvfp4"},
                                             {"convert", kGolden, out, "--to", "v7", "--dry-run"},
                                             {"synth", out, "--shape", "tiny"},
                                             {"diff", kGolden, kGolden},
                                             {"stats", "inspect", out},
                                             {"man", (scratch / ".").string()},
                                             {"completion", "bash"}}) {
    CAPTURE(arguments[0]);
    std::vector<std::string> words = arguments;
    words.insert(words.end(), {"--device", "cuda"});
    const bool may_solve = arguments[0] == "prune" || arguments[0] == "quantize" || arguments[0] == "convert";
    for (const char* device : {"cuda", "cuda:1"}) {
      words.back() = device;
      check_one_line(run_program(words),
                     fmt::format("--device {}: expected cpu or auto, found {}{}, which runs on the CPU alone",
                                 device, arguments[0],
                                 may_solve                 ? " without --stats"
                                 : arguments[0] == "stats" ? " inspect"
                                                           : ""));
    }
    CHECK(!fs::exists(out));
  }
}

TEST_CASE("--device takes the index of a CUDA device and nothing else behind cuda") {
  for (const std::string device : {"cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:1000", "cpu:0"}) {
    CAPTURE(device);
    const Outcome o = run_program({"validate", kGolden, "--device", device});
    CHECK(o.code == 2);
    CHECK(o.err.find("expected cpu, cuda, auto, found '" + device + "'") != std::string::npos);
  }
  // No machine has so many; what CUDA is told is hidden devices, so that all threads agree.
  const Outcome o = run_program({"validate", kGolden, "--device", "cuda:999"});
  CHECK(o.code == 2);
  CHECK(o.err.find("--device cuda:999: expected a CUDA device, found none (") != std::string::npos);
}

TEST_CASE("the CUDA driver is loaded for what may use a device, and for nothing else") {
  if (!can_inject()) return;
  const Scratch scratch;
  const auto loads = [](const std::vector<std::string>& words) {
    const Outcome o = run_program(words, {"LD_DEBUG=libs"});
    CHECK(o.code == 0);
    return o.err.find("libcuda.so") != std::string::npos;
  };
  const bool built = run_program({"--version"}).out.find("\ncuda: none\n") == std::string::npos;
  CHECK(loads({"--version"}) == built);
  const std::string path = (scratch / "out").string();
  CHECK_FALSE(loads({"inspect", kGolden}));
  CHECK_FALSE(loads({"convert", kGolden, path, "--to", "v7"}));
  CHECK_FALSE(loads({"validate", path, "--device", "cpu"}));
  CHECK(loads({"validate", path}) == built);
}

TEST_CASE("convert says that it ran on the CPU, under --device cpu and auto") {
  const Scratch scratch;
  for (const std::string device : {"cpu", "auto"}) {
    for (const std::string layout : {"v7", "v7-packed", "g8"}) {
      CAPTURE(device);
      const std::string out = (scratch / (device + layout)).string();
      const std::vector<std::string> words = {"convert", kGolden, out, "--to", layout, "--device", device};
      std::vector<std::string> dry = words;
      dry.insert(dry.end(), {"--dry-run", "--json"});
      CHECK(json_of(run_program(dry))["device"] == "cpu");
      const Outcome o = run_program(words);
      CHECK(o.code == 0);
      CHECK_MESSAGE(o.out.find("\ncpu, ") != std::string::npos, o.out);
      CHECK((read_tree(out) == read_tree(scratch / ("cpu" + layout))));
    }
  }
}

}  // namespace cli_device_test
