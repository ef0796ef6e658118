#include "lib/jobs/tasks/split.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>

#include "kernels/device/check.h"

namespace twofour {
namespace {

/// The cost of writing an output file.
struct FileCost {
  uint64_t own = 0;  ///< bytes that are written, and bytes that are read only for this file
  /// The transformations that have tensors in the file, and the bytes that each of them reads. These bytes
  /// are read once if one task writes all files of the transformation. Otherwise each of its tasks reads
  /// them.
  std::map<size_t, uint64_t> shared;
  uint64_t alone() const {
    return std::accumulate(shared.begin(), shared.end(), own,
                           [](uint64_t sum, const auto& unit) { return sum + unit.second; });
  }
};

std::vector<FileCost> file_costs(const Checkpoint& source, const Plan& plan) {
  std::vector<FileCost> files(plan.files.size());
  for (size_t f = 0; f < plan.files.size(); ++f) files[f].own = plan.files[f].size();
  for (size_t t = 0; t < plan.transformations.size(); ++t) {
    const auto parts = plan.parts_of(t);
    for (const Unit& unit : plan.transformations[t]->units(source)) {
      if (unit.part >= 0) {
        files[plan.tensors[parts[static_cast<size_t>(unit.part)]].file].own += unit.read;
        continue;
      }
      if (unit.part == Unit::kNoPart) {
        files[plan.tensors[parts[0]].file].own += unit.read;
        continue;
      }
      std::set<uint32_t> all;
      for (const uint32_t i : parts) all.insert(plan.tensors[i].file);
      for (const uint32_t f : all) files[f].shared[t] += unit.read;
    }
  }
  return files;
}

/// Files that the same task gets.
struct Bundle {
  std::vector<uint32_t> files;
  FileCost cost;
  void add(uint32_t file, const FileCost& of_file) {
    files.push_back(file);
    cost.own += of_file.own;
    cost.shared.insert(of_file.shared.begin(), of_file.shared.end());
  }
};

std::vector<Bundle> bundle_singly(const std::vector<FileCost>& files) {
  std::vector<Bundle> bundles(files.size());
  for (uint32_t f = 0; f < files.size(); ++f) bundles[f].add(f, files[f]);
  return bundles;
}

/// Puts files that share a transformation into one bundle.
std::vector<Bundle> bundle_connected(const std::vector<FileCost>& files) {
  std::vector<uint32_t> first(files.size());  // for each file, another file of the same bundle, or the file
                                              // itself
  std::iota(first.begin(), first.end(), 0u);
  const auto root = [&](uint32_t f) {
    while (first[f] != f) f = first[f] = first[first[f]];
    return f;
  };
  std::unordered_map<size_t, uint32_t> seen;  // for each unit, a file that has it
  for (uint32_t f = 0; f < files.size(); ++f) {
    for (const auto& unit : files[f].shared) {
      const auto [at, is_new] = seen.try_emplace(unit.first, f);
      if (!is_new) first[root(f)] = root(at->second);
    }
  }
  std::map<uint32_t, Bundle> bundles;
  for (uint32_t f = 0; f < files.size(); ++f) bundles[root(f)].add(f, files[f]);
  std::vector<Bundle> list;
  for (auto& [file, bundle] : bundles) list.push_back(std::move(bundle));
  return list;
}

/// Assigns bundles to tasks one by one, and counts the bytes that each task reads and writes.
class Dealer {
 public:
  explicit Dealer(size_t tasks) : already_(tasks) {
    split_.files.resize(tasks);
    split_.bytes.resize(tasks);
  }

  /// Selects a bundle for load_with() and give().
  void take(const Bundle& bundle) {
    bundle_ = &bundle;
    alone_ = bundle.cost.alone();
    std::fill(already_.begin(), already_.end(), 0);
    for (const auto& [unit, bytes] : bundle.cost.shared) {
      for (const size_t task : readers_[unit]) already_[task] += bytes;
    }
  }
  /// The bytes of a task if it also gets the selected bundle.
  uint64_t load_with(size_t task) const { return split_.bytes[task] + alone_ - already_[task]; }
  void give(size_t task) {
    split_.bytes[task] = load_with(task);
    split_.files[task].insert(split_.files[task].end(), bundle_->files.begin(), bundle_->files.end());
    for (const auto& unit : bundle_->cost.shared) {
      auto& readers = readers_[unit.first];
      if (std::find(readers.begin(), readers.end(), task) == readers.end()) readers.push_back(task);
    }
  }
  bool is_empty(size_t task) const { return split_.files[task].empty(); }

