#pragma once
#include <optional>
#include <string>
#include <vector>

#include "lib/lint/subject.h"
#include "lib/artifact/manifest.h"

namespace twofour {

/// Reads twofour.json and holds against it what is no tensor's data: files, headers, the names of tensors.
/// Nothing where there is none or, then told, none that can be read.
std::optional<Manifest> lint_manifest(const LintSubject& subject, LintSink& sink);

/// Holds the hash of a tensor against the manifest.
void lint_tensor_hash(const LintSubject& subject, const Manifest& manifest, size_t tensor,
                      const Hash128& hash, LintSink& sink);

}  // namespace twofour
