// Of a server that sends neither ETag nor Last-Modified nothing is kept over runs, and what one run reads of
// a file twice is compared.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "lib/source/hub/download_cache.h"
#include "tests/support/hub/hub_fixture.h"

namespace unpinned_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

constexpr const char *kFirst = "model-00001-of-00002.safetensors",
                     *kSecond = "model-00002-of-00002.safetensors";

/// A folder on a server that has no list, with what it says of each file.
struct Plain {
  Plain() {
    for (const auto& [name, bytes] : files_below(hub.source()))
      contents[name] = read_text(hub.source() / name);
    server.emplace([this](const ServerRequest& request) {
      const std::lock_guard lock(mutex);
      const auto file = contents.find(request.path.substr(3));
      if (file == contents.end()) return with_status(404);
      unsigned long long first = 0, last = 0;
      if (std::sscanf(request.field("range").c_str(), "bytes=%llu-%llu", &first, &last) == 2)
        asked[file->first] += last - first + 1;
      if (breaks == file->first && first > 0) return with_status(404);
      ServerAnswer answer = answer_range(request, file->second);
      answer.fields.insert(answer.fields.end(), fields.begin(), fields.end());
      return answer;
    });
  }
  fs::path cache() const { return hub.scratch / "cache"; }
  std::unique_ptr<RemoteSource> open(uint64_t limit = 10'000'000) const {
    auto remote =
        std::make_unique<RemoteSource>(server->origin() + "/m/", CacheOptions{cache(), limit}, kQuick);
    remote->download_whole_files();
    return remote;
  }
  /// Other weights under the same names and of the same sizes; headers stay.
  void change() {
    const std::lock_guard lock(mutex);
    for (auto& [name, text] : contents) {
      if (!name.ends_with(".safetensors")) continue;
      for (size_t i = text.size() / 2; i < text.size(); ++i) text[i] = static_cast<char>(text[i] ^ 1);
    }
  }
  bool is_right(const RemoteSource& remote, const std::string& name) const {
    const auto found = bytes_of(remote.path() / name);
    return std::equal(found.begin(), found.end(), contents.at(name).begin(), contents.at(name).end(),
                      [](uint8_t a, char b) { return a == static_cast<uint8_t>(b); });
  }
  size_t files_cached() const {
    const auto files = files_below(cache());
    return static_cast<size_t>(std::count_if(files.begin(), files.end(), [](const auto& f) {
      return f.first.find(".safetensors") != std::string::npos;
    }));
  }

  HubFixture hub;
  std::mutex mutex;
  std::map<std::string, std::string> contents;
  std::map<std::string, uint64_t> asked;
  std::vector<std::string> fields;
  std::string breaks;  ///< a file that is not found behind its beginning
  std::optional<HttpServer> server;
};

}  // namespace

TEST_CASE("a file of an earlier run is used where the server says that it is the same, and only there") {
  struct Case {
    const char *before, *after;
    bool is_used;
  };
  for (const Case& c : {Case{nullptr, nullptr, false}, Case{"ETag: \"a\"", "ETag: \"a\"", true},
                        Case{"ETag: \"a\"", "ETag: \"b\"", false},
                        Case{"Last-Modified: Fri, 27 Nov 2026 10:00:00 GMT",
                             "Last-Modified: Fri, 27 Nov 2026 10:00:00 GMT", true},
                        Case{"Last-Modified: Fri, 27 Nov 2026 10:00:00 GMT",
                             "Last-Modified: Fri, 27 Nov 2026 10:00:01 GMT", false},
                        Case{"ETag: \"a\"", nullptr, false}, Case{nullptr, "ETag: \"a\"", false}}) {
    CAPTURE(c.before);
    CAPTURE(c.after);
    Plain p;
    if (c.before != nullptr) p.fields = {c.before};
    {
      const auto remote = p.open();
      CHECK(p.is_right(*remote, kFirst));
      // What a run leaves that is killed now.
      fs::copy(p.cache(), p.hub.scratch / "left", fs::copy_options::recursive);
    }
    CHECK(p.files_cached() == (c.before != nullptr ? 1 : 0));
    fs::remove_all(p.cache());
    fs::rename(p.hub.scratch / "left", p.cache());
    if (!c.is_used) p.change();
    p.fields.clear();
    if (c.after != nullptr) p.fields = {c.after};
    const auto remote = p.open();
    p.asked.clear();
    CHECK(p.is_right(*remote, kFirst));
    CHECK(p.is_right(*remote, kSecond));
    CHECK((p.asked[kFirst] == 0) == c.is_used);
  }
}

TEST_CASE("a file that was begun is not continued where the server does not say what it is") {
  Plain p;
  std::string begun;
  {
    const auto remote = p.open();
    CHECK(p.is_right(*remote, kFirst));
    for (const auto& [name, bytes] : files_below(p.cache())) {
      if (name.starts_with(kFirst)) begun = name;
    }
  }
  REQUIRE(!begun.empty());
  // The beginning of the file before it changed, as a run that was killed leaves it.
  std::ofstream(p.cache() / temporary_name(begun)) << p.contents.at(kFirst).substr(0, 600'000);
  p.change();
  CHECK(p.is_right(*p.open(), kFirst));
}

TEST_CASE("a file that has other bytes than ranges of it had is refused") {
  Plain p;
  const auto remote = p.open();  // reads headers, and 256 KiB with each
  {
    const std::lock_guard lock(p.mutex);
    p.contents[kFirst][100'000] ^= 1;
  }
  contains(
      message_of([&] { bytes_of(remote->path() / kFirst); }),
      std::string(kFirst) + ": expected the bytes that were read \"before\", found \"others\": it changed");
  CHECK(p.is_right(*remote, kSecond));
}

TEST_CASE("a file that has other bytes when it is downloaded again is refused") {
  for (const bool changes : {false, true}) {
    Plain p;
    const auto remote = p.open(800'000);  // room for one of them
    CHECK(p.is_right(*remote, kFirst));
    CHECK(p.is_right(*remote, kSecond));
    if (changes) p.change();
    bool is_right = false;
    const std::string message = message_of([&] { is_right = p.is_right(*remote, kFirst); });
    CHECK(message.empty() != changes);
    CHECK(is_right != changes);
    if (changes) contains(message, std::string(kFirst) + ": expected contents of XXH3-128");
  }
}

TEST_CASE("a file says whether anything pins it") {
  Plain p;
  CHECK_FALSE(InputFile(p.open()->path() / kFirst).is_pinned());
  p.fields = {"ETag: \"a\""};
  CHECK(InputFile(p.open()->path() / kFirst).is_pinned());
  CHECK(InputFile(p.hub.source() / kFirst).is_pinned());
  const RemoteSource remote("hf://org/name", std::nullopt, kQuick);
  CHECK(InputFile(remote.path() / kFirst).is_pinned());
}

}  // namespace unpinned_test
