#include "lib/write/view/solved_groups.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace twofour {
namespace {

/// Drops the sign of zeros that stay within a pattern. A sparse layout cannot distinguish them from dropped
/// weights.
void drop_signs(const QuantizedGroup& group, std::vector<std::vector<uint8_t>>& parts) {
  if (!group.encode_rule().pattern) return;
  for (const EncodedMatrix& m : group.matrices()) {
    for (uint8_t& both : parts[static_cast<size_t>(m.part(EncodedPart::kValues))]) {
      if ((both & 0x07) == 0) both &= 0xF0;
      if ((both & 0x70) == 0) both &= 0x0F;
    }
  }
}

uint64_t bytes_of(const QuantizedRows& rows) {
  uint64_t bytes = 0;
  for (const auto& part : rows.parts) bytes += part.size();
  return bytes;
}

}  // namespace

void SolvedGroups::set_solvers(int count, int threads_each) {
  solvers_ = static_cast<size_t>(count);
  threads_ = threads_each;
}

void SolvedGroups::hold(size_t number, std::shared_ptr<const QuantizedRows> rows) {
  held_bytes_ += bytes_of(*rows);
  held_.add(number, std::move(rows));
  while (held_.size() > std::max<size_t>(2, solvers_) && held_bytes_ > kMostBytes) {
    held_bytes_ -= bytes_of(*held_.take_oldest());
  }
}

void SolvedGroups::take_results(size_t number, const QuantizedGroup& group, QuantizedRows& rows) {
  if (results_.contains(number)) return;  // the group was evicted and is quantized for the second time
  Json& results = results_[number] = Json::array();
  for (size_t i = 0; i < rows.results.size(); ++i) {
    Findings& found = rows.results[i].findings;
    std::move(found.begin(), found.end(), std::back_inserter(findings_));
    found.clear();
    results.push_back(group.solved_note(i, rows.results[i]));
  }
}

std::shared_ptr<const QuantizedRows> SolvedGroups::of(size_t number, const QuantizedGroup& group) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (const auto* rows = held_.find(number)) return *rows;
    if (running_.size() < solvers_ && running_.insert(number).second) break;
    changed_.wait(lock);
  }
  std::optional<std::unique_ptr<RowQuantizer>> quantizer = idle_.take();
  std::shared_ptr<QuantizedRows> rows;
  try {
    lock.unlock();
    if (!quantizer) quantizer = make_(source_, threads_);
    rows = std::make_shared<QuantizedRows>((*quantizer)->quantize(group));
    drop_signs(group, rows->parts);
    lock.lock();
    take_results(number, group, *rows);
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    running_.erase(number);
    changed_.notify_all();
    throw;
  }
  hold(number, rows);
  idle_.give_back(std::move(*quantizer));
  running_.erase(number);
  changed_.notify_all();
  return rows;
}

Json SolvedGroups::results(size_t number) const {
  const std::lock_guard lock(mutex_);
  const auto at = results_.find(number);
  return at == results_.end() ? Json(nullptr) : at->second;
}

Findings SolvedGroups::findings() const {
  const std::lock_guard lock(mutex_);
  return findings_;
}

}  // namespace twofour
