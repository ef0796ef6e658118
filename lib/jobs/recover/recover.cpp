#include "lib/jobs/recover/recover.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"
#include "lib/base/io/work_file.h"
#include "lib/base/threads/interrupt.h"
#include "lib/jobs/recover/tuned_values.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/run/collect/backward_pass.h"
#include "lib/run/decoder/score.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

using Windows = std::vector<std::vector<int32_t>>;

/// Adam (Kingma and Ba, 2015) with a warm-up and then half a cosine. Offsets are relative, so one rate serves
/// norms and scales.
constexpr double kRate = 5e-3, kFirstDecay = 0.9, kSecondDecay = 0.99, kSmallest = 1e-12;
constexpr int64_t kWarmUp = 20;
/// Offsets stay within these, so that no number changes its sign.
constexpr double kLeast = -0.9, kMost = 9;
/// A pass has about this many steps, and a step at most kStepWindows windows.
constexpr int64_t kSteps = 64, kStepWindows = 8;
/// Passes without a smaller loss after which recovery stops.
constexpr int64_t kPatience = 2;

size_t size_of(int64_t i) { return static_cast<size_t>(i); }

int64_t learned_windows(const Windows& windows) {
  const auto all = static_cast<int64_t>(windows.size());
  return all - held_out_windows(all);
}

int64_t windows_of_step(const Windows& windows) {
  return std::clamp<int64_t>(learned_windows(windows) / kSteps, 1, kStepWindows);
}

int64_t tokens_of(std::span<const std::vector<int32_t>> windows) {
  int64_t tokens = 0;
  for (const auto& w : windows) tokens += static_cast<int64_t>(w.size());
  return tokens;
}

/// The windows of the largest step.
Windows largest_step(const Windows& windows) {
  Windows some(windows.begin(), windows.begin() + learned_windows(windows));
  std::stable_sort(some.begin(), some.end(), [](auto& a, auto& b) { return a.size() > b.size(); });
  some.resize(size_of(windows_of_step(windows)));
  return some;
}

/// The order of windows in a pass: shuffled by splitmix64.
std::vector<size_t> order_of_pass(size_t windows, int64_t pass) {
  std::vector<size_t> order(windows);
  std::iota(order.begin(), order.end(), size_t{0});
  auto state = static_cast<uint64_t>(pass);
  for (size_t i = windows; i > 1; --i) {
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    std::swap(order[i - 1], order[size_of(static_cast<int64_t>((z ^ (z >> 31)) % i))]);
  }
  return order;
}

/// What is kept after each pass.
struct State {
  std::string identity;
  int64_t passes = 0, best_pass = 0;
  double before = 0, best_loss = 0;
  std::vector<double> offsets, first, second, best;

  void write(const fs::path& path) const {
    std::string text = fmt::format("{}\n{} {} {:a} {:a}\n", identity, passes, best_pass, before, best_loss);
    for (const auto* numbers : {&offsets, &first, &second, &best})
      text.append(reinterpret_cast<const char*>(numbers->data()), numbers->size() * sizeof(double));
    write_text(path, text + hash_text(text).hex());
  }
  /// Returns false if there is no state of `identity`, or a damaged one: recovery then begins again.
  bool read(const fs::path& path, size_t count) {
    if (is_absent(path)) return false;
    constexpr uint64_t kHead = 1u << 16, kHash = 32;
    const std::string text = read_text(path, kHead + 4 * count * sizeof(double));
    const size_t numbers = 4 * count * sizeof(double);
    if (text.size() < numbers + kHash) return false;
    const std::string whole = text.substr(0, text.size() - kHash);
    const std::string head = whole.substr(0, whole.size() - numbers);
    State found;
    long long done = 0, best_of = 0;
    const bool fits = text.ends_with(hash_text(whole).hex()) && head.starts_with(identity + "\n") &&
                      std::sscanf(head.c_str() + identity.size() + 1, "%lld %lld %la %la", &done, &best_of,
                                  &found.before, &found.best_loss) == 4;
    if (!fits) return false;
    passes = done, best_pass = best_of, before = found.before, best_loss = found.best_loss;
    const char* from = whole.data() + head.size();
    for (auto* to : {&offsets, &first, &second, &best}) {
      to->resize(count);
      if (count > 0) std::memcpy(to->data(), from, count * sizeof(double));
      from += count * sizeof(double);
    }
    return true;
  }
};

