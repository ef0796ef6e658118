#include "lib/run/eval/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "lib/run/decoder/score.h"

namespace twofour {
namespace {

/// Bytes for the activations of windows that run together.
constexpr uint64_t kBatchBytes = 512 << 20;
constexpr int64_t kPositionGroups = 16;
constexpr size_t kWorst = 10;

size_t index(int64_t i) { return static_cast<size_t>(i); }

uint64_t stored_bytes(const Decoder& decoder) {
  uint64_t bytes = 0;
  for (const TensorInfo& t : decoder.checkpoint().tensors()) bytes += t.bytes();
  return bytes;
}

int64_t longest_of(std::span<const EvalWindow> windows) {
  size_t longest = 0;
  for (const EvalWindow& w : windows) longest = std::max(longest, w.tokens.size());
  return static_cast<int64_t>(longest);
}

void check_window(const Decoder& decoder, int64_t longest) {
  if (longest <= decoder.shape().positions) return;
  throw Error(
      fmt::format("{}: expected windows of at most the {} tokens of max_position_embeddings, found {}",
                  decoder.checkpoint().path().string(), decoder.shape().positions, longest));
}

/// The mean of a figure over all places. The error sums squares of deviations from the mean. Squares of the
/// figures themselves would cancel if all figures are nearly equal.
template <class Figure>
MeanFigure mean_of(std::span<const EvalPlace> places, Figure figure) {
  if (places.empty()) return {};
  const auto n = static_cast<double>(places.size());
  double sum = 0, squares = 0;
  for (const EvalPlace& p : places) sum += figure(p);
  const double mean = sum / n;
  for (const EvalPlace& p : places) squares += (figure(p) - mean) * (figure(p) - mean);
  return {mean, places.size() > 1 ? std::sqrt(squares / (n * (n - 1))) : 0.0};
}

/// Sums over tokens, from which the agreement of two residual streams is computed.
struct LayerSums {
  double cosines = 0, difference = 0, other = 0;
  void add(std::span<const float> a, std::span<const float> b) {
    double aa = 0, bb = 0, ab = 0, dd = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
      aa += x * x;
      bb += y * y;
      ab += x * y;
      dd += (x - y) * (x - y);
    }
    cosines += aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : aa == bb ? 1.0 : 0.0;
    difference += dd;
    other += bb;
  }
};

class Evaluation {
 public:
  Evaluation(const Decoder& model, const Decoder* other, std::span<const EvalWindow> windows,
             Progress& progress)
      : model_(model), other_(other), windows_(windows), progress_(progress) {
    const ModelShape& a = model.shape();
    if (other != nullptr && a.layers == other->shape().layers && a.residual() == other->shape().residual())
      layers_.resize(index(a.layers));
    for (const Decoder* d : {&model, other}) {
      if (d == nullptr) continue;
      const uint64_t stored = stored_bytes(*d);
      const uint64_t head = 2 * static_cast<uint64_t>(d->shape().vocabulary * d->shape().hidden);
      head_bytes_ += std::min(head, stored);
      layer_bytes_.push_back((stored - std::min(head, stored)) / static_cast<uint64_t>(d->shape().layers));
    }
    progress_.layers = std::max(a.layers, other != nullptr ? other->shape().layers : 0);
    for (const EvalWindow& w : windows) progress_.all_tokens += w.tokens.size();
  }

  EvalFigures run(int64_t at_once) {
    for (int64_t i = 0; i < static_cast<int64_t>(windows_.size()); i += at_once)
      run_batch(i, std::min<int64_t>(at_once, static_cast<int64_t>(windows_.size()) - i));
    return summary();
  }

 private:
  void run_batch(int64_t first, int64_t count) {
    std::vector<SequencePart> parts;
    std::vector<int32_t> tokens;
    for (const EvalWindow& w : windows_.subspan(index(first), index(count))) {
      parts.push_back({static_cast<int64_t>(w.tokens.size()), 0, nullptr, w.tokens.data()});
      tokens.insert(tokens.end(), w.tokens.begin(), w.tokens.end());
    }
    std::vector<float> a(tokens.size() * index(model_.shape().residual())), b;
    model_.embed(tokens, a);
    if (other_ != nullptr) {
      b.resize(tokens.size() * index(other_->shape().residual()));
      other_->embed(tokens, b);
    }
    const int64_t layers = std::max(model_.shape().layers, other_ != nullptr ? other_->shape().layers : 0);
    for (int64_t layer = 0; layer < layers; ++layer) {
      progress_.layer = layer + 1;
      if (layer < model_.shape().layers) run_layer(model_, 0, layer, parts, a);
      if (other_ != nullptr && layer < other_->shape().layers) run_layer(*other_, 1, layer, parts, b);
      if (!layers_.empty()) compare(layer, a, b);
      progress_.tokens =
          tokens_ + tokens.size() * static_cast<size_t>(layer + 1) / static_cast<size_t>(layers + 1);
    }
    tokens_ += tokens.size();
    progress_.part = "head";
    judge(first, count, a, b);
    progress_.part = "";
    progress_.tokens = tokens_;
  }
  void run_layer(const Decoder& decoder, size_t which, int64_t layer, std::span<const SequencePart> parts,
                 std::vector<float>& hidden) {
    decoder.run_layer(layer, parts, hidden);
    progress_.done += layer_bytes_[which];
  }
  void compare(int64_t layer, const std::vector<float>& a, const std::vector<float>& b) {
    const size_t h = index(model_.shape().residual());
    for (size_t i = 0; i < a.size(); i += h)
      layers_[index(layer)].add(std::span(a).subspan(i, h), std::span(b).subspan(i, h));
  }

