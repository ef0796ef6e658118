// Whatever happens to a file is found, and nothing else is.
#include "lib/base/io/file_states.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <map>

#include "lib/base/io/file.h"
#include "lib/base/io/remote_file.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace file_states_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// A directory with files, a folder with one, and a link to one elsewhere.
struct Files {
  Files() {
    fs::create_directories(source / "sub");
    for (const char* name : {"a.safetensors", "config.json", "sub/b.txt", ".hidden"})
      std::ofstream(source / name) << "text of " << name;
    std::ofstream(scratch / "elsewhere") << "elsewhere";
    std::ofstream(scratch / "another") << "otherwise";
    fs::create_symlink("../elsewhere", source / "link");
  }
  Scratch scratch;
  fs::path source = scratch / "source";
};

/// Puts other bytes under a file's name, with the size and the time of change of those before.
void replace(const fs::path& file) {
  std::string text = read_text(file);
  text[0] = '#';
  const fs::path other = file.string() + ".new";
  std::ofstream(other) << text;
  fs::last_write_time(other, fs::last_write_time(file));
  fs::rename(other, file);
}

/// Writes a byte in place, and sets back the time of change.
void overwrite(const fs::path& file) {
  const auto time = fs::last_write_time(file);
  std::fstream(file, std::ios::in | std::ios::out).put('#');
  fs::last_write_time(file, time);
}

}  // namespace

