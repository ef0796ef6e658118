#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <map>

#include "lib/base/findings/version.h"
#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"
#include "lib/recipe/artifact/manifest.h"
#include "tests/support/conversion.h"
#include "tests/support/faults/planted.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_files.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"

/// The file in which an artifact describes itself.

namespace cli_readme_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

const std::string kGolden = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

void succeed(const Words& words) {
  const Outcome o = run_program(words);
  REQUIRE_MESSAGE(o.code == 0, o.out, o.err);
}

/// Bytes of a file by the name, of the files that a dry run lists as exact.
std::map<std::string, uint64_t> exact_sizes(const Json& plan) {
  std::map<std::string, uint64_t> sizes;
  for (const Json& file : plan["other_files"]) {
    if (file["exact"] == true) sizes[file["name"].get<std::string>()] = file["bytes"].get<uint64_t>();
  }
  return sizes;
}

/// Checks the file `name` of an artifact: what must and what must not be in it.
std::string check_readme(const fs::path& artifact, const std::string& name = "README.md") {
  REQUIRE(fs::exists(artifact / name));
  std::string text = read_text(artifact / name);
  CHECK(text.starts_with("# A checkpoint that twofour wrote\n"));
  CHECK(contains(text, "twofour validate PATH --source SOURCE"));
  for (const std::string& secret :
       {artifact.parent_path().string(), std::string(version()), std::string(version_commit())})
    CHECK_MESSAGE(text.find(secret) == text.npos, secret);
  const Json manifest = parse_json("twofour.json", read_text(artifact / "twofour.json"));
  CHECK(manifest["readme"] == name);
  CHECK(manifest["files"][name] == hash_text(text).hex());
  return text;
}

/// The seal of a twofour.json whose text was changed.
void seal(const fs::path& manifest) {
  std::string text = read_text(manifest);
  text.resize(text.find("\"manifest_xxh3_128\""));
  write_text(manifest, text + manifest_seal(hash_text(text)));
}

void replace_text(const fs::path& file, const std::string& from, const std::string& to) {
  std::string text = read_text(file);
  const size_t at = text.find(from);
  REQUIRE(at != text.npos);
  write_text(file, text.replace(at, from.size(), to));
}

/// Notes the present bytes of a file in twofour.json, as a careful forger would.
void note_hash(const fs::path& artifact, const std::string& name, const std::string& old_hash) {
  replace_text(artifact / "twofour.json", old_hash, hash_file(artifact / name).hex());
  seal(artifact / "twofour.json");
}

}  // namespace

