#include "lib/device_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "formats/error.h"
#include "formats/half.h"
#include "formats/layouts/layouts.h"
#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"
#include "kernels/pack/device_pack.h"
#include "kernels/moe/moe.h"
#include "lib/validate/artifact_pieces.h"
#include "lib/threads/interrupt.h"
#include "lib/layer_terms.h"
#include "lib/layer_tokens.h"
#include "lib/runtime/artifact.h"
#include "lib/validate_files.h"

namespace twofour {
namespace {

/// Share of the device's memory that a layer may take: the context and others have theirs.
constexpr double kMemoryShare = 0.9;

/// Weights that are dequantized at once.
constexpr int64_t kPieceWeights = 8 << 20;

/// What the layers' kernels round, and how far: none of it depends on what they were seen to do.
MoeRounding rounding_of(const std::string& layout) {
  // Sums are float32, of 24 bits; tensor cores cut where others round, so a whole last place. Between the
  // multiplications numbers are FP16 (11 bits) or, of g8, BF16 (8 bits), rounded to nearest; exp is right to
  // 2^-21 before.
  return {0x1p-23, (layout == GateUpInterleaved8::name ? 0x1p-8 : 0x1p-11) + 0x1p-20};
}

/// Of output rounded to nearest.
double output_rounding(cuda::Float type) { return type == cuda::Float::bf16 ? 0x1p-8 : 0x1p-24; }

/// Holds a run's output against the reference's first rows.
void compare_run(const MoeTolerance& want, double rounding, const std::vector<float>& found, int64_t h,
                 DeviceLayerReport& layer) {
  for (size_t i = 0; i < found.size(); ++i) {
    const double expected = want.out[i], error = std::abs(static_cast<double>(found[i]) - expected);
    const double share = error == 0 ? 0 : error / (want.tolerance[i] + rounding * std::abs(expected));
    layer.beyond += !(share <= 1);
    if (share <= layer.worst.share) continue;
    layer.worst = {share, static_cast<int64_t>(i) / h, static_cast<int64_t>(i) % h, expected, found[i]};
    if (std::isnan(share)) layer.worst.share = INFINITY;
  }
}

DeviceLayerReport check_layer(const Checkpoint& artifact, const RuntimeArtifact& runtime, size_t index,
                              const ArtifactMatrix& w13, const ArtifactMatrix& w2,
                              const ValidateOptions& options) {
  const LayerInfo& info = runtime.layers()[index];
  const int64_t topk = experts_per_token(artifact.config(), info.e);
  Tokens tokens = draw_tokens(options.tokens, info.h, info.e, topk, options.seed + index);
  // BF16 holds them exactly, so that every kind of activation starts from the same numbers.
  for (float& x : tokens.hidden) x = bf16_to_float(bf16_from_float(x));
  const MoeInput input = tokens.input();
  Tokens first = tokens;  // another kernel works on a single token
  first.m = 1;
  first.hidden.resize(static_cast<size_t>(info.h));
  first.ids.resize(static_cast<size_t>(topk));
  first.weights.resize(static_cast<size_t>(topk));

  DeviceLayerReport report;
  report.block = info.name;
  report.layout = info.layout;
  report.tokens = tokens.m;
  report.experts_used = tokens.experts_used();
  const RuntimeLayer layer = runtime.load(index, Device::cuda);
  ArtifactRows up(artifact, w13), down(artifact, w2);
  const MoeTolerance want = moe_tolerance(input, up.rows(), down.rows(), rounding_of(info.layout));
  for (const cuda::Float type : {cuda::Float::f32, cuda::Float::bf16}) {
    const std::vector<float> found = layer.run(input, type).out;
    compare_run(want, output_rounding(type), found, info.h, report);
    compare_run(want, output_rounding(type), layer.run(first.input(), type).out, info.h, report);
    LayerReport figures;  // those of BF16 stay, as engines run it
    compare_outputs(want.out, std::vector<double>(found.begin(), found.end()), figures);
    report.cosine = figures.cosine;
    report.relative_error = figures.relative_error;
  }
  return report;
}

const ArtifactMatrix& matrix_of(const ArtifactModules& modules, std::string_view name) {
  return *std::find_if(modules.matrices.begin(), modules.matrices.end(),
                       [&](const ArtifactMatrix& m) { return m.name == name; });
}

bool has_layers(const ArtifactModules& modules) {
  const auto has = [&](const std::string& name) {
    return std::any_of(modules.matrices.begin(), modules.matrices.end(),
                       [&](const ArtifactMatrix& m) { return m.name == name; });
  };
  return std::any_of(modules.matrices.begin(), modules.matrices.end(), [&](const ArtifactMatrix& m) {
    return m.name.ends_with(".w13") && has(m.name.substr(0, m.name.size() - 3) + "w2");
  });
}

void run_layers(const Checkpoint& artifact, const ValidateOptions& options, ValidateReport& report) {
  const ArtifactModules modules = read_artifact_modules(artifact);
  if (!has_layers(modules)) return;
  const RuntimeArtifact runtime = RuntimeArtifact::open(artifact.path());
  for (size_t i = 0; i < runtime.layers().size(); ++i) {
    const LayerInfo& info = runtime.layers()[i];
    const ArtifactMatrix &w13 = matrix_of(modules, info.name + ".w13"),
                         &w2 = matrix_of(modules, info.name + ".w2");
    const auto skip = [&](std::string why) {
      report.notes.push_back({Severity::kNote, "layer-not-run", info.name, std::move(why)});
    };
    if (w13.shape.n * w13.shape.k > kMaxUnpackedWeights) {
      skip(fmt::format("experts of {} weights are too large for the reference; bytes were compared",
                       w13.shape.n * w13.shape.k));
      continue;
    }
    if (const auto why = why_not_run(artifact, info.name, info.gated)) {
      skip(fmt::format("{}; bytes were compared", *why));
      continue;
    }
    const uint64_t bytes = runtime.device_bytes(i), memory = cuda_device()->memory;
    if (static_cast<double>(bytes) > kMemoryShare * static_cast<double>(memory)) {
      skip(fmt::format("its {} bytes do not fit the device's {}", bytes, memory));
      continue;
    }
    const DeviceLayerReport layer = check_layer(artifact, runtime, i, w13, w2, options);
    report.device_layers.push_back(layer);
    if (layer.beyond == 0) continue;
    differ(
        report, "device-output", info.name,
        fmt::format("{} numbers of the device's output lie further from the reference than its roundings "
                    "explain, the worst {:.3g} times as far at token {}, column {}: expected {:.6g}, found "
                    "{:.6g}",
                    layer.beyond, layer.worst.share, layer.worst.token, layer.worst.column,
                    layer.worst.expected, layer.worst.found));
  }
}

}  // namespace

DeviceDerivation::DeviceDerivation(const Checkpoint& source, const Plan& plan)
    : plan_(plan), packer_(source, plan, best_isa(), Device::cuda) {}

void DeviceDerivation::compare(size_t target_index, int64_t e, const Piece& piece,
                               std::span<const std::span<const uint8_t>> parts) {
  const Target& target = plan_.targets[target_index];
  std::vector<SourceResult> results(target.sources_per_expert);
  packer_.pack(target_index, e, piece, results);
  stats_.resize(target.sources.size());
  for (size_t i = 0; i < results.size(); ++i)
    stats_[static_cast<size_t>(e) * target.sources_per_expert + i] += results[i].stats;
  for (size_t p = 0; p < parts.size(); ++p) {
    const auto packed = packer_.part(static_cast<int>(p));
    if (std::ranges::equal(packed, parts[p])) continue;
    if (wrong_ == 0) first_expert_ = e;
    for (size_t i = 0; i < packed.size(); ++i) wrong_ += packed[i] != parts[p][i];
  }
}

void DeviceDerivation::finish(size_t target_index, std::span<const PruneStats> stats,
                              ValidateReport& report) {
  const std::string& name = plan_.targets[target_index].name;
  if (wrong_ > 0) {
    differ(report, "device-bytes", name,
           fmt::format("{} bytes differ from what the device packs, the first at expert {}", wrong_,
                       first_expert_));
  }
  with_layout(plan_.recipe.layout, [&]<class L>() {
    if (std::is_same_v<typename L::Atom, SparseGroup> && !std::ranges::equal(stats_, stats))
      differ(report, "device-figures", name, "expected the same figures of pruning from the device");
  });
  stats_.clear();
  wrong_ = 0;
}

void check_dequantized_on_cuda(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                               ValidateReport& report) {
  for (const OutputTensor& t : plan.tensors) {
    if (t.op != Op::kDequantize) continue;
    const ModulePlan& module = plan.modules[t.module];
    const Nvfp4Module& m = source.nvfp4_modules()[module.module];
    if (m.k_outer) {
      report.notes.push_back({Severity::kNote, "not-on-device", t.info.name,
                              "K is outer in the source, which no kernel reads; the CPU compared its bytes"});
      continue;
    }
    const cuda::DeviceMemory multipliers(module.multipliers);
    const cuda::DeviceStream stream;
    const size_t ours = *artifact.find(t.info.name);
    const int64_t step = std::max<int64_t>(1, kPieceWeights / m.k), rows = m.e * m.n;
    uint64_t wrong = 0, first = 0;
    for (int64_t row = 0, count = 0; row < rows; row += count) {
      check_interrupt();
      count = std::min({step, rows - row, m.n - row % m.n});  // of one expert, so under one multiplier
      const auto read = [&](const Checkpoint& from, size_t tensor, int64_t row_bytes) {
        std::vector<uint8_t> bytes(static_cast<size_t>(count * row_bytes));
        from.read(tensor, static_cast<uint64_t>(row * row_bytes), bytes);
        return bytes;
      };
      const cuda::DeviceMemory codes(read(source, m.codes, m.k / 2)),
          scales(read(source, m.block_scale, m.k / kGroup));
      cuda::DeviceMemory out(static_cast<size_t>(count * m.k * 2));
      out.fill(0xFF);
      cuda::dequantize_to_bf16({codes.as<uint8_t>(), scales.as<uint8_t>(), 1, count, m.k},
                               multipliers.as<float>() + row / m.n, out.as(), stream.get());
      stream.synchronize();
      const auto expected = out.download<uint8_t>(), found = read(artifact, ours, m.k * 2);
      for (size_t i = 0; i < found.size(); ++i) {
        if (expected[i] == found[i]) continue;
        if (wrong++ == 0) first = static_cast<uint64_t>(row * m.k * 2) + i;
      }
    }
    if (wrong == 0) continue;
    differ(report, "device-bytes", t.info.name,
           fmt::format("{} bytes differ from what the device dequantizes, the first at {}", wrong, first));
  }
}

void check_layers_on_cuda(const Checkpoint& artifact, const ValidateOptions& options,
                          ValidateReport& report) {
  if (options.tokens == 0 || !holds_layout(artifact)) return;
  try {
    run_layers(artifact, options, report);
  } catch (const Error& e) {
    // Of an artifact that is already known to be damaged; else it is trouble.
    if (report.differences.empty()) throw;
    differ(report, "device-layer", artifact.path().string(), e.what());
  }
}

}  // namespace twofour
