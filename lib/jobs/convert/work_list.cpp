#include "lib/jobs/convert/work_list.h"

#include <algorithm>

namespace twofour {
namespace {

/// Neighbouring units that together write fewer bytes than this form one batch, which is written by one call.
constexpr uint64_t kBatchBytes = 4u << 20;
/// Transformations that have a single unit with at least 1 / kLargeShare of the work come first, so that none
/// of them remains for the end.
constexpr uint64_t kLargeShare = 16;

}  // namespace

WorkList::WorkList(const Checkpoint& source, const Plan& plan, const std::vector<bool>& wanted)
    : plan_(plan), wanted_(wanted) {
  // Units are ordered by file, so that few files are open at the same time. A transformation that writes all
  // of its parts at once is placed with its first part.
  std::vector<bool> begun(plan.transformations.size());
  uint64_t all = 0;
  for (const OutputTensor& tensor : plan.tensors) {
    const uint32_t t = tensor.transformation;
    for (const Unit& unit : plan.transformations[t]->units(source)) {
      const bool begins_here = unit.part == tensor.part || (unit.part < 0 && !begun[t]);
      if (!begins_here || !is_wanted(t, unit)) continue;
      items_.push_back({t, unit});
      all += unit.read;
    }
    begun[t] = true;
  }
  const auto is_large = [&](const Item& item) {
    return item.unit.part == Unit::kAllParts && item.unit.index == 0 && item.unit.read > all / kLargeShare &&
           plan.transformations[item.transformation]->units(source).size() == 1;
  };
  const auto rest = std::stable_partition(items_.begin(), items_.end(), is_large);
  std::stable_sort(items_.begin(), rest,
                   [](const Item& a, const Item& b) { return a.unit.read > b.unit.read; });
}

bool WorkList::is_wanted(uint32_t transformation, const Unit& unit) const {
  const auto parts = plan_.parts_of(transformation);
  const auto wanted = [&](uint32_t tensor) { return wanted_[plan_.tensors[tensor].file]; };
  if (unit.part >= 0) return wanted(parts[static_cast<size_t>(unit.part)]);
  if (unit.part == Unit::kNoPart) return wanted(parts[0]);
  return std::any_of(parts.begin(), parts.end(), wanted);
}

std::vector<uint32_t> WorkList::files_of(const Item& item) const {
  const auto parts = plan_.parts_of(item.transformation);
  if (item.unit.part == Unit::kNoPart) return {};
  if (item.unit.part >= 0) return {plan_.tensors[parts[static_cast<size_t>(item.unit.part)]].file};
  std::vector<uint32_t> files;
  for (const uint32_t i : parts) {
    const uint32_t file = plan_.tensors[i].file;
    if (wanted_[file] && std::find(files.begin(), files.end(), file) == files.end()) files.push_back(file);
  }
  return files;
}

std::vector<WorkList::Batch> WorkList::batches() const {
  const auto bytes = [&](size_t i) { return items_[i].unit.end - items_[i].unit.begin; };
  const auto is_small = [&](size_t i) { return items_[i].unit.part >= 0 && bytes(i) < kBatchBytes; };
  std::vector<Batch> all;
  for (size_t i = 0; i < items_.size();) {
    Batch batch{i, 1};
    if (is_small(i)) {
      uint64_t sum = bytes(i);
      while (i + batch.count < items_.size() && is_small(i + batch.count) &&
             sum + bytes(i + batch.count) <= kBatchBytes) {
        sum += bytes(i + batch.count++);
      }
    }
    all.push_back(batch);
    i += batch.count;
  }
  return all;
}

}  // namespace twofour