/// Both models on the windows.
class Recovering {
 public:
  Recovering(const RecoverInput& input, Progress& progress)
      : in_(input),
        progress_(progress),
        source_(Decoder::open(input.source, input.zero_points)),
        plain_(Decoder::open(input.artifact)),
        stored_(Checkpoint::open(input.artifact)),
        values_(stored_, plain_),
        shown_(std::make_shared<TensorBytes>(values_.shown(std::vector<double>(values_.size())))),
        tuned_(with_substituted(open_source(input.artifact), shown_)) {
    const auto learned = size_of(learned_windows(in_.windows));
    for (size_t i = 0; i < in_.windows.size(); ++i)
      (i < learned ? learned_ : held_).push_back(in_.windows[i]);
    size_t row = 0;
    for (const auto& w : in_.windows) {
      rows_.push_back(row);
      row += w.size();
    }
    std::error_code error;
    fs::remove(in_.work / kRecoveryReference, error);
    reference_ = std::make_unique<WorkFile>(in_.work / kRecoveryReference, row * width() * sizeof(float));
    fs::remove(in_.work / kRecoveryReference, error);  // the open file stays until it is closed
  }

  Recovery run() {
    const auto passes = static_cast<uint64_t>(in_.passes);
    const auto all = static_cast<uint64_t>(tokens_of(in_.windows)),
               held = static_cast<uint64_t>(tokens_of(held_));
    // A pass of learning takes about five times as long as a forward pass.
    progress_.total += stream_bytes() * (all + held + passes * (5 * (all - held) + held));
    progress_.phase = "running the source";
    run_source();
    State state;
    state.identity = identity();
    const fs::path kept = in_.work / kRecoveryState;
    if (!state.read(kept, values_.size())) {
      progress_.phase = "measuring";
      for (auto* numbers : {&state.offsets, &state.first, &state.second, &state.best})
        numbers->assign(values_.size(), 0.0);
      state.before = state.best_loss = measure();
      state.write(kept);
    }
    progress_.phase = "recovering";
    while (state.passes < in_.passes && state.passes - state.best_pass < kPatience) {
      learn(state);
      set(state.offsets);
      const double loss = measure();
      ++state.passes;
      if (loss < state.best_loss)
        state.best_loss = loss, state.best_pass = state.passes, state.best = state.offsets;
      state.write(kept);
    }
    return record(state);
  }

 private:
  size_t width() const { return size_of(source_.shape().residual()); }
  /// Bytes of the residual streams of a token, by which progress counts.
  uint64_t stream_bytes() const {
    return static_cast<uint64_t>(tuned_.shape().layers) * width() * sizeof(float);
  }
  void set(std::span<const double> offsets) {
    for (auto& [name, bytes] : values_.shown(offsets)) shown_->at(name) = bytes;
  }

  /// Identifies what decides the result: the artifact, the windows, and the passes.
  std::string identity() const {
    Hasher hasher;
    hasher.update(hash_file(in_.artifact / kManifestName).hex());
    for (const auto& w : in_.windows) {
      const uint64_t size = w.size();
      hasher.update({reinterpret_cast<const uint8_t*>(&size), sizeof size});
      hasher.update({reinterpret_cast<const uint8_t*>(w.data()), w.size() * sizeof(int32_t)});
    }
    return fmt::format("twofour recovery 1 {} {}", hasher.digest().hex(), in_.passes);
  }

  /// The rows behind the last layer of a model for the windows of a batch.
  std::vector<float> run_model(const Decoder& model, const TokenBatch& b, const Windows& windows) const {
    const std::vector<int32_t> ids = join_windows(windows);
    std::vector<float> rows(b.rows * size_of(model.shape().residual()));
    model.embed(std::span(ids).subspan(b.row, b.rows), rows);
    for (int64_t layer = 0; layer < model.shape().layers; ++layer)
      model.run_layer(layer, parts_of(b, windows), rows);
    return rows;
  }
  std::vector<TokenBatch> batches(const Decoder& model, const Windows& windows) const {
    return batches_of(windows, 0, model.bytes_per_token());
  }

