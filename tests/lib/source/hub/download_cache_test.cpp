// Whole files are downloaded once, continued, bounded and removed; what is damaged is never read.
#include "lib/source/hub/download_cache.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "lib/base/io/file.h"
#include "lib/source/hub/remote_source.h"
#include "tests/support/environment.h"
#include "tests/support/hub/hub_server.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace download_cache_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

constexpr RetryPolicy kQuick{3, std::chrono::milliseconds(1), std::chrono::seconds(5)};
constexpr uint64_t kSize = 3'000'000;

std::string contents_of(int file) {
  std::string text(kSize, '\0');
  uint32_t state = static_cast<uint32_t>(file) + 1;
  for (char& c : text) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return text;
}

struct Fixture {
  explicit Fixture(int files) {
    fs::create_directories(scratch / "source");
    for (int i = 0; i < files; ++i) write_text(scratch / "source" / name_of(i), contents_of(i));
    server.emplace("org/name", scratch / "source");
    endpoint.emplace("HF_ENDPOINT", server->endpoint());
  }
  static std::string name_of(int file) { return "part-" + std::to_string(file) + ".safetensors"; }
  fs::path cache() const { return scratch / "cache"; }
  std::unique_ptr<RemoteSource> open(uint64_t limit) const {
    auto remote = std::make_unique<RemoteSource>("hf://org/name", CacheOptions{cache(), limit}, kQuick);
    remote->download_whole_files();
    return remote;
  }
  /// Bytes of files in the cache.
  uint64_t bytes_cached() const {
    uint64_t sum = 0;
    for (const auto& [name, bytes] : files_below(cache())) sum += bytes;
    return sum;
  }
  /// Bytes that the storage was asked for.
  uint64_t bytes_asked() const {
    uint64_t sum = 0;
    for (const HubRequest& r : server->requests()) {
      unsigned long long first = 0, last = 0;
      if (r.to_storage &&
          std::sscanf(r.request.field("range").c_str(), "bytes=%llu-%llu", &first, &last) == 2)
        sum += last - first + 1;
    }
    return sum;
  }

  Scratch scratch;
  std::optional<HubServer> server;
  Variable home{"HF_HOME", scratch.path.string()}, token{"HF_TOKEN", std::nullopt},
      token_path{"HF_TOKEN_PATH", std::nullopt}, proxy{"no_proxy", "127.0.0.1"};
  std::optional<Variable> endpoint;
};

/// True if a file reads as it should, in pieces.
bool is_right(const RemoteSource& remote, int file) {
  const std::string expected = contents_of(file);
  const InputFile input(remote.path() / Fixture::name_of(file));
  std::string found(kSize, 'x');
  for (uint64_t at = 0; at < kSize; at += 1'000'000)
    input.read(at, {reinterpret_cast<uint8_t*>(found.data()) + at, 1'000'000});
  return found == expected;
}

fs::path file_in(const fs::path& folder, const std::string& begin) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(begin)) return entry.path();
  }
  return {};
}

std::string text_of(const fs::path& file) { return read_text(file); }

}  // namespace

TEST_CASE("each file is downloaded once, and removed when it is told so") {
  Fixture f(2);
  const auto remote = f.open(10 * kSize);
  f.server->forget_requests();
  for (int round = 0; round < 2; ++round) {
    CHECK(is_right(*remote, 0));
    CHECK(is_right(*remote, 1));
  }
  CHECK(f.bytes_asked() == 2 * kSize);
  CHECK(f.bytes_cached() == 2 * kSize);
  remote->remove_downloads();
  CHECK(f.bytes_cached() == 0);
}

TEST_CASE("threads that read one file download it once") {
  Fixture f(1);
  const auto remote = f.open(kSize);
  f.server->forget_requests();
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { right += is_right(*remote, 0); });
  for (std::thread& t : threads) t.join();
  CHECK(right == 4);
  CHECK(f.bytes_asked() == kSize);
}

TEST_CASE("the cache holds no more than its size") {
  Fixture f(4);
  const auto remote = f.open(2 * kSize);
  for (int i = 0; i < 4; ++i) {
    CHECK(is_right(*remote, i));
    CHECK(f.bytes_cached() <= 2 * kSize);
  }
  CHECK(is_right(*remote, 3));
  CHECK(f.bytes_cached() == 2 * kSize);
}

