#include "lib/source/checkpoint/checkpoint.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "formats/error.h"
#include "tests/support/message.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/scratch.h"

namespace checkpoint_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

std::string refusal(const fs::path& path) {
  return message_of([&] { Checkpoint::open(path); });
}

bool says(const std::string& message, std::string_view fragment) {
  return message.find(fragment) != std::string::npos;
}

void write_index(const fs::path& directory, const std::string& weight_map) {
  write_text(directory / "model.safetensors.index.json",
             R"({"metadata":{"total_size":3},"weight_map":)" + weight_map + "}");
}

/// Tensors a and b in 1.safetensors, c in 2.safetensors.
void write_shards(const fs::path& directory) {
  write_text(directory / "1.safetensors", SafetensorsFile().add_u8("b", 3).add_u8("a", 2).bytes());
  write_text(directory / "2.safetensors", SafetensorsFile().add_u8("c", 1).bytes());
}

const std::string kWholeMap = R"({"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors"})";

std::vector<std::string> finding_ids(const Checkpoint& checkpoint) {
  std::vector<std::string> ids;
  for (const Finding& f : checkpoint.findings()) ids.push_back(f.id);
  return ids;
}

std::vector<uint8_t> read(const Checkpoint& checkpoint, const std::string& name) {
  const size_t tensor = checkpoint.find(name).value();
  std::vector<uint8_t> bytes(checkpoint.tensors()[tensor].bytes());
  checkpoint.read(tensor, 0, bytes);
  return bytes;
}

}  // namespace

TEST_CASE("every truncation of a file is refused") {
  const Scratch scratch;
  const fs::path path = scratch.path / "m.safetensors";
  const std::string whole =
      SafetensorsFile().add_u8("codes", 5).add("scale", DType::kF32, {1}, "abcd").bytes();
  write_text(path, whole);
  REQUIRE(Checkpoint::open(path).tensors().size() == 2);
  for (size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    write_text(path, whole.substr(0, length));
    CHECK(says(refusal(path), "m.safetensors: expected"));
    CHECK(says(refusal(scratch.path), "m.safetensors: expected"));
  }
  write_text(path, whole + '\0');
  CHECK(says(refusal(path), "expected 9 bytes of data (the header), found 10 in the file"));
}

TEST_CASE("a header that claims a hundred megabytes is refused before it is read") {
  const Scratch scratch;
  write_text(scratch.path / "m.safetensors", std::string("\x01\xE1\xF5\x05\0\0\0\0{}", 10));  // 100,000,001
  CHECK(says(refusal(scratch.path), "expected a header of at most 100000000 bytes, found one of 100000001"));
}

TEST_CASE("tensors of all shards are sorted by name, and reading gives their bytes") {
  const Scratch scratch;
  write_shards(scratch.path);
  const Checkpoint checkpoint = Checkpoint::open(scratch.path);
  REQUIRE(checkpoint.tensors().size() == 3);
  CHECK(checkpoint.tensors()[0].name == "a");
  CHECK(checkpoint.tensors()[1].name == "b");
  CHECK(checkpoint.tensors()[2].name == "c");
  CHECK(read(checkpoint, "a") == std::vector<uint8_t>{0, 1});
  CHECK(read(checkpoint, "b") == std::vector<uint8_t>{0, 1, 2});
  CHECK(checkpoint.where(2) == "2.safetensors: c");
  CHECK(checkpoint.findings().empty());
  CHECK(checkpoint.config().is_null());
}

TEST_CASE("a file that shrinks after opening is an Error, not a crash") {
  const Scratch scratch;
  write_shards(scratch.path);
  const Checkpoint checkpoint = Checkpoint::open(scratch.path);
  fs::resize_file(scratch.path / "2.safetensors", 20);
  CHECK_THROWS_WITH_AS(read(checkpoint, "c"), doctest::Contains("it was truncated while being read"), Error);
}

