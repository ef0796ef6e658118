#include "lib/lint/bytes/checks.h"

#include <algorithm>

#include "formats/error.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

void check_files(const LintInput& s, const Manifest& manifest, LintReporter& reporter) {
  for (const auto& [name, hash] : manifest.files) {
    const auto shard =
        std::find_if(s.shards.begin(), s.shards.end(), [&](const Shard& x) { return x.name == name; });
    // A name that leads out of the directory does not name a file of it.
    const bool inside = !fs::path(name).is_absolute() && name.find("..") == name.npos;
    std::error_code error;
    if (shard == s.shards.end() && (!inside || !fs::is_regular_file(s.path / name, error))) {
      reporter.add("manifest-hash", {name, ""}, "listed in twofour.json, found none");
      continue;
    }
    Hash128 found;
    try {
      // Another check reports a weight file that could not be parsed.
      if (shard == s.shards.end() && name.ends_with(".safetensors")) continue;
      found = shard != s.shards.end() ? shard->header_hash : hash_file(s.path / name);
    } catch (const Error& e) {
      reporter.add("manifest-hash", {name, ""}, damage_of(e, s.path / name));
      continue;
    }
    if (found == hash) continue;
    reporter.add("manifest-hash", {name, ""}, "expected {} (twofour.json), found {}", hash.hex(),
                 found.hex());
  }
}

}  // namespace

std::optional<Manifest> lint_manifest(const LintInput& s, LintReporter& reporter) {
  if (!s.has_manifest) return std::nullopt;
  const fs::path path = s.path / kManifestName;
  check_duplicate_keys(s.path, kManifestName, reporter);
  try {
    Manifest manifest = read_manifest(path, s.tensors.size());
    if (!manifest.integrity_error.empty())
      reporter.add("manifest-hash", {kManifestName, ""}, manifest.integrity_error);
    check_files(s, manifest, reporter);
    for (const auto& [name, output] : manifest.outputs) {
      const auto at = s.find(name);
      if (!at) {
        if (s.is_part) continue;
        reporter.add("manifest-hash", {kManifestName, name}, "expected {}, found it in no file", output.type);
        continue;
      }
      const std::string type = describe(s.tensors[*at]);
      if (type != output.type) {
        reporter.add("manifest-hash", s.at(*at, name), "expected {} (twofour.json), found {}", output.type,
                     type);
      }
    }
    if (manifest.folds > 0) {
      reporter.add("folded", {kManifestName, ""},
                   "expected equal global scales in the source, found {} matrices that were folded",
                   manifest.folds);
    }
    return manifest;
  } catch (const UnknownLayout& unknown) {
    report_unknown_layout(unknown, reporter);
    return std::nullopt;
  } catch (const Error& e) {
    reporter.add("bad-manifest", {kManifestName, ""}, damage_of(e, path));
    return std::nullopt;
  }
}

void lint_tensor_hash(const LintInput& s, const Manifest& manifest, size_t tensor, const Hash128& hash,
                      LintReporter& reporter) {
  const auto it = manifest.outputs.find(s.tensors[tensor].name);
  if (it == manifest.outputs.end()) {
    reporter.add("manifest-hash", s.at(tensor), "expected in twofour.json, found it only here");
  } else if (it->second.hash != hash) {
    reporter.add("manifest-hash", s.at(tensor), "expected {} (twofour.json), found {}", it->second.hash.hex(),
                 hash.hex());
  }
}

}  // namespace twofour
