#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "formats/json.h"
#include "tools/cli/command.h"

namespace twofour {

std::function<int()> setup_bench_convert(Arguments& args, const Common& common);
std::function<int()> setup_bench_decoder(Arguments& args, const Common& common);
std::function<int()> setup_bench_io(Arguments& args, const Common& common);
std::function<int()> setup_bench_kernels(Arguments& args, const Common& common);
std::function<int()> setup_bench_lint(Arguments& args, const Common& common);
std::function<int()> setup_bench_open(Arguments& args, const Common& common);
std::function<int()> setup_bench_plan(Arguments& args, const Common& common);
std::function<int()> setup_bench_solve(Arguments& args, const Common& common);

/// The smallest, the median and the largest of some measurements.
struct Spread {
  double min = 0, median = 0, max = 0;
};
Spread spread_of(std::vector<double> values);
Json spread_to_json(const Spread& spread);
/// A Spread as text: "1.24 (0.63 to 2.23)".
std::string spread_text(const Spread& spread);

/// The time and memory of a whole command.
struct ProcessRun {
  double seconds = 0;
  uint64_t max_rss = 0;  ///< bytes
};

/// Starts a program and waits for it. Throws Error unless it ends with exit code 0.
ProcessRun run_process(const std::vector<std::string>& arguments);

/// The path of the measured program twofour, which is in the directory of this program. Throws Error if it is
/// missing.
std::filesystem::path twofour_program();

/// The layouts and formats that a conversion can write.
std::vector<std::string> convert_targets();

/// A new directory below `work`, which is removed at the end.
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

}  // namespace twofour
