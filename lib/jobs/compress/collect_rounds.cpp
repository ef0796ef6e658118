#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "kernels/floats/device_vectors.h"
#include "lib/base/threads/interrupt.h"
#include "lib/jobs/compress/compress.h"
#include "lib/jobs/compress/guided_weights.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// The last of the given stages that is in one half of a layer.
std::optional<LayerStage> last_of(const std::vector<LayerStage>& stages, LayerHalf half) {
  std::optional<LayerStage> last;
  for (const LayerStage s : stages) {
    if (half_of(s) == half) last = s;
  }
  return last;
}

/// True if the linears of a stage are the last in their half of a layer.
bool ends_half(const std::vector<InputGroup>& groups, LayerStage stage) {
  return std::none_of(groups.begin(), groups.end(), [&](const InputGroup& g) {
    return half_of(g.stage) == half_of(stage) && g.stage > stage;
  });
}

std::vector<bool> groups_with(const std::vector<const LayerEntry*>& entries, size_t groups) {
  std::vector<bool> wanted(groups);
  for (const LayerEntry* e : entries) {
    if (e->group != LayerEntry::kShared) wanted[e->group] = true;
  }
  return wanted;
}

/// Computes out = a - b for arrays of the same side.
void subtract(const FloatArray& a, const FloatArray& b, FloatArray& out, const cuda::DeviceStream* stream) {
  float* to = out.resize(a.size());
  if (stream != nullptr) {
    cuda::subtract_floats(a.data(), b.data(), static_cast<int64_t>(a.size()), to, stream->get());
  } else {
    for (size_t i = 0; i < a.size(); ++i) to[i] = a.data()[i] - b.data()[i];
  }
}

/// A short name of a stage for messages.
const char* stage_word(LayerStage stage) {
  switch (stage) {
    case LayerStage::kAttentionInput:
      return "q/k/v";
    case LayerStage::kLatent:
      return "latent";
    case LayerStage::kMixedHeads:
      return "o_a";
    case LayerStage::kAttentionOutput:
      return "o";
    case LayerStage::kFeedForwardInput:
      return "gate/up";
    case LayerStage::kExpertInput:
      return "up";
    case LayerStage::kDown:
      return "down";
    case LayerStage::kExpertOutput:
      return "latent";
  }
  return "";
}

}  // namespace

void Compression::guide() {
  const fs::path file = work_ / kGuidedWeights;
  if (!WorkState::read(work_)) {
    fs::create_directories(work_);
    progress_->phase = "weighing tokens";
    uint64_t bytes = 0;
    for (const TensorInfo& t : dense_.checkpoint().tensors()) bytes += t.bytes();
    progress_->total = bytes;
    write_guided_weights(
        dense_, {input_.windows, wanted_}, work_ / kBackwardStreams, file,
        [&](double share) { progress_->done = static_cast<uint64_t>(share * static_cast<double>(bytes)); });
    check_unchanged();
    progress_->done = 0;
  }
  weights_ = TokenWeights::open(file, tokens_, wanted_);
}

std::vector<Compression::Round> Compression::rounds(int64_t layer) const {
  std::set<LayerStage> stages;
  for (const InputGroup& g : groups_of(layer)) stages.insert(g.stage);
  if (input_.sequential != Sequential::kGroups) return {Round(stages.begin(), stages.end())};
  std::vector<Round> all;
  for (const LayerStage s : stages) all.push_back({s});
  return all;
}

void Compression::collect_layer(int64_t layer) {
  streams_->begin_layer(layer);
  solved_ = 0;
  const std::vector<Round> all = rounds(layer);
  for (size_t i = 0; i < all.size(); ++i) {
    const auto count = static_cast<double>(all.size());
    collect_round(layer, all[i], static_cast<double>(i) / count, static_cast<double>(i + 1) / count);
  }
  progress_->part = "";
  compressed_.restore_weights();
}

