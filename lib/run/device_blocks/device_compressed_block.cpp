#include <algorithm>
#include <array>

#include "lib/run/device_blocks/device_sequence.h"

namespace twofour {
namespace {

/// The number of tokens whose queries are on the device at a time, and of bytes of scores of entries.
constexpr int64_t kQueriesAtOnce = 1024, kScoreBytes = int64_t{64} << 20;

}  // namespace

CompressedRow::CompressedRow(const ModelShape& shape, int64_t layer) {
  const AttentionShape& a = shape.attention;
  const CompressedShape& c = shape.compressed;
  const int64_t ratio = c.ratios[at(layer)];
  const bool overlaps = CompressedShape::overlaps(ratio);
  const int64_t own = ratio > 0 ? 2 * cuda::EntryMaker::columns(a.head_size, overlaps) : 0;
  const int64_t of_index = overlaps ? 2 * cuda::EntryMaker::columns(c.index_size, overlaps) : 0;
  kv = a.q_rank;
  entries = kv + a.head_size;
  index = entries + own;
  index_weights = index + of_index;
  count = index_weights + (overlaps ? c.index_heads : 0);
  compressor = own + of_index;
  kept = overlaps ? 2 * ratio : ratio;
}

namespace {

/// The rotation of the rows of a layer. In a layer with entries everything turns by their rope, tokens in the
/// window, too.
cuda::RowTurn rotation_of(const ModelShape& shape, const DeviceEnds& ends, int64_t layer) {
  const bool has_entries = shape.compressed.ratios[at(layer)] > 0;
  cuda::RowTurn turn;
  turn.epsilon = shape.epsilon;
  turn.frequencies = has_entries ? ends.compressed_frequencies : ends.frequencies;
  turn.pairs = (shape.attention.head_size - shape.attention.rotated_from) / 2;
  return turn;
}

/// The vectors of the tokens, each a key and a value.
cuda::KeptRows window_rows(const ModelShape& shape, const CompressedRow& row, const CompressedTokens& t) {
  return {t.projected + row.kv, row.count, t.caches.window, shape.compressed.window,
          shape.attention.head_size};
}

/// The values and gates of the compressors.
cuda::KeptRows compressor_rows(const CompressedRow& row, const CompressedTokens& t) {
  return {t.projected + row.entries, row.count, t.caches.compressor, row.kept, row.compressor};
}

}  // namespace

int64_t DeviceRun::scored_entries(int64_t layer, int64_t tokens) const {
  const CompressedShape& c = state_.shape.compressed;
  const int64_t ratio = c.ratios[at(layer)];
  return CompressedShape::overlaps(ratio) && tokens / ratio > c.chosen ? tokens / ratio : 0;
}

void DeviceRun::prepare_compressed(int64_t layer, const DeviceLayer& w, const CompressedTokens& t) const {
  const ModelShape& s = state_.shape;
  const CompressedRow row(s, layer);
  const int64_t ratio = s.compressed.ratios[at(layer)];
  cuda::RowTurn turn = rotation_of(s, weights_.ends(), layer);
  turn.is_normed = true;
  turn.norm = w.compressed.kv_norm;
  cuda::turn_rows({t.span, turn, 1, s.attention.head_size, t.projected + row.kv, row.count, t.caches.window,
                   s.compressed.window},
                  stream_.get());
  if (ratio == 0) return;
  cuda::EntryMakers made;
  made.tokens = t.span;
  made.ratio = ratio, made.overlaps = CompressedShape::overlaps(ratio);
  made.rows = compressor_rows(row, t);
  turn.norm = w.compressed.entries.norm;
  made.makers[made.count++] = {s.attention.head_size, 0, w.compressed.entries.bias, turn, t.caches.entries};
  if (made.overlaps) {
    // DeepSeek turns queries and keys of the index by a Hadamard matrix, see compressed_block.cpp.
    turn.norm = w.compressed.index.norm;
    turn.is_spread = true;
    made.makers[made.count++] = {s.compressed.index_size, row.index - row.entries, w.compressed.index.bias,
                                 turn, t.caches.index_keys};
  }
  cuda::make_entries(made, stream_.get());
}

void DeviceRun::attend_compressed(int64_t layer, const DeviceLayer& w, const CompressedTokens& t,
                                  const CompressedQueries& queries) const {
  const ModelShape& s = state_.shape;
  const AttentionShape& a = s.attention;
  const CompressedShape& c = s.compressed;
  const CompressedRow row(s, layer);
  const int64_t ratio = c.ratios[at(layer)], scored = scored_entries(layer, t.most);
  const cuda::TokenSpan span{queries.count, t.span.begin + queries.first, t.span.position};
  // Each head's norm has no weight.
  cuda::RowTurn turn = rotation_of(s, weights_.ends(), layer);
  turn.is_normed = true;
  const int64_t width = a.heads * a.head_size;
  cuda::turn_rows({span, turn, a.heads, a.head_size, queries.q, width}, stream_.get());
  if (scored > 0) {
    turn.is_normed = false;
    turn.is_spread = true;
    const int64_t index_width = c.index_heads * c.index_size;
    cuda::turn_rows({span, turn, c.index_heads, c.index_size, queries.index_q, index_width}, stream_.get());
    // The weights lack a factor that is the same for all scores, and does not change the choice.
    cuda::DeviceEntryScores in;
    in.tokens = span;
    in.heads = c.index_heads, in.size = c.index_size;
    in.ratio = ratio, in.most = c.chosen;
    in.entries = scored;
    in.q = queries.index_q, in.keys = t.caches.index_keys;
    in.weights = t.projected + queries.first * row.count + row.index_weights, in.weight_stride = row.count;
    in.scores = queries.scores, in.chosen = queries.chosen;
    cuda::choose_entries(in, stream_.get());
  }
  cuda::DeviceChosenAttention in;
  in.tokens = span;
  in.heads = a.heads, in.size = a.head_size;
  in.q = queries.q;
  in.window = c.window;
  in.rows = window_rows(s, row, t), in.first = queries.first;
  in.entries = t.caches.entries, in.ratio = ratio;
  in.most = scored > 0 ? c.chosen : INT64_MAX;
  in.chosen = queries.chosen;
  in.sinks = w.sinks;
  in.scale = static_cast<float>(a.scale);
  in.frequencies = turn.frequencies, in.pairs = turn.pairs;
  in.groups = c.groups;
  in.out = queries.out;
  cuda::attend_chosen(in, stream_.get());
}

void DeviceRun::keep_compressed(int64_t layer, const CompressedTokens& t) const {
  if (t.span.m == 1) return;  // it was kept as it was prepared
  const CompressedRow row(state_.shape, layer);
  cuda::keep_rows(t.span, window_rows(state_.shape, row, t), stream_.get());
  if (row.compressor > 0) cuda::keep_rows(t.span, compressor_rows(row, t), stream_.get());
}

void DeviceRun::run_compressed(int64_t layer, std::span<const DevicePart> parts, const Rows& rows,
                               const HalfRun& run) {
  const cuda::Stream stream = stream_.get();
  const DeviceLayer& w = weights_.layer(layer);
  const LayerWeights& groups = state_.layers[at(layer)];
  const AttentionShape& a = state_.shape.attention;
  const CompressedShape& c = state_.shape.compressed;
  const int64_t h = state_.shape.hidden, m = rows.m, ratio = c.ratios[at(layer)];
  float* x = normed_.of<float>(m * h);
  cuda::rms_norm({rows.in, h, w.attention_norm, m, h, state_.shape.epsilon, x, h}, stream);
  see(run, groups.attention.input_group, x, m, h);
  if (run.last == LayerStage::kAttentionInput) return;
  // The choice of entries turns small errors into others, so that products before it have more planes.
  const int planes = CompressedShape::overlaps(ratio) ? 3 : 2;
  const CompressedRow row(state_.shape, layer);
  float* projected = heads_.of<float>(m * row.count);
  products_.set_rows(x, m, h, stream, planes);
  products_.multiply(w.compressed.in, projected, row.count, stream);
  float* latent = latent_.of<float>(m * a.q_rank);
  cuda::rms_norm({projected, row.count, w.q_a_norm, m, a.q_rank, state_.shape.epsilon, latent, a.q_rank},
                 stream);
  see(run, groups.attention.q_group, latent, m, a.q_rank);
  if (run.last == LayerStage::kLatent) return;

  const int64_t width = a.heads * a.head_size, of_group = width / c.groups;
  float* low = low_.of<float>(m * w.o.k);
  std::vector<float> seen(run.watcher != nullptr ? at(m * width) : 0);  // [m, groups, of_group]
  int64_t done = 0;
  for (const DevicePart& part : parts) {
    CompressedTokens tokens{
        {part.count, part.begin}, projected + done * row.count, part, part.begin + part.count};
    if (part.entries == nullptr && ratio > 0) {
      // A sequence without a cache begins here.
      tokens.caches.entries = entries_.of<float>(std::max<int64_t>(1, part.count / ratio) * a.head_size);
      tokens.caches.index_keys =
          index_keys_.of<float>(std::max<int64_t>(1, part.count / ratio) * c.index_size);
    }
    prepare_compressed(layer, w, tokens);
    const int64_t scored = scored_entries(layer, tokens.most);
    const int64_t fitting = kScoreBytes / static_cast<int64_t>(sizeof(float)) / std::max<int64_t>(1, scored);
    const int64_t step = std::clamp<int64_t>(fitting, 1, kQueriesAtOnce);
    for (int64_t first = 0; first < part.count; first += step) {
      CompressedQueries queries;
      queries.first = first, queries.count = std::min(step, part.count - first);
      const int64_t count = queries.count;
      queries.q = queries_.of<float>(count * width);
      products_.set_rows(latent + (done + first) * a.q_rank, count, a.q_rank, stream, planes);
      products_.multiply(w.q_b, queries.q, width, false, stream);
      if (scored > 0) {
        const int64_t index_width = c.index_heads * c.index_size;
        queries.index_q = index_q_.of<float>(count * index_width);
        products_.multiply(w.compressed.index_q, queries.index_q, index_width, false, stream);
        queries.scores = scores_.of<float>(count * scored);
        queries.chosen = chosen_.of<int32_t>(count * c.chosen);
      }
      queries.out = mixed_.of<float>(count * width);
      attend_compressed(layer, w, tokens, queries);
      if (run.watcher != nullptr) {
        const std::vector<float> mixed = download(queries.out, count * width);
        for (int64_t i = 0; i < count * c.groups; ++i) {
          const int64_t group = i / count, token = done + first + i % count;
          std::copy_n(mixed.data() + i * of_group, of_group,
                      seen.data() + (token * c.groups + group) * of_group);
        }
      }
      if (run.last == LayerStage::kMixedHeads) continue;
      for (int64_t group = 0; group < c.groups; ++group) {
        products_.set_rows(queries.out + group * count * of_group, count, of_group, stream);
        products_.multiply(w.compressed.o_a[at(group)], low + (done + first) * w.o.k + group * c.rank, w.o.k,
                           false, stream);
      }
    }
    keep_compressed(layer, tokens);
    done += part.count;
  }
  if (run.watcher != nullptr) {
    std::vector<int64_t> ids(at(m * c.groups));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i) / c.groups;
    run.watcher->see_input(groups.compressed.mixed_group, seen, ids);
  }
  if (run.last == LayerStage::kMixedHeads) return;
  see(run, groups.attention.output_group, low, m, w.o.k);
  if (run.last == LayerStage::kAttentionOutput) return;
  products_.set_rows(low, m, w.o.k, stream);
  products_.multiply(w.o, rows.out, h, true, stream);
}

