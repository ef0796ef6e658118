#include "lib/prove/validate/check_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <random>

#include "formats/error.h"
#include "kernels/moe/moe.h"
#include "lib/base/io/file.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/parallel.h"
#include "lib/prove/expected/rederive.h"
#include "lib/prove/validate/artifact_pieces.h"
#include "lib/recipe/artifact/why_not_run.h"
#include "lib/write/methods/layout_matrix.h"

namespace twofour {
namespace {

enum class Weights { kDense, kPruned, kArtifact };

/// One expert of a matrix, unpacked, with the global scale of each row.
class ExpertWeights {
 public:
  ExpertWeights(const Checkpoint& artifact, const Checkpoint& source, const LayoutMatrix& matrix,
                Weights which)
      : source_(source), matrix_(matrix), which_(which), reader_(artifact, matrix) {}

  WeightRows rows() {
    const Shape s = matrix_.target.shape;
    return {s.e, s.n, s.k, [this](int64_t e) { load(e); },
            [this](int64_t n, std::span<double> out) { row(n, out); }};
  }

 private:
  void load(int64_t e) {
    check_interrupt();
    expert_ = e;
    const OutputMatrix& target = matrix_.target;
    if (matrix_.is_computed(e)) {
      const size_t first = static_cast<size_t>(e) * target.sources_per_expert;
      computed_scale_ = static_cast<double>(read_computed_scale(source_, matrix_, first).multiplier);
    }
    const Shape one{1, target.shape.n, target.shape.k, target.shape.gated};
    if (which_ == Weights::kArtifact) {
      groups_ = unpack_piece(matrix_.layout, one, reader_.read(e, whole_piece(target)));
      return;
    }
    const bool fold = which_ == Weights::kPruned;
    groups_ = read_dense_groups(source_, target, matrix_.scales, e, whole_piece(target), fold);
    if (which_ == Weights::kPruned) apply_pattern(matrix_.layout, groups_);
  }

  void row(int64_t n, std::span<double> out) const {
    const OutputMatrix& target = matrix_.target;
    const OutputScales& scales = matrix_.scales;
    const auto half = static_cast<size_t>(target.sources_per_expert == 2 && n >= target.shape.n / 2);
    const double g = matrix_.is_computed(expert_) ? computed_scale_
                     : which_ == Weights::kDense
                         ? scales.own[static_cast<size_t>(expert_) * target.sources_per_expert + half]
                         : scales.folded[static_cast<size_t>(expert_)];
    const auto groups = static_cast<size_t>(target.shape.groups());
    dequantize_groups(std::span(groups_).subspan(static_cast<size_t>(n) * groups, groups), g, out);
  }

  const Checkpoint& source_;
  const LayoutMatrix& matrix_;
  Weights which_;
  PieceReader reader_;
  int64_t expert_ = 0;
  double computed_scale_ = 0;  ///< global scale of the expert, if the expert is quantized when it is read
  std::vector<DenseGroup> groups_;
};

/// The most weights of a matrix that is converted to float32. More would exceed the promised memory.
constexpr int64_t kMaxWeights = 80 << 20;
/// The number of weights that a thread reads in one go.
constexpr int64_t kBlockWeights = 1 << 18;

using Experts = std::map<int64_t, StoredExpert>;

struct BlockShape {
  int64_t e, h, i;
  bool gated;
  bool operator==(const BlockShape&) const = default;
};

/// The shape of a block, if its experts are complete, have equal shapes and are numbered from 0.
std::optional<BlockShape> shape_of(const Matrices& matrices, const Experts& experts) {
  std::optional<BlockShape> shape;
  for (const auto& [number, x] : experts) {
    if (x.up == nullptr || x.down == nullptr) return std::nullopt;
    const BlockShape own{static_cast<int64_t>(experts.size()), x.down->count, x.up->count, x.gate != nullptr};
    const auto is = [&](const StoredMatrix& m, int64_t n, int64_t k) {
      return m.count == n && matrices.module_of(m).k == k;
    };
    if (!is(*x.up, own.i, own.h) || !is(*x.down, own.h, own.i)) return std::nullopt;
    if (x.gate != nullptr && !is(*x.gate, own.i, own.h)) return std::nullopt;
    if ((shape && *shape != own) || number >= own.e) return std::nullopt;
    shape = own;
  }
  return shape;
}

/// The weights of a block, one matrix at a time. w13 and w2 use the same buffer in turn.
class StoredBlock {
 public:
  StoredBlock(const Matrices& matrices, const Experts& experts, const BlockShape& shape)
      : matrices_(matrices), experts_(experts), shape_(shape) {}

