#pragma once
#include <string>

#include "lib/source/hub/remote_source.h"
#include "tools/cli/arguments.h"

namespace twofour {

/// Options of commands that read the whole source of a URL.
struct RemoteOptions {
  std::string cache, cache_size = "32GB";  ///< the user's cache if `cache` is empty
};

/// Adds --zero-points, which decides how INT4 zero points are read. `of` names their owner in the help.
Argument& add_zero_points_option(Arguments& args, std::string& word, const std::string& of);

/// Adds --cache and --cache-size.
void add_cache_options(Arguments& args, RemoteOptions& options);

/// The folder and size of the cache that the options ask for. Throws Error if the usual folder is needed and
/// there is no home directory.
CacheOptions cache_of(const RemoteOptions& options);

/// The help of a source. It states `what` the source is and that it may be a URL.
std::string or_url(const std::string& what);

}  // namespace twofour
