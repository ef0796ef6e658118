#include "lib/layer_check.h"

#include <fmt/format.h>

#include <map>

#include "kernels/moe/moe.h"
#include "lib/artifact_reader.h"
#include "lib/validate/artifact_pieces.h"
#include "lib/threads/interrupt.h"
#include "lib/layer_terms.h"
#include "lib/layer_tokens.h"
#include "lib/validate/rederive.h"

namespace twofour {
namespace {

enum class Weights { kDense, kPruned, kArtifact };

/// One expert of a target, unpacked, with the global scale of each of its rows.
class ExpertWeights {
 public:
  ExpertWeights(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan, size_t target,
                Weights which)
      : source_(source), plan_(plan), index_(target), which_(which), reader_(artifact, plan, target) {}

  WeightRows rows() {
    const Shape s = plan_.targets[index_].shape;
    return {s.e, s.n, s.k, [this](int64_t e) { load(e); },
            [this](int64_t n, std::span<double> out) { row(n, out); }};
  }

 private:
  void load(int64_t e) {
    check_interrupt();
    expert_ = e;
    const Target& target = plan_.targets[index_];
    const Shape one{1, target.shape.n, target.shape.k, target.shape.gated};
    if (which_ == Weights::kArtifact) {
      groups_ = unpack_piece(plan_.recipe.layout, one, reader_.read(e, whole_piece(target)));
      return;
    }
    const bool fold = which_ == Weights::kPruned;
    groups_ = read_dense_groups(source_, target, plan_.scales[index_], e, whole_piece(target), fold);
    if (which_ == Weights::kPruned) apply_pattern(plan_.recipe.layout, groups_);
  }

  void row(int64_t n, std::span<double> out) const {
    const Target& target = plan_.targets[index_];
    const TargetScales& scales = plan_.scales[index_];
    const auto half = static_cast<size_t>(target.sources_per_expert == 2 && n >= target.shape.n / 2);
    const double g = which_ == Weights::kDense
                         ? scales.own[static_cast<size_t>(expert_) * target.sources_per_expert + half]
                         : scales.folded[static_cast<size_t>(expert_)];
    const auto groups = static_cast<size_t>(target.shape.groups());
    dequantize_groups(std::span(groups_).subspan(static_cast<size_t>(n) * groups, groups), g, out);
  }

  const Checkpoint& source_;
  const Plan& plan_;
  size_t index_;
  Weights which_;
  PieceReader reader_;
  int64_t expert_ = 0;
  std::vector<DenseGroup> groups_;
};

}  // namespace

void check_layers(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                  const ValidateOptions& options, ValidateReport& report) {
  std::map<std::string, std::pair<size_t, size_t>> blocks;  // w13 and w2, as positions in the plan
  for (size_t t = 0; t < plan.targets.size(); ++t) {
    const Target& target = plan.targets[t];
    if (target.name.ends_with(".w13")) blocks[target.block].first = t;
    if (target.name.ends_with(".w2")) blocks[target.block].second = t;
  }
  for (size_t t = 0; t < plan.targets.size(); ++t) {
    const Target& w13 = plan.targets[t];
    if (!w13.name.ends_with(".w13")) continue;
    const size_t down = blocks.at(w13.block).second;
    const auto skip = [&](std::string why) {
      report.notes.push_back({Severity::kNote, "layer-not-run", w13.block, std::move(why)});
    };
    if (w13.shape.n * w13.shape.k > kMaxUnpackedWeights) {
      skip(fmt::format("experts of {} weights are too large for the reference; bytes were compared",
                       w13.shape.n * w13.shape.k));
      continue;
    }
    if (const auto why = why_not_run(source, w13.block, w13.shape.gated)) {
      skip(fmt::format("{}; bytes were compared", *why));
      continue;
    }
    const int64_t topk = experts_per_token(source.config(), w13.shape.e);
    const Tokens tokens = draw_tokens(options.tokens, w13.shape.k, w13.shape.e, topk, options.seed + t);
    const MoeInput input = tokens.input();
    const auto forward = [&](Weights which) {
      ExpertWeights a(artifact, source, plan, t, which), b(artifact, source, plan, down, which);
      return moe_reference(input, a.rows(), b.rows());
    };
    const auto dense = forward(Weights::kDense), pruned = forward(Weights::kPruned),
               ours = forward(Weights::kArtifact);
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

}  // namespace twofour