  /// Selects rows of hidden states.
  static std::vector<float> rows_of(const std::vector<float>& hidden, const std::vector<size_t>& rows,
                                    size_t width) {
    std::vector<float> some(rows.size() * width);
    for (size_t i = 0; i < rows.size(); ++i)
      std::copy_n(hidden.begin() + static_cast<int64_t>(rows[i] * width), width,
                  some.begin() + static_cast<int64_t>(i * width));
    return some;
  }

  void judge(int64_t first, int64_t count, const std::vector<float>& a, const std::vector<float>& b) {
    std::vector<EvalPlace> places;
    std::vector<size_t> rows;
    size_t row = 0;
    for (int64_t w = first; w < first + count; ++w) {
      const EvalWindow& window = windows_[index(w)];
      for (int64_t i = window.first; i < static_cast<int64_t>(window.tokens.size()); ++i) {
        EvalPlace place;
        place.window = w;
        place.position = i;
        place.token = window.tokens[index(i)];
        places.push_back(place);
        rows.push_back(row + index(i) - 1);
      }
      row += window.tokens.size();
    }
    std::vector<int32_t> tokens;
    for (const EvalPlace& place : places) tokens.push_back(place.token);
    const std::vector<float> own = rows_of(a, rows, index(model_.shape().residual()));
    std::vector<float> others;
    ScoredRows scored{model_, own};
    std::optional<ScoredRows> other;
    if (other_ != nullptr) {
      others = rows_of(b, rows, index(other_->shape().residual()));
      other.emplace(ScoredRows{*other_, others});
    }
    const uint64_t before = progress_.done;
    size_t done = 0;
    score_tokens(tokens, scored, other ? &*other : nullptr, [&](size_t count_scored) {
      done += count_scored;
      progress_.done = before + head_bytes_ * done / std::max<size_t>(tokens.size(), 1);
    });
    for (size_t i = 0; i < places.size(); ++i) {
      EvalPlace& place = places[i];
      const TokenScore& s = scored.scores[i];
      place.loss = s.loss, place.top = s.top, place.divergence = s.divergence;
      check_finite(model_, place, s);
      if (!other) continue;
      place.other_loss = other->scores[i].loss, place.other_top = other->scores[i].top;
      check_finite(*other_, place, other->scores[i]);
      // If a logit is -inf, all figures except the divergence are finite.
      if (!std::isfinite(s.divergence))
        refuse_logits(model_.checkpoint().path().string() + " or " + other_->checkpoint().path().string(),
                      place);
    }
    places_.insert(places_.end(), places.begin(), places.end());
  }
  static void check_finite(const Decoder& decoder, const EvalPlace& place, const TokenScore& score) {
    if (!std::isfinite(score.log_sum) || !std::isfinite(score.loss))
      refuse_logits(decoder.checkpoint().path().string(), place);
  }
  [[noreturn]] static void refuse_logits(const std::string& where, const EvalPlace& place) {
    throw Error(fmt::format("{}: window {}, token {}: expected finite logits, found others", where,
                            place.window, place.position));
  }

