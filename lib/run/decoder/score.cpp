#include "lib/run/decoder/score.h"

#include <algorithm>
#include <cmath>

#include "kernels/device/check.h"
#include "kernels/device/isa.h"
#include "kernels/floats/float_ops.h"
#include "lib/base/threads/parallel.h"
#include "lib/run/device_blocks/device_run.h"

namespace twofour {
namespace {

size_t index(int64_t i) { return static_cast<size_t>(i); }

TokenScore score_of(std::span<const float> logits, int32_t token) {
  TokenScore s;
  s.log_sum = float_ops(best_isa()).log_sum_exp(logits.data(), static_cast<int64_t>(logits.size()));
  s.loss = s.log_sum - static_cast<double>(logits[index(token)]);
  s.top = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  return s;
}

/// KL(other || model).
double divergence_of(std::span<const float> model, double model_sum, std::span<const float> other,
                     double other_sum) {
  double sum = 0;
  for (size_t i = 0; i < model.size(); ++i) {
    const double p = static_cast<double>(other[i]) - other_sum, q = static_cast<double>(model[i]) - model_sum;
    sum += std::exp(p) * (p - q);
  }
  return sum;
}

/// Scores rows [begin, begin + count) on the host.
void score_some(std::span<const int32_t> tokens, size_t begin, size_t count, ScoredRows& rows,
                ScoredRows* other) {
  const auto vocabulary = index(rows.model.shape().vocabulary);
  std::vector<float> logits(count * vocabulary), other_logits(other != nullptr ? logits.size() : 0);
  const auto run = [&](const ScoredRows& r, std::vector<float>& to) {
    const auto h = index(r.model.shape().residual());
    r.model.run_head(r.hidden.subspan(begin * h, count * h), to);
  };
  run(rows, logits);
  if (other != nullptr) run(*other, other_logits);
  parallel_for(count, [&](size_t i) {
    const auto own = std::span(logits).subspan(i * vocabulary, vocabulary);
    TokenScore& s = rows.scores[begin + i] = score_of(own, tokens[begin + i]);
    if (other == nullptr) return;
    const auto others = std::span(other_logits).subspan(i * vocabulary, vocabulary);
    const TokenScore& o = other->scores[begin + i] = score_of(others, tokens[begin + i]);
    s.divergence = divergence_of(own, s.log_sum, others, o.log_sum);
  });
}

/// Scores rows [begin, begin + count) on the device.
void score_on_device(std::span<const int32_t> tokens, size_t begin, size_t count, ScoredRows& rows,
                     ScoredRows* other) {
  const auto part = [&](const ScoredRows& r) {
    const auto h = index(r.model.shape().residual());
    return r.hidden.subspan(begin * h, count * h);
  };
  const auto some = tokens.subspan(begin, count);
  const auto take = [&](const std::vector<cuda::LogitFigures>& figures, std::vector<TokenScore>& to) {
    for (size_t i = 0; i < count; ++i) {
      const cuda::LogitFigures& f = figures[i];
      to[begin + i] = {f.log_sum, f.log_sum - static_cast<double>(f.own), f.divergence, f.top};
    }
  };
  DeviceRun& run = *rows.model.device_run();
  if (other == nullptr) return take(run.score(part(rows), some, nullptr), rows.scores);
  DeviceRun& truth = *other->model.device_run();
  take(truth.score(part(*other), some, nullptr), other->scores);
  take(run.score(part(rows), some, &truth), rows.scores);
}

}  // namespace

void score_tokens(std::span<const int32_t> tokens, ScoredRows& rows, ScoredRows* other,
                  const std::function<void(size_t)>& scored) {
  rows.scores.assign(tokens.size(), {});
  if (other != nullptr) other->scores.assign(tokens.size(), {});
  const auto row_bytes = sizeof(float) * static_cast<uint64_t>(rows.model.shape().vocabulary);
  const size_t most = std::clamp<uint64_t>(kScoredBytes / row_bytes, 1, 1024);
  const bool on_device =
      rows.model.device() == Device::cuda && (other == nullptr || other->model.device() == Device::cuda);
  for (size_t begin = 0; begin < tokens.size(); begin += most) {
    const size_t count = std::min(most, tokens.size() - begin);
    if (on_device) {
      score_on_device(tokens, begin, count, rows, other);
    } else {
      score_some(tokens, begin, count, rows, other);
    }
    if (scored) scored(count);
  }
  for (TokenScore& s : rows.scores) s.divergence = std::max(s.divergence, 0.0);  // below 0 only by rounding
}

}  // namespace twofour