  WeightRows w13() {
    return {shape_.e, shape_.i * (shape_.gated ? 2 : 1), shape_.h,
            [this](int64_t e) {
              const StoredExpert& x = experts_.at(e);
              if (shape_.gated) {
                load({x.gate, x.up}, shape_.h);
              } else {
                load({x.up}, shape_.h);
              }
            },
            [this](int64_t n, std::span<double> out) { row(n, out); }};
  }
  WeightRows w2() {
    return {shape_.e, shape_.h, shape_.i, [this](int64_t e) { load({experts_.at(e).down}, shape_.i); },
            [this](int64_t n, std::span<double> out) { row(n, out); }};
  }

 private:
  struct RowBlock {
    const StoredMatrix* matrix;
    int64_t n0, n1, at;  ///< range of rows, and the place of the first row in the buffer
  };

  void load(std::initializer_list<const StoredMatrix*> parts, int64_t k) {
    check_interrupt();
    std::vector<RowBlock> row_blocks;
    int64_t rows = 0;
    const int64_t step = std::max<int64_t>(1, kBlockWeights / k);
    for (const StoredMatrix* m : parts) {
      for (int64_t n = 0; n < m->count; n += step)
        row_blocks.push_back({m, n, std::min(m->count, n + step), rows + n});
      rows += m->count;
    }
    weights_.resize(static_cast<size_t>(rows * k));
    parallel_workers(row_blocks.size(), [&] {
      return [&, reader = WeightReader(matrices_.checkpoint())](size_t i) mutable {
        const RowBlock& s = row_blocks[i];
        matrices_.read(reader, *s.matrix, s.n0, s.n1,
                       std::span(weights_).subspan(static_cast<size_t>(s.at * k),
                                                   static_cast<size_t>((s.n1 - s.n0) * k)));
      };
    });
  }

  void row(int64_t n, std::span<double> out) const {
    std::copy_n(weights_.begin() + n * static_cast<int64_t>(out.size()), out.size(), out.begin());
  }

