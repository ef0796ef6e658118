#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

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

/// True if the linears of a stage are the last in a half.
bool ends_half(LayerStage stage) {
  return stage == LayerStage::kAttentionOutput || stage == LayerStage::kDown;
}

std::vector<bool> groups_with(const std::vector<const LayerEntry*>& entries, size_t groups) {
  std::vector<bool> wanted(groups);
  for (const LayerEntry* e : entries) {
    if (e->group != LayerEntry::kShared) wanted[e->group] = true;
  }
  return wanted;
}

std::vector<float> difference(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> out(a.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = a[i] - b[i];
  return out;
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
    case LayerStage::kDown:
      return "down";
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
  sums.emplace_back(device_sums_.get());
  progress_->part = "head";
  for (const TokenBatch& b : batches_) {
    check_interrupt();
    const auto see = [&](StreamOf model) {
      std::vector<float> rows(b.rows * static_cast<size_t>(dense_.shape().residual()));
      streams_->read(model, b.row, rows);
      SeenInputs seen({true});
      seen.see_input(entry.group, dense_.normalize(rows), {});
      return seen;
    };
    const SeenInputs of_dense = see(StreamOf::kDense);
    if (is_sequential()) {
      const SeenInputs of_compressed = see(StreamOf::kCompressed);
      add_seen(b, {&of_compressed, &of_dense, {}, {}}, entry, sums[0]);
    } else {
      add_seen(b, {&of_dense, nullptr, {}, {}}, entry, sums[0]);
    }
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
  for (size_t i = 0; i < entries.size(); ++i) sums.emplace_back(device_sums_.get());
  if (!entries.empty() || ends_half(round.back())) {
    const auto width = static_cast<size_t>(dense_.shape().residual());
    for (const TokenBatch& b : batches_) {
      std::vector<float> dense(b.rows * width), compressed;
      streams_->read(StreamOf::kDense, b.row, dense);
      if (is_sequential()) {
        compressed.resize(dense.size());
        streams_->read(StreamOf::kCompressed, b.row, compressed);
      }
      for (const LayerHalf half : {LayerHalf::kAttention, LayerHalf::kFeedForward}) {
        if (last_of(round, half)) see_half(layer, half, round, b, dense, compressed, entries, sums);
      }
      if (ends_half(round.back())) streams_->write(StreamOf::kDense, b.row, dense);
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
  if (!ends_half(round.back())) return;
  if (is_sequential()) advance_compressed(layer, round);
  streams_->advance(StreamOf::kDense);
}

void Compression::see_half(int64_t layer, LayerHalf half, const Round& round, const TokenBatch& batch,
                           std::vector<float>& dense, std::vector<float>& compressed,
                           const std::vector<const LayerEntry*>& entries, std::vector<EntrySums>& sums) {
  const std::vector<InputGroup>& groups = dense_.input_groups(layer);
  const LayerStage last = *last_of(round, half);
  const std::vector<SequencePart> parts = parts_of(batch, input_.windows);
  const std::vector<bool> wanted = groups_with(entries, groups.size());
  SeenInputs of_dense(wanted), of_compressed(wanted);
  std::vector<float> residual;
  ExpertChoice chosen;
  if (is_sequential()) {
    residual = difference(dense, compressed);
    // If the round is a whole layer, the feed-forward half takes the output of the attention half, whose
    // linears are still dense.
    const bool goes_on = half == LayerHalf::kAttention && last_of(round, LayerHalf::kFeedForward);
    compressed_.run_half(
        layer, half, parts, compressed,
        {.watcher = &of_compressed, .last = goes_on ? std::nullopt : std::optional(last), .chosen = &chosen});
  }
  HalfRun run{.watcher = &of_dense};
  if (!ends_half(last)) run.last = last;
  if (is_sequential() && last == LayerStage::kDown && experts_of(groups) > 0) {
    // In the dense model, each expert gets the tokens that the compressed model routes to it.
    dense_.run_half(layer, half, parts, dense, {.watcher = &of_dense, .last = last, .given = &chosen});
    run.watcher = nullptr;
  }
  dense_.run_half(layer, half, parts, dense, run);

  for (size_t i = 0; i < entries.size(); ++i) {
    const LayerEntry& e = *entries[i];
    if (e.group == LayerEntry::kShared || half_of(e.stage) != half) continue;
    const SeenBatch seen{
        is_sequential() ? &of_compressed : &of_dense, is_sequential() ? &of_dense : nullptr, residual, {}};
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
  const auto width = static_cast<size_t>(dense_.shape().residual());
  std::vector<float> rows;
  for (const TokenBatch& b : batches_) {
    rows.resize(b.rows * width);
    streams_->read(StreamOf::kCompressed, b.row, rows);
    const std::vector<SequencePart> parts = parts_of(b, input_.windows);
    const bool is_whole = input_.sequential == Sequential::kLayers;
    for (const LayerHalf half : {LayerHalf::kAttention, LayerHalf::kFeedForward}) {
      if (is_whole || half_of(round.back()) == half) compressed_.run_half(layer, half, parts, rows, {});
    }
    streams_->write(StreamOf::kCompressed, b.row, rows);
  }
  streams_->advance(StreamOf::kCompressed);
}

}  // namespace twofour