  void run_source() {
    for (const TokenBatch& b : batches(source_, in_.windows)) {
      const std::vector<float> rows = run_model(source_, b, in_.windows);
      reference_->write(b.row * width() * sizeof(float),
                        {reinterpret_cast<const uint8_t*>(rows.data()), rows.size() * sizeof(float)});
      progress_.done += stream_bytes() * b.rows;
    }
  }
  /// The source's rows behind the last layer, from `row` of all windows on.
  std::vector<float> reference_rows(size_t row, size_t count) const {
    std::vector<float> rows(count * width());
    reference_->read(row * width() * sizeof(float),
                     {reinterpret_cast<uint8_t*>(rows.data()), rows.size() * sizeof(float)});
    return rows;
  }

  /// The mean KL(source || artifact) of the held-out windows.
  double measure() {
    double sum = 0;
    const std::vector<int32_t> ids = join_windows(held_);
    for (const TokenBatch& b : batches(tuned_, held_)) {
      const std::vector<float> own = run_model(tuned_, b, held_);
      const std::vector<float> expected = reference_rows(rows_[learned_.size()] + b.row, b.rows);
      ScoredRows rows{tuned_, own}, other{source_, expected};
      score_tokens(std::span(ids).subspan(b.row, b.rows), rows, &other);
      for (const TokenScore& s : rows.scores) sum += s.divergence;
      progress_.done += stream_bytes() * b.rows;
    }
    return finite(sum / static_cast<double>(ids.size()));
  }
  double finite(double loss) const {
    if (std::isfinite(loss)) return loss;
    throw Error(
        fmt::format("{}: expected finite logits of this model and of its compressed form, found others",
                    in_.source.string()));
  }

  /// Goes over the windows once.
  void learn(State& state) {
    const std::vector<size_t> order = order_of_pass(learned_.size(), state.passes);
    const size_t each = size_of(windows_of_step(in_.windows)), steps = (order.size() + each - 1) / each;
    const auto all = static_cast<double>(steps) * static_cast<double>(in_.passes);
    const double warm_up = std::min(static_cast<double>(kWarmUp), std::ceil(all / 10));
    for (size_t step = 0; step < steps; ++step) {
      check_interrupt();
      const auto some = std::span(order).subspan(step * each, std::min(each, order.size() - step * each));
      set(state.offsets);
      const std::vector<double> gradient = gradient_of(some, state.offsets);
      const double number =
          static_cast<double>(state.passes) * static_cast<double>(steps) + static_cast<double>(step) + 1;
      constexpr double kPi = 3.14159265358979323846;
      const double rate =
          kRate * std::min(1.0, number / warm_up) * 0.5 * (1 + std::cos(kPi * (number - 1) / all));
      const double first_bias = 1 - std::pow(kFirstDecay, number),
                   second_bias = 1 - std::pow(kSecondDecay, number);
      for (size_t i = 0; i < gradient.size(); ++i) {
        double &m = state.first[i], &v = state.second[i];
        m = kFirstDecay * m + (1 - kFirstDecay) * gradient[i];
        v = kSecondDecay * v + (1 - kSecondDecay) * gradient[i] * gradient[i];
        const double move = rate * (m / first_bias) / (std::sqrt(v / second_bias) + kSmallest);
        state.offsets[i] = std::clamp(state.offsets[i] - move, kLeast, kMost);
      }
    }
  }

  /// The gradient of the mean loss of some windows in the offsets.
  std::vector<double> gradient_of(std::span<const size_t> some, std::span<const double> offsets) {
    Windows windows;
    std::vector<size_t> from;  // the row of the source, for each window
    for (const size_t w : some) {
      windows.push_back(learned_[w]);
      from.push_back(rows_[w]);
    }
    std::error_code error;
    fs::remove(in_.work / kRecoveryStreams, error);
    BackwardPass pass(tuned_, windows, in_.work / kRecoveryStreams);
    TunedGradients gradients(tuned_, values_, offsets);
    const auto watch = [&](const TokenBatch&) { return &gradients; };
    pass.run_forward([](size_t) {});
    const double loss = pass.run_head(
        source_,
        [&](const TokenBatch& b) {
          std::vector<float> rows;
          for (size_t w = b.first; w < b.first + b.count; ++w) {
            const std::vector<float> own = reference_rows(from[w], windows[w].size());
            rows.insert(rows.end(), own.begin(), own.end());
          }
          return rows;
        },
        watch, [](const TokenBatch&) {});
    finite(loss);
    for (int64_t layer = tuned_.shape().layers - 1; layer >= 0; --layer)
      pass.run_layer(layer, watch, [](const TokenBatch&) {});
    const auto tokens = static_cast<double>(tokens_of(windows));
    progress_.done += 5 * stream_bytes() * static_cast<uint64_t>(tokens_of(windows));
    std::vector<double> mean(gradients.sums().begin(), gradients.sums().end());
    for (double& g : mean) g /= tokens;
    return mean;
  }

