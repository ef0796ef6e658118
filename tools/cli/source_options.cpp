#include "tools/cli/source_options.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "formats/error.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tools/cli/option_values.h"

namespace twofour {
Argument& add_zero_points_option(Arguments& args, std::string& word, const std::string& of) {
  const ArgumentGroup group(args, of == "of SRC" ? "Formats" : "Models and texts");
  const auto words = zero_points_words();
  return args
      .option(
          "--zero-points", word,
          fmt::format("How the zero points of INT4 {} are read where the config says that there are none and "
                      "others are stored: stored, as the config's format says; symmetric, 8 whatever is "
                      "stored; v2, without the 1 that GPTQ's first version adds",
                      of))
      .one_of(std::vector<std::string>(words.begin(), words.end()))
      .default_text("refuse such a module");
}

void add_cache_options(Arguments& args, RemoteOptions& o) {
  args.option(
          "--cache", o.cache,
          "If SRC is a URL: where its weight files are while they are read. A run that succeeds removes them")
      .value_name("DIRECTORY")
      .default_text("XDG_CACHE_HOME/twofour, ~/.cache/twofour");
  args.option("--cache-size", o.cache_size, "Most bytes in --cache, such as 20GB").value_name("SIZE");
}

CacheOptions cache_of(const RemoteOptions& o) {
  CacheOptions options{o.cache, parse_size_option("--cache-size", o.cache_size)};
  if (!options.folder.empty()) return options;
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (cache != nullptr && *cache != '\0') {
    options.folder = std::filesystem::path(cache) / "twofour";
  } else if (home != nullptr && *home != '\0') {
    options.folder = std::filesystem::path(home) / ".cache/twofour";
  } else {
    throw Error("--cache: expected a directory, found none and no HOME for the usual one");
  }
  return options;
}

std::string or_url(const std::string& what) { return what + ", or hf://org/name[@revision] or https://"; }

}  // namespace twofour