TEST_CASE("what convert, prune and quantize write describes itself, in a size that the dry run knows") {
  const Scratch scratch;
  const DecoderFiles files("qwen3_moe");
  const std::string floats = files.path("model");
  struct Case {
    const char* source;
    Words words;
    const char *format, *loads;
  };
  const std::string import = "import twofour.integrations.transformers\n";
  const Case cases[] = {
      {kGolden.c_str(),
       {"convert", "--to", "v7"},
       "| `v7` | 2 | NVFP4, pruned to 2:4, in a layout",
       import.c_str()},
      {kGolden.c_str(), {"convert", "--to", "g8"}, "| `g8` | 2 | NVFP4 in a layout", import.c_str()},
      {floats.c_str(), {"convert", "--to", "v7-packed"}, "| `v7-packed` |", import.c_str()},
      {kGolden.c_str(),
       {"convert", "--to", "nvfp4", "--dialect", "compressed-tensors"},
       "| `nvfp4` |",
       "`compressed-tensors` load it"},
      {kGolden.c_str(),
       {"convert", "--to", "fp8"},
       "| FP8 E4M3 |",
       "No import of twofour is needed. Engines"},
      {floats.c_str(),
       {"convert", "--to", "mxfp8", "--include", "*.self_attn.*"},
       "| MXFP8 |",
       "vllm serve PATH"},
      {floats.c_str(), {"convert", "--to", "mxfp6"}, "| MXFP6 |", "vLLM has no loader of MXFP6."},
      {floats.c_str(),
       {"convert", "--to", "mxfp6", "--include", "*.self_attn.*"},
       "| MXFP6 |",
       "vLLM has no loader of MXFP6."},
      {floats.c_str(), {"convert", "--to", "mxfp4"}, "| MXFP4 |", "vLLM has no loader of W4A8_MXFP4_FP8."},
      {floats.c_str(),
       {"convert", "--to", "mxfp4", "--dialect", "compressed-tensors"},
       "| MXFP4 |",
       "vllm serve PATH"},
      {kGolden.c_str(), {"convert", "--to", "bf16"}, "| BF16 |", "dtype=\"auto\""},
      {kGolden.c_str(), {"prune"}, "| `prune` | 12 | the source's format, pruned |", "`modelopt` load it"},
      {floats.c_str(), {"quantize"}, "| `quantize` |", "`modelopt` load it"}};
  for (const Case& c : cases) {
    CAPTURE(fmt::format("{}", fmt::join(c.words, " ")));
    const fs::path out = scratch / "out", again = scratch / "again";
    Words words = c.words;
    words.insert(words.begin() + 1, {c.source, out.string()});
    const auto sizes = exact_sizes(json_of(run_program(with(words, {"--dry-run", "--json"}))));
    succeed(with(words, {"-q", "-j1"}));
    const std::string text = check_readme(out);
    CHECK_MESSAGE(contains(text, c.format), text);
    CHECK_MESSAGE(contains(text, c.loads), text);
    CHECK(sizes.contains("README.md"));
    for (const auto& [name, bytes] : sizes) CHECK_MESSAGE(fs::file_size(out / name) == bytes, name);
    words[2] = again.string();
    succeed(with(words, {"-q", "-j3"}));
    CHECK(read_tree(out) == read_tree(again));
    succeed(with(words, {"-q", "--resume"}));
    succeed({"validate", out.string(), "-q"});
    succeed({"validate", out.string(), "--source", c.source, "-q"});
    // The card says the same.
    const std::string card = run_program({"card", out.string()}).out;
    for (const char* heading : {"## Loading\n", "## Proof\n"}) {
      const size_t at = text.find(heading), in_card = card.find(heading);
      REQUIRE(in_card != card.npos);
      const size_t begin = text.find("\n", at) + 1, end = std::min(text.find("\n## ", begin), text.size());
      CHECK_MESSAGE(contains(card, text.substr(begin, end - begin)), card);
    }
    fs::remove_all(out), fs::remove_all(again);
  }
}

TEST_CASE("what graft, drop and repair write says so") {
  const Scratch scratch;
  const std::string base = (scratch / "base").string(), donor = (scratch / "donor").string();
  for (const std::string& path : {base, donor})
    succeed({"synth", path, "--shape", "qwen3-moe", "--layers", "2", "--experts", "8", "--vocab", "16",
             "--seed", path == base ? "1" : "2", "-q"});
  const fs::path grafted = scratch / "grafted", dropped = scratch / "dropped", mended = scratch / "mended";
  succeed({"graft", base, donor, grafted.string(), "--take", "model.layers.1.*", "-q"});
  CHECK(contains(check_readme(grafted), "`twofour graft` wrote this checkpoint"));
  CHECK(contains(check_readme(grafted), "--source SOURCE --donor DONOR\n"));
  succeed({"validate", grafted.string(), "--source", base, "--donor", donor, "-q"});
  succeed({"graft", base, donor, grafted.string(), "--take", "model.layers.1.*", "-q", "--resume"});
  succeed({"drop", grafted.string(), dropped.string(), "--modules", "model.layers.1.*", "-q"});
  CHECK(contains(check_readme(dropped), "`twofour drop` wrote this checkpoint"));
  CHECK(!fs::exists(dropped / "TWOFOUR.md"));
  succeed({"validate", dropped.string(), "--source", grafted.string(), "-q"});

  Save save = base_checkpoint(Base::kMoe);
  save.erase("model.layers.1.mlp.experts.3.up_proj.input_scale");
  const std::string broken = (scratch / "broken").string();
  write_planted(save, broken);
  fs::remove(fs::path(broken) / "README.md");
  write_text(fs::path(broken) / "LICENSE", "as stated elsewhere\n");
  const Outcome repaired = run_program({"repair", broken, mended.string()});
  REQUIRE_MESSAGE(repaired.code == 0, repaired.out);
  CHECK(contains(check_readme(mended), "`twofour repair` wrote this checkpoint"));
  succeed({"validate", mended.string(), "--source", broken});
  succeed({"repair", broken, mended.string(), "--resume"});
}

