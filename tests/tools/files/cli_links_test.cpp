// Links that lead out of a checkpoint, through every command that copies what is beside its weights.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "lib/base/io/file.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_files.h"
#include "tests/support/outcome.h"

namespace cli_links_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr const char* kSecret = "hf_somebody's_secret";

/// A model "model", another "donor", and a home with secrets beside them.
struct LinkFiles : DecoderFiles {
  LinkFiles() : DecoderFiles("qwen3_moe") {
    fs::copy(scratch / "model", scratch / "donor", fs::copy_options::recursive);
    write_calibration("tokens.safetensors");
    fs::create_directory(scratch / "home");
    write_text(scratch / "home/token", kSecret);
    fs::copy(scratch / "model/config.json", scratch / "home/config.json");
  }
  void link(const std::string& name, const std::string& to) const {
    fs::remove(scratch / name);
    fs::create_symlink(to, scratch / name);
  }
  /// Every command that copies, with its destination "out".
  std::vector<Words> commands() const {
    const std::string model = path("model"), out = path("out");
    return {{"convert", model, out, "--to", "v7"},
            {"convert", model, out, "--to", "fp8"},
            {"quantize", model, out},
            {"quantize", model, out, "--include", "*.experts.*", "--pattern", "2:4"},
            {"graft", model, path("donor"), out, "--take", "head"},
            {"drop", model, out, "--modules", "model.layers.2.*"},
            {"compress", model, out, "--tokens", path("tokens.safetensors"), "--to", "nvfp4", "--sequential",
             "none"}};
  }
  Outcome run(Words words, const Words& more = {}) const {
    words.insert(words.end(), more.begin(), more.end());
    words.push_back("-q");
    return run_program(words);
  }
  void remove_out() const {
    for (const char* name : {"out", "out.compressing", "plan.json"}) fs::remove_all(scratch / name);
  }
};

void check_refused(const Outcome& o, const std::string& link, const fs::path& target) {
  CHECK(o.code == 2);
  for (const std::string& part : {link + ": expected a file within the checkpoint, found a link to ",
                                  fs::canonical(target).string(), std::string("--follow-links")})
    CHECK_MESSAGE(o.err.find(part) != std::string::npos, o.err);
}

}  // namespace

TEST_CASE("every command that copies has --follow-links, and no other") {
  std::istringstream lines(run_program({"help", "--markdown"}).out);
  std::vector<std::string> found;
  std::string command;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("## ")) command = line.substr(3);
    if (line.starts_with("- [") && line.find("`--follow-links`") != line.npos) found.push_back(command);
  }
  CHECK(found == Words{"convert", "quantize", "prune", "compress", "graft", "drop", "repair", "plan"});
}

TEST_CASE("a link out of the checkpoint is refused by every command that copies, before it writes") {
  const LinkFiles files;
  for (const char* folder : {"model/.git", "model/.cache/huggingface"}) {
    fs::create_directories(files.scratch / folder);
    write_text(files.scratch / folder / "config", kSecret);
  }
  struct Case {
    const char *name, *to;
  };
  for (const Words& words : files.commands()) {
    CAPTURE(words[0]);
    for (const Case& c : {Case{"notes.txt", "../home/token"}, Case{"sub/modeling_x.py", "../../home/token"},
                          Case{"config.json", "../home/config.json"}, Case{"assets", "../home"},
                          Case{"chat_template.jinja", ".git/config"},
                          Case{"sub/notes.txt", "../.cache/huggingface/config"}, Case{"assets", ".git"}}) {
      CAPTURE(c.name);
      fs::create_directories(files.scratch / "model/sub");
      fs::copy(files.scratch / "model/config.json", files.scratch / "kept.json",
               fs::copy_options::overwrite_existing);
      files.link(std::string("model/") + c.name, c.to);
      const fs::path link = files.scratch / "model" / c.name;
      check_refused(files.run(words), link.string(), link);
      check_refused(files.run(words, {"--dry-run"}), link.string(), link);
      CHECK_FALSE(fs::exists(files.scratch / "out"));
      CHECK_FALSE(fs::exists(files.scratch / "out.compressing"));
      fs::remove(link);
      fs::copy(files.scratch / "kept.json", files.scratch / "model/config.json",
               fs::copy_options::overwrite_existing);
    }
  }
}

