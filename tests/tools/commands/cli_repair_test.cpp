#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "lib/base/io/file.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/faults/planted.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"

namespace cli_repair_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

struct Broken {
  Scratch scratch;
  std::string source = (scratch / "broken").string(), original = (scratch / "original").string(),
              out = (scratch / "out").string();

  /// A checkpoint without an expert's input scale, and without a norm.
  explicit Broken(bool loses_norm) {
    Save save = base_checkpoint(Base::kMoe);
    write_planted(save, original);
    save.erase("model.layers.1.mlp.experts.3.up_proj.input_scale");
    if (loses_norm) save.erase("model.norm.weight");
    write_planted(save, source);
  }
};

std::string rules_of(const Json& list) {
  std::string rules;
  for (const Json& one : list) rules += one["rule"].get<std::string>() + " ";
  return rules;
}

}  // namespace

TEST_CASE(
    "repair ends with 0 if all was mended, with 1 if a finding is left, and its dry run writes nothing") {
  const Broken b(true);
  const Outcome dry = run_program({"repair", b.source, b.out, "--dry-run", "--json"});
  CHECK(dry.code == 1);
  CHECK(!fs::exists(b.out));
  const Json planned = Json::parse(dry.out);
  CHECK(planned["mends"].size() == 1);
  CHECK(rules_of(planned["left"]).find("tensor-missing") != std::string::npos);
  CHECK(rules_of(planned["unmended"]).find("tensor-missing") != std::string::npos);

  const Outcome first = run_program({"repair", b.source, b.out, "--json"});
  CHECK_MESSAGE(first.code == 1, first.err);
  const Json left = Json::parse(first.out);
  CHECK(left["mended"] == false);
  CHECK(left["outcome"] == "mended in part");
  CHECK(run_program({"lint", b.out}).code == 1);
  const Outcome told = run_program({"repair", b.source, b.out, "--force"});
  CHECK_MESSAGE(told.out.find("not all mended; 1 finding needs --donor, a checkpoint of the same model\n") !=
                    told.out.npos,
                told.out);

  const Outcome only = run_program({"repair", b.source, b.out, "--force", "--only", "missing-input-scale"});
  CHECK_MESSAGE(only.code == 0, only.out, only.err);

  const Outcome whole = run_program({"repair", b.source, b.out, "--force", "--donor", b.original, "--json"});
  CHECK_MESSAGE(whole.code == 0, whole.out, whole.err);
  const Json done = Json::parse(whole.out);
  CHECK(done["mended"] == true);
  CHECK(done["outcome"] == "mended");
  CHECK(done["mends"][1]["from_donor"] == 1);  // the donor's scale comes before neighbours'
  CHECK(done["mends"].size() == 2);
  CHECK(run_program({"lint", b.out}).code == 0);
  const Outcome again = run_program({"repair", b.source, b.out, "--resume", "--donor", b.original});
  CHECK_MESSAGE(again.code == 0, again.out, again.err);
  CHECK(run_program({"repair", b.source, b.out, "--resume"}).code ==
        2);  // without the donor it is another one
  CHECK(run_program({"validate", b.out}).code == 0);
}

TEST_CASE("repair shows numbers and settings before and after, and validate lists what each mend changed") {
  const Scratch scratch;
  Save save = base_checkpoint(Base::kMoe);
  const std::string name = "model.layers.1.mlp.experts.3.up_proj.weight_scale_2";
  float scale = 0;
  std::memcpy(&scale, save.at(name).bytes.data(), sizeof(scale));
  const float turned = 1 / scale;
  std::memcpy(save.at(name).bytes.data(), &turned, sizeof(turned));
  const std::string broken = (scratch / "broken").string(), out = (scratch / "out").string();
  write_planted(save, broken);
  write_text(scratch / "broken/generation_config.json", "{\"top_p\": 7}");
  const Outcome dry = run_program({"repair", broken, out, "--dry-run"});
  CAPTURE(dry.out);
  CHECK(dry.out.find(fmt::format("1 tensor, {}: from {} to {}; 4 B\n", name, turned, scale)) != dry.out.npos);
  CHECK(dry.out.find("generation_config.json: top_p: from 7 to absent; ") != dry.out.npos);
  CHECK(dry.out.ends_with("dry run: nothing written to " + out + "\n"));
  CHECK(!fs::exists(out));
  const Outcome written = run_program({"repair", broken, out});
  CHECK(written.out.find(fmt::format("{}: from {} to {}", name, turned, scale)) != written.out.npos);
  CHECK(written.out.find("nothing written") == written.out.npos);
  const Outcome proof = run_program({"validate", out, "--source", broken});
  CAPTURE(proof.out);
  CHECK(proof.out.starts_with(
      "changed by generation: generation_config.json: top_p\nchanged by reciprocals: " + name + "\n"));
  const Json json = Json::parse(run_program({"validate", out, "--source", broken, "--json"}).out);
  REQUIRE(json["mends"].size() == 2);
  CHECK(json["mends"][1]["tensors"] == Json{name});

  // Lint names the cause, too.
  const Outcome lint = run_program({"lint", broken});
  CHECK_MESSAGE(lint.out.find("looks like the reciprocal of ") != lint.out.npos, lint.out);
  CHECK(lint.out.find("a divisor stored as a multiplier; twofour repair turns it over") != lint.out.npos);
}