TEST_CASE("what compress writes says which statistics prove it, and its dry run knows the size") {
  const DecoderFiles files("qwen3_moe");
  files.write_calibration("tokens.safetensors");
  const Words words{"compress",
                    files.path("model"),
                    files.path("out"),
                    "--tokens",
                    files.path("tokens.safetensors"),
                    "--to",
                    "v7"};
  const auto sizes = exact_sizes(json_of(run_program(with(words, {"--dry-run", "--json"}))));
  succeed(with(words, {"-q", "--keep-stats", files.path("stats")}));
  const std::string text = check_readme(files.path("out"));
  CHECK(contains(text, "--source SOURCE --stats FILE\n"));
  CHECK(sizes.at("README.md") == text.size());
  succeed(
      {"validate", files.path("out"), "--source", files.path("model"), "--stats", files.path("stats"), "-q"});
  succeed({"validate", files.path("out"), "--source", files.path("model"), "-q"});
  succeed(with(words, {"-q", "--resume"}));
}

TEST_CASE("tasks and their merge write the readme of a single run") {
  const Scratch scratch;
  const std::string plan = (scratch / "plan.json").string(), out = (scratch / "out").string(),
                    alone = (scratch / "alone").string();
  for (const Words& word : {Words{}, Words{"--no-readme"}}) {
    succeed(with({"convert", kGolden, alone, "--to", "v7", "--max-shard-size", "20kB", "-q"}, word));
    succeed(with({"plan", kGolden, out, "--to", "v7", "--max-shard-size", "20kB", "-o", plan, "-q"}, word));
    for (const char* task : {"1/2", "0/2"}) succeed({"convert", "--plan", plan, "--task", task, "-q"});
    succeed({"merge", out, "-q"});
    CHECK(read_tree(out) == read_tree(alone));
    CHECK(fs::exists(fs::path(out) / "README.md") == word.empty());
    fs::remove_all(out), fs::remove_all(alone), fs::remove(plan);
  }
}

TEST_CASE("a README.md of the source's author stays, and what twofour wrote is replaced") {
  const Scratch scratch;
  const fs::path source = scratch / "source", first = scratch / "first", second = scratch / "second",
                 third = scratch / "third";
  fs::copy(kGolden, source);
  const std::string author = "---\nlicense: mit\n---\r\n# By its author\n";
  write_text(source / "README.md", author);
  succeed({"convert", source.string(), first.string(), "--to", "nvfp4", "-q"});
  CHECK(read_text(first / "README.md") == author);
  const std::string described = check_readme(first, "TWOFOUR.md");
  succeed({"convert", first.string(), second.string(), "--to", "g8", "-q"});
  CHECK(read_text(second / "README.md") == author);
  CHECK(check_readme(second, "TWOFOUR.md") != described);
  succeed({"validate", second.string(), "--source", first.string(), "-q"});
  succeed({"convert", second.string(), third.string(), "--to", "bf16", "-q"});  // from a layout
  CHECK(read_text(third / "README.md") == author);
  CHECK(contains(check_readme(third, "TWOFOUR.md"), "| BF16 |"));
  succeed({"validate", third.string(), "--source", second.string(), "-q"});

  // Without an author's there is one README.md in every step.
  fs::remove(source / "README.md");
  for (const fs::path& path : {first, second, third}) fs::remove_all(path);
  succeed({"convert", source.string(), first.string(), "--to", "g8", "-q"});
  succeed({"convert", first.string(), second.string(), "--to", "nvfp4", "-q"});
  CHECK(contains(check_readme(second), "`nvfp4`"));
  CHECK(!fs::exists(second / "TWOFOUR.md"));
  succeed({"validate", second.string(), "--source", first.string(), "-q"});
  // A description of the source would be wrong, so that --no-readme does not copy it.
  succeed({"convert", first.string(), third.string(), "--to", "nvfp4", "--no-readme", "-q"});
  CHECK(!fs::exists(third / "README.md"));
  CHECK(parse_json("", read_text(third / "twofour.json"))["recipe"]["readme"] == false);
  succeed({"validate", third.string(), "--source", first.string(), "-q"});
  succeed({"convert", first.string(), third.string(), "--to", "nvfp4", "--no-readme", "--resume", "-q"});
  CHECK(run_program({"convert", first.string(), third.string(), "--to", "nvfp4", "--resume", "-q"}).code ==
        2);

  // A README.md that was written over twofour's is its author's.
  write_text(first / "README.md", author);
  fs::remove_all(second);
  succeed({"convert", first.string(), second.string(), "--to", "nvfp4", "-q"});
  CHECK(read_text(second / "README.md") == author);
  check_readme(second, "TWOFOUR.md");
  succeed({"validate", second.string(), "--source", first.string(), "-q"});

  write_text(first / "TWOFOUR.md", "mine\n");
  const std::string out = (scratch / "out").string();
  check_one_line(run_program({"convert", first.string(), out, "--to", "nvfp4"}),
                 "TWOFOUR.md: expected no such file");
  CHECK(!fs::exists(out));
  succeed({"convert", first.string(), out, "--to", "nvfp4", "--no-readme", "-q"});
  CHECK(read_text(fs::path(out) / "TWOFOUR.md") == "mine\n");
}