TEST_CASE("with --follow-links every command copies what is there, and validate proves it") {
  const LinkFiles files;
  files.link("model/notes.txt", "../home/token");
  files.link("model/assets", "../home");
  files.link("model/config.json", "../home/config.json");
  for (const Words& words : files.commands()) {
    CAPTURE(words[0]);
    files.remove_out();
    const Outcome o = files.run(words, {"--follow-links"});
    REQUIRE_MESSAGE(o.code == 0, o.err);
    for (const char* name : {"out/notes.txt", "out/assets/token"}) {
      CHECK(read_text(files.scratch / name) == kSecret);
      CHECK_FALSE(fs::is_symlink(files.scratch / name));
    }
    CHECK(fs::exists(files.scratch / "out/config.json"));
    Words proof{"validate", files.path("out"), "--source", files.path("model")};
    if (words[0] == "graft") proof.insert(proof.end(), {"--donor", files.path("donor")});
    const Outcome proven = files.run(proof);
    CHECK_MESSAGE(proven.code == 0, proven.err, proven.out);
    // A run that goes on copies by the same word.
    if (words[0] != "compress")
      CHECK_MESSAGE(files.run(words, {"--resume", "--follow-links"}).code == 0, words[0]);
  }
}

TEST_CASE("tasks of a plan and their merge follow links as the plan was told") {
  const LinkFiles files;
  files.link("model/notes.txt", "../home/token");
  const Words plan{"plan", files.path("model"),    files.path("out"), "--to", "v7",
                   "-o",   files.path("plan.json")};
  check_refused(files.run(plan), files.path("model/notes.txt"), files.scratch / "home/token");
  CHECK_FALSE(fs::exists(files.scratch / "plan.json"));
  CHECK(files.run(plan, {"--follow-links"}).code == 0);
  contains(read_text(files.scratch / "plan.json"), "\"follow_links\": true");
  const Outcome task = files.run({"convert", "--plan", files.path("plan.json"), "--task", "0/1"});
  CHECK_MESSAGE(task.code == 0, task.err);
  const Outcome merged = files.run({"merge", files.path("out")});
  CHECK_MESSAGE(merged.code == 0, merged.err);
  CHECK(read_text(files.scratch / "out/notes.txt") == kSecret);
  // A link that came behind the plan.
  files.remove_out();
  fs::remove(files.scratch / "model/notes.txt");
  CHECK(files.run(plan).code == 0);
  CHECK(read_text(files.scratch / "plan.json").find("follow_links") == std::string::npos);
  files.link("model/notes.txt", "../home/token");
  check_refused(files.run({"convert", "--plan", files.path("plan.json"), "--task", "0/1"}),
                files.path("model/notes.txt"), files.scratch / "home/token");
}

TEST_CASE("of a donor the config counts, which says how modules come, and no other file") {
  const LinkFiles files;
  const Words graft{"graft", files.path("model"), files.path("donor"), files.path("out"), "--take", "head"};
  files.link("donor/config.json", "../home/config.json");
  check_refused(files.run(graft), files.path("donor/config.json"), files.scratch / "home/config.json");
  CHECK(files.run(graft, {"--follow-links"}).code == 0);
  files.remove_out();
  fs::remove(files.scratch / "donor/config.json");
  fs::copy(files.scratch / "home/config.json", files.scratch / "donor/config.json");
  files.link("donor/notes.txt", "../home/token");
  CHECK(files.run(graft).code == 0);
  CHECK_FALSE(fs::exists(files.scratch / "out/notes.txt"));
}

