#include "lib/prove/validate/check_on_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "formats/error.h"
#include "formats/half.h"
#include "formats/layouts/layouts.h"
#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"
#include "kernels/moe/moe.h"
#include "kernels/pack/device_pack.h"
#include "lib/base/threads/interrupt.h"
#include "lib/prove/validate/artifact_pieces.h"
#include "lib/prove/validate/check_layers.h"
#include "lib/prove/validate/checks.h"
#include "lib/run/runtime/artifact.h"
#include "lib/write/methods/module_rewrite.h"
#include "lib/write/methods/stacked_experts.h"

namespace twofour {
namespace {

/// The share of the device's memory that a layer may use. The context and other programs need the rest.
constexpr double kMemoryShare = 0.9;

/// The number of weights that are dequantized in one go.
constexpr int64_t kPieceWeights = 8 << 20;

/// The rounding of the layers' kernels. It is derived from their number types, not from observed results.
MoeRounding rounding_of(const std::string& layout, bool to_bf16) {
  // Sums are float32 with 24 bits. Tensor cores truncate instead of rounding, so the error is one unit in the
  // last place. Numbers between the multiplications are FP16 (11 bits) or, for dense layouts, BF16 (8 bits),
  // rounded to nearest. Before that, exp is exact to 2^-21. With many rows per expert, these numbers and the
  // result of each row are BF16.
  bool dense = false;
  with_layout(layout, [&]<class L>() { dense = std::is_same_v<typename L::Atom, DenseGroup>; });
  return {0x1p-23, (dense || to_bf16 ? 0x1p-8 : 0x1p-11) + 0x1p-20, to_bf16 ? 0x1p-8 : 0.0};
}

/// The error of rounding output to the nearest number.
double output_rounding(cuda::Float type) { return type == cuda::Float::bf16 ? 0x1p-8 : 0x1p-24; }

/// Compares the output of a run with the first rows of the reference.
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
  Tokens tokens = sample_tokens(options, info.h, info.e, topk, options.seed + index);
  // BF16 represents the results exactly, so that every type of activations starts from the same numbers.
  for (float& x : tokens.hidden) x = bf16_to_float(bf16_from_float(x));
  const MoeInput input = tokens.input();
  Tokens first = tokens;  // a single token uses another kernel
  first.m = 1;
  first.hidden.resize(static_cast<size_t>(info.h));
  first.ids.resize(static_cast<size_t>(first.topk));
  first.weights.resize(static_cast<size_t>(first.topk));

