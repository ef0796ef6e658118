#include <algorithm>
#include <string>
#include <vector>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/base/threads/parallel.h"
#include "lib/lint/files/checks.h"
#include "lib/source/hub/sha.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// A file of a Hub's cache, which is a link to a blob that is named by the hash of its bytes.
struct Blob {
  std::string file, hash;
};

std::vector<Blob> find_blobs(const fs::path& directory) {
  std::vector<Blob> blobs;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (!it->is_symlink(ignored) || !it->is_regular_file(ignored)) continue;
    const fs::path target = fs::read_symlink(it->path(), ignored);
    const std::string hash = target.filename().string();
    const bool is_hash = (hash.size() == 64 || hash.size() == 40) &&
                         hash.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (is_hash && target.parent_path().filename() == "blobs")
      blobs.push_back({it->path().filename().string(), hash});
  }
  return blobs;
}

template <class Sha>
std::string hash_of(Sha sha, const InputFile& file) {
  std::vector<uint8_t> bytes(1u << 20);
  for (uint64_t at = 0; at < file.size(); at += bytes.size()) {
    bytes.resize(std::min<uint64_t>(bytes.size(), file.size() - at));
    file.read(at, bytes);
    sha.update(bytes);
  }
  return sha.hex();
}

/// Returns the hash that the Hub gives a file: SHA-256 of weights, git's SHA-1 of all other files.
std::string blob_hash(const InputFile& file, bool is_git) {
  if (!is_git) return hash_of(Sha256(), file);
  Sha1 sha;
  const std::string head = "blob " + std::to_string(file.size());
  sha.update({reinterpret_cast<const uint8_t*>(head.c_str()), head.size() + 1});  // with the zero behind it
  return hash_of(sha, file);
}

}  // namespace

void lint_hub_blobs(const LintInput& s, LintReporter& reporter) {
  const std::vector<Blob> blobs = find_blobs(s.path);
  if (blobs.empty()) return;
  parallel_for(blobs.size(), [&](size_t i) {
    const Blob& blob = blobs[i];
    std::string found;
    try {
      found = blob_hash(InputFile(s.path / blob.file), blob.hash.size() == 40);
    } catch (const ReadError&) {
      throw;
    } catch (const Error&) {
      return;  // another rule reports a file that cannot be read
    }
    if (found != blob.hash)
      reporter.add("blob-hash", {blob.file, ""}, "expected a blob of the hash in its name, {}, found {}",
                   blob.hash, found);
  });
}

}  // namespace twofour
