#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "lib/findings/finding.h"

namespace twofour {

/// The files of a checkpoint that go along unchanged or rewritten: everything but weights, index and caches.
/// Names are relative, with their sizes. What stays behind is reported.
std::map<std::string, uint64_t> find_sidecars(const std::filesystem::path& directory, Findings& findings);

}  // namespace twofour
