// Headers and indexes as large as they may be, made to take memory: each ends in one short message, or is
// read, within the memory that is promised.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <thread>

#include "tests/support/program.h"
#include "tests/support/scratch.h"

namespace hostile_size_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kTooLong = "expected at most 16777216 bytes in a string or number or between two";

constexpr uint64_t kMiB = 1u << 20;
constexpr uint64_t kPromised = 512 * kMiB;

/// A text that grows beyond memory only on disk.
class Writer {
 public:
  explicit Writer(const fs::path& path) : out_(path, std::ios::binary) {}
  void put(std::string_view text) {
    out_ << text;
    size_ += text.size();
  }
  /// `f(i)` for i = 0, 1, ... as long as the text stays below `end` bytes. Returns how many.
  uint64_t fill(uint64_t end, const std::function<std::string(uint64_t)>& f) {
    for (uint64_t i = 0;; ++i) {
      const std::string text = f(i);
      if (size_ + text.size() > end) return i;
      put(text);
    }
  }
  void pad(uint64_t end, char c) {
    const std::string block(kMiB, c);
    while (size_ < end) put(std::string_view(block).substr(0, std::min<uint64_t>(kMiB, end - size_)));
  }

 private:
  std::ofstream out_;
  uint64_t size_ = 0;
};

constexpr uint64_t kHeader = 100'000'000;

/// A file of nothing but a header of exactly 100 MB that `write` begins and `end` ends.
void write_header(const fs::path& path, const std::function<void(Writer&)>& write, const std::string& end,
                  char padding = ' ') {
  Writer out(path);
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(kHeader >> (8 * i));
  out.put(length);
  write(out);
  out.pad(8 + kHeader - end.size(), padding);
  out.put(end);
}

struct Result {
  Outcome outcome;
  uint64_t memory = 0;
};

Result run_measured(const std::vector<std::string>& words) {
  Run run(words);
  Result result;
  while (run.is_running()) {
    result.memory = std::max(result.memory, run.peak_memory());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  result.outcome = run.wait();
  return result;
}

/// The commands must refuse it with that message, or take it where there is none.
void check(const fs::path& directory, const std::string& message, uint64_t tensors = 0,
           std::initializer_list<const char*> commands = {"inspect", "lint"}) {
  for (const char* command : commands) {
    CAPTURE(std::string(command));
    CAPTURE(message);
    const Result r = run_measured({command, directory.string(), "-j", "2"});
    const std::string& configured = command == std::string("lint") ? r.outcome.out : r.outcome.err;
    CHECK_MESSAGE(r.memory < kPromised + 1024 * tensors, fmt::format("{} MiB", r.memory / kMiB));
    CHECK(configured.size() < 4000);
    if (!message.empty()) {
      CHECK(r.outcome.code != 0);
      CHECK_MESSAGE(configured.find(message) != std::string::npos, configured);
    } else {
      CHECK((r.outcome.code == 0 || r.outcome.code == 1));
    }
  }
}

void check_header(const std::function<void(Writer&)>& write, const std::string& end, char padding,
                  const std::string& message, uint64_t tensors = 0) {
  const Scratch scratch;
  write_header(scratch / "model.safetensors", write, end, padding);
  check(scratch.path, message, tensors);
}

}  // namespace

