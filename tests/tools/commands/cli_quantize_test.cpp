#include <doctest/doctest.h>

#include "formats/json.h"
#include "tests/support/conversion.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"

namespace cli_quantize_test {

using namespace twofour;

TEST_CASE("quantize, then validate --source, end to end") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {dense_model()});
  const std::string src = (scratch / "src").string(), out = (scratch / "out").string();
  const Outcome dry = run_program({"quantize", src, out, "--dry-run", "--json"});
  REQUIRE_MESSAGE(dry.code == 0, dry.err);
  CHECK(!std::filesystem::exists(out));
  const Json plan = parse_json("stdout", dry.out);
  CHECK(plan["tensors"].size() == 46);
  CHECK(plan["peak_memory"].get<uint64_t>() < 512u << 20);
  const Outcome made = run_program({"quantize", src, out, "--json", "-j", "2"});
  REQUIRE_MESSAGE(made.code == 0, made.err);
  const Json report = parse_json("stdout", made.out);
  REQUIRE(report["modules"].size() == 14);
  const double error = report["modules"][0]["quality"]["relative_error"].get<double>();
  CHECK(error > 0.05);
  CHECK(error < 0.15);
  CHECK(report["bytes_written"] == plan["bytes_written"]);  // whole weight files
  const Outcome proof = run_program({"validate", out, "--source", src, "--json"});
  CHECK_MESSAGE(proof.code == 0, proof.out);
  const Outcome text = run_program({"quantize", src, out + "2", "--pattern", "2:4"});
  CHECK(text.code == 0);
  CHECK(text.out.find("14 matrices in 2:4 NVFP4 (modelopt)") != std::string::npos);
  CHECK(text.out.find("pruned after quantizing: relative error") != std::string::npos);
  REQUIRE(run_program({"convert", out, out + "-bf16", "--to", "bf16"}).code == 0);
  const Outcome kept = run_program({"quantize", out + "-bf16", out + "3", "--keep-global-scale", out, "-v"});
  CHECK(kept.code == 0);
  CHECK(kept.err.find("bytes of codes and block scales equal the reference checkpoint's") !=
        std::string::npos);
  CHECK(kept.err.find("differ") == std::string::npos);
}

TEST_CASE("quantize refuses what it does not do") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {dense_model()});
  const std::string src = (scratch / "src").string(), out = (scratch / "out").string();
  REQUIRE(run_program({"quantize", src, out}).code == 0);
  const Outcome again = run_program({"quantize", out, out + "2", "--dialect", "compressed-tensors"});
  CHECK(again.code == 2);
  CHECK(again.err.find("expected linears to quantize, found none among") != std::string::npos);
  const Outcome none = run_program({"quantize", src, out + "2", "--keep-global-scale", src});
  CHECK(none.code == 2);
  CHECK(none.err.find("expected NVFP4 modules, found none among") != std::string::npos);
  CHECK(run_program({"quantize", src, out + "2", "--block-scale", "best"}).code == 2);
  CHECK(run_program({"quantize", src, out + "2", "--pattern", "4:8-paired"}).code == 2);
}

TEST_CASE("a destination that is, holds or lies in the checkpoint whose scales are kept is refused") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {dense_model()});
  const std::string src = (scratch / "src").string(), kept = (scratch / "place/kept").string();
  REQUIRE(run_program({"quantize", src, kept}).code == 0);
  std::filesystem::create_directory_symlink(kept, scratch / "link");
  // Its weights are another's: a forced run into that would take them away.
  std::filesystem::create_directory(scratch / "links");
  for (const auto& entry : std::filesystem::directory_iterator(kept)) {
    std::filesystem::create_symlink(entry.path(), scratch / "links" / entry.path().filename());
  }
  const std::string plan = (scratch / "plan.json").string();
  const auto refuses = [&](const std::string& out, const std::string& keep) {
    CAPTURE(out);
    CAPTURE(keep);
    for (const Outcome& o :
         {run_program({"quantize", src, out, "--keep-global-scale", keep, "--force"}),
          run_program({"quantize", src, out, "--keep-global-scale", keep, "--force", "--dry-run"}),
          run_program({"plan", src, out, "--to", "quantize", "-o", plan, "--keep-global-scale", keep})}) {
      CHECK(o.code == 2);
      CHECK_MESSAGE(o.err.find("expected a directory outside of the kept checkpoint") != std::string::npos,
                    o.err);
    }
    CHECK(!std::filesystem::exists(plan));
  };
  refuses(kept, kept);
  refuses(kept + "/inner", kept);
  refuses((scratch / "place").string(), kept);
  refuses(kept, (scratch / "link").string());
  refuses(kept, (scratch / "links").string());
  CHECK(run_program({"validate", kept, "-q"}).code == 0);
}

