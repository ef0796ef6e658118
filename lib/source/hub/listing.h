#pragma once
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/source/hub/address.h"
#include "lib/source/hub/fetcher.h"

namespace twofour {

/// The files behind an address, each pinned to its contents.
struct RemoteListing {
  std::string name;  ///< "hf://org/name@COMMIT", with the path within it; a URL without its query
  std::string file;  ///< the address names this one file; empty: a folder
  Json note;         ///< for twofour.json: repository and commit, or the URL
  std::vector<RemoteObject> files;
};

/// Asks the Hub once for the commit, the files, their sizes and hashes; all later requests name the commit.
/// On another server, which has no listing, looks for the usual files of checkpoints: configs, tokenizer,
/// index and the files that it names. Throws Error if a request is refused, a name leaves the folder or there
/// are more than 100,000 files.
RemoteListing list_remote(const RemoteAddress& address, const Fetcher& fetcher);

}  // namespace twofour