void Compression::collect_head() {
  streams_->begin_layer(layers());
  const LayerEntry& entry = entries_.back().front();
  std::vector<EntrySums> sums;
  sums.emplace_back(device_sums_.get(), device_scratch_.get());
  progress_->part = "head";
  SeenInputs of_dense(1, stream()), of_compressed(1, stream());
  for (const TokenBatch& b : batches_) {
    check_interrupt();
    const auto see = [&](StreamOf model, SeenInputs& seen) {
      std::vector<float> rows(b.rows * static_cast<size_t>(dense_.shape().residual()));
      streams_->read_to_host(model, b.row, rows);
      seen.begin({true});
      seen.see_input(entry.group, dense_.normalize(rows), {});
    };
    see(StreamOf::kDense, of_dense);
    if (is_sequential()) see(StreamOf::kCompressed, of_compressed);
    add_seen(
        b, {is_sequential() ? &of_compressed : &of_dense, is_sequential() ? &of_dense : nullptr, nullptr, {}},
        entry, sums[0]);
  }
  write_round(layers(), {&entry}, sums);
}

void Compression::collect_round(int64_t layer, const Round& round, double begin, double end) {
  // Solving takes about as long as collecting.
  const double collected = is_sequential() ? (begin + end) / 2 : end;
  progress_->phase = "collecting";
  progress_->part = is_sequential() ? stage_word(round.back()) : "";
  std::vector<const LayerEntry*> entries;
  for (const LayerEntry& e : entries_[static_cast<size_t>(layer)]) {
    if (std::find(round.begin(), round.end(), e.stage) != round.end()) entries.push_back(&e);
  }
  std::vector<EntrySums> sums;
  for (size_t i = 0; i < entries.size(); ++i) sums.emplace_back(device_sums_.get(), device_scratch_.get());
  const bool ends = ends_half(groups_of(layer), round.back());
  if (!entries.empty() || ends) {
    BatchRows rows(groups_of(layer).size(), stream());
    for (const TokenBatch& b : batches_) {
      streams_->read(StreamOf::kDense, b.row, b.rows, rows.dense);
      if (is_sequential()) streams_->read(StreamOf::kCompressed, b.row, b.rows, rows.compressed);
      for (const LayerHalf half : {LayerHalf::kAttention, LayerHalf::kFeedForward}) {
        if (last_of(round, half)) see_half(layer, half, round, b, rows, entries, sums);
      }
      if (ends) streams_->write(StreamOf::kDense, b.row, rows.dense);
      advance(begin, collected, b.row + b.rows);
    }
  }
  write_round(layer, entries, sums);
  sums.clear();
  if (is_sequential()) {
    progress_->phase = "choosing weights";
    solve_round(layer, round);
    advance(collected, end, static_cast<size_t>(tokens_));
  }
  if (!ends) return;
  if (is_sequential()) advance_compressed(layer, round);
  streams_->advance(StreamOf::kDense);
}

std::optional<LayerHalf> Compression::half_to_keep(int64_t layer, const Round& round) const {
  const LayerHalf half = half_of(round.back());
  const bool is_alone = input_.sequential == Sequential::kGroups && ends_half(groups_of(layer), round.back());
  if (!keeps_inputs_ || !is_alone || !compressed_.can_begin_late(layer, half)) return std::nullopt;
  return half;
}

void Compression::run_half(const Decoder& model, int64_t layer, LayerHalf half, const TokenBatch& batch,
                           FloatArray& rows, const HalfRun& run) const {
  const std::vector<SequencePart> parts = parts_of(batch, input_.windows);
  if (!rows.on_device()) return model.run_half(layer, half, parts, {rows.data(), rows.size()}, run);
  device_sums_->wait();
  model.run_half_on_device(layer, half, parts, rows.data(), run);
}