  const Matrices& matrices_;
  const Experts& experts_;
  BlockShape shape_;
  std::vector<float> weights_;
};

std::vector<double> forward(const Matrices& matrices, const Experts& experts, const BlockShape& shape,
                            const Tokens& tokens) {
  StoredBlock block(matrices, experts, shape);
  return moe_reference(tokens.input(), block.w13(), block.w2());
}

/// True if statistics or masks chose weights of a matrix.
bool is_chosen(const Checkpoint& source, const OutputMatrix& matrix) {
  return std::any_of(matrix.sources.begin(), matrix.sources.end(), [&](const SourceRows& s) {
    return !source.computed_result(source.nvfp4_modules()[static_cast<size_t>(s.module)]).is_null();
  });
}

/// The output of a block with its stored weights. Empty if the block cannot be run.
std::vector<double> stored_output(const Matrices& matrices, const std::string& block, const Tokens& tokens) {
  const auto at = matrices.blocks().find(block);
  if (at == matrices.blocks().end()) return {};
  const auto shape = shape_of(matrices, at->second);
  if (!shape || shape->i * shape->h * (shape->gated ? 2 : 1) > kMaxWeights) return {};
  return forward(matrices, at->second, *shape, tokens);
}

bool is_picked(const Matrices& matrices, const Experts& experts, const ModuleFilter& filter) {
  for (const auto& [number, x] : experts) {
    for (const StoredMatrix* m : {x.gate, x.up, x.down}) {
      if (m != nullptr && filter(matrices.module_of(*m))) return true;
    }
  }
  return false;
}

/// Draws `count` distinct numbers in [0, all) by the seed. The standard does not fix the results of
/// std::sample and std::shuffle, so they are not used.
std::vector<size_t> draw_distinct(size_t count, size_t all, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<size_t> deck(all);
  std::iota(deck.begin(), deck.end(), size_t{0});
  for (size_t i = 0; i < count; ++i) std::swap(deck[i], deck[i + random() % (all - i)]);
  deck.resize(count);
  return deck;
}

}  // namespace

void run_stored_layers(const Matrices& source, const Matrices& other, const ModuleFilter& filter,
                       const ValidateOptions& options, Findings& findings, std::vector<LayerReport>& layers,
                       LayerCoverage& coverage) {
  struct Runnable {
    const std::string& name;
    const Experts &ours, &theirs;
    BlockShape shape;
  };
  std::vector<Runnable> runnable;
  for (const auto& [name, experts] : source.blocks()) {
    if (!is_picked(source, experts, filter)) continue;
    ++coverage.found;
    const auto skip = [&](const std::string& why) { note_not_run(name, why, coverage, findings); };
    const auto shape = shape_of(source, experts);
    const auto at = other.blocks().find(name);
    if (!shape || at == other.blocks().end() || shape_of(other, at->second) != shape) {
      skip("its experts are incomplete, unlike each other or of other shapes than before");
      continue;
    }
    if (const auto why = why_not_run(source.checkpoint(), name, shape->gated)) {
      skip(*why);
      continue;
    }
    const int64_t weights = shape->i * shape->h * (shape->gated ? 2 : 1);
    if (weights > kMaxWeights) {
      skip(fmt::format("experts of {} weights are too large for the reference", weights));
      continue;
    }
    runnable.push_back({name, experts, at->second, *shape});
  }
  const std::vector<size_t> sample = sample_layers(runnable.size(), options);
  coverage.not_sampled = runnable.size() - sample.size();
  for (const size_t i : sample) {
    const auto& [name, ours, theirs, shape] = runnable[i];
    const int64_t topk = experts_per_token(source.checkpoint().config(), shape.e);
    // The seeds are numbered as in check_layers, which counts w2 and w13 separately. So figures can be
    // compared.
    const Tokens tokens = sample_tokens(options, shape.h, shape.e, topk, options.seed + 1 + 2 * i);
    LayerReport layer{
        .block = name, .tokens = options.tokens, .experts_used = tokens.experts_used(), .reference = false};
    try {
      compare_outputs(forward(source, ours, shape, tokens), forward(other, theirs, shape, tokens), layer);
    } catch (const ReadError&) {
      throw;
    } catch (const Error& e) {
      coverage.not_run.push_back({name, e.what()});
      findings.push_back({Severity::kError, "layer-output", name, e.what()});
      continue;
    }
    layers.push_back(layer);
  }
}

void check_layers(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                  const Checkpoint& original, const ValidateOptions& options, ValidateReport& report) {
  const std::vector<const LayoutMatrix*> matrices = plan.transformations.of<LayoutMatrix>();
  std::map<std::string, size_t> downs;  // w2 of each block, by name
  for (size_t t = 0; t < matrices.size(); ++t) {
    if (matrices[t]->target.name.ends_with(".w2")) downs[matrices[t]->target.block] = t;
  }
  std::vector<size_t> runnable;  // w13 of each layer
  for (size_t t = 0; t < matrices.size(); ++t) {
    const OutputMatrix& w13 = matrices[t]->target;
    if (!w13.name.ends_with(".w13") || !downs.contains(w13.block)) continue;
    ++report.coverage.found;
    const auto skip = [&](const std::string& why) {
      note_not_run(w13.block, why, report.coverage, report.notes);
    };
    if (const auto why = why_not_referenced(source, w13.block, w13.shape)) {
      skip(*why);
      continue;
    }
    runnable.push_back(t);
  }
  Findings unread;  // findings on the original; the plan was made from it
  std::optional<Matrices> dense_source;
  const std::vector<size_t> sample = sample_layers(runnable.size(), options);
  report.coverage.not_sampled += runnable.size() - sample.size();
  for (const size_t i : sample) {
    const size_t t = runnable[i];
    const OutputMatrix& w13 = matrices[t]->target;
    const size_t down = downs.at(w13.block);
    const int64_t topk = experts_per_token(source.config(), w13.shape.e);
    const Tokens tokens = sample_tokens(options, w13.shape.k, w13.shape.e, topk, options.seed + t);
    const MoeInput input = tokens.input();
    const auto forward = [&](Weights which) {
      ExpertWeights a(artifact, source, *matrices[t], which), b(artifact, source, *matrices[down], which);
      return moe_reference(input, a.rows(), b.rows());
    };
    const auto pruned = forward(Weights::kPruned), ours = forward(Weights::kArtifact);
    // If statistics or a mask chose weights, the plan's source has the chosen weights rather than the dense
    // weights.
    std::vector<double> dense;
    if (is_chosen(source, w13) || is_chosen(source, matrices[down]->target)) {
      if (!dense_source) dense_source.emplace(original, unread);
      dense = stored_output(*dense_source, w13.block, tokens);
    }
    if (dense.empty()) dense = forward(Weights::kDense);
    LayerReport layer{.block = w13.block, .tokens = options.tokens, .experts_used = tokens.experts_used()};
    layer.exact = ours == pruned;
    compare_outputs(dense, ours, layer);
    if (!layer.exact) {
      LayerReport off;
      compare_outputs(pruned, ours, off);
      report.differences.push_back(
          {Severity::kError, "layer-output", w13.block,
           fmt::format("expected the output of the pruned source, found one {:.3g} from it in relative norm",
                       off.relative_error)});
    }
    report.layers.push_back(layer);
  }
}

void compare_outputs(const std::vector<double>& dense, const std::vector<double>& ours, LayerReport& layer) {
  double aa = 0, bb = 0, ab = 0, error = 0;
  for (size_t i = 0; i < dense.size(); ++i) {
    aa += dense[i] * dense[i];
    bb += ours[i] * ours[i];
    ab += dense[i] * ours[i];
    error += (dense[i] - ours[i]) * (dense[i] - ours[i]);
  }
  layer.cosine = aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 1;
  layer.relative_error = aa > 0 ? std::sqrt(error / aa) : 0;
}

std::optional<std::string> why_not_referenced(const Checkpoint& checkpoint, const std::string& block,
                                              const Shape& w13) {
  std::optional<std::string> why;
  if (w13.n * w13.k > kMaxUnpackedWeights) {
    why = fmt::format("experts of {} weights are too large for the reference", w13.n * w13.k);
  } else {
    why = why_not_run(checkpoint, block, w13.gated);
  }
  if (why) *why += "; bytes were compared";
  return why;
}

std::vector<size_t> sample_layers(size_t count, const ValidateOptions& options) {
  const auto most = static_cast<size_t>(options.layers);
  std::vector<size_t> layers;
  if (most == 0 || count <= most) {
    layers.resize(count);
    std::iota(layers.begin(), layers.end(), size_t{0});
    return layers;
  }
  layers.push_back(0);
  if (most > 1) layers.push_back(count - 1);
  if (most > 2) {
    for (const size_t i : draw_distinct(most - 2, count - 2, options.seed)) layers.push_back(i + 1);
  }
  std::sort(layers.begin(), layers.end());
  return layers;
}

Tokens sample_tokens(const ValidateOptions& options, int64_t h, int64_t experts, int64_t topk,
                     uint64_t seed) {
  const int64_t few = options.experts == 0 ? experts : std::min(options.experts, experts);
  Tokens tokens = draw_tokens(options.tokens, h, few, std::min(topk, few), seed);
  if (few == experts) return tokens;
  const auto drawn = draw_distinct(static_cast<size_t>(few), static_cast<size_t>(experts), seed);
  for (int32_t& id : tokens.ids) id = static_cast<int32_t>(drawn[static_cast<size_t>(id)]);
  return tokens;
}

void note_not_run(const std::string& block, const std::string& why, LayerCoverage& coverage,
                  Findings& notes) {
  coverage.not_run.push_back({block, why});
  notes.push_back({Severity::kNote, "layer-not-run", block, why});
}

}  // namespace twofour
