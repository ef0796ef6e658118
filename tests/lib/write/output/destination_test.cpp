#include <doctest/doctest.h>
#include <fmt/format.h>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/write/output/output_directory.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace destination_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

Tensors sound(unsigned seed = 1) {
  Tensors tensors;
  add_experts(tensors, "model.layers.0.mlp.experts", random_experts(2, 16, 16, seed));
  return tensors;
}

/// As a run does that is killed later.
void mark_unfinished(const fs::path& directory) {
  Journal marker(directory, Sharing::kAlone);
  marker.begin();
  marker.note("{}");
}

/// Checks that converting is refused with `message` and changes nothing below `root`.
void refuses(const fs::path& root, const fs::path& source, const fs::path& destination, bool force,
             const std::string& message) {
  CAPTURE(destination.string());
  const auto before = read_tree(root);
  ConvertOptions options;
  options.existing = force ? Existing::kReplace : Existing::kRefuse;
  CHECK_THROWS_WITH_AS(convert(source, destination, {}, options), doctest::Contains(message.c_str()), Error);
  CHECK((read_tree(root) == before));
}

}  // namespace

TEST_CASE("a directory is emptied only where it is ours, however its name is spelled") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  fs::create_directories(scratch / "precious/inner");
  fs::create_directories(scratch / "work");
  write_text(scratch / "precious/thesis.txt", "years");
  fs::create_directory_symlink("../precious/inner", scratch / "work/link");
  const fs::path before = fs::current_path();
  const auto refusal = [&](const fs::path& at, const fs::path& name, const fs::path& source) {
    fs::current_path(at);
    const std::string message = message_of([&] { OutputDirectory(name, source, Existing::kReplace); });
    fs::current_path(before);
    return message;
  };
  for (const char* name : {".", "./", "./.", "inner/..", "inner/../", "../precious", "../work/link/.."}) {
    CAPTURE(name);
    CHECK(contains(refusal(scratch / "precious", name, scratch / "src"), "--force replaces only"));
  }
  CHECK(contains(refusal(scratch / "work", "link/../", scratch / "src"), "--force replaces only"));
  CHECK(contains(refusal(scratch / "src", ".", "."), "found one that overlaps it"));
  CHECK(contains(refusal(scratch / "", ".", "src"), "found one that overlaps it"));
  CHECK(contains(refusal(scratch / "work", "link/..", scratch / "precious/inner"),
                 "found one that overlaps it"));
  CHECK(fs::exists(scratch / "precious/thesis.txt"));
  CHECK(fs::is_directory(scratch / "precious/inner"));
  CHECK(fs::exists(scratch / "src/model.safetensors"));
}

TEST_CASE("a destination that is the source, lies in it or holds it is refused, forced or not") {
  const Scratch scratch;
  write_checkpoint(scratch / "place/src", {sound()});
  fs::create_directory_symlink(scratch / "place/src", scratch / "link");
  for (const bool force : {false, true}) {
    const auto check = [&](const fs::path& source, const fs::path& destination, const char* message) {
      refuses(scratch.path, source, destination, force, message);
    };
    const fs::path source = scratch / "place/src";
    check(source, source, "expected a directory outside of the source");
    check(source, scratch / "place/src/", "expected a directory outside of the source");
    check(scratch / "link", source, "expected a directory outside of the source");
    check(source, scratch / "place/../place/src", "expected a directory outside of the source");
    check(source, scratch / "place", "expected a directory outside of the source");
    check(source, scratch.path, "expected a directory outside of the source");
    check(source, source / "out", "expected a directory outside of the source");
    check(source, source / "a/b/c", "expected a directory outside of the source");
    check(source, scratch / "link/out", "expected a directory outside of the source");
    check(scratch / "link", source / "out", "expected a directory outside of the source");
  }
}

TEST_CASE("a directory beside the source whose name begins like it is fine") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  convert(scratch / "src", scratch / "src-v7");
  CHECK(validate(scratch / "src-v7").differences.empty());
}