TEST_CASE("each change of a file is one message with its name, what changed and what to do") {
  struct Case {
    const char* what;
    std::function<void(const Files&)> change;
    const char *file, *found;
  };
  const Case cases[] = {
      {"replaced", [](const Files& f) { replace(f.source / "a.safetensors"); }, "a.safetensors",
       "expected a file that does not change while being read, found another file of that name: it was "
       "replaced"},
      {"replaced below", [](const Files& f) { replace(f.source / "sub/b.txt"); }, "sub/b.txt",
       "it was replaced"},
      {"overwritten", [](const Files& f) { overwrite(f.source / "config.json"); }, "config.json",
       "found a change: written to or touched"},
      {"touched",
       [](const Files& f) {
         const fs::path file = f.source / "config.json";
         fs::last_write_time(file, fs::last_write_time(file) + std::chrono::nanoseconds(1000));
       },
       "config.json", "found a change: written to or touched"},
      {"longer", [](const Files& f) { std::ofstream(f.source / "config.json", std::ios::app) << "12"; },
       "config.json", "found a change: 19 bytes before, 21 now"},
      {"removed", [](const Files& f) { fs::remove(f.source / "a.safetensors"); }, "a.safetensors",
       "found no file: it was removed or renamed"},
      {"renamed", [](const Files& f) { fs::rename(f.source / "config.json", f.source / "config.json.old"); },
       "config.json", "found no file: it was removed or renamed"},
      {"added", [](const Files& f) { std::ofstream(f.source / "new.json") << "{}"; }, "new.json",
       "expected no new file while its directory is being read, found one"},
      {"added below", [](const Files& f) { std::ofstream(f.source / "sub/new.safetensors") << "{}"; },
       "sub/new.safetensors", "expected no new file"},
      {"behind a link", [](const Files& f) { overwrite(f.scratch / "elsewhere"); }, "link", "found a change"},
      {"a link to another file",
       [](const Files& f) {
         fs::remove(f.source / "link");
         fs::create_symlink("../another", f.source / "link");
       },
       "link", "it was replaced"},
      {"a link to nothing", [](const Files& f) { fs::remove(f.scratch / "elsewhere"); }, "link",
       "found no file"},
      {"a file as a folder",
       [](const Files& f) {
         fs::remove(f.source / "config.json");
         fs::create_directory(f.source / "config.json");
       },
       "config.json", "found no file"},
      {"the whole directory",
       [](const Files& f) {
         fs::copy(f.source, f.scratch / "copy", fs::copy_options::recursive);
         fs::rename(f.source, f.scratch / "old");
         fs::rename(f.scratch / "copy", f.source);
       },
       "a.safetensors", "it was replaced"},
      {"the directory gone", [](const Files& f) { fs::rename(f.source, f.scratch / "old"); }, "a.safetensors",
       "found no file"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    const Files f;
    const FileStates states({f.source});
    states.check_unchanged();
    c.change(f);
    const std::string message = message_of([&] { states.check_unchanged("do this"); });
    CHECK_MESSAGE(message.starts_with((f.source / c.file).string() + ": expected "), message);
    contains(message, c.found);
    CHECK_MESSAGE(message.ends_with("; do this"), message);
    // Those of now are another state, and sound.
    FileStates({f.source}).check_unchanged();
  }
}

TEST_CASE("reading, hidden names and files of other directories are no change") {
  const Files f;
  const FileStates states({f.source, fs::path(), f.scratch / "nothing"});
  read_text(f.source / "config.json");
  overwrite(f.source / ".hidden");
  std::ofstream(f.source / ".new") << "x";
  fs::create_directory(f.source / ".git");
  std::ofstream(f.source / ".git/new") << "x";
  fs::create_directory(f.source / "empty");
  for (const char* name : {"log.txt", "sub/log", "nohup.out"}) std::ofstream(f.source / name) << "x";
  overwrite(f.scratch / "another");
  states.check_unchanged();
}

TEST_CASE("files that an index names are among them, hidden ones and those behind a link to a folder, too") {
  for (const char* name : {".hidden.safetensors", ".folder/x.safetensors", "linked/x.safetensors"}) {
    CAPTURE(name);
    const Files f;
    fs::create_directories(f.source / ".folder");
    fs::create_directories(f.scratch / "other");
    fs::create_symlink("../other", f.source / "linked");
    for (const char* file : {".hidden.safetensors", ".folder/x.safetensors", "linked/x.safetensors"})
      std::ofstream(f.source / file) << "text of " << file;
    FileStates before({f.source});
    overwrite(f.source / name);
    before.check_unchanged();  // nothing names it
    std::ofstream(f.source / "model.safetensors.index.json")
        << R"({"weight_map": {"a": "a.safetensors", "b": ")" << name << R"("}})";
    const FileStates states({f.source});
    states.check_unchanged();
    replace(f.source / name);
    const std::string message = message_of([&] { states.check_unchanged(); });
    CHECK_MESSAGE(message.starts_with((f.source / name).string() + ": expected "), message);
  }
}

TEST_CASE("several paths, a single file among them") {
  const Files f;
  const FileStates states({f.scratch / "another", f.source / "sub"});
  replace(f.source / "a.safetensors");
  states.check_unchanged();
  replace(f.scratch / "another");
  contains(message_of([&] { states.check_unchanged(); }), "another: expected a file that does not change");
  const FileStates later({f.scratch / "another", f.source / "sub"});
  replace(f.source / "sub/b.txt");
  contains(message_of([&] { later.check_unchanged(); }), "b.txt");
}

TEST_CASE("what the run writes itself is left out, whatever names it") {
  const Files f;
  for (const fs::path& name : {f.source / "report.html", f.source / "sub/../config.json"}) {
    FileStates states({f.source});
    states.leave_out(name);
    std::ofstream(name, std::ios::app) << "x";
    states.check_unchanged();
    replace(f.source / "a.safetensors");
    contains(message_of([&] { states.check_unchanged(); }), "a.safetensors");
  }
  const fs::path before = fs::current_path();
  fs::current_path(f.source);
  FileStates here({"."});
  here.leave_out("page.html");
  std::ofstream("page.html") << "x";
  here.check_unchanged();
  fs::current_path(before);
}

TEST_CASE("a file that the program prints into is no part of what it reads") {
  const Files f;
  const fs::path log = f.source / "log.txt";
  const int own = ::dup(STDERR_FILENO), to = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  REQUIRE(::dup2(to, STDERR_FILENO) == STDERR_FILENO);
  const FileStates states({f.source});
  std::ofstream(log, std::ios::app) << "x";
  const std::string message = message_of([&] { states.check_unchanged(); });
  ::dup2(own, STDERR_FILENO);
  ::close(to);
  ::close(own);
  CHECK_MESSAGE(message.empty(), message);
}

TEST_CASE("a folder that nobody may list has no files, and a folder of a URL none either") {
  const Files f;
  if (::geteuid() != 0) {
    fs::permissions(f.source / "sub", fs::perms::none);
    FileStates({f.source}).check_unchanged();
    fs::permissions(f.source / "sub", fs::perms::owner_all);
  }
  const RemoteFolder remote(f.source, "hf://org/name", nullptr, {});
  const FileStates states({f.source});
  replace(f.source / "a.safetensors");
  states.check_unchanged();
}

}  // namespace file_states_test
