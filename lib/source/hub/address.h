#pragma once
#include <string>
#include <string_view>

#include "lib/source/hub/settings.h"

namespace twofour {

/// True if a source begins with hf://, https:/ or http:/.
bool is_remote_address(std::string_view source);

/// The target of an address: a repository of the Hub, a folder or a file of one, or something on another
/// server.
struct RemoteAddress {
  std::string repo;      ///< "org/name"; empty: on another server
  std::string revision;  ///< branch, tag or commit
  std::string path;      ///< within the repository, without slashes at its ends; empty: all of it
  Url url;               ///< on another server: of a safetensors file, or of a folder with a slash at its end
};

/// Parses hf://org/name[@revision][/path], a page of the endpoint (ENDPOINT/org/name[/tree/REVISION[/path]],
/// also with resolve or blob), or any other https:// URL. Throws Error on anything else, on http:// unless
/// the endpoint is http://, and on datasets and spaces.
RemoteAddress parse_remote_address(std::string_view source, const HubSettings& settings);

}  // namespace twofour