TEST_CASE("convert --to fp8 tells which options it has") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {dense_model()});
  const std::string src = (scratch / "src").string(), out = (scratch / "out").string();
  REQUIRE(run_program({"convert", src, out, "--to", "fp8", "--granularity", "block", "--odd-blocks", "write"})
              .code == 0);
  CHECK(run_program({"validate", out, "--source", src}).code == 0);
  const Outcome bf16 = run_program({"convert", src, out + "2", "--to", "bf16", "--granularity", "row"});
  CHECK(bf16.code == 2);
  CHECK(bf16.err == "twofour: --granularity: expected with --to fp8 only, found with --to bf16\n");
  CHECK(run_program(
            {"convert", src, out + "2", "--to", "fp8", "--dialect", "deepseek", "--odd-blocks", "write"})
            .code == 0);
}

TEST_CASE(
    "gpt-oss there and back: experts taken apart, then stacked again; odd blocks are refused with the way "
    "out") {
  const Scratch scratch;
  Tensors t;
  const std::string block = "model.layers.0.mlp.experts.";
  std::vector<FloatMatrix> gate_up, down;
  for (unsigned e = 0; e < 2; ++e) {
    gate_up.push_back(join_rows(random_floats(32, 48, e), random_floats(32, 48, e + 9), true));
    down.push_back(random_floats(48, 32, e + 5));
  }
  add_float_stack(t, block + "gate_up_proj", gate_up, true);
  add_float_stack(t, block + "down_proj", down, true);
  t.push_back({block + "gate_up_proj_bias",
               DType::kBF16,
               {2, 64},
               float_bytes_as(DType::kBF16, random_floats(2, 64, 3).values)});
  t.push_back({block + "down_proj_bias",
               DType::kBF16,
               {2, 48},
               float_bytes_as(DType::kBF16, random_floats(2, 48, 4).values)});
  write_checkpoint(scratch / "src", {t}, R"({"model_type": "gpt_oss", "num_local_experts": 2})");
  const std::string src = (scratch / "src").string(), q = (scratch / "q").string(),
                    back = (scratch / "back").string();
  REQUIRE(run_program({"quantize", src, q}).code == 0);
  const Outcome made = run_program({"convert", q, back, "--to", "bf16"});
  REQUIRE_MESSAGE(made.code == 0, made.err);
  const ReadTensors before = read_tensors(scratch / "src"), after = read_tensors(scratch / "back");
  REQUIRE(before.size() == after.size());
  for (const auto& [name, tensor] : before) CHECK(after.at(name).shape == tensor.shape);
  const Outcome proof = run_program({"validate", back, "--source", q});
  CHECK_MESSAGE(proof.code == 0, proof.out);

  const Outcome odd =
      run_program({"convert", q, (scratch / "odd").string(), "--to", "fp8", "--granularity", "block"});
  CHECK(odd.code == 2);
  CHECK(odd.err.find("expected N a multiple of 128 and K of 128 for blocks") != std::string::npos);
  CHECK(odd.err.find("--odd-blocks keep") != std::string::npos);
  CHECK(run_program({"convert", q, (scratch / "odd").string(), "--to", "v7", "--odd-blocks", "keep"}).err ==
        "twofour: --odd-blocks: expected with --to fp8 only, found with --to v7\n");
}

}  // namespace cli_quantize_test
