#include "lib/validate_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/checkpoint/quantization_config.h"
#include "lib/read_in_pieces.h"

namespace twofour {

namespace fs = std::filesystem;

void differ(ValidateReport& report, const char* id, std::string where, std::string message) {
  report.differences.push_back({Severity::kError, id, std::move(where), std::move(message)});
}

Hash128 hash_tensor(const Checkpoint& c, size_t tensor, uint64_t begin, uint64_t bytes, Progress& progress) {
  Hasher hasher;
  const auto read = [&](uint64_t at, std::span<uint8_t> piece) { c.read(tensor, begin + at, piece); };
  read_in_pieces(bytes, 1u << 20, read, [&](uint64_t, std::span<const uint8_t> piece) {
    hasher.update(piece);
    progress.done += piece.size();
  });
  return hasher.digest();
}

void check_names(const Checkpoint& artifact, const Manifest& manifest, ValidateReport& report) {
  for (const auto& [name, output] : manifest.outputs) {
    if (!artifact.find(name))
      differ(report, "missing-tensor", name, "expected as twofour.json says, found in no file");
  }
  for (const Finding& f : artifact.findings()) {
    // What a source has wrong, its artifact may have too; index and files are ours.
    if (f.id != "incomplete-module") differ(report, f.id.c_str(), f.where, f.message);
  }
}

void check_listed_files(const Checkpoint& artifact, const Manifest& manifest, ValidateReport& report) {
  std::map<std::string, Hash128> found;
  for (const Shard& s : artifact.shards()) found[s.name] = s.header_hash;
  for (const auto& entry : fs::recursive_directory_iterator(artifact.path())) {
    const std::string name = entry.path().lexically_relative(artifact.path()).string();
    if (entry.is_regular_file() && name != kManifestName && !found.count(name))
      found[name] = hash_file(entry.path());
  }
  for (const auto& [name, hash] : manifest.files) {
    const auto it = found.find(name);
    if (it == found.end()) {
      differ(report, "missing-file", name, "expected as twofour.json says, found none");
    } else if (it->second != hash) {
      differ(report, "file", name,
             fmt::format("expected {} as twofour.json says, found {}", hash.hex(), it->second.hex()));
    }
  }
  for (const auto& [name, hash] : found) {
    if (!manifest.files.count(name)) differ(report, "extra-file", name, "expected no such file, found one");
  }
}

void check_files(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                 const Manifest& manifest, ValidateReport& report) {
  for (const OutputFile& file : plan.files) {
    const auto it = std::find_if(artifact.shards().begin(), artifact.shards().end(),
                                 [&](auto& s) { return s.name == file.name; });
    if (it == artifact.shards().end()) {
      differ(report, "missing-file", file.name, "expected as the plan says, found none");
    } else if (it->header_hash != hash_text(file.header)) {
      differ(report, "header", file.name,
             "expected the header that the source and recipe give, found another");
    }
  }
  const std::set<std::string> expected = artifact_files(source, plan);
  for (const auto& [name, hash] : manifest.files) {
    if (expected.count(name)) continue;
    differ(report, "extra-file", name,
           "expected a file that source and recipe give, found one that twofour.json alone tells of");
  }
  const auto check_text = [&](const char* name, const std::string& text) {
    std::error_code error;
    if (!fs::exists(artifact.path() / name, error)) {
      differ(report, "missing-file", name, "expected in the artifact, found none");
    } else if (const InputFile file(artifact.path() / name);
               file.size() != text.size() || read_text(file.path(), text.size()) != text) {
      differ(report, "file", name, "expected the text that source and recipe give, found another");
    }
  };
  check_text(kIndexName, artifact_index(plan));
  for (const auto& [name, text] : artifact_texts(source, plan)) check_text(name.c_str(), text);
  for (const auto& [name, bytes] : plan.sidecars) {
    std::error_code error;
    if (!is_copied_sidecar(source, plan, name)) continue;
    if (!fs::exists(artifact.path() / name, error)) {
      differ(report, "missing-file", name, "expected a copy of the source's, found none");
    } else if (!same_contents(source.path() / name, artifact.path() / name)) {
      differ(report, "file", name, "expected a copy of the source's, found other contents");
    }
  }
}

}  // namespace twofour