TEST_CASE("validate against a wrong source folds differences of one kind") {
  const Scratch scratch;
  const std::string source = (scratch / "source").string(), out = (scratch / "out").string(),
                    wrong = (scratch / "wrong").string();
  write_planted(base_checkpoint(Base::kMoe), wrong);
  REQUIRE(run_program({"convert", wrong, source, "--to", "bf16", "-q"}).code == 0);
  REQUIRE(run_program({"quantize", source, out, "-q"}).code == 0);
  const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
  const Outcome folded = run_program({"validate", out, "--source", wrong}),
                all = run_program({"validate", out, "--source", wrong, "--verbose"});
  CAPTURE(folded.out);
  CHECK(folded.code == 1);
  CHECK(lines(folded.out) <= 24);
  CHECK(lines(all.out) > 2 * lines(folded.out));
  CHECK(folded.out.find("of other numbers (--verbose shows all)\n") != folded.out.npos);
}

TEST_CASE("where nothing is to be mended, nothing is written") {
  const Broken b(false);
  const Outcome sound = run_program({"repair", b.original, b.out});
  CHECK_MESSAGE(sound.code == 0, sound.out, sound.err);
  CHECK(!fs::exists(b.out));
  CHECK(sound.out.find("--donor") == std::string::npos);
  CHECK(sound.out.ends_with("nothing to mend: nothing written to " + b.out + "\n"));
  const Json none = Json::parse(run_program({"repair", b.original, b.out, "--json"}).out);
  CHECK(none["outcome"] == "nothing to mend");
  CHECK(none["mended"] == true);
  // A lost norm alone has no mend without a donor.
  Save save = base_checkpoint(Base::kMoe);
  save.erase("model.norm.weight");
  write_planted(save, (b.scratch / "lost").string());
  const Outcome lost = run_program({"repair", (b.scratch / "lost").string(), b.out});
  CHECK(lost.code == 1);
  CHECK(!fs::exists(b.out));
  CHECK_MESSAGE(lost.out.ends_with("nothing that can be mended: nothing written to " + b.out + "\n"),
                lost.out);
  CHECK(run_program({"repair", b.source, b.source}).code == 2);
  CHECK(run_program({"repair", b.source, b.out, "--only", "no-such-rule"}).code == 2);
  CHECK(run_program({"repair", b.source, b.out, "--input-scale", "keep"}).code == 2);
}

TEST_CASE("two runs into one directory do not mix") {
  const Broken b(false);
  Run one({"repair", b.source, b.out, "-q"});
  Run two({"repair", b.source, b.out, "-q"});
  const Outcome first = one.wait(), second = two.wait();
  CHECK(std::min(first.code, second.code) == 0);
  CHECK(run_program({"validate", b.out}).code == 0);
  CHECK(run_program({"lint", b.out}).code == 0);
}