TEST_CASE("one file is a checkpoint too, and so are links to files") {
  const Scratch scratch;
  write_shards(scratch.path);
  const Checkpoint one = Checkpoint::open(scratch.path / "1.safetensors");
  CHECK(!one.is_directory());
  CHECK(one.tensors().size() == 2);
  fs::create_directory(scratch.path / "snapshot");
  fs::create_symlink("../2.safetensors", scratch.path / "snapshot/model.safetensors");
  CHECK(Checkpoint::open(scratch.path / "snapshot").tensors().size() == 1);
}

TEST_CASE("a whole index raises no finding") {
  const Scratch scratch;
  write_shards(scratch.path);
  write_index(scratch.path, kWholeMap);
  CHECK(Checkpoint::open(scratch.path).findings().empty());
}

TEST_CASE("tensors that the index lacks are read all the same, with a warning") {
  const Scratch scratch;
  write_shards(scratch.path);
  write_index(scratch.path, R"({"a":"1.safetensors","c":"2.safetensors"})");
  const Checkpoint checkpoint = Checkpoint::open(scratch.path);
  CHECK(checkpoint.tensors().size() == 3);
  REQUIRE(finding_ids(checkpoint) == std::vector<std::string>{"incomplete-index"});
  const Finding& finding = checkpoint.findings()[0];
  CHECK(finding.severity == Severity::kWarning);
  CHECK(finding.where == "model.safetensors.index.json");
  CHECK(finding.message == "1 of 3 tensors are missing from it, the first b; taken from the headers");
}

TEST_CASE("files that the index does not name are a warning and are not read, be they ever so broken") {
  const Scratch scratch;
  write_shards(scratch.path);
  write_index(scratch.path, kWholeMap);
  write_text(scratch.path / "consolidated.safetensors", "not safetensors at all");
  const Checkpoint checkpoint = Checkpoint::open(scratch.path);
  CHECK(checkpoint.shards().size() == 2);
  REQUIRE(finding_ids(checkpoint) == std::vector<std::string>{"unindexed-file"});
  CHECK(checkpoint.findings()[0].severity == Severity::kWarning);
  CHECK(checkpoint.findings()[0].where == "consolidated.safetensors");
}

TEST_CASE("an index that disagrees with the files is refused") {
  const Scratch scratch;
  write_shards(scratch.path);
  const auto refuses = [&](const std::string& weight_map) {
    write_index(scratch.path, weight_map);
    return refusal(scratch.path);
  };
  CHECK(says(refuses(R"({"a":"1.safetensors","c":"3.safetensors"})"),
             "index.json: expected the file 3.safetensors, which it names, found none"));
  CHECK(says(refuses(R"({"a":"2.safetensors","b":"1.safetensors","c":"2.safetensors"})"),
             "index.json: expected \"a\" in 2.safetensors, found it in 1.safetensors"));
  CHECK(says(refuses(R"({"a":"1.safetensors","nowhere":"2.safetensors"})"),
             "index.json: expected \"nowhere\" in 2.safetensors, found it in no file"));
  CHECK(says(
      refuses(R"({"a":"1.safetensors","a":"2.safetensors"})"),
      R"(index.json: "a": duplicate key: expected one file, found "1.safetensors" and "2.safetensors")"));
  // c stands in a file that the index does not name.
  CHECK(says(refuses(R"({"a":"1.safetensors","c":"1.safetensors"})"),
             "expected \"c\" in 1.safetensors, found it in no file"));
  for (const char* name : {"", "..", ".", "../x.safetensors", "/dev/zero", "sub/1.safetensors"}) {
    CHECK(says(refuses(R"({"a":")" + std::string(name) + "\"}"),
               "expected the name of a file in this directory"));
  }
  CHECK(says(refuses("[]"), "expected an object weight_map"));
  write_text(scratch.path / "model.safetensors.index.json", "{}");
  CHECK(says(refusal(scratch.path), "expected an object weight_map"));
}

