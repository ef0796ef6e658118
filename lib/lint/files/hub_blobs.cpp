#include <algorithm>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/base/threads/parallel.h"
#include "lib/lint/files/checks.h"
#include "lib/source/hub/sha.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// A file whose hash is stated: by a list of sums beside it, or in a Hub's cache, where it is a link to a
/// blob that is named by the hash of its bytes.
struct Blob {
  std::string file, hash;
  std::string list{};  ///< the list of sums that states the hash; empty: the name of the blob does
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

/// Adds the files that a list of SHA-256 sums names, as sha256sum writes it: the hash, then blanks or " *",
/// then the name. Files in other directories, and absent ones, are left out.
void add_sums(const fs::path& directory, const std::string& list, std::vector<Blob>& blobs) {
  std::string text;
  try {
    text = read_text(directory / list);
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) {
    return;  // another rule reports a file that cannot be read
  }
  constexpr size_t kDigits = 64;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.size() < kDigits + 2 || line.find_first_not_of("0123456789abcdefABCDEF") != kDigits) continue;
    std::string name = line.substr(std::min(line.find_first_not_of(" \t*", kDigits), line.size()));
    if (name.starts_with("./")) name.erase(0, 2);
    std::error_code error;
    if (name.empty() || name.find('/') != name.npos || !fs::is_regular_file(directory / name, error))
      continue;
    std::string hash = line.substr(0, kDigits);
    std::ranges::transform(hash, hash.begin(), [](unsigned char c) { return std::tolower(c); });
    blobs.push_back({name, std::move(hash), list});
  }
}

/// Returns the files that lists of sums in the directory name.
std::vector<Blob> find_sums(const fs::path& directory) {
  constexpr uint64_t kLargest = 1u << 20;
  std::vector<Blob> blobs;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string(), lower = name;
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
    const bool is_list = lower.find("sha256") != lower.npos || lower.find("checksum") != lower.npos;
    std::error_code ignored;
    if (is_list && it->is_regular_file(ignored) && it->file_size(ignored) <= kLargest)
      add_sums(directory, name, blobs);
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
  sha.update({reinterpret_cast<const uint8_t*>(head.c_str()), head.size() + 1});  // with the zero after it
  return hash_of(sha, file);
}

}  // namespace

void lint_hub_blobs(const LintInput& s, LintReporter& reporter) {
  std::vector<Blob> blobs = find_blobs(s.path);
  for (Blob& blob : find_sums(s.path)) blobs.push_back(std::move(blob));
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
    if (found == blob.hash) return;
    if (blob.list.empty())
      reporter.add("blob-hash", {blob.file, ""}, "expected a blob with the hash in its name, {}, found {}",
                   blob.hash, found);
    else
      reporter.add("blob-hash", {blob.file, ""}, "expected the SHA-256 in {}, {}, found {}", blob.list,
                   blob.hash, found);
  });
}

}  // namespace twofour
