#include "lib/stored_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "formats/error.h"
#include "kernels/moe/moe.h"
#include "lib/threads/interrupt.h"
#include "lib/layer_terms.h"
#include "lib/layer_tokens.h"
#include "lib/threads/parallel.h"
#include "lib/read_error.h"

namespace twofour {
namespace {

/// Matrices larger than this are not held in float32: they would pass the promised memory.
constexpr int64_t kMaxWeights = 80 << 20;
/// Weights that a thread reads at once.
constexpr int64_t kStripWeights = 1 << 18;

using Experts = std::map<int64_t, StoredExpert>;

struct BlockShape {
  int64_t e, h, i;
  bool gated;
  bool operator==(const BlockShape&) const = default;
};

/// The shape of a block whose experts are complete, alike and numbered from 0.
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

/// The weights of a block, one matrix at a time: w13 and w2 take turns in one buffer.
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
  struct Strip {
    const StoredMatrix* matrix;
    int64_t n0, n1, at;  ///< rows, and the row of the buffer where they begin
  };

  void load(std::initializer_list<const StoredMatrix*> parts, int64_t k) {
    check_interrupt();
    std::vector<Strip> strips;
    int64_t rows = 0;
    const int64_t step = std::max<int64_t>(1, kStripWeights / k);
    for (const StoredMatrix* m : parts) {
      for (int64_t n = 0; n < m->count; n += step)
        strips.push_back({m, n, std::min(m->count, n + step), rows + n});
      rows += m->count;
    }
    weights_.resize(static_cast<size_t>(rows * k));
    parallel_workers(strips.size(), [&] {
      return [&, reader = WeightReader(matrices_.checkpoint())](size_t i) mutable {
        const Strip& s = strips[i];
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

bool is_picked(const Matrices& matrices, const Experts& experts, const ModuleFilter& filter) {
  for (const auto& [number, x] : experts) {
    for (const StoredMatrix* m : {x.gate, x.up, x.down}) {
      if (m != nullptr && filter(matrices.module_of(*m))) return true;
    }
  }
  return false;
}

}  // namespace

void run_stored_layers(const Matrices& source, const Matrices& other, const ModuleFilter& filter,
                       const ValidateOptions& options, Findings& findings, std::vector<LayerReport>& layers) {
  uint64_t seed = options.seed + 1;
  for (const auto& [name, experts] : source.blocks()) {
    if (!is_picked(source, experts, filter)) continue;
    const auto skip = [&](const std::string& why) {
      findings.push_back({Severity::kNote, "layer-not-run", name, why});
    };
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
    const int64_t topk = experts_per_token(source.checkpoint().config(), shape->e);
    const Tokens tokens = draw_tokens(options.tokens, shape->h, shape->e, topk, seed);
    seed += 2;  // the seeds by which check_layers counts w2 and w13, so that figures can be compared
    LayerReport layer{
        .block = name, .tokens = options.tokens, .experts_used = tokens.experts_used(), .reference = false};
    try {
      compare_outputs(forward(source, experts, *shape, tokens), forward(other, at->second, *shape, tokens),
                      layer);
    } catch (const ReadError&) {
      throw;
    } catch (const Error& e) {
      findings.push_back({Severity::kError, "layer-output", name, e.what()});
      continue;
    }
    layers.push_back(layer);
  }
}

}  // namespace twofour
