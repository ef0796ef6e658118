#include "lib/view/solved_groups.h"

#include <iterator>
#include <utility>

namespace twofour {
namespace {

/// Zeros that stay within a pattern lose their sign: a sparse layout cannot tell them from those that went.
void drop_signs(const QuantizedGroup& group, std::vector<std::vector<uint8_t>>& parts) {
  if (!group.encode_rule().pattern) return;
  for (const EncodedMatrix& m : group.matrices()) {
    for (uint8_t& both : parts[static_cast<size_t>(m.part(EncodedPart::kValues))]) {
      if ((both & 0x07) == 0) both &= 0xF0;
      if ((both & 0x70) == 0) both &= 0x0F;
    }
  }
}

}  // namespace

std::shared_ptr<const QuantizedRows> SolvedGroups::find(size_t number) {
  const std::lock_guard lock(mutex_);
  for (auto at = kept_.begin(); at != kept_.end(); ++at) {
    if (at->number != number) continue;
    kept_.splice(kept_.begin(), kept_, at);
    return kept_.front().rows;
  }
  return nullptr;
}

void SolvedGroups::keep(size_t number, std::shared_ptr<const QuantizedRows> rows) {
  uint64_t bytes = 0;
  for (const auto& part : rows->parts) bytes += part.size();
  kept_.push_front({number, bytes, std::move(rows)});
  kept_bytes_ += bytes;
  while (kept_.size() > 2 && kept_bytes_ > kMostBytes) {
    kept_bytes_ -= kept_.back().bytes;
    kept_.pop_back();
  }
}

std::shared_ptr<const QuantizedRows> SolvedGroups::of(size_t number, const QuantizedGroup& group) {
  if (auto rows = find(number)) return rows;
  const std::lock_guard one_at_a_time(solving_);
  if (auto rows = find(number)) return rows;
  if (!quantizer_) quantizer_ = make_(source_);
  auto rows = std::make_shared<QuantizedRows>(quantizer_->quantize(group));
  drop_signs(group, rows->parts);
  const std::lock_guard lock(mutex_);
  keep(number, rows);
  if (results_.contains(number)) return rows;  // it was let go in between
  Json& results = results_[number] = Json::array();
  for (size_t i = 0; i < rows->results.size(); ++i) {
    Findings& found = rows->results[i].findings;
    std::move(found.begin(), found.end(), std::back_inserter(findings_));
    found.clear();
    results.push_back(group.solved_note(i, rows->results[i]));
  }
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
