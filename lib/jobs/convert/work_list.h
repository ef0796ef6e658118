#pragma once
#include <cstdint>
#include <vector>

#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/plan/plan.h"
#include "lib/write/plan/transformation.h"

namespace twofour {

/// The units of work that write the wanted files of a plan, in the order in which threads take them.
class WorkList {
 public:
  struct Item {
    uint32_t transformation;
    Unit unit;
  };
  /// The items with indices from `first` to `first + count - 1`.
  struct Batch {
    size_t first, count;
  };

  /// `wanted` has one entry for each file of the plan. `plan` and `wanted` must outlive the list.
  WorkList(const Checkpoint& source, const Plan& plan, const std::vector<bool>& wanted);

  const std::vector<Item>& items() const { return items_; }
  /// The batches that threads compute. A batch is one unit, or several small neighbouring units.
  std::vector<Batch> batches() const;
  /// The wanted files that an item writes to, without repetition.
  std::vector<uint32_t> files_of(const Item& item) const;

 private:
  bool is_wanted(uint32_t transformation, const Unit& unit) const;

  const Plan& plan_;
  const std::vector<bool>& wanted_;
  std::vector<Item> items_;
};

}  // namespace twofour