TEST_CASE("validate derives the readme and says where it differs") {
  const Scratch scratch;
  const fs::path out = scratch / "out";
  succeed({"convert", kGolden, out.string(), "--to", "v7", "-q"});
  const std::string hash = hash_file(out / "README.md").hex();
  const auto differences = [&](const Words& more) {
    const Outcome o = run_program(with({"validate", out.string(), "--json"}, more));
    CHECK(o.code == 1);
    std::string all;
    const Json report = parse_json("stdout", o.out);
    for (const Json& d : report["differences"])
      all += fmt::format("{} {}: {}\n", d["rule"].get<std::string>(), d["where"].get<std::string>(),
                         d["message"].get<std::string>());
    return all;
  };
  SUBCASE("a figure, with the hash that fits") {
    replace_text(out / "README.md", "| SNR |", "| snr |");
    note_hash(out, "README.md", hash);
    const std::string all = differences({});
    CHECK_MESSAGE(contains(all, "readme README.md: line "), all);
    CHECK_MESSAGE(contains(all, "| SNR |"), all);
    CHECK_MESSAGE(contains(differences({"--source", kGolden}), "readme README.md: line "), all);
  }
  SUBCASE("more text at the end") {
    write_text(out / "README.md", read_text(out / "README.md") + "More.\n");
    note_hash(out, "README.md", hash);
    CHECK(contains(differences({}), "readme README.md: line "));
  }
  SUBCASE("a wrong byte alone") {
    replace_text(out / "README.md", "PATH", "PAHT");
    CHECK(contains(differences({}), "file README.md: expected " + hash));
  }
  SUBCASE("another name") {
    fs::rename(out / "README.md", out / "TWOFOUR.md");
    for (int i = 0; i < 2; ++i) replace_text(out / "twofour.json", "README.md", "TWOFOUR.md");
    seal(out / "twofour.json");
    CHECK(contains(differences({"--source", kGolden}),
                   "readme twofour.json: expected README.md as the description"));
  }
  SUBCASE("a name outside of the directory") {
    replace_text(out / "twofour.json", "\"readme\": \"README.md\"", "\"readme\": \"../secret\"");
    seal(out / "twofour.json");
    CHECK(contains(differences({}), "readme twofour.json: expected README.md or TWOFOUR.md"));
  }
  SUBCASE("none") {
    fs::remove(out / "README.md");
    CHECK(contains(differences({}), "missing-file README.md"));
  }
}

TEST_CASE("readme is a word of recipes, and artifacts that say nothing of it have none") {
  const Scratch scratch;
  const std::string recipe = (scratch / "r.yaml").string(), out = (scratch / "out").string();
  write_text(recipe, "format: 1\nreadme: false\nrules: [{match: experts, to: g8}]\n");
  succeed({"convert", kGolden, out, "--recipe", recipe, "-q"});
  CHECK(!fs::exists(fs::path(out) / "README.md"));
  const auto entry = [](const fs::path& artifact) {
    return parse_json("", read_text(artifact / "config.json"))["quantization_config"];
  };
  CHECK(entry(out)["import"] == "twofour.integrations.transformers");
  write_text(recipe, "format: 1\nreadme: maybe\nrules: [{match: experts, to: g8}]\n");
  check_one_line(run_program({"convert", kGolden, out, "--recipe", recipe, "--force"}),
                 "readme: expected true or false");

  // The library's default is the recipe of artifacts from before 0.3.0.
  const fs::path old = scratch / "old";
  convert(kGolden, old);
  CHECK(!fs::exists(old / "README.md"));
  CHECK(!entry(old).contains("import"));
  CHECK(read_text(old / "twofour.json").find("readme") == std::string::npos);
  succeed({"validate", old.string(), "--source", kGolden, "-q"});
  succeed({"convert", kGolden, old.string(), "--to", "v7", "--resume", "-q"});
  const fs::path same = scratch / "same";
  succeed({"convert", kGolden, same.string(), "--recipe", (old / "twofour.json").string(), "-q"});
  CHECK(read_tree(same) == read_tree(old));
}

}  // namespace cli_readme_test