TEST_CASE("headers of 100 MB keep to the memory promised, whatever they hold") {
  const auto begins = [](const char* text) { return [text](Writer& w) { w.put(text); }; };
  check_header(begins("{"), "}", ' ', kTooLong);
  check_header(begins("{\"__metadata__\":{\"a\":\""), "\"}}", 'x', kTooLong);
  check_header(begins("{\""), "\":5}", 'x', kTooLong);
  check_header(begins("{\"a\":"), "}", '1', kTooLong);
  check_header(begins("{\"a\":"), "}", '[', kTooLong);
  check_header(begins(""), "", '{', kTooLong);
  check_header(
      [](Writer& w) {
        w.put("{\"__metadata__\":{\"\":\"\"");
        w.fill(kHeader - 100, [](uint64_t i) { return fmt::format(",\"{}\":\"\"", i); });
      },
      "}}", ' ', "expected at most 65536 entries of __metadata__");
  const std::string value(1400, 'v');
  check_header(
      [&](Writer& w) {
        w.put("{\"__metadata__\":{\"format\":\"pt\"");
        for (uint64_t i = 0; i < 65'000; ++i) w.put(fmt::format(",\"{}\":\"{}\"", i, value));
      },
      "}}", ' ', "");
}

TEST_CASE("two million tensors in one header take no more than a kilobyte each") {
  const Scratch scratch;
  uint64_t count = 0;
  write_header(
      scratch / "model.safetensors",
      [&](Writer& w) {
        w.put("{\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}");
        count = w.fill(kHeader - 100, [](uint64_t i) {
          return fmt::format(",\"{}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", i);
        });
      },
      "}");
  CHECK(count > 1'500'000);
  check(scratch.path, "", count);
}

TEST_CASE("indexes as large as they may be keep to the memory promised") {
  const uint64_t size = 128'000'000;
  const auto check_index = [&](const std::function<void(Writer&)>& write, const std::string& end,
                               char padding, const std::string& message, uint64_t extra = 0) {
    const Scratch scratch;
    std::ofstream(scratch / "a.safetensors", std::ios::binary) << std::string("\2\0\0\0\0\0\0\0{}", 10);
    {
      Writer out(scratch / "model.safetensors.index.json");
      write(out);
      out.pad(size + extra - end.size(), padding);
      out.put(end);
    }
    check(scratch.path, message);
  };
  const auto begins = [](const char* text) { return [text](Writer& w) { w.put(text); }; };
  const auto repeats = [&](const char* format) {
    return [&, format](Writer& w) {
      w.put("{\"weight_map\":{\"x\":\"a.safetensors\"");
      w.fill(size - 100, [&](uint64_t i) { return fmt::format(fmt::runtime(format), i); });
    };
  };
  check_index(begins("{\"weight_map\":{}"), "}", ' ', "expected at most 128000000 bytes", 1);
  check_index(begins("{\"weight_map\":{\"a\":\""), "\"}}", 'x', kTooLong);
  check_index(begins("{\"x\":"), "}", '[', kTooLong);
  check_index(
      [&](Writer& w) {
        w.put("{\"x\":[[]");
        w.fill(size - 100, [](uint64_t) { return ",[],{},true,null"; });
      },
      "]}", ' ', kTooLong);
  check_index(repeats(",\"{}\":\"a.safetensors\""), "}}", ' ', "expected at most 2000000 tensors");
  check_index(repeats(",\"{0}\":\"{0}.safetensors\""), "}}", ' ', "expected at most 65536 files");
}

TEST_CASE("manifests as large as they may be keep to the memory promised") {
  const auto check_manifest = [](const std::function<void(Writer&)>& write, uint64_t size, char padding,
                                 const std::string& end, const std::string& message) {
    const Scratch scratch;
    std::ofstream(scratch / "a.safetensors", std::ios::binary) << std::string("\2\0\0\0\0\0\0\0{}", 10);
    {
      Writer out(scratch / "twofour.json");
      write(out);
      out.pad(size - end.size(), padding);
      out.put(end);
    }
    check(scratch.path, message, 0, {"validate", "lint"});
  };
  constexpr uint64_t kMost = 256 * kMiB;  // of an artifact without tensors
  constexpr uint64_t kObjects = 110 * kMiB;
  const auto begins = [](const char* text) { return [text](Writer& w) { w.put(text); }; };
  check_manifest(begins("{"), kMost + 1, ' ', "}", "expected at most 268435456 bytes for 0 tensors");
  check_manifest(begins("{\"tool\":\""), 20 * kMiB, 'x', "\"}", kTooLong);
  check_manifest(begins("{\"tool\":"), 20 * kMiB, '1', "}", kTooLong);
  check_manifest(begins("{\"tool\":"), 20 * kMiB, '[', "}", "nested deeper");
  check_manifest(
      [](Writer& w) {
        w.put("{\"copied\":[{}");
        w.fill(kObjects - 100, [](uint64_t i) {
          return fmt::format(R"(,{{"name":"{}","dtype":"U8","shape":[],"xxh3_128":"{:032x}"}})", i, i);
        });
      },
      kObjects, ' ', "]}", "too many objects");
}

}  // namespace hostile_size_test
