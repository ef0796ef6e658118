#include "lib/source/hub/sha.h"

#include <doctest/doctest.h>

#include <string>

#include "lib/source/hub/range_answer.h"

namespace sha_test {

using namespace twofour;

namespace {

template <class Hasher>
void feed(Hasher& hasher, const std::string& text, size_t piece) {
  for (size_t at = 0; at < text.size(); at += piece) {
    const std::string part = text.substr(at, piece);
    hasher.update({reinterpret_cast<const uint8_t*>(part.data()), part.size()});
  }
}

template <class Hasher>
std::string hash_of(const std::string& text, size_t piece) {
  Hasher hasher;
  feed(hasher, text, piece);
  return hasher.hex();
}

/// The problem of a text that was listed under a hash of git.
std::string problem_of(const std::string& text, const std::string& listed, size_t piece) {
  RemoteObject object;
  object.size = text.size();
  object.git_sha1 = listed;
  ContentHasher hasher(object);
  feed(hasher, text, piece);
  return hasher.problem();
}

}  // namespace

// The examples of FIPS 180-4; all lengths around a block agree however the bytes come.
TEST_CASE("SHA-256 and SHA-1 are those of the standard") {
  const std::string two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  CHECK(hash_of<Sha256>("", 1) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hash_of<Sha256>("abc", 3) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hash_of<Sha256>(two_blocks, 7) == "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hash_of<Sha256>(std::string(1'000'000, 'a'), 777) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  CHECK(hash_of<Sha1>("", 1) == "da39a3ee5e6b4b0d3255bfef95601890afd80709");
  CHECK(hash_of<Sha1>("abc", 3) == "a9993e364706816aba3e25717850c26c9cd0d89d");
  CHECK(hash_of<Sha1>(two_blocks, 7) == "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
  CHECK(hash_of<Sha1>(std::string(1'000'000, 'a'), 777) == "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
  for (size_t length = 0; length < 200; ++length) {
    const std::string text(length, 'x');
    CHECK(hash_of<Sha256>(text, 1) == hash_of<Sha256>(text, 200));
    CHECK(hash_of<Sha1>(text, 1) == hash_of<Sha1>(text, 200));
  }
}

// What `git hash-object` prints, the last two as the book Pro Git has them.
TEST_CASE("a file's contents are named as git names them") {
  struct Case {
    std::string text, name;
  };
  for (const Case& c : {Case{"", "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"},
                        Case{"what is up, doc?", "bd9dbf5aae1a3862dd1526723246b20206e5fc37"},
                        Case{"test content\n", "d670460b4b4aece5915caf5c68d12f560a9fe3e4"}}) {
    CHECK(problem_of(c.text, c.name, 1) == "");
    CHECK(problem_of(c.text, c.name, 100) == "");
    CHECK(problem_of(c.text + "x", c.name, 100).starts_with("expected git's SHA-1 " + c.name + ", found "));
  }
  CHECK(problem_of("anything", "", 3) == "");
}

}  // namespace sha_test