  Recovery record(const State& state) const {
    Recovery r;
    r.passes = in_.passes, r.kept = state.best_pass;
    r.tokens = tokens_of(learned_), r.held_out = tokens_of(held_);
    r.before = state.before, r.after = state.best_loss;
    r.device = device_name(tuned_.device());
    if (state.best_pass == 0) return r;
    auto values = std::make_shared<TensorBytes>(values_.stored(state.best));
    const TensorBytes before = values_.stored(std::vector<double>(values_.size()));
    for (const auto& [name, bytes] : before) {
      const std::vector<uint8_t>& learned = values->at(name);
      if (learned == bytes) {
        values->erase(name);
        continue;
      }
      Recovery::Tuned& t = r.tuned[name] = {hash_bytes(bytes), hash_bytes(learned)};
      if (!values_.is_scale(name)) continue;
      t.bits.resize(bytes.size() / sizeof(uint32_t));
      std::memcpy(t.bits.data(), bytes.data(), bytes.size());
    }
    r.values = std::move(values);
    return r;
  }

  const RecoverInput& in_;
  Progress& progress_;
  const Decoder source_, plain_;
  const Checkpoint stored_;
  const TunedValues values_;
  const std::shared_ptr<TensorBytes> shown_;
  const Decoder tuned_;
  Windows learned_, held_;
  std::vector<size_t> rows_;  ///< the first row of each window
  std::unique_ptr<WorkFile> reference_;
};

}  // namespace

Recovery recover(const RecoverInput& input, Progress& progress) { return Recovering(input, progress).run(); }

int64_t held_out_windows(int64_t windows) { return std::max<int64_t>(1, windows / 8); }

void check_recovery(const Decoder& model, const Windows& windows) {
  check_gradients(model);
  if (windows.size() > 1) return;
  throw Error(
      fmt::format("recovery: expected two windows of the text or more, of which one is held out, found {}",
                  windows.size()));
}

uint64_t recovery_memory(const Decoder& model, const Windows& windows) {
  // An offset has five numbers in double, and a norm has one for each input.
  const auto norms = static_cast<uint64_t>(8 * (model.shape().layers + 1) * model.shape().hidden);
  const uint64_t scored = 2 * kScoredBytes;
  const uint64_t batch =
      largest_batch(batches_of(windows, 0, model.bytes_per_token())) *
      (model.bytes_per_token() + 2 * sizeof(float) * static_cast<uint64_t>(model.shape().residual()));
  const Windows step = largest_step(windows);
  size_t widest = 0;  // products of a linear, and the rows of the reference
  for (int64_t layer = 0; layer < model.shape().layers; ++layer) {
    for (const InputGroup& g : model.input_groups(layer)) {
      for (const std::string& linear : g.linears)
        widest = std::max(widest, size_of(model.rows_of_linear(linear)));
    }
  }
  const uint64_t rows = static_cast<uint64_t>(tokens_of(step)) * sizeof(float) *
                        (widest + static_cast<uint64_t>(model.shape().residual()));
  return std::max(BackwardPass::bytes_of_batch(model, step) + rows, batch + scored + model.fixed_bytes()) +
         6 * sizeof(double) * norms;
}

uint64_t recovery_file_bytes(const Decoder& model, const Windows& windows) {
  return BackwardPass::bytes_of_file(model, tokens_of(largest_step(windows))) +
         static_cast<uint64_t>(tokens_of(windows)) * static_cast<uint64_t>(model.shape().residual()) *
             sizeof(float);
}

}  // namespace twofour