TEST_CASE("hostile donors are refused in words") {
  const Broken b(true);
  const std::string donor = (b.scratch / "donor").string();
  SUBCASE("another model") { write_planted(base_checkpoint(Base::kLlama), donor); }
  SUBCASE("truncated") {
    fs::copy(b.original, donor, fs::copy_options::recursive);
    const auto file = *std::find_if(fs::directory_iterator(donor), fs::directory_iterator(),
                                    [](auto& e) { return e.path().extension() == ".safetensors"; });
    fs::resize_file(file.path(), fs::file_size(file.path()) - 100);
  }
  SUBCASE("trained further") {
    Save other = base_checkpoint(Base::kMoe);
    uint32_t state = 1;
    for (auto& [file, tensors] : other.shards) {
      for (TensorData& t : tensors) {
        for (size_t i = 0; t.dtype == DType::kBF16 && i < t.bytes.size(); i += 2)
          t.bytes[i] = static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24);
      }
    }
    write_planted(other, donor);
  }
  SUBCASE("none at all") {}
  const Outcome o = run_program({"repair", b.source, b.out, "--donor", donor});
  CHECK(o.code == 2);
  CHECK(!o.err.empty());
  CHECK(!fs::exists(b.out));
}

TEST_CASE("an empty config.json comes from the donor") {
  const Broken b(false);
  write_text(b.source + "/config.json", "");
  const Outcome o = run_program({"repair", b.source, b.out, "--donor", b.original});
  CHECK_MESSAGE(o.code == 0, o.out, o.err);
  const Outcome proof = run_program({"validate", b.out, "--source", b.source, "--donor", b.original});
  CHECK_MESSAGE(proof.code == 0, proof.out, proof.err);
}

TEST_CASE("what repair says is left is what lint says of the result") {
  const auto listed = [](const Json& findings) {
    std::vector<std::string> all;
    for (const Json& f : findings) {
      std::string text;
      for (const char* key : {"severity", "rule", "where", "message"})
        text += f[key].get<std::string>() + " | ";
      all.push_back(text);
    }
    return all;
  };
  for (const Base base : {Base::kMoe, Base::kLlama, Base::kLlamaCt, Base::kMixtral, Base::kLlamaKv,
                          Base::kQwenMixed, Base::kNemotron, Base::kGptOss, Base::kDeepSeek}) {
    CAPTURE(std::string(base_name(base)));
    const Scratch scratch;
    const std::string source = (scratch / "broken").string(), out = (scratch / "out").string();
    Save save = base_checkpoint(base);
    save.files["generation_config.json"] = R"({"top_p": 7})";
    int damaged = 0;  // some matrices lose a half, which stays
    for (auto& [file, tensors] : save.shards) {
      for (TensorData& t : tensors) {
        if (t.shape.size() < 2 || t.bytes.size() < 4096 || damaged++ % 7 != 3) continue;
        std::fill(t.bytes.begin() + static_cast<std::ptrdiff_t>(t.bytes.size() / 2), t.bytes.end(),
                  uint8_t{0});
      }
    }
    write_planted(save, source);
    const Outcome o = run_program({"repair", source, out, "--json"});
    CHECK_MESSAGE(o.code == 1, o.err);
    const auto left = listed(Json::parse(o.out)["left"]);
    CHECK(left.size() > 0);
    CHECK(left == listed(Json::parse(run_program({"lint", out, "--json"}).out)["findings"]));
  }
}

TEST_CASE("a donor in another dialect gives no quantized module") {
  const Scratch scratch;
  const std::string source = (scratch / "broken").string(), donor = (scratch / "donor").string(),
                    out = (scratch / "out").string();
  Save save = base_checkpoint(Base::kLlama);
  save.erase("model.layers.1.mlp.down_proj.weight_scale");
  auto& codes = save.at("model.layers.2.mlp.down_proj.weight").bytes;
  std::fill(codes.begin(), codes.end(), uint8_t{0});
  write_planted(save, source);
  write_planted(base_checkpoint(Base::kLlamaCt), donor);
  const Outcome o = run_program({"repair", source, out, "--donor", donor, "--json"});
  CHECK_MESSAGE(o.code == 1, o.err);
  const std::string rules = rules_of(Json::parse(o.out)["unmended"]);
  CHECK_MESSAGE(rules.find("incomplete-module") != std::string::npos, o.out);
  CHECK_MESSAGE(rules.find("zero-weights") != std::string::npos, o.out);
  if (!fs::exists(out)) return;
  const Checkpoint result = Checkpoint::open(out);
  for (const TensorInfo& t : result.tensors()) CHECK(!t.name.ends_with(".weight_packed"));
}

}  // namespace cli_repair_test
