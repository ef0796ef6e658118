#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "formats/json.h"
#include "kernels/device/device.h"
#include "tests/support/program.h"

using namespace twofour;

TEST_CASE("bench kernels gives every case its bytes, times and shares of the copy, or says that it cannot") {
  const Outcome o = run_program({"bench", "kernels", "--only", "pack g8", "--rounds", "3", "--json"});
  if (!cuda_device()) {
    CHECK(o.code == 2);
    CHECK(parse_json("stdout", o.out)["error"] ==
          "bench kernels: expected a CUDA device, found none: " + no_cuda_reason());
    return;
  }
  REQUIRE(o.code == 0);
  const Json json = parse_json("stdout", o.out);
  CHECK(json["device"] == cuda_device()->name);
  const double copy = json["copy_gb_s"];
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
  const double median = us["median"], bytes = k["bytes"], gb_s = k["gb_s"], share = k["copy_share"];
  CHECK(gb_s == doctest::Approx(bytes / median / 1e3));
  CHECK(share == doctest::Approx(gb_s / copy));
  // Reads and writes as the copy does.
  CHECK(share < 1.1);
}

TEST_CASE("bench kernels refuses a name that no kernel has") {
  if (!cuda_device()) return;
  const Outcome o = run_program({"bench", "kernels", "--only", "no such kernel"});
  CHECK(o.code == 2);
  CHECK(o.err ==
        "twofour: bench kernels: expected part of a kernel's name or shape, found 'no such kernel'\n");
}