TEST_CASE("missing folders above the destination are made") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  convert(scratch / "src", scratch / "a/b/out");
  CHECK(validate(scratch / "a/b/out").differences.empty());
}

TEST_CASE("nothing is written through a symbolic link") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  fs::create_directory(scratch / "elsewhere");
  fs::create_directory_symlink(scratch / "elsewhere", scratch / "link");
  fs::create_directory_symlink(scratch / "nowhere", scratch / "dangling");
  for (const bool force : {false, true}) {
    for (const char* link : {"link", "dangling"}) {
      refuses(scratch.path, scratch / "src", scratch / link, force, "found a symbolic link");
    }
  }
  CHECK(fs::is_empty(scratch / "elsewhere"));
  CHECK(!fs::exists(scratch / "nowhere"));
}

TEST_CASE("a destination that became a link or another directory since it was looked at stays as it is") {
  for (const bool is_link : {true, false}) {
    for (const Existing existing : {Existing::kRefuse, Existing::kReplace}) {
      CAPTURE(is_link);
      const Scratch scratch;
      write_checkpoint(scratch / "src", {sound()});
      const bool is_empty = existing == Existing::kRefuse;
      for (const char* name : {"out", "precious"}) {
        if (is_empty) fs::create_directory(scratch / name);
        if (!is_empty) convert(scratch / "src", scratch / name);
      }
      const auto before = read_tree(scratch / "precious");
      const Destination destination(scratch / "out", scratch / "src", existing);
      fs::rename(scratch / "out", scratch / "away");
      if (is_link) fs::create_directory_symlink("precious", scratch / "out");
      if (!is_link) fs::rename(scratch / "precious", scratch / "out");
      const std::string message = message_of([&] { OutputDirectory{destination}; });
      CHECK(contains(message, is_link ? "found a symbolic link" : "start of the run, found another"));
      CHECK((read_tree(scratch / (is_link ? "precious" : "out")) == before));
    }
  }
}

TEST_CASE("a directory to be emptied that got a file since it was looked at keeps all, without a journal") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  convert(scratch / "src", scratch / "out");
  const Destination destination(scratch / "out", scratch / "src", Existing::kReplace);
  write_text(scratch / "out/notes", "mine");
  const auto before = read_tree(scratch / "out");
  const std::string message = message_of([&] { OutputDirectory{destination}; });
  CHECK(contains(message, "expected only the files that it had at the start of the run, found \"notes\""));
  CHECK((read_tree(scratch / "out") == before));
}

TEST_CASE("a file as destination is refused") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  write_text(scratch / "out", "mine");
  for (const bool force : {false, true}) {
    refuses(scratch.path, scratch / "src", scratch / "out", force, "expected a directory, found a file");
  }
}

TEST_CASE("a directory with anything in it is refused, and --force replaces only what twofour wrote") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  fs::create_directories(scratch / "out/notes");
  write_text(scratch / "out/notes/mine.txt", "mine");
  refuses(scratch.path, scratch / "src", scratch / "out", false, "expected an absent or empty directory");
  refuses(scratch.path, scratch / "src", scratch / "out", true,
          "--force replaces only a directory that twofour wrote");
}

TEST_CASE("an empty directory is filled") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  fs::create_directory(scratch / "out");
  convert(scratch / "src", scratch / "out");
  CHECK(validate(scratch / "out").differences.empty());
}

TEST_CASE("forced, an artifact of twofour is emptied first, also an unfinished one") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  write_checkpoint(scratch / "other", {sound(7)});
  convert(scratch / "other", scratch / "fresh");
  const auto expected = read_tree(scratch / "fresh");
  convert(scratch / "src", scratch / "out");
  refuses(scratch.path, scratch / "other", scratch / "out", false, "--force replaces it");
  ConvertOptions options;
  options.existing = Existing::kReplace;
  for (const bool unfinished : {false, true}) {
    CAPTURE(unfinished);
    fs::create_directories(scratch / "out/sub/folder");
    write_text(scratch / "out/sub/folder/stale.txt", "stale");
    write_text(scratch / "out/model-00009-of-00009.safetensors", "stale");
    if (unfinished) {
      mark_unfinished(scratch / "out");
      fs::remove(scratch / "out" / kManifestName);
      refuses(scratch.path, scratch / "other", scratch / "out", false, "--force replaces it");
    }
    convert(scratch / "other", scratch / "out", {}, options);
    CHECK((read_tree(scratch / "out") == expected));
    CHECK(!fs::exists(scratch / "out/sub"));
  }
}

