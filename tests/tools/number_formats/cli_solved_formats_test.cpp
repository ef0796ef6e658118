// Formats beside NVFP4 whose codes are chosen by statistics.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/write/budget/budget.h"
#include "tests/support/conversion.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/statistics_builder.h"

namespace cli_solved_formats_test {

using namespace twofour;

namespace {

using Words = std::vector<std::string>;
const std::string kLayer = "model.layers.0.";

void write_model(const std::filesystem::path& folder) {
  Tensors t;
  unsigned seed = 1;
  for (const char* leaf : {"q_proj", "k_proj", "v_proj"})
    add_floats(t, kLayer + "self_attn." + leaf, random_floats(96, 64, ++seed));
  add_floats(t, kLayer + "self_attn.o_proj", random_floats(64, 96, ++seed));
  add_floats(t, kLayer + "mlp.down_proj", random_floats(70, 160, ++seed));
  add_bf16(t, "model.norm.weight", {64}, ++seed);
  write_checkpoint(folder, {t});
}

StatisticsBuilder statistics() {
  StatisticsBuilder b;
  b.add({kLayer + "self_attn.q_proj", kLayer + "self_attn.k_proj", kLayer + "self_attn.v_proj"}, 64, 500,
        "hessian", 1);
  b.add({kLayer + "self_attn.o_proj"}, 96, 500, "packed", 2);
  b.add({kLayer + "mlp.down_proj"}, 160, 800, "hessian", 4);
  return b;
}

double loss_of(const std::string& folder, const std::string& module) {
  const Json manifest = parse_json("twofour.json", read_text(folder + "/twofour.json"));
  for (const Json& m : manifest["modules"]) {
    if (m["name"] == module) return m["quality"]["relative_output_loss"].get<double>();
  }
  return -1;
}

/// Changes the lowest bit of one code in the middle of a matrix.
void change_code(const std::string& folder, const std::string& tensor) {
  const Checkpoint c = Checkpoint::open(folder);
  const size_t i = c.find(tensor).value();
  const uint64_t at = c.shard_of(i).data_begin + c.tensors()[i].begin + c.tensors()[i].bytes() / 2;
  flip_bit(c.shard_of(i).file.path(), at, 1);
}

}  // namespace

TEST_CASE(
    "convert --stats to every format: proven row by row, the same for any jobs, and one changed code found") {
  const Scratch scratch;
  write_model(scratch / "src");
  statistics().write(scratch / "stats");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string();
  int number = 0;
  for (const Words& words :
       std::vector<Words>{{"--to", "mxfp4"},
                          {"--to", "mxfp4", "--dialect", "compressed-tensors", "--shrink", "0"},
                          {"--to", "mxfp6"},
                          {"--to", "mxfp6", "--scale-search", "4", "--sweeps", "0"},
                          {"--to", "mxfp8"},
                          {"--to", "fp8"},
                          {"--to", "fp8", "--sweeps", "2"},
                          {"--to", "fp8", "--odd-blocks", "write", "--block", "128x128"},
                          {"--to", "fp8", "--dialect", "deepseek", "--odd-blocks", "write", "--block",
                           "32x32", "--scale-dtype", "bf16"},
                          {"--to", "fp8", "--dialect", "modelopt", "--granularity", "tensor"}}) {
    CAPTURE(words);
    const std::string out = (scratch / std::to_string(number++)).string(), by_rtn = out + "-rtn";
    Words command{"convert", src, out, "--stats", stats, "-j", "1"};
    command.insert(command.end(), words.begin(), words.end());
    const Outcome made = run_program(command);
    REQUIRE_MESSAGE(made.code == 0, made.err);
    CHECK_MESSAGE(made.out.find("outputs of 5 of 5 matrices by their statistics") != std::string::npos,
                  made.out);
    command[2] = out + "-again";
    command[6] = "5";
    REQUIRE(run_program(command).code == 0);
    CHECK(read_tree(out) == read_tree(out + "-again"));
    const Words prove{"validate", out, "--source", src, "--stats", stats, "--all-rows"};
    const Outcome proof = run_program(prove);
    CHECK_MESSAGE(proof.code == 0, proof.out << proof.err);
    CHECK(proof.out.find("every byte derived again from the source, equal\n") != std::string::npos);
    command[2] = by_rtn;
    if (words.size() == 2) {
      command.insert(command.end(), {"--method", "rtn"});
      REQUIRE(run_program(command).code == 0);
      CHECK(loss_of(out, kLayer + "mlp.down_proj") < loss_of(by_rtn, kLayer + "mlp.down_proj"));
      const Outcome own = run_program({"validate", by_rtn, "--source", src, "--stats", stats, "--all-rows"});
      CHECK_MESSAGE(own.code == 0, own.out << own.err);
    }
    const Checkpoint written = Checkpoint::open(out);
    const bool packed = written.find(kLayer + "mlp.down_proj.weight_packed").has_value();
    change_code(out, kLayer + "mlp.down_proj" + (packed ? ".weight_packed" : ".weight"));
    const Outcome wrong = run_program(prove);
    CHECK_MESSAGE(wrong.code == 1, wrong.out << wrong.err);
    CHECK_MESSAGE(wrong.out.find("bytes differ from those derived from the source") != std::string::npos,
                  wrong.out);
  }
}

TEST_CASE(
    "v7-packed by statistics, and a budget that leaves the bits of a dense format, name the better format") {
  const Scratch scratch;
  Tensors t;
  for (const char* leaf : {"gate_proj", "up_proj"})
    add_floats(t, kLayer + "mlp." + leaf, random_floats(160, 64, 3));
  add_floats(t, kLayer + "mlp.down_proj", random_floats(64, 160, 4));
  write_checkpoint(scratch / "src", {t});
  StatisticsBuilder b;
  b.add({kLayer + "mlp.gate_proj", kLayer + "mlp.up_proj"}, 64, 500, "hessian", 1);
  b.add({kLayer + "mlp.down_proj"}, 160, 800, "hessian", 2);
  b.write(scratch / "stats");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string(),
                    out = (scratch / "out").string();
  const auto warns = [&](const Words& words) {
    const Outcome o = run_program(words);
    CHECK_MESSAGE(o.code == 0, o.err);
    return (o.out + o.err).find("[dense-is-better]") != std::string::npos ||
           (o.out + o.err).find("MXFP4 chosen by statistics has 4.25") != std::string::npos;
  };
  CHECK(warns({"convert", src, out, "--to", "v7-packed", "--stats", stats, "--dry-run"}));
  CHECK(!warns({"convert", src, out, "--to", "v7", "--stats", stats, "--dry-run"}));
  BudgetChoice choice;
  choice.budget.share = 0.5;
  choice.units = {{"a", {"a"}, 100, 1, 2}, {"b", {"b"}, 300, 1, 9}};
  choice.pruned = 1;
  REQUIRE(choice.warnings().size() == 1);
  CHECK(choice.warnings()[0].message.starts_with("4.25 bits a weight remain"));
  choice.units[0].bytes = 101;
  CHECK(choice.warnings().empty());
}

TEST_CASE("settings of statistics that a format does not have are refused in words") {
  const Scratch scratch;
  write_model(scratch / "src");
  statistics().write(scratch / "stats");
  const std::string src = (scratch / "src").string(), stats = (scratch / "stats").string(),
                    out = (scratch / "out").string();
  const auto refused = [&](const Words& more) {
    Words words{"convert", src, out, "--stats", stats};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome o = run_program(words);
    CHECK(o.code == 2);
    return o.err;
  };
  CHECK(refused({"--to", "fp8", "--scale-search", "3"}) ==
        "twofour: --scale-search: expected none with FP8, whose scales follow from the largest weights, "
        "found 3\n");
  CHECK(refused({"--to", "mxfp4", "--method", "joint"})
            .find("expected gptq or rtn if weights are not pruned") != std::string::npos);
  CHECK(refused({"--to", "bf16"}).find("prune or --to fp8, mxfp8, mxfp6, mxfp4, v7") != std::string::npos);
}

}  // namespace cli_solved_formats_test
