#include "lib/base/io/links.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "formats/error.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace links_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// A checkpoint beside somebody's secret, and a cache of the Hub.
struct LinksFixture {
  LinksFixture() {
    for (const char* folder : {"model/sub", "home", "hub/models--o--n/snapshots/rev/sub",
                               "hub/models--o--n/blobs/deep", "hub/models--o--n/refs"})
      fs::create_directories(scratch / folder);
    for (const char* file : {"model/a.json", "model/sub/b.json", "home/token", "hub/models--o--n/blobs/1234",
                             "hub/models--o--n/blobs/deep/5", "hub/models--o--n/refs/main"})
      write_text(scratch / file, file);
  }
  /// Where a new link leads, if that is out of `root`.
  std::optional<LinkOutside> look(const fs::path& root, const std::string& name, const fs::path& to) const {
    const fs::path link = root / name;
    fs::remove(link);
    fs::create_symlink(to, link);
    return link_outside(root, link);
  }
  std::string text(const fs::path& root, const fs::path& path, Links links = Links::kInside) const {
    return read_text(open_below(root, path, links));
  }

  Scratch scratch;
  fs::path model = scratch / "model", snapshot = scratch / "hub/models--o--n/snapshots/rev";
};

}  // namespace

TEST_CASE("links within a checkpoint are inside, all others are outside") {
  const LinksFixture f;
  CHECK_FALSE(link_outside(f.model, f.model / "a.json"));
  CHECK_FALSE(f.look(f.model, "link", "a.json"));
  CHECK_FALSE(f.look(f.model, "link", f.model / "sub/b.json"));
  CHECK_FALSE(f.look(f.model, "sub/link", "../a.json"));
  CHECK_FALSE(f.look(f.model, "link", "../model/a.json"));
  CHECK_FALSE(f.look(f.model, "link", "sub"));
  CHECK_FALSE(f.look(f.model, "link", "nowhere"));  // nothing is there
  CHECK_FALSE(link_outside(f.model, f.model / "nowhere"));
  const auto token = f.look(f.model, "link", f.scratch / "home/token");
  REQUIRE(token);
  CHECK(token->path == f.model / "link");
  CHECK(token->target == fs::canonical(f.scratch / "home/token"));
  CHECK(f.look(f.model, "link", "../home/token"));
  CHECK(f.look(f.model, "link", ".."));
  CHECK(f.look(f.model, "link", "/dev/null"));
  // Through another link, and behind a folder that is one.
  fs::create_symlink("../home", f.model / "home");
  CHECK(f.look(f.model, "link", "home/token"));
  CHECK(link_outside(f.model, f.model / "home/token"));
  // A name that only begins alike.
  fs::create_directory(f.scratch / "model-of-others");
  write_text(f.scratch / "model-of-others/c", "c");
  CHECK(f.look(f.model, "link", "../model-of-others/c"));
}

TEST_CASE("what is in .git or .cache of a checkpoint is outside of it, at any depth and by any way") {
  const LinksFixture f;
  for (const char* folder :
       {".git", ".cache/huggingface", "sub/.git/x", "sub/.cache", ".github", "sub/git"}) {
    fs::create_directories(f.model / folder);
    write_text(f.model / folder / "config", "c");
  }
  CHECK(f.look(f.model, "link", ".git/config"));
  CHECK(f.look(f.model, "link", f.model / ".git/config"));
  CHECK(f.look(f.model, "link", ".git"));
  CHECK(f.look(f.model, "link", ".cache/huggingface/config"));
  CHECK(f.look(f.model, "sub/link", "../.git/config"));
  CHECK(f.look(f.model, "link", "sub/.git/x/config"));
  CHECK(f.look(f.model, "link", "sub/.cache/config"));
  CHECK_THROWS_AS(f.text(f.model, f.model / "link"), Error);
  CHECK(f.text(f.model, f.model / "link", Links::kFollowed) == "c");
  // Through another link.
  fs::create_symlink(".git", f.model / "plain");
  CHECK(f.look(f.model, "link", "plain/config"));
  CHECK_FALSE(f.look(f.model, "link", ".github/config"));
  CHECK_FALSE(f.look(f.model, "link", "sub/git/config"));
  // A checkpoint may be below such a folder.
  const fs::path cached = f.scratch / "home/.cache/model";
  fs::create_directories(cached);
  write_text(cached / "a.json", "a");
  CHECK_FALSE(f.look(cached, "link", "a.json"));
}

TEST_CASE("a checkpoint that is given by a link, with a slash or from within is the same checkpoint") {
  const LinksFixture f;
  fs::create_symlink("model", f.scratch / "given");
  const fs::path before = fs::current_path();
  for (const fs::path& root : {f.scratch / "given", f.scratch / "model/", f.scratch / "model/./sub/.."}) {
    CAPTURE(root);
    CHECK_FALSE(link_outside(root, root / "a.json"));
    CHECK_FALSE(f.look(root, "link", "sub/b.json"));
    CHECK(f.look(root, "link", "../home/token"));
  }
  fs::current_path(f.model);
  CHECK_FALSE(f.look(".", "link", "a.json"));
  CHECK(f.look(".", "link", "../home/token"));
  fs::current_path(before);
}