  DeviceLayerReport report;
  report.block = info.name;
  report.layout = info.layout;
  report.tokens = tokens.m;
  report.experts_used = tokens.experts_used();
  const RuntimeLayer layer = runtime.load(index, Device::cuda);
  ArtifactRows up(artifact, w13), down(artifact, w2);
  const MoeTolerance want = moe_tolerance(
      input, up.rows(), down.rows(), rounding_of(info.layout, layer.rounds_to_bf16(tokens.m, tokens.topk)));
  for (const cuda::Float type : {cuda::Float::f32, cuda::Float::bf16}) {
    const std::vector<float> found = layer.run(input, type).out;
    compare_run(want, output_rounding(type), found, info.h, report);
    compare_run(want, output_rounding(type), layer.run(first.input(), type).out, info.h, report);
    LayerReport figures;  // the figures of BF16 are reported, since engines run BF16
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
  std::vector<size_t> runnable;
  for (size_t i = 0; i < runtime.layers().size(); ++i) {
    const LayerInfo& info = runtime.layers()[i];
    const ArtifactMatrix& w13 = matrix_of(modules, info.name + ".w13");
    ++report.device_coverage.found;
    const auto skip = [&](const std::string& why) {
      note_not_run(info.name, why, report.device_coverage, report.notes);
    };
    if (const auto why = why_not_referenced(artifact, info.name, w13.shape)) {
      skip(*why);
      continue;
    }
    const uint64_t bytes = runtime.device_bytes(i), memory = cuda_device()->memory;
    if (static_cast<double>(bytes) > kMemoryShare * static_cast<double>(memory)) {
      skip(fmt::format("its {} bytes do not fit the device's {}", bytes, memory));
      continue;
    }
    runnable.push_back(i);
  }
  const std::vector<size_t> sample = sample_layers(runnable.size(), options);
  report.device_coverage.not_sampled = runnable.size() - sample.size();
  for (const size_t at : sample) {
    const size_t i = runnable[at];
    const LayerInfo& info = runtime.layers()[i];
    const DeviceLayerReport layer = check_layer(artifact, runtime, i, matrix_of(modules, info.name + ".w13"),
                                                matrix_of(modules, info.name + ".w2"), options);
    report.device_layers.push_back(layer);
    if (layer.beyond == 0) continue;
    differ(report, "device-output", info.name,
           fmt::format(
               "{} numbers of the device's output differ from the reference by more than its roundings "
               "explain, the worst by {:.3g} times as much at token {}, column {}: expected {:.6g}, found "
               "{:.6g}",
               layer.beyond, layer.worst.share, layer.worst.token, layer.worst.column, layer.worst.expected,
               layer.worst.found));
  }
}

/// The parts of a matrix, packed on the device from its weights [N, K/16].
std::vector<cuda::DeviceMemory> pack_on_device(const std::string& layout, Shape shape,
                                               std::span<const DenseGroup> groups,
                                               const cuda::DeviceStream& stream) {
  std::vector<uint8_t> codes(groups.size() * kGroup / 2), scales(groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    std::ranges::copy(groups[i].codes, &codes[i * kGroup / 2]);
    scales[i] = groups[i].scale;
  }
  const cuda::DeviceMemory device_codes(codes), device_scales(scales);
  const cuda::DenseMatrices dense{device_codes.as<uint8_t>(), device_scales.as<uint8_t>(), 1, shape.n,
                                  shape.k};
  std::vector<cuda::DeviceMemory> parts;
  with_layout(layout, [&]<class L>() {
    uint8_t* to[3] = {};
    for (int p = 0; p < L::part_count; ++p) {
      parts.emplace_back(static_cast<size_t>(L::part(p, shape).bytes()));
      parts.back().fill(0xA5);  // a byte that no kernel writes will differ
      to[p] = parts.back().as<uint8_t>();
    }
    if constexpr (std::is_same_v<L, KMajorPlanes>) {
      cuda::prune_pack(dense, cuda::SparseLayout::planes, to, stream.get());
    } else if constexpr (std::is_same_v<L, KMajorPacked>) {
      cuda::prune_pack(dense, cuda::SparseLayout::packed, to, stream.get());
    } else {
      static_assert(std::is_same_v<L, GateUpInterleaved8>, "a layout needs a kernel that packs it");
      cuda::pack_g8(dense, shape.gated, to[0], to[1], stream.get());
    }
  });
  stream.synchronize();
  return parts;
}

}  // namespace

DeviceDerivation::DeviceDerivation(std::string layout) : layout_(std::move(layout)) {}

void DeviceDerivation::compare(int64_t e, Shape shape, std::span<const DenseGroup> groups,
                               std::span<const std::span<const uint8_t>> parts) {
  const std::vector<cuda::DeviceMemory> packed = pack_on_device(layout_, shape, groups, stream_);
  for (size_t p = 0; p < parts.size(); ++p) {
    const auto expected = packed[p].download<uint8_t>();
    if (std::ranges::equal(expected, parts[p])) continue;
    if (wrong_ == 0) first_expert_ = e;
    for (size_t i = 0; i < expected.size(); ++i) wrong_ += expected[i] != parts[p][i];
  }
}

std::optional<std::string> DeviceDerivation::finish() const {
  if (wrong_ == 0) return std::nullopt;
  return fmt::format("{} bytes differ from what the device packs, the first at expert {}", wrong_,
                     first_expert_);
}

void check_dequantized_on_cuda(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                               ValidateReport& report) {
  for (const StackedExperts* experts : plan.transformations.of<StackedExperts>()) {
    if (experts->stack().matrix(0, 0).nvfp4)
      report.notes.push_back({Severity::kNote, "not-on-device", experts->stack().weights.name,
                              "no kernel writes stacks of experts; the CPU compared their bytes"});
  }
  for (const ModuleRewrite* rewrite : plan.transformations.of<ModuleRewrite>()) {
    if (!rewrite->dequantizes()) continue;
    const Nvfp4Linear& m = rewrite->module();
    const std::string& name = rewrite->parts()[0].info.name;
    if (m.k_outer) {
      report.notes.push_back({Severity::kNote, "not-on-device", name,
                              "K is outer in the source, which no kernel reads; the CPU compared its bytes"});
      continue;
    }
    const cuda::DeviceMemory multipliers(rewrite->scales().multipliers);
    const cuda::DeviceStream stream;
    const size_t ours = *artifact.find(name);
    const int64_t step = std::max<int64_t>(1, kPieceWeights / m.k), rows = m.e * m.n;
    uint64_t wrong = 0, first = 0;
    for (int64_t row = 0, count = 0; row < rows; row += count) {
      check_interrupt();
      count = std::min({step, rows - row, m.n - row % m.n});  // the rows belong to one expert, so they have
                                                              // one multiplier
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
    differ(report, "device-bytes", name,
           fmt::format("{} bytes differ from what the device dequantizes, the first at {}", wrong, first));
  }
}

void check_layers_on_cuda(const Checkpoint& artifact, const ValidateOptions& options,
                          ValidateReport& report) {
  if (options.tokens == 0 || !holds_layout(artifact)) return;
  try {
    run_layers(artifact, options, report);
  } catch (const Error& e) {
    // If the artifact is already known to be damaged, the error becomes a difference. Otherwise it is thrown.
    if (report.differences.empty()) throw;
    differ(report, "device-layer", artifact.path().string(), e.what());
  }
}

}  // namespace twofour