TEST_CASE("threads that read more files than fit wait for each other, or are one error") {
  Fixture f(3);
  const auto remote = f.open(kSize);
  std::atomic<int> right{0}, refused{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      try {
        right += is_right(*remote, i);
      } catch (const Error& e) {
        refused += std::string(e.what()).find("--cache-size: expected space for the files") == 0;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(right + refused == 3);
}

TEST_CASE("a file that does not fit is refused, and so is a size that makes files go round") {
  Fixture f(2);
  {
    const auto remote = f.open(kSize - 1);
    contains(message_of([&] { is_right(*remote, 0); }), "--cache-size: expected space for hf://org/name@");
  }
  const auto remote = f.open(kSize);
  for (int round = 0; round < 2; ++round) {
    CHECK(is_right(*remote, 0));
    CHECK(is_right(*remote, 1));
  }
  contains(message_of([&] { is_right(*remote, 0); }),
           "--cache-size: expected space for the files that are read together");
}

TEST_CASE("a download that broke is continued by the next run, from its last byte") {
  Fixture f(1);
  f.server->set_fault([](const HubRequest& r, const ServerAnswer& usual) -> std::optional<ServerAnswer> {
    if (!r.to_storage || usual.body.size() < 1'000'000) return std::nullopt;
    ServerAnswer answer = usual;
    answer.announced = answer.body.size();
    answer.body.resize(1'000'000);
    answer.closes = true;
    return answer;
  });
  {
    const auto remote = f.open(kSize);
    f.server->set_fault([](const HubRequest& r, const ServerAnswer& usual) -> std::optional<ServerAnswer> {
      if (!r.to_storage) return std::nullopt;
      ServerAnswer answer = usual;
      answer.announced = answer.body.size();
      answer.body.resize(r.request.field("range").starts_with("bytes=0-") ? 1'000'000 : 0);
      answer.closes = true;
      return answer;
    });
    contains(message_of([&] { is_right(*remote, 0); }), "in 3 attempts");
  }
  CHECK(f.bytes_cached() == 1'000'000);
  f.server->set_fault(nullptr);
  const auto remote = f.open(kSize);
  f.server->forget_requests();
  CHECK(is_right(*remote, 0));
  CHECK(f.bytes_asked() == kSize - 1'000'000);
}

TEST_CASE("a file that an earlier run left whole is not downloaded again, unless it is damaged") {
  Fixture f(1);
  { CHECK(is_right(*f.open(kSize), 0)); }
  const fs::path left = file_in(f.cache(), "part-0");
  CHECK(text_of(left) == contents_of(0));
  {
    const auto remote = f.open(kSize);
    f.server->forget_requests();
    CHECK(is_right(*remote, 0));
    CHECK(f.bytes_asked() == 0);
  }
  std::string damaged = contents_of(0);
  damaged[kSize / 2] ^= 1;
  fs::remove(left);
  write_text(left, damaged);
  CHECK(is_right(*f.open(kSize), 0));
}

TEST_CASE("what was begun and is damaged, and bytes that the server spoils, are refused by their SHA-256") {
  Fixture f(1);
  {
    const auto remote = f.open(kSize);
    f.server->set_fault([](const HubRequest& r, const ServerAnswer& usual) -> std::optional<ServerAnswer> {
      if (!r.to_storage) return std::nullopt;
      ServerAnswer answer = usual;
      answer.body.back() ^= 1;
      return answer;
    });
    contains(message_of([&] { is_right(*remote, 0); }), "expected SHA-256");
    CHECK(f.bytes_cached() == 0);
  }
  f.server->set_fault(nullptr);
  { CHECK(is_right(*f.open(kSize), 0)); }
  const fs::path left = file_in(f.cache(), "part-0");
  const std::string name = left.filename().string();
  fs::remove(left);
  write_text(f.cache() / temporary_name(name), std::string(1000, 'x'));
  contains(message_of([&] { is_right(*f.open(kSize), 0); }), "expected SHA-256");
  CHECK(is_right(*f.open(kSize), 0));
}

TEST_CASE("a whole file that is not of Git LFS is held against git's SHA-1, downloaded and left by a run") {
  Fixture f(0);
  const std::string text = contents_of(0);
  f.server->change("tokenizer.json", text);
  const auto read = [&](const RemoteSource& remote) {
    const InputFile file(remote.path() / "tokenizer.json");
    std::string found(file.size(), 'x');
    file.read(0, {reinterpret_cast<uint8_t*>(found.data()), found.size()});
    return found;
  };
  {
    const auto remote = f.open(kSize);
    f.server->set_fault([](const HubRequest& r, const ServerAnswer& usual) -> std::optional<ServerAnswer> {
      if (!r.request.path.ends_with("/tokenizer.json")) return std::nullopt;
      ServerAnswer answer = usual;
      answer.body[answer.body.size() / 2] ^= 1;
      return answer;
    });
    contains(message_of([&] { read(*remote); }), "tokenizer.json: expected git's SHA-1");
    CHECK(f.bytes_cached() == 0);
    f.server->set_fault(nullptr);
    CHECK(read(*remote) == text);
  }
  const fs::path left = file_in(f.cache(), "tokenizer.json");
  std::string damaged = text;
  damaged[7] ^= 1;
  fs::remove(left);
  write_text(left, damaged);
  CHECK(read(*f.open(kSize)) == text);
}

TEST_CASE("files that earlier runs left count, and go first") {
  Fixture f(3);
  { CHECK(is_right(*f.open(3 * kSize), 0)); }
  write_text(f.cache() / "notes.txt", "not of the cache");
  const auto remote = f.open(2 * kSize);
  CHECK(is_right(*remote, 1));
  CHECK(is_right(*remote, 2));
  CHECK(file_in(f.cache(), "part-0").empty());
  CHECK(f.bytes_cached() <= 2 * kSize + 16);
  CHECK(text_of(f.cache() / "notes.txt") == "not of the cache");
}

TEST_CASE("a file of the longest name is downloaded") {
  Fixture f(0);
  const std::string name = std::string(243, 'a') + ".safetensors", contents = contents_of(0);
  std::ofstream(f.scratch / "source" / name, std::ios::binary) << contents;
  f.server.emplace("org/name", f.scratch / "source");
  f.endpoint.emplace("HF_ENDPOINT", f.server->endpoint());
  const auto remote = f.open(2 * kSize);
  CHECK(text_of(remote->path() / name) == contents);
}

TEST_CASE("one run at a time has a cache") {
  Fixture f(1);
  const auto remote = f.open(kSize);
  contains(message_of([&] { f.open(kSize); }), "expected a cache that no other run uses, found one in use");
}

}  // namespace download_cache_test
