#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "lib/compress/compress.h"
#include "lib/decoder/router.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// The last of some stages within a half of a layer.
std::optional<LayerStage> last_of(const std::vector<LayerStage>& stages, LayerHalf half) {
  std::optional<LayerStage> last;
  for (const LayerStage s : stages) {
    if (half_of(s) == half) last = s;
  }
  return last;
}

/// Whether nothing of a half is left behind a stage's linears.
bool ends_half(LayerStage stage) {
  return stage == LayerStage::kAttentionOutput || stage == LayerStage::kDown;
}

std::vector<bool> groups_of(const std::vector<const LayerEntry*>& entries, size_t groups) {
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

}  // namespace

std::vector<Compression::Round> Compression::rounds(int64_t layer) const {
  std::set<LayerStage> stages;
  for (const InputGroup& g : dense_.input_groups(layer)) stages.insert(g.stage);
  if (input_.sequential != Sequential::kGroups) return {Round(stages.begin(), stages.end())};
  std::vector<Round> all;
  for (const LayerStage s : stages) all.push_back({s});
  return all;
}

void Compression::collect_layer(int64_t layer) {
  streams_->begin_layer(layer);
  solved_ = 0;
  for (const Round& round : rounds(layer)) collect_round(layer, round);
  compressed_.restore_weights();
  for (int i = 0; i < solved_; ++i) fs::remove_all(work_ / fmt::format("solved-{}", i));
}

void Compression::collect_round(int64_t layer, const Round& round) {
  std::vector<const LayerEntry*> entries;
  for (const LayerEntry& e : entries_[static_cast<size_t>(layer)]) {
    if (std::find(round.begin(), round.end(), e.stage) != round.end()) entries.push_back(&e);
  }
  std::vector<EntrySums> sums;
  for (size_t i = 0; i < entries.size(); ++i) sums.emplace_back(device_sums_.get());
  if (!entries.empty() || ends_half(round.back())) {
    const auto width = static_cast<size_t>(dense_.shape().hidden);
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
    }
  }
  write_round(layer, entries, sums);
  sums.clear();
  if (is_sequential()) solve_round(layer, round);
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
  const std::vector<bool> wanted = groups_of(entries, groups.size());
  SeenInputs of_dense(wanted), of_compressed(wanted);
  std::vector<float> residual;
  ExpertChoice chosen;
  if (is_sequential()) {
    residual = difference(dense, compressed);
    // In a round of a whole layer the second half sees what the first one makes of dense linears.
    const bool goes_on = half == LayerHalf::kAttention && last_of(round, LayerHalf::kFeedForward);
    compressed_.run_half(
        layer, half, parts, compressed,
        {.watcher = &of_compressed, .last = goes_on ? std::nullopt : std::optional(last), .chosen = &chosen});
  }
  HalfRun run{.watcher = &of_dense};
  if (!ends_half(last)) run.last = last;
  if (is_sequential() && last == LayerStage::kDown && experts_of(groups) > 0) {
    // What experts see of the dense model is of the tokens that the compressed one sends them.
    dense_.run_half(layer, half, parts, dense, {.watcher = &of_dense, .last = last, .given = &chosen});
    run.watcher = nullptr;
  }
  dense_.run_half(layer, half, parts, dense, run);

  for (size_t i = 0; i < entries.size(); ++i) {
    const LayerEntry& e = *entries[i];
    if (e.group == LayerEntry::kShared || half_of(e.stage) != half) continue;
    SeenBatch seen{
        is_sequential() ? &of_compressed : &of_dense, is_sequential() ? &of_dense : nullptr, residual, {}};
    std::vector<float> weights;
    if (weights_) {
      weights = weights_->read(e.planned.name);
      seen.weights = std::span(weights).subspan(batch.row, batch.rows);
    }
    add_batch(e, seen, dense_, sums[i]);
  }
}

void Compression::write_round(int64_t layer, const std::vector<const LayerEntry*>& entries,
                              std::vector<EntrySums>& sums) {
  const std::vector<InputGroup>& groups = dense_.input_groups(layer);
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
  const auto statistics = std::make_shared<const Statistics>(Statistics::open(statistics_of(work_)));
  const SolvedLinears linears(path_, with_statistics(recipe_, statistics, std::string(32, '0')), compute_);
  Progress progress;
  compressed_.replace_weights(
      linears.solve(names, work_ / fmt::format("solved-{}", solved_++), jobs_, progress));
}

void Compression::advance_compressed(int64_t layer, const Round& round) {
  const auto width = static_cast<size_t>(dense_.shape().hidden);
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
