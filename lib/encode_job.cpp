#include <algorithm>

#include "kernels/device/check.h"
#include "lib/convert/conversion.h"

namespace twofour {
namespace {

/// Jobs that take so large a share of the work come first, so that none is left over for the end.
constexpr uint64_t kLargeShare = 16;

}  // namespace

void Conversion::list_encodings(std::vector<Job>& jobs) const {
  const auto weights_of = [&](const Job& job) {
    const EncodeGroup& group = plan_.groups[job.index];
    uint64_t weights = 0;
    for (size_t i = group.first; i < group.first + group.count; ++i) {
      weights += static_cast<uint64_t>(plan_.matrices[i].rows * plan_.matrices[i].k);
    }
    return weights;
  };
  const auto begin = static_cast<std::ptrdiff_t>(jobs.size());
  uint64_t all = 0;
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    jobs.push_back({.kind = Job::Kind::kEncode, .index = g});
    all += weights_of(jobs.back());
  }
  // The rest goes file by file, so that few are open at a time.
  std::stable_sort(jobs.begin() + begin, jobs.end(), [&](const Job& a, const Job& b) {
    const uint64_t x = weights_of(a), y = weights_of(b), large = all / kLargeShare;
    return std::max(x, large) > std::max(y, large);
  });
}

void Conversion::encode(const Job& job, Encoder& encoder) {
  const EncodeGroup& group = plan_.groups[job.index];
  const std::vector<size_t> tensors = plan_.tensors_of(group);
  std::vector<uint64_t> written(tensors.size());
  std::vector<Hasher> hashers(tensors.size());
  const uint64_t before = encoder.bytes_read();
  const auto write = [&](size_t i, std::span<const uint8_t> bytes) {
    const auto at = static_cast<size_t>(std::find(tensors.begin(), tensors.end(), i) - tensors.begin());
    const OutputTensor& t = plan_.tensors[i];
    if (is_wanted(i)) {
      open(t.file).write(offset_of(t) + written[at], bytes);
      hashers[at].update(bytes);
    }
    written[at] += bytes.size();
  };
  std::vector<EncodedResult> results = encoder.encode(job.index, write, refused_);
  bytes_read_ += encoder.bytes_read() - before;
  progress_.done += encoder.bytes_read() - before;
  bool sound = true;
  {
    const std::lock_guard lock(results_mutex_);
    for (size_t i = 0; i < results.size(); ++i) {
      for (const std::string& problem : results[i].problems) problems_.add(problem);
      sound = sound && results[i].problems.empty();
      matrices_[group.first + i] = std::move(results[i]);
    }
  }
  if (!sound) refused_ = true;
  if (written[0] == 0) return;  // only looked at
  for (size_t at = 0; at < tensors.size(); ++at) {
    if (!is_wanted(tensors[at])) continue;
    check(written[at] == plan_.tensors[tensors[at]].info.bytes(), "a tensor written whole");
    outputs_[tensors[at]] = hashers[at].digest();
    write_done(plan_.tensors[tensors[at]].file);
  }
}

}  // namespace twofour
