#include "lib/write/plan/auxiliary_files.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace auxiliary_files_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// A checkpoint beside the home of somebody else.
struct OutputFilesFixture {
  OutputFilesFixture() {
    Tensors tensors;
    add_bf16(tensors, "a", {4, 4});
    write_checkpoint(source, {tensors});
    fs::create_directories(home / "keys/deep");
    write_text(home / "token", "secret");
    write_text(home / "keys/id", "secret");
    write_text(home / "keys/deep/x.bin", "weights");
    write_text(source / "tokenizer.json", "{}");
  }
  AuxiliaryFiles list(Links links) {
    findings.clear();
    return find_auxiliary_files(source, links, findings);
  }
  std::set<std::string> names(Links links) {
    std::set<std::string> found;
    for (const auto& [name, size] : list(links).sizes) found.insert(name);
    return found;
  }
  std::vector<std::string> outside() {
    std::vector<std::string> found;
    for (const LinkOutside& link : list(Links::kInside).links_outside)
      found.push_back(link.path.lexically_relative(source).string());
    std::sort(found.begin(), found.end());
    return found;
  }

  Scratch scratch;
  fs::path source = scratch / "source", home = scratch / "home";
  Findings findings;
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("every file whose text would go along is looked at, and its target") {
  OutputFilesFixture f;
  CHECK(f.outside().empty());
  fs::create_directories(f.source / "sub/er");
  Names expected;
  for (const char* name :
       {"config.json", "hf_quant_config.json", "quantize_config.json", "twofour.json", "modeling_x.py",
        "chat_template.jinja", "sub/er/notes", "sub/model.safetensors", ".hidden"}) {
    fs::remove(f.source / name);
    fs::create_symlink(f.home / "token", f.source / name);
    expected.push_back(name);
  }
  std::sort(expected.begin(), expected.end());
  CHECK(f.outside() == expected);
  // What is read by name, or stays behind, may lead anywhere.
  for (const char* name :
       {"model-2.safetensors", "model.safetensors.index.json", "x.bin", "x.gguf", ".x.unfinished"})
    fs::create_symlink(f.home / "token", f.source / name);
  fs::create_directory(f.source / ".git");
  fs::create_symlink(f.home / "token", f.source / ".git/config");
  fs::create_directory_symlink(f.home, f.source / "sub/.cache");
  CHECK(f.outside() == expected);
  CHECK(f.names(Links::kInside) == std::set<std::string>{"tokenizer.json"});
  const auto all = f.names(Links::kFollowed);
  CHECK(all.contains("sub/er/notes"));
  CHECK(all.contains("config.json"));
  CHECK_FALSE(all.contains("twofour.json"));
  CHECK_FALSE(all.contains("sub/.cache/token"));
}

TEST_CASE("a folder behind a link is refused or goes along, and never walked into unasked") {
  OutputFilesFixture f;
  fs::create_directory(f.source / "assets");
  write_text(f.source / "assets/logo", "x");
  fs::create_directory_symlink("assets", f.source / "again");
  fs::create_directory_symlink(f.home / "keys", f.source / "assets/keys");
  fs::create_directory_symlink("/", f.source / "all");
  CHECK(f.outside() == Names{"all", "assets/keys"});
  fs::remove(f.source / "all");
  CHECK(f.names(Links::kFollowed) ==
        std::set<std::string>{"config.json", "tokenizer.json", "assets/logo", "assets/keys/id"});
  std::vector<std::string> left;
  for (const Finding& finding : f.findings) left.push_back(finding.where + ": " + finding.id);
  std::sort(left.begin(), left.end());
  CHECK(left == Names{"again: not-a-file", "assets/keys/deep/x.bin: other-weights"});
}

TEST_CASE("folders that link to each other end") {
  OutputFilesFixture f;
  fs::create_directory_symlink(f.home, f.source / "home");
  fs::create_directory_symlink(f.source, f.home / "back");
  fs::create_directory_symlink("..", f.home / "keys/up");
  fs::create_directory_symlink(f.home / "keys", f.home / "other");
  const auto names = f.names(Links::kFollowed);
  CHECK(names.contains("home/keys/id"));
  CHECK(names.contains("home/other/id"));
  CHECK(names.size() < 20);
}

TEST_CASE("the files of a source are refused together, each link with its target") {
  OutputFilesFixture f;
  fs::create_symlink("../home/token", f.source / "notes.txt");
  fs::create_directory_symlink("../home/keys", f.source / "keys");
  fs::remove(f.source / "config.json");
  write_text(f.home / "config.json", "{}");
  fs::create_symlink("../home/config.json", f.source / "config.json");
  const Checkpoint source = Checkpoint::open(f.source);
  CHECK(source.links_outside().size() == 1);
  Findings ignored;
  const std::string message = message_of([&] { copied_files(source, Links::kInside, ignored); });
  for (const char* name : {"notes.txt", "keys", "config.json"})
    contains(message, (f.source / name).string() + ": expected a file within the checkpoint");
  contains(message, fs::canonical(f.home / "token").string());
  CHECK(std::count(message.begin(), message.end(), '\n') == 2);
  CHECK(copied_files(source, Links::kFollowed, ignored).at("notes.txt") == 6);
  // What was read of config.json counts, not what is there by now.
  fs::remove(f.source / "config.json");
  write_text(f.source / "config.json", "{}");
  contains(message_of([&] { copied_files(source, Links::kInside, ignored); }), "config.json");
  const Checkpoint another = Checkpoint::open(f.source);
  fs::remove(f.source / "config.json");
  fs::create_symlink("../home/config.json", f.source / "config.json");
  contains(message_of([&] { another.open_again("config.json"); }), "--follow-links");
  CHECK_NOTHROW(source.open_again("config.json"));
}

}  // namespace auxiliary_files_test