TEST_CASE("one name in two files is refused, with an index and without") {
  const Scratch scratch;
  write_shards(scratch.path);
  write_text(scratch.path / "3.safetensors", SafetensorsFile().add_u8("d", 1).add_u8("a", 2).bytes());
  const std::string message = refusal(scratch.path);
  CHECK(says(message, "\"a\": expected one tensor of this name, found a second in "));
  CHECK(says(message, "1.safetensors"));
  CHECK(says(message, "3.safetensors"));
  write_index(scratch.path,
              R"({"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors","d":"3.safetensors"})");
  CHECK(says(refusal(scratch.path), "\"a\": expected one tensor of this name"));
}

TEST_CASE("what is no checkpoint is refused") {
  const Scratch scratch;
  CHECK(says(refusal(scratch.path / "absent"), "no such file or directory"));
  CHECK(says(refusal(scratch.path), "expected *.safetensors files, found none"));
  write_text(scratch.path / "empty.safetensors", "");
  CHECK(says(refusal(scratch.path), "expected at least 8 bytes, found 0"));
  fs::remove(scratch.path / "empty.safetensors");
  fs::create_directory(scratch.path / "folder.safetensors");
  CHECK(says(refusal(scratch.path), "folder.safetensors: expected a regular file, found something else"));
  fs::remove(scratch.path / "folder.safetensors");
  write_shards(scratch.path);
  write_text(scratch.path / kJournalName, "");
  CHECK(says(refusal(scratch.path), "interrupted"));
}

// As the C interface and Python open checkpoints, which have no command line.
TEST_CASE("a URL is refused without what it keeps secret") {
  for (const char* url : {"https://h/m.safetensors?X-Signature=SECRET", "https://user:SECRET@h/m",
                          "HTTPS://h/m#SECRET", "s3://bucket/m?SECRET"}) {
    const std::string message = refusal(url);
    CHECK_MESSAGE(says(message, "expected a path: URLs are read by"), message);
    CHECK_MESSAGE(!says(message, "SECRET"), message);
  }
}

TEST_CASE("of two indexes the usual one counts; two unusual ones are refused") {
  const Scratch scratch;
  write_shards(scratch.path);
  write_text(scratch.path / "a.safetensors.index.json", R"({"weight_map":{"a":"1.safetensors"}})");
  CHECK(Checkpoint::open(scratch.path).shards().size() == 1);
  write_text(scratch.path / "b.safetensors.index.json", R"({"weight_map":{"c":"2.safetensors"}})");
  CHECK(says(refusal(scratch.path), "expected one index, found 2"));
  write_index(scratch.path, kWholeMap);
  CHECK(Checkpoint::open(scratch.path).shards().size() == 2);
}

TEST_CASE("a config that is not JSON is refused by name") {
  const Scratch scratch;
  write_shards(scratch.path);
  write_text(scratch.path / "config.json", "{\"a\":}");
  CHECK(says(refusal(scratch.path), "config.json: not JSON: error at byte"));
}

TEST_CASE("modules whose tensors lie in several shards are found, and a wrong one names its file") {
  const Scratch scratch;
  write_text(scratch.path / "1.safetensors",
             SafetensorsFile().add("q.weight", DType::kU8, {1, 8}, "01234567").bytes());
  write_text(scratch.path / "2.safetensors", SafetensorsFile()
                                                 .add("q.weight_scale", DType::kF8E4M3, {1, 1}, "8")
                                                 .add("q.weight_scale_2", DType::kF32, {}, "abcd")
                                                 .bytes());
  CHECK(Checkpoint::open(scratch.path).nvfp4_modules().size() == 1);
  write_text(scratch.path / "2.safetensors", SafetensorsFile()
                                                 .add("q.weight_scale", DType::kF8E4M3, {1, 2}, "88")
                                                 .add("q.weight_scale_2", DType::kF32, {}, "abcd")
                                                 .bytes());
  CHECK(refusal(scratch.path) ==
        "2.safetensors: q.weight_scale: expected F8_E4M3 [1, 1], found F8_E4M3 [1, 2]");
}

}  // namespace checkpoint_test
