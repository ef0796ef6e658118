#pragma once
#include <filesystem>
#include <string>

#include "formats/json.h"
#include "lib/bench_convert.h"
#include "tools/cli/command.h"

namespace twofour {

Json spread_to_json(const Spread& spread);
/// "1.24 (0.63 to 2.23)"
std::string spread_text(const Spread& spread);

/// A directory of ours below `work`, taken away at the end.
class WorkDirectory {
 public:
  explicit WorkDirectory(const std::filesystem::path& work);
  WorkDirectory(const WorkDirectory&) = delete;
  WorkDirectory& operator=(const WorkDirectory&) = delete;
  ~WorkDirectory();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Adds `bench plan` to `bench`; what is returned runs it.
std::function<int()> setup_bench_plan(CLI::App& bench, const Common& common);
/// The same for `bench io`.
std::function<int()> setup_bench_io(CLI::App& bench, const Common& common);

}  // namespace twofour