void DeviceSequence::step_compressed(int64_t layer, const DeviceLayer& w) {
  const cuda::Stream stream = run_.stream().get();
  const ModelShape& s = state_.shape;
  const AttentionShape& a = s.attention;
  const CompressedShape& c = s.compressed;
  CompressedTokens token;
  token.span = {1, 0, &b_.state.as<cuda::TokenState>()->position};
  token.projected = b_.heads.as<float>();
  token.caches = caches_of(layer);
  token.most = capacity_;
  // Projections of one format make one product.
  const std::vector<cuda::DeviceMatrix>& in = w.compressed.in;
  float* to = token.projected;
  for (size_t i = 0, end = 0; i < in.size(); i = end) {
    int64_t numbers = 0;
    for (; end < in.size() && end < i + cuda::kMostMatrices && in[end].format == in[i].format; ++end)
      numbers += in[end].n;
    cuda::multiply_row(std::span(in).subspan(i, end - i), normed_input(w.attention_norm), {to, false},
                       stream);
    to += numbers;
  }
  const int64_t width = a.heads * a.head_size;
  CompressedQueries query;
  query.count = 1;
  query.q = b_.queries.as<float>(), query.index_q = query.q + width;
  query.scores = scores_.of<float>(run_.scored_entries(layer, capacity_));
  query.chosen = b_.chosen.as<int32_t>();
  query.out = b_.mixed.as<float>();
  const cuda::RowInput latent{.x = token.projected, .norm = w.q_a_norm, .epsilon = s.epsilon};
  const std::array<cuda::DeviceMatrix, 2> of_queries{w.q_b, w.compressed.index_q};
  const size_t count = run_.scored_entries(layer, capacity_) > 0 ? 2 : 1;
  cuda::multiply_row(std::span(of_queries).first(count), latent, {query.q, false}, stream);
  run_.prepare_compressed(layer, w, token);
  run_.attend_compressed(layer, w, token, query);
  run_.keep_compressed(layer, token);
  const cuda::RowInput mixed{.x = query.out, .stride = width / c.groups};
  cuda::multiply_expert_rows(w.compressed.groups, w.compressed.group_ids, c.groups, mixed,
                             {b_.low.as<float>(), false}, stream);
  cuda::multiply_row({&w.o, 1}, {.x = b_.low.as<float>()}, output(), stream);
}

}  // namespace twofour