TEST_CASE("blobs beside a folder are inside if a hash names them") {
  const Scratch scratch;
  const auto look = [&](const std::string& name) {
    fs::create_directories(scratch / "blobs");
    fs::create_directories(scratch / "src");
    std::ofstream(scratch / "blobs" / name) << "{}";
    fs::remove(scratch / "src/link");
    fs::create_symlink("../blobs/" + name, scratch / "src/link");
    return link_outside(scratch / "src", scratch / "src/link").has_value();
  };
  CHECK_FALSE(look(std::string(40, 'a')));
  CHECK_FALSE(look(std::string(64, '0')));
  for (const std::string& name :
       {std::string("token"), std::string(39, 'a'), std::string(40, 'A'), std::string(40, 'g')})
    CHECK(look(name));
}

TEST_CASE("of the Hub's cache the files directly in its blobs are inside of a snapshot") {
  const LinksFixture f;
  CHECK_FALSE(f.look(f.snapshot, "link", "../../blobs/1234"));
  CHECK_FALSE(f.look(f.snapshot, "sub/link", "../../../blobs/1234"));
  CHECK_FALSE(f.look(f.snapshot / "sub", "link", "../../../blobs/1234"));
  CHECK(f.look(f.snapshot, "link", "../../blobs/deep/5"));
  CHECK(f.look(f.snapshot, "link", "../../blobs"));
  CHECK(f.look(f.snapshot, "link", "../../refs/main"));
  CHECK(f.look(f.snapshot, "link", f.scratch / "home/token"));
  // Of another model's cache, and by a folder that is no snapshot.
  const fs::path other = f.scratch / "hub/models--o--other/snapshots/rev";
  fs::create_directories(other);
  CHECK(f.look(other, "link", "../../../models--o--n/blobs/1234"));
  CHECK(f.look(f.model, "link", "../hub/models--o--n/blobs/1234"));
  // Blobs that lead elsewhere themselves.
  fs::create_symlink(f.scratch / "home", f.scratch / "hub/models--o--other/blobs");
  CHECK(f.look(other, "link", "../../blobs/token"));
  // A blob that is a link.
  fs::create_symlink(f.scratch / "home/token", f.scratch / "hub/models--o--n/blobs/linked");
  CHECK(f.look(f.snapshot, "link", "../../blobs/linked"));
}

TEST_CASE("what is outside is opened on demand only, and named") {
  const LinksFixture f;
  f.look(f.model, "link", "../home/token");
  const std::string message = message_of([&] { f.text(f.model, f.model / "link"); });
  contains(message, (f.model / "link").string() + ": expected a file within the checkpoint");
  contains(message, fs::canonical(f.scratch / "home/token").string());
  contains(message, "--follow-links");
  CHECK(f.text(f.model, f.model / "link", Links::kFollowed) == "home/token");
  CHECK(f.text(f.model, f.model / "a.json") == "model/a.json");
  f.look(f.model, "link", "sub/b.json");
  CHECK(f.text(f.model, f.model / "link") == "model/sub/b.json");
}

TEST_CASE("an open file without a path is outside") {
  const LinksFixture f;
  write_text(f.scratch / "gone", "secret");
  const int fd = ::open((f.scratch / "gone").c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(fd >= 0);
  fs::remove(f.scratch / "gone");
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (fs::exists(path)) {
    CHECK(f.look(f.model, "link", path));
    CHECK_THROWS_AS(f.text(f.model, f.model / "link"), Error);
  }
  ::close(fd);
}

TEST_CASE("a link that is changed while it is opened never gives what is outside") {
  const LinksFixture f;
  const fs::path link = f.model / "link", next = f.model / "next";
  fs::create_symlink("a.json", link);
  std::atomic<bool> stops{false};
  std::thread changes([&] {
    for (int i = 0; !stops; ++i) {
      fs::create_symlink(i % 2 == 0 ? "../home/token" : "a.json", next);
      fs::rename(next, link);
    }
  });
  int read = 0, refused = 0;
  for (int i = 0; i < 20'000 || (read == 0 && i < 2'000'000); ++i) {
    try {
      const std::string text = f.text(f.model, link);
      CHECK(text == "model/a.json");
      ++read;
    } catch (const Error&) {
      ++refused;
    }
  }
  stops = true;
  changes.join();
  CHECK(read > 0);
  CHECK(refused > 0);
}

TEST_CASE("a link to nothing says where it points, whatever opens it") {
  const LinksFixture f;
  fs::create_symlink("../../blobs/1234", f.model / "config.json");
  CHECK(dangling_link(f.model / "config.json").find("../../blobs/1234, which does not exist") !=
        std::string::npos);
  for (const fs::path& path : {f.model / "a.json", f.model / "nowhere", f.model})
    CHECK(dangling_link(path) == "");
  const std::string opened = message_of([&] { InputFile(f.model / "config.json"); });
  contains(opened, "config.json: expected a file, found a link to ../../blobs/1234, which does not exist");
  contains(opened, "(copied without -L?)");
  contains(message_of([&] { status_of(f.model / "config.json"); }), "found a link to ../../blobs/1234");
  contains(message_of([&] { InputFile(f.model / "nowhere"); }), "cannot open: No such file or directory");
}

}  // namespace links_test
