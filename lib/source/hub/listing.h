#pragma once
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/source/hub/address.h"
#include "lib/source/hub/fetcher.h"

namespace twofour {

/// The files at an address. Each is pinned to its contents.
struct RemoteListing {
  /// The name of the address. It is "hf://org/name@COMMIT", followed by the path in the repository, or a URL
  /// without its query.
  std::string name;
  std::string file;  ///< name of the only file, if the address names one; empty for a folder
  Json note;         ///< record for twofour.json: repository and commit, or the URL
  std::vector<RemoteObject> files;
};

/// Lists the files at an address. The Hub is asked once for the commit, the files, their sizes and hashes,
/// and all later requests name the commit. Other servers have no listing, so the usual files of checkpoints
/// are requested. These are configs, tokenizer, index and the files that the index names. Throws Error if a
/// request is refused, if a name leaves the folder, or if there are more than 100,000 files.
RemoteListing list_remote(const RemoteAddress& address, const Fetcher& fetcher);

}  // namespace twofour
