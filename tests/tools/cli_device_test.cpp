// Which device commands use, and when they ask for one.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "formats/json.h"
#include "kernels/device/device.h"
#include "tests/support/conversion.h"
#include "tests/support/faults/injected.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kGolden = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";

}  // namespace

TEST_CASE("--device cuda is refused in one line by what has no CUDA code and where there is no device") {
  const Scratch scratch;
  const std::string out = (scratch / "out").string();
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"inspect", kGolden},
                                             {"lint", kGolden},
                                             {"prune", kGolden, out, "--pattern", "2:4"},
                                             {"quantize", kGolden, out},
                                             {"convert", kGolden, out, "--to", "bf16"},
                                             {"convert", kGolden, out, "--to", "nvfp4"},
                                             {"synth", out, "--shape", "tiny"},
                                             {"diff", kGolden, kGolden},
                                             {"man", (scratch / ".").string()},
                                             {"completion", "bash"}}) {
    CAPTURE(arguments[0]);
    std::vector<std::string> words = arguments;
    words.insert(words.end(), {"--device", "cuda"});
    check_one_line(run_program(words), cuda_device() ? "--device cuda: expected cpu or auto, found "
                                                     : "--device cuda: expected a CUDA device, found none (");
    CHECK(!fs::exists(out));
  }
  check_one_line(run_program({"bench", "kernels", "--device", "cpu"}), "--device cpu: expected cuda or auto");
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

TEST_CASE("convert says which device it used; auto is the CPU, which is faster from file to file") {
  const Scratch scratch;
  for (const std::string device : {"cpu", "auto", "cuda"}) {
    for (const std::string layout : {"v7", "v7-packed", "g8"}) {
      CAPTURE(device);
      const std::string out = (scratch / (device + layout)).string();
      const std::vector<std::string> words = {"convert", kGolden, out, "--to", layout, "--device", device};
      if (device == "cuda" && !cuda_device()) {
        check_one_line(run_program(words), "--device cuda: expected a CUDA device, found none (");
        CHECK(!fs::exists(out));
        continue;
      }
      std::vector<std::string> dry = words;
      dry.insert(dry.end(), {"--dry-run", "--json"});
      const std::string used = device == "cuda" ? "cuda" : "cpu";
      CHECK(json_of(run_program(dry))["device"] == used);
      const Outcome o = run_program(words);
      CHECK(o.code == 0);
      const std::string text =
          device == "cuda" ? fmt::format("\ncuda ({}), ", cuda_device()->name) : "\ncpu, ";
      CHECK_MESSAGE(o.out.find(text) != std::string::npos, o.out);
      CHECK((read_tree(out) == read_tree(scratch / ("cpu" + layout))));
    }
  }
}
