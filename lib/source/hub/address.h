#pragma once
#include <string>
#include <string_view>

#include "lib/source/hub/settings.h"

namespace twofour {

/// True if the text of a source begins with hf://, https:/ or http:/.
bool is_remote_address(std::string_view source);

/// The target of an address. It is a repository of the Hub, a folder or file in it, or a file or folder on
/// another server.
struct RemoteAddress {
  std::string repo;      ///< "org/name"; empty if the address is on another server
  std::string revision;  ///< branch, tag or commit
  std::string path;      ///< path in the repository, without slashes at its ends; may be empty
  /// The URL of a safetensors file or a folder on another server. A folder's URL ends in a slash.
  Url url;
};

/// Parses an address. It may be hf://org/name[@revision][/path], the URL of a page of the endpoint
/// (ENDPOINT/org/name[/tree/REVISION[/path]], also with resolve or blob in place of tree), or any other
/// https:// URL. Throws Error on anything else, on datasets and spaces, and on http:// unless the endpoint is
/// http://.
RemoteAddress parse_remote_address(std::string_view source, const HubSettings& settings);

}  // namespace twofour