  TaskSplit finish() {
    for (auto& files : split_.files) std::sort(files.begin(), files.end());
    return std::move(split_);
  }

 private:
  TaskSplit split_;
  std::unordered_map<size_t, std::vector<size_t>> readers_;  ///< for each transformation, the tasks that read
                                                             ///< it
  std::vector<uint64_t> already_;  ///< for each task, the bytes of the bundle that it already reads for its
                                   ///< other files
  const Bundle* bundle_ = nullptr;
  uint64_t alone_ = 0;
};

/// Assigns the largest bundles first. Each goes to the task that has the least bytes after getting it.
TaskSplit deal_by_size(std::vector<Bundle> bundles, size_t tasks) {
  std::stable_sort(bundles.begin(), bundles.end(),
                   [](const Bundle& a, const Bundle& b) { return a.cost.alone() > b.cost.alone(); });
  Dealer dealer(tasks);
  for (const Bundle& bundle : bundles) {
    dealer.take(bundle);
    size_t best = 0;
    for (size_t task = 1; task < tasks; ++task) {
      if (dealer.load_with(task) < dealer.load_with(best)) best = task;
    }
    dealer.give(best);
  }
  return dealer.finish();
}

/// Assigns neighbouring bundles to the same task, up to `most` bytes for each task. The last task gets the
/// rest.
TaskSplit deal_in_order(const std::vector<Bundle>& bundles, size_t tasks, uint64_t most) {
  Dealer dealer(tasks);
  size_t task = 0;
  for (const Bundle& bundle : bundles) {
    dealer.take(bundle);
    if (task + 1 < tasks && !dealer.is_empty(task) && dealer.load_with(task) > most) ++task;
    dealer.give(task);
  }
  return dealer.finish();
}

/// Assigns neighbouring bundles to the same task, so that the largest task is as small as possible.
TaskSplit deal_in_order(const std::vector<Bundle>& bundles, size_t tasks) {
  uint64_t high = 0;
  for (const Bundle& bundle : bundles) high += bundle.cost.alone();
  uint64_t low = high / tasks / 2;
  const uint64_t fine = std::max<uint64_t>(1, low / 1000);
  while (high - low > fine) {
    const uint64_t middle = low + (high - low) / 2;
    (deal_in_order(bundles, tasks, middle).largest() <= middle ? high : low) = middle;
  }
  return deal_in_order(bundles, tasks, high);
}

}  // namespace

uint64_t TaskSplit::largest() const { return *std::max_element(bytes.begin(), bytes.end()); }

double TaskSplit::balance() const {
  const auto sum = static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}));
  return sum == 0 ? 1 : static_cast<double>(largest()) * static_cast<double>(bytes.size()) / sum;
}

double TaskSplit::overhead() const {
  const auto sum = static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}));
  return alone == 0 ? 1 : sum / static_cast<double>(alone);
}

TaskSplit split_tasks(const Checkpoint& source, const Plan& plan, size_t tasks) {
  check(tasks > 0, "a task");
  const std::vector<FileCost> files = file_costs(source, plan);
  const std::vector<Bundle> singles = bundle_singly(files);
  // Three ways are compared. Bundles of whole matrices divide well if there are many of them. Single files
  // divide well if matrices are large. Neighbouring files share the most.
  TaskSplit split = deal_by_size(bundle_connected(files), tasks);
  for (TaskSplit other : {deal_in_order(singles, tasks), deal_by_size(singles, tasks)}) {
    if (other.largest() < split.largest()) split = std::move(other);
  }
  split.alone = deal_in_order(singles, 1, 0).largest();
  return split;
}

}  // namespace twofour