void Compression::see_half(int64_t layer, LayerHalf half, const Round& round, const TokenBatch& batch,
                           BatchRows& rows, const std::vector<const LayerEntry*>& entries,
                           std::vector<EntrySums>& sums) {
  const std::vector<InputGroup>& groups = dense_.input_groups(layer);
  const LayerStage last = *last_of(round, half);
  std::vector<bool> wanted = groups_with(entries, groups.size());
  rows.of_dense.begin(wanted);
  ExpertChoice chosen;
  if (is_sequential()) {
    const bool keeps = half_to_keep(layer, round).has_value();
    const size_t group = keeps ? compressed_.late_group(layer, half) : 0;
    if (keeps) wanted[group] = true;
    rows.of_compressed.begin(wanted);
    subtract(rows.dense, rows.compressed, rows.residual, stream());
    // If the round is a whole layer, the feed-forward half takes the output of the attention half, whose
    // linears are still dense.
    const bool goes_on = half == LayerHalf::kAttention && last_of(round, LayerHalf::kFeedForward);
    run_half(compressed_, layer, half, batch, rows.compressed,
             {.watcher = &rows.of_compressed,
              .last = goes_on ? std::nullopt : std::optional(last),
              .chosen = &chosen});
    if (keeps) {
      const auto k = static_cast<size_t>(groups[group].k);
      if (kept_.size() != static_cast<size_t>(tokens_) * k) kept_.resize(static_cast<size_t>(tokens_) * k);
      const FloatArray& seen = rows.of_compressed.input(group);
      seen.copy_to(0, seen.size(), kept_.data() + batch.row * k);
    }
  }
  HalfRun run{.watcher = &rows.of_dense};
  if (!ends_half(groups, last)) run.last = last;
  if (is_sequential() && last >= LayerStage::kDown && experts_of(groups) > 0) {
    // In the dense model, each expert gets the tokens that the compressed model routes to it.
    run_half(dense_, layer, half, batch, rows.dense,
             {.watcher = &rows.of_dense, .last = last, .given = &chosen});
    run.watcher = nullptr;
  }
  run_half(dense_, layer, half, batch, rows.dense, run);

  for (size_t i = 0; i < entries.size(); ++i) {
    const LayerEntry& e = *entries[i];
    if (e.group == LayerEntry::kShared || half_of(e.stage) != half) continue;
    const SeenBatch seen{is_sequential() ? &rows.of_compressed : &rows.of_dense,
                         is_sequential() ? &rows.of_dense : nullptr,
                         is_sequential() ? &rows.residual : nullptr,
                         {}};
    add_seen(batch, seen, e, sums[i]);
  }
}

void Compression::add_seen(const TokenBatch& batch, SeenBatch seen, const LayerEntry& entry,
                           EntrySums& sums) const {
  std::vector<float> weights;
  if (weights_) {
    weights = weights_->read(entry.planned.name);
    seen.weights = std::span(weights).subspan(batch.row, batch.rows);
  }
  add_batch(entry, seen, dense_, sums);
}

void Compression::write_round(int64_t layer, const std::vector<const LayerEntry*>& entries,
                              std::vector<EntrySums>& sums) {
  const std::vector<InputGroup>& groups = groups_of(layer);
  for (EntrySums& s : sums) s.finish();
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i]->group == LayerEntry::kShared) {
      for (size_t other = 0; other < entries.size(); ++other) {
        const size_t group = entries[other]->group;
        if (group != LayerEntry::kShared && groups[group].expert >= 0) sums[i].input.add(sums[other].input);
      }
    }
    write_entry(writer_, dense_, *entries[i], sums[i]);
  }
}

void Compression::solve_round(int64_t layer, const Round& round) {
  std::set<std::string> names;
  for (const InputGroup& g : dense_.input_groups(layer)) {
    if (std::find(round.begin(), round.end(), g.stage) == round.end()) continue;
    for (const std::string& linear : g.linears) {
      if (planned_->all().contains(linear)) names.insert(linear);
    }
  }
  if (names.empty()) return;
  check_unchanged();
  const auto statistics =
      std::make_shared<const Statistics>(Statistics::open_unfinished(statistics_of(work_)));
  const SolvedLinears linears(path_, with_statistics(recipe_, statistics, std::string(32, '0')), compute_);
  Progress progress;
  compressed_.replace_weights(
      linears.solve(names, work_ / fmt::format("solved-{}-{}", layer, solved_++), jobs_, progress));
}

void Compression::advance_compressed(int64_t layer, const Round& round) {
  const std::optional<LayerHalf> kept = half_to_keep(layer, round);
  FloatArray rows(stream());
  for (const TokenBatch& b : batches_) {
    streams_->read(StreamOf::kCompressed, b.row, b.rows, rows);
    const bool is_whole = input_.sequential == Sequential::kLayers;
    for (const LayerHalf half : {LayerHalf::kAttention, LayerHalf::kFeedForward}) {
      if (!is_whole && half_of(round.back()) != half) continue;
      HalfRun run;
      if (kept == half) run.late = kept_.data() + b.row * (kept_.size() / static_cast<size_t>(tokens_));
      run_half(compressed_, layer, half, b, rows, run);
    }
    streams_->write(StreamOf::kCompressed, b.row, rows);
  }
  streams_->advance(StreamOf::kCompressed);
}

}  // namespace twofour
