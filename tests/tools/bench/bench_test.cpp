#include <doctest/doctest.h>

#include <filesystem>

#include "formats/json.h"
#include "kernels/device/device.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"

namespace bench_test {

using namespace twofour;
namespace fs = std::filesystem;

TEST_CASE("bench kernels gives every case its bytes, times and shares of the copy, or says that it cannot") {
  const Outcome o = run_program({"kernels", "--only", "pack g8", "--rounds", "3", "--json"});
  if (!cuda_device()) {
    CHECK(o.code == 2);
    CHECK(parse_json("stdout", o.out)["error"] ==
          "bench kernels: expected a CUDA device, found none: " + no_cuda_reason());
    return;
  }
  REQUIRE(o.code == 0);
  const Json json = parse_json("stdout", o.out);
  CHECK(json["device"] == cuda_device()->name);
  const auto copy = json["copy_gb_s"].get<double>();
  CHECK(copy > 0);
  REQUIRE(json["kernels"].size() == 1);
  const Json& k = json["kernels"][0];
  CHECK(k["kernel"] == "pack g8");
  CHECK(k["shape"] == "1024 x 2048, 128 experts");
  CHECK(k["bytes"] == 2.0 * 0.5625 * 1024 * 2048 * 128);
  CHECK(k["tflop_s"].is_null());
  const Json& us = k["microseconds"];
  CHECK(us["min"] <= us["median"]);
  CHECK(us["median"] <= us["max"]);
  const auto median = us["median"].get<double>(), bytes = k["bytes"].get<double>(),
             gb_s = k["gb_s"].get<double>(), share = k["copy_share"].get<double>();
  CHECK(gb_s == doctest::Approx(bytes / median / 1e3));
  CHECK(share == doctest::Approx(gb_s / copy));
  // Reads and writes as the copy does.
  CHECK(share < 1.1);
}

TEST_CASE("bench kernels refuses a name that no kernel has") {
  if (!cuda_device()) return;
  const Outcome o = run_program({"kernels", "--only", "no such kernel"});
  CHECK(o.code == 2);
  CHECK(o.err ==
        "twofour-bench: bench kernels: expected part of a kernel's name or shape, found 'no such kernel'\n");
}

TEST_CASE("bench kernels takes no CPU") {
  check_one_line(run_program({"kernels", "--device", "cpu"}), "--device cpu: expected cuda or auto");
  check_one_line(run_program({"convert", "--device", "cuda"}), "--device cuda: expected cpu or auto");
}

TEST_CASE("a mistyped command is answered with the nearest one") {
  const Outcome o = run_program({"convrt"});
  CHECK(o.code == 2);
  CHECK(o.err ==
        "twofour-bench: unknown command 'convrt'; did you mean convert?\nSee twofour-bench --help.\n");
}

TEST_CASE("bench measures whole commands and leaves nothing behind") {
  const Scratch scratch;
  const Outcome o = run_program({"convert", "--shape", "tiny", "--rounds", "2", "--no-pack", "--work",
                                 scratch.path.string(), "--json", "--quiet", "-j", "1"});
  CHECK(o.code == 0);
  const Json json = json_of(o);
  REQUIRE(json["convert"].size() == 2);
  for (const Json& run : json["convert"]) {
    CHECK(run["ratio"]["min"] > 0);
    CHECK(run["convert_seconds"]["median"] > 0);
    CHECK(run["max_rss"] > 1'000'000);
  }
  CHECK(fs::is_empty(scratch.path));
}

TEST_CASE("bench lint holds lint against cat") {
  const Scratch scratch;
  const Outcome o = run_program(
      {"lint", "--shape", "tiny", "--rounds", "2", "--work", scratch.path.string(), "--json", "-q"});
  CHECK(o.code == 0);
  const Json json = parse_json("stdout", o.out);
  CHECK(json["bytes"].get<int64_t>() > 100'000);
  CHECK(json["ratio"]["max"].get<double>() >= json["ratio"]["min"].get<double>());
  CHECK(fs::is_empty(scratch.path));
}

TEST_CASE("bench open holds opening against parsing the headers alone and leaves nothing behind") {
  const Scratch scratch;
  const Json json = json_of(
      run_program({"open", "--tensors", "400", "--rounds", "2", "--work", scratch.path.string(), "--json"}));
  CHECK(json["tensors"] == 400);
  CHECK(json["files"] == 16);
  for (const char* ratio : {"open_ratio", "lint_ratio", "inspect_ratio"}) CHECK(json[ratio]["min"] > 0.0);
  CHECK(fs::is_empty(scratch.path));
}

TEST_CASE("bench io measures reads and writes both ways and leaves nothing behind") {
  const Scratch scratch;
  const Json json = json_of(run_program({"io", "--work", scratch.path.string(), "--size", "20MB", "--request",
                                         "300kB", "--rounds", "2", "--json"}));
  CHECK(json["bytes_read"] == 20'000'000);
  CHECK(json["bytes_written"] == 20'000'000);
  size_t plain = 0;
  for (const Json& rate : json["rates"]) {
    CHECK(rate["gb_s"]["min"] > 0);
    CHECK(rate["gb_s"]["max"] >= rate["gb_s"]["median"]);
    plain += rate["io"] == "plain";
  }
  CHECK(plain == 2);
  CHECK(json["rates"].size() >= 10);
  CHECK(fs::is_empty(scratch.path));
  const std::string source = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";
  const Outcome text = run_program(
      {"io", "--work", scratch.path.string(), "--source", source, "--size", "10MB", "--rounds", "1"});
  CHECK_MESSAGE(text.code == 0, text.err);
  CHECK(text.out.find(" read after its pages were dropped, 10 MB written") != std::string::npos);
  check_one_line(run_program({"io", "--work", scratch.path.string(), "--source",
                              (scratch / "nothing").string(), "--size", "1MB"}),
                 "nothing");
}

}  // namespace bench_test
