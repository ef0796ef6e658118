#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/base/threads/progress.h"
#include "lib/recipe/artifact/recipe.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/plan/plan.h"
#include "lib/write/transform/encode_groups.h"
#include "lib/write/view/quantized_view.h"

namespace twofour {

/// Returns the recipe with `statistics` in each rule that can use them. Groups in `encoded` are not
/// solved again.
Recipe with_statistics(Recipe recipe, std::shared_ptr<const Statistics> statistics, const std::string& hash,
                       std::shared_ptr<const EncodedBefore> encoded = {});
/// Returns the recipe without statistics, as it was before compression.
Recipe without_statistics(Recipe recipe);

/// The linears of a checkpoint to which a recipe gives another number format, in groups that share a scale.
class SolvedLinears {
 public:
  /// `recipe` must have statistics, from with_statistics(). Throws Error like make_plan().
  SolvedLinears(const std::filesystem::path& source, const Recipe& recipe, const Compute& compute);
  SolvedLinears(const SolvedLinears&) = delete;
  SolvedLinears& operator=(const SolvedLinears&) = delete;

  /// The linears by the names under which they are written. A stack has one name for each expert.
  const std::set<std::string>& all() const { return all_; }
  /// The linears whose weights are chosen by statistics.
  const std::set<std::string>& by_statistics() const { return by_statistics_; }
  /// The conversion that the recipe describes.
  const Plan& plan() const { return plan_; }
  const Checkpoint& source() const { return source_.shown; }
  /// Calls f(checkpoint, group) for each group, with the checkpoint that has its linears.
  template <class F>
  void for_each_group(F&& f) const {
    for (const Source& s : sources_) {
      for (const QuantizedGroup* group : s.groups) f(*s.checkpoint, *group);
    }
  }
  /// The largest number of bytes of memory that encoding needs, without the program.
  uint64_t peak_memory(int jobs) const;

  /// Size in bytes of all linears, as solve() writes them.
  uint64_t bytes() const;

  /// Encodes the groups that have a linear in `names`, and writes them to `folder`. The result is a
  /// checkpoint of only these linears. EncodedLinears can read the folder, too.
  Checkpoint solve(const std::set<std::string>& names, const std::filesystem::path& folder, int jobs,
                   Progress& progress) const;

 private:
  /// Groups, the checkpoint that they read, and the config files that name their formats.
  struct Source {
    const Checkpoint* checkpoint;
    const std::map<std::string, std::string>* texts;
    std::vector<const QuantizedGroup*> groups = {};
  };
  void take(const Checkpoint& checkpoint, const std::map<std::string, std::string>& texts,
            const Transformations& transformations);

  QuantizedSource source_;
  Plan plan_;
  Compute compute_;
  std::vector<Source> sources_;
  std::set<std::string> all_, by_statistics_;
};

}  // namespace twofour