TEST_CASE("prune refuses links, too") {
  const LinkFiles files;
  REQUIRE(files.run({"quantize", files.path("model"), files.path("nvfp4")}).code == 0);
  files.link("nvfp4/notes.txt", "../home/token");
  const Words prune{"prune", files.path("nvfp4"), files.path("out"), "--pattern", "2:4"};
  check_refused(files.run(prune), files.path("nvfp4/notes.txt"), files.scratch / "home/token");
  CHECK(files.run(prune, {"--follow-links"}).code == 0);
  CHECK(read_text(files.scratch / "out/notes.txt") == kSecret);
}

TEST_CASE("shards and index behind links, and a snapshot of the Hub's cache, are read as ever") {
  const LinkFiles files;
  const Words convert{"convert", files.path("model"), files.path("out"), "--to", "v7"};
  REQUIRE(files.run(convert).code == 0);
  const auto plain = read_tree(files.scratch / "out");
  files.remove_out();
  fs::rename(files.scratch / "model/model.safetensors", files.scratch / "home/weights");
  files.link("model/model.safetensors", "../home/weights");
  const Outcome o = files.run(convert);
  CHECK_MESSAGE(o.code == 0, o.err);
  CHECK((read_tree(files.scratch / "out") == plain));
  // models--o--n/snapshots/REV has links alone.
  const fs::path cache = files.scratch / "hub/models--o--n", snapshot = cache / "snapshots/0123";
  fs::create_directories(snapshot);
  fs::create_directories(cache / "blobs");
  for (const auto& [name, size] : files_below(files.scratch / "model")) {
    fs::copy_file(files.scratch / "model" / name, cache / "blobs" / (name + "-blob"));
    fs::create_symlink("../../blobs/" + name + "-blob", snapshot / name);
  }
  const Outcome cached = files.run({"convert", snapshot.string(), files.path("cached"), "--to", "v7"});
  CHECK_MESSAGE(cached.code == 0, cached.err);
  CHECK((read_tree(files.scratch / "cached") == plain));
  const Outcome linted = files.run({"lint", snapshot.string(), "--json"});
  CHECK(linted.out.find("link-outside") == std::string::npos);
}

TEST_CASE("a copy of such a snapshot without its blobs says so, in convert and lint") {
  const LinkFiles files;
  const std::string text =
      "config.json: expected a file, found a link to ../../blobs/abc, which does not exist (copied without "
      "-L?)";
  files.link("model/config.json", "../../blobs/abc");
  check_one_line(run_program({"convert", files.path("model"), files.path("out"), "--to", "v7"}), text);
  const Outcome config = run_program({"lint", files.path("model")});
  CHECK(config.code == 1);
  contains(config.out, "found a link to ../../blobs/abc, which does not exist (copied without -L?)");
  files.link("model/model.safetensors", "../../blobs/def");
  const Outcome shard = run_program({"lint", files.path("model")});
  contains(shard.out, "found a link to ../../blobs/def, which does not exist (copied without -L?)");
  fs::remove(files.scratch / "model/config.json");
  check_one_line(run_program({"convert", files.path("model"), files.path("out"), "--to", "v7"}),
                 "model.safetensors: expected a file, found a link to ../../blobs/def, which does not exist");
  files.link("gone", "nowhere");
  check_one_line(run_program({"inspect", files.path("gone")}),
                 "gone: expected a file or directory, found a link to nowhere, which does not exist");
}

TEST_CASE("lint warns of what conversions refuse") {
  const LinkFiles files;
  files.link("model/notes.txt", "../home/token");
  const Outcome o = run_program({"lint", files.path("model"), "--select", "link-outside"});
  CHECK(o.code == 1);
  contains(o.out, "notes.txt");
  contains(o.out, fs::canonical(files.scratch / "home/token").string());
  CHECK(o.out.find(kSecret) == std::string::npos);
  CHECK(run_program({"lint", files.path("donor"), "--select", "link-outside"}).code == 0);
}

}  // namespace cli_links_test
