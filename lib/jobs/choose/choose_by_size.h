#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/jobs/choose/format_losses.h"
#include "lib/jobs/choose/format_menu.h"
#include "lib/jobs/compress/compress.h"
#include "lib/jobs/compress/work_folder.h"
#include "lib/jobs/convert/convert.h"
#include "lib/recipe/artifact/recipe.h"

namespace twofour {

/// A size, and the formats that may be taken to reach it. One of `bits` and `bytes` is given.
struct SizeRequest {
  std::optional<double> bits = {};     ///< mean over the weights of the units, see SizedUnit::Option::bits
  std::optional<uint64_t> bytes = {};  ///< size of all tensors of the output
  std::vector<std::string> menu = {};  ///< if empty, the formats of default_menu() that the engine loads
  std::string engine = "twofour";      ///< a word of output_engines()
  /// A recipe of one rule, which has the selection, the dialect and the settings of statistics. Without a
  /// dialect, it is the engine's.
  Recipe recipe = {};
  std::filesystem::path statistics = {};  ///< the file that predicts losses; if empty, the text is collected

  bool is_given() const { return bits || bytes; }
  OptionName option() const { return bits ? options::kBits : options::kSize; }
};

/// The formats of a checkpoint's units, chosen by a size, and the reasons of the choice.
struct SizeChoice {
  /// A point of the curve of sizes and losses.
  struct Point {
    double bits;
    uint64_t bytes;
    double loss;
  };
  std::vector<std::string> menu;
  std::vector<SizedUnit> units;
  std::vector<size_t> chosen;  ///< by unit, the index among its options
  std::vector<Point> curve;    ///< from the least size on
  Point at = {};               ///< loss and size of the choice
  uint64_t weights = 0;        ///< number of weights of all units
  bool is_best = false;        ///< see FormatChoice
  LossBy by = LossBy::kFisher;
  std::string predictor;  ///< "fisher_hessian of FILE"
  Recipe recipe;          ///< a rule for each chosen format

  const SizedUnit::Option& option(size_t unit) const { return units[unit].options[chosen[unit]]; }
  /// The share of the weights that get a format of the menu, 0 to 1.
  double share(size_t format) const;
};

/// Chooses formats by a size. A folder beside the destination holds its statistics and measurements. A
/// run that resumes uses the folder again.
class SizeChooser {
 public:
  /// Plans every format of the menu. Throws Error if the engine does not load a format, and if the size is
  /// below the least of the menu. The message names the nearest that can be had. `existing` of `options`
  /// decides the treatment of what an unfinished run left.
  SizeChooser(const std::filesystem::path& source, const std::filesystem::path& destination,
              SizeRequest request, CompressInput input, const ConvertOptions& options);

  /// Collects statistics if no file is given, measures losses, and chooses. Throws Error and Interrupted.
  SizeChoice choose(Progress& progress);
  /// Removes the folder.
  void finish();
  /// Removes the folder unless an unfinished run left it.
  void finish_dry_run();

 private:
  Compute compute() const { return {options_.isa, options_.device, options_.jobs}; }
  Recipe recipe_of(std::vector<Rule> rules) const;
  void plan_menu();
  void leave_uncollected();
  void check_goal() const;
  uint64_t limit() const;
  void prepare_folder();
  std::shared_ptr<const Statistics> open_statistics(Progress& progress);
  void find_losses(const std::shared_ptr<const Statistics>& statistics, Progress& progress);
  Json losses_key(const Statistics& statistics) const;
  bool read_losses(const Json& key);
  void write_losses(const Json& key) const;
  SizeChoice choose_by(const Statistics& statistics) const;
  Recipe chosen_recipe(const SizeChoice& choice) const;
  /// Throws Error if the engine does not load the mix, or if it is larger than the request.
  void check_mix(SizeChoice& choice) const;

  std::filesystem::path source_, folder_;
  SizeRequest request_;
  CompressInput input_;
  ConvertOptions options_;
  Checkpoint opened_;
  Rule base_;
  std::vector<MenuFormat> menu_;
  std::vector<SizedUnit> units_;
  uint64_t weights_ = 0, rest_bytes_ = 0;  ///< bytes of tensors that are in no unit
  std::unique_ptr<WorkFolder> lock_;
  bool found_ = false;  ///< the folder was there before
};

}  // namespace twofour
