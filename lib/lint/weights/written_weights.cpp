#include "lib/lint/weights/written_weights.h"

namespace twofour {

WrittenWeights::WrittenWeights(const Checkpoint& view)
    : input_(lint_subject_of(view, unused_)), counter_(input_, true) {
  for (const WeightCounter::Job& job : counter_.jobs()) {
    if (job.module == WeightCounter::Job::kNone) {
      jobs_.emplace(input_.tensors[job.tensor].name, job);
      continue;
    }
    const Nvfp4Linear& m = input_.modules[job.module];
    jobs_.emplace(input_.tensors[m.codes].name, job);
    codes_of_.emplace(input_.tensors[m.block_scale].name, input_.tensors[m.codes].name);
  }
}

WrittenWeights::Hashes WrittenWeights::count(const std::string& tensor,
                                             const std::function<bool(std::string_view)>& is_here,
                                             const Read& read, Progress& progress) {
  Hashes result;
  if (const auto codes = codes_of_.find(tensor); codes != codes_of_.end()) {
    result.is_left = !is_here(codes->second);
    return result;
  }
  const auto job = jobs_.find(tensor);
  std::vector<size_t> tensors;
  if (job != jobs_.end() && job->second.module != WeightCounter::Job::kNone) {
    const Nvfp4Linear& m = input_.modules[job->second.module];
    if (is_here(input_.tensors[m.block_scale].name)) tensors = {m.codes, m.block_scale};
  } else if (job != jobs_.end()) {
    tensors = {job->second.tensor};
  }
  result.is_left = tensors.empty();
  if (tensors.empty()) return result;
  WeightCounter::Buffers buffers;
  const WeightCounter::Read by_position = [&](size_t at, uint64_t offset, std::span<uint8_t> out) {
    read(input_.tensors[at].name, offset, out);
  };
  counter_.count(job->second, by_position, buffers, progress);
  for (const size_t t : tensors) result.hashes[input_.tensors[t].name] = *counter_.hash_of(t);
  return result;
}

}  // namespace twofour