  EvalFigures summary() {
    EvalFigures f;
    f.windows = static_cast<int64_t>(windows_.size());
    f.predictions = static_cast<int64_t>(places_.size());
    f.loss = mean_of(places_, [](const EvalPlace& p) { return p.loss; });
    if (other_ != nullptr && !places_.empty()) {
      const auto agreed =
          std::count_if(places_.begin(), places_.end(), [](const auto& p) { return p.top == p.other_top; });
      AgainstFigures against{mean_of(places_, [](const EvalPlace& p) { return p.other_loss; }),
                             mean_of(places_, [](const EvalPlace& p) { return p.loss - p.other_loss; }),
                             mean_of(places_, [](const EvalPlace& p) { return p.divergence; }),
                             0,
                             static_cast<double>(agreed) / static_cast<double>(places_.size()),
                             {}};
      std::vector<double> all;
      for (const EvalPlace& p : places_) all.push_back(p.divergence);
      const size_t rank = (all.size() * 99 + 99) / 100 - 1;
      std::nth_element(all.begin(), all.begin() + static_cast<int64_t>(rank), all.end());
      against.divergence_p99 = all[rank];
      for (const LayerSums& s : layers_) {
        against.layers.push_back({s.cosines / static_cast<double>(tokens_),
                                  s.other > 0 ? std::sqrt(s.difference / s.other) : 0.0});
      }
      f.against = std::move(against);
    }
    f.positions = by_position();
    const auto worse = [&](const EvalPlace& a, const EvalPlace& b) {
      return other_ != nullptr ? a.divergence > b.divergence : a.loss > b.loss;
    };
    std::stable_sort(places_.begin(), places_.end(), worse);
    places_.resize(std::min(places_.size(), kWorst));
    f.worst = std::move(places_);
    return f;
  }
  std::vector<PositionFigures> by_position() const {
    const int64_t longest = longest_of(windows_), width = (longest + kPositionGroups - 1) / kPositionGroups;
    std::vector<PositionFigures> groups;
    for (int64_t begin = 0; begin < longest; begin += width)
      groups.push_back({begin, std::min(longest, begin + width), 0, 0, 0, 0});
    for (const EvalPlace& p : places_) {
      PositionFigures& g = groups[index(p.position / width)];
      ++g.predictions;
      g.loss += p.loss;
      g.divergence += p.divergence;
      g.agreement += p.top == p.other_top;
    }
    std::erase_if(groups, [](const PositionFigures& g) { return g.predictions == 0; });
    for (PositionFigures& g : groups) {
      const auto n = static_cast<double>(g.predictions);
      g.loss /= n;
      g.divergence /= n;
      g.agreement /= n;
    }
    return groups;
  }

  const Decoder& model_;
  const Decoder* other_;
  std::span<const EvalWindow> windows_;
  Progress& progress_;
  std::vector<uint64_t> layer_bytes_;  ///< mean bytes of a layer, for each model
  uint64_t head_bytes_ = 0;            ///< bytes of the heads of all models
  std::vector<LayerSums> layers_;
  std::vector<EvalPlace> places_;
  size_t tokens_ = 0;
};

}  // namespace

EvalPlan plan_evaluation(const Decoder& model, const Decoder* other, std::span<const EvalWindow> windows) {
  const int64_t longest = longest_of(windows);
  check_window(model, longest);
  uint64_t run = model.bytes_per_token(), hidden = index(model.shape().residual()),
           fixed = model.fixed_bytes();
  uint64_t stored = stored_bytes(model), logits = kScoredBytes;
  if (other != nullptr) {
    check_window(*other, longest);
    if (other->shape().vocabulary != model.shape().vocabulary) {
      throw Error(fmt::format("{}: expected the vocabulary of {}, {} tokens, found {}",
                              other->checkpoint().path().string(), model.checkpoint().path().string(),
                              model.shape().vocabulary, other->shape().vocabulary));
    }
    run = std::max(run, other->bytes_per_token());
    fixed = std::max(fixed, other->fixed_bytes());
    hidden += index(other->shape().residual());
    stored += stored_bytes(*other);
    logits *= 2;
  }
  const uint64_t window = (run + sizeof(float) * hidden) * static_cast<uint64_t>(longest);
  EvalPlan plan;
  plan.windows_at_once =
      static_cast<int64_t>(std::max<uint64_t>(1, kBatchBytes / std::max<uint64_t>(window, 1)));
  plan.windows_at_once =
      std::min(plan.windows_at_once, std::max<int64_t>(1, static_cast<int64_t>(windows.size())));
  const auto batches = (windows.size() + index(plan.windows_at_once) - 1) / index(plan.windows_at_once);
  plan.peak_memory = window * static_cast<uint64_t>(plan.windows_at_once) + fixed + logits;
  // All windows and predictions stay in memory. The list of predictions is copied when it grows.
  for (const EvalWindow& w : windows) {
    plan.peak_memory += sizeof(EvalWindow) + w.tokens.size() * sizeof(int32_t) +
                        static_cast<uint64_t>(w.predictions()) * 3 * sizeof(EvalPlace);
  }
  plan.weights_read = stored * batches;
  return plan;
}

EvalFigures evaluate(const Decoder& model, const Decoder* other, std::span<const EvalWindow> windows,
                     Progress& progress) {
  const EvalPlan plan = plan_evaluation(model, other, windows);
  progress.phase = "running";
  progress.total = plan.weights_read;
  EvalFigures figures = Evaluation(model, other, windows, progress).run(plan.windows_at_once);
  model.checkpoint().check_same_files();
  if (other != nullptr) other->checkpoint().check_same_files();
  return figures;
}

}  // namespace twofour