TEST_CASE("files beside an empty journal are named and kept, forced or not") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  const fs::path out = scratch / "out", half = out / ".model-00001-of-00001.safetensors.unfinished";
  fs::create_directories(out);
  Journal(out, Sharing::kAlone).begin();
  write_text(out / "mine.txt", "years");
  fs::create_directories(half / "notes");
  write_text(half / "notes/more.txt", "years");
  for (const bool force : {false, true}) {
    for (const std::string name : {"mine.txt", ".model-00001-of-00001.safetensors.unfinished"}) {
      refuses(scratch.path, scratch / "src", out, force,
              (out / name).string() + ": expected only files that .twofour-unfinished lists");
    }
  }
  ConvertOptions options;
  options.existing = Existing::kResume;
  CHECK_THROWS_WITH_AS(convert(scratch / "src", out, {}, options), doctest::Contains("mine.txt"), Error);
  CHECK(fs::exists(out / "mine.txt"));
  fs::remove(out / "mine.txt");
  fs::remove_all(half);
  write_text(half, "half");
  options.existing = Existing::kReplace;
  convert(scratch / "src", out, {}, options);
  CHECK(validate(out).differences.empty());
}

TEST_CASE("a forced run that fails leaves an empty directory, not half of the old one") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  convert(scratch / "src", scratch / "out");
  Tensors bad = sound();
  bad[1].bytes[0] = 0x7F;  // a block scale
  REQUIRE(bad[1].name.ends_with("weight_scale"));
  write_checkpoint(scratch / "bad", {bad});
  ConvertOptions options;
  options.existing = Existing::kReplace;
  CHECK_THROWS_AS(convert(scratch / "bad", scratch / "out", {}, options), Error);
  CHECK(fs::is_directory(scratch / "out"));
  CHECK(fs::is_empty(scratch / "out"));
}

TEST_CASE("a source that twofour left unfinished is refused") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  convert(scratch / "src", scratch / "half");
  write_text(scratch / "half" / kJournalName, "");
  CHECK_THROWS_WITH_AS(
      Checkpoint::open(scratch / "half"),
      doctest::Contains("expected a complete checkpoint, found one that an interrupted run of twofour left"),
      Error);
  CHECK_THROWS_WITH_AS(validate(scratch / "half"), doctest::Contains("interrupted run of twofour left"),
                       Error);
  refuses(scratch.path, scratch / "half", scratch / "out", false, "interrupted run of twofour left");
}

TEST_CASE("a run is known by its journal however much that says at once") {
  const Scratch scratch;
  Journal marker(scratch.path, Sharing::kAlone);
  marker.begin();
  CHECK(journal_state(scratch.path) == JournalState::kMarked);
  marker.note(std::string(17u << 20, 'x'));  // a fingerprint of very many files
  CHECK(journal_state(scratch.path) == JournalState::kOurs);
  const Scratch other;
  Journal of_synth(other.path, Sharing::kAlone);
  of_synth.begin();
  of_synth.note(kSynthNote);
  CHECK(journal_state(other.path) == JournalState::kSynth);
  of_synth.note("emptying []");  // a run with --force was killed, too
  CHECK(journal_state(other.path) == JournalState::kOurs);
}

TEST_CASE("a destination that cannot be made is an error") {
  const Scratch scratch;
  write_checkpoint(scratch / "src", {sound()});
  write_text(scratch / "file", "");
  CHECK_THROWS_WITH_AS(convert(scratch / "src", scratch / "file/out"),
                       doctest::Contains("file/out: cannot create"), Error);
}

}  // namespace destination_test
