#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "formats/error.h"
#include "formats/layouts/checkpoint_rows.h"
#include "formats/layouts/layouts.h"
#include "kernels/device/device.h"
#include "lib/base/findings/error_kinds.h"
#include "lib/base/findings/finding.h"
#include "lib/base/findings/version.h"
#include "lib/run/runtime/artifact.h"
#include "lib/run/runtime/c_guard.h"
#include "lib/run/runtime/matrix.h"
#include "lib/run/runtime/twofour.h"

struct twofour_artifact {
  twofour::RuntimeArtifact artifact;
};

struct twofour_layer {
  twofour::RuntimeLayer layer;
};

struct twofour_matrix {
  twofour::RuntimeMatrix matrix;
};

namespace twofour {
namespace {

Device kind_of_device(int device) { return device == TWOFOUR_CPU ? Device::cpu : Device::cuda; }

Device device_of(const twofour_layer* layer) {
  return layer == nullptr ? Device::cpu : layer->layer.device();
}

Device device_of(const twofour_matrix* matrix) {
  return matrix == nullptr ? Device::cpu : matrix->matrix.device();
}

size_t checked_layer(const RuntimeArtifact& artifact, int64_t layer) {
  const auto count = static_cast<int64_t>(artifact.layers().size());
  if (layer < 0 || layer >= count)
    throw Error(fmt::format("layer: expected 0 to {}, found {}", count - 1, layer));
  return static_cast<size_t>(layer);
}

cuda::Float float_of(int32_t dtype) {
  switch (dtype) {
    case TWOFOUR_F32:
      return cuda::Float::f32;
    case TWOFOUR_BF16:
      return cuda::Float::bf16;
    case TWOFOUR_F16:
      return cuda::Float::f16;
    default:
      throw Error(fmt::format("dtype: expected TWOFOUR_F32, TWOFOUR_BF16 or TWOFOUR_F16, found {}", dtype));
  }
}

LayerOptions options_of(const twofour_options* options) {
  LayerOptions how;
  if (options == nullptr) return how;
  const twofour_options& o = sized(options, "twofour_options");
  if (o.expert_map_size < 0 || (o.expert_map_size > 0) != (o.expert_map != nullptr)) {
    throw Error(fmt::format("expert_map: expected a pointer and its size, or NULL and 0, found size {}",
                            o.expert_map_size));
  }
  how.expert_map.assign(o.expert_map, o.expert_map + o.expert_map_size);
  how.weight_on_input = o.weight_on_input != 0;
  how.limit = o.limit;
  return how;
}

}  // namespace

}  // namespace twofour

using namespace twofour;

const char* twofour_version() {
  static const std::string text = fmt::format("{} ({})", version(), version_commit());
  return text.c_str();
}

int twofour_abi() { return TWOFOUR_ABI; }

int twofour_has_cuda() {
  bool found = false;
  guarded_here([&] { found = cuda_device().has_value(); });
  return found ? 1 : 0;
}

int twofour_open(const char* path, twofour_artifact** artifact) {
  return guarded([&] {
    given(artifact, "artifact") = nullptr;
    given(path, "path");
    *artifact = new twofour_artifact{RuntimeArtifact::open(path)};
  });
}

void twofour_close(twofour_artifact* artifact) { delete artifact; }

int64_t twofour_layer_count(const twofour_artifact* artifact) {
  return artifact == nullptr ? 0 : static_cast<int64_t>(artifact->artifact.layers().size());
}

int twofour_get_layer_info(const twofour_artifact* artifact, int64_t layer, twofour_layer_info* info) {
  return guarded([&] {
    const RuntimeArtifact& from = given(artifact, "artifact").artifact;
    twofour_layer_info& to = sized(info, "twofour_layer_info");
    const size_t index = checked_layer(from, layer);
    const LayerInfo& known = from.layers()[index];
    to.name = known.name.c_str();
    to.layout = known.layout.c_str();
    to.experts = known.e, to.hidden = known.h, to.intermediate = known.i;
    to.gated = known.gated ? 1 : 0;
    to.top_k = static_cast<int32_t>(from.experts_per_token(index));
    to.weight_bytes = known.bytes;
    to.device_bytes = from.device_bytes(index);
  });
}

int twofour_find_layer(const twofour_artifact* artifact, const char* name, int64_t* layer) {
  return guarded([&] {
    given(name, "name");
    given(layer, "layer");
    const auto found = given(artifact, "artifact").artifact.find(name);
    if (found.size() != 1) {
      const auto& layers = artifact->artifact.layers();
      const std::string first = layers.empty() ? "" : fmt::format(", the first being {}", layers[0].name);
      throw ArgumentError(fmt::format(
          "{}: expected the name of one layer or its number, found {} of that name among {}{}", name,
          found.empty() ? "none" : std::to_string(found.size()), counted(layers.size(), "layer"), first));
    }
    *layer = static_cast<int64_t>(found[0]);
  });
}

int twofour_load(const twofour_artifact* artifact, int64_t layer, int device, const twofour_options* options,
                 twofour_layer** loaded) {
  return guarded_on(kind_of_device(device), [&] {
    given(loaded, "loaded") = nullptr;
    const RuntimeArtifact& from = given(artifact, "artifact").artifact;
    const size_t index = checked_layer(from, layer);
    LayerOptions how = options_of(options);
    const Device where = device_of(device, how.cuda_device);
    *loaded = new twofour_layer{from.load(index, where, how)};
  });
}

int twofour_get_part(const char* layout, int64_t experts, int64_t n, int64_t k, int32_t gated, int32_t part,
                     twofour_part* out) {
  return guarded([&] {
    twofour_part& to = sized(out, "twofour_part");
    const std::string name = &given(layout, "layout");
    const Shape shape{experts, n, k, gated != 0};
    constexpr int64_t kMost = INT32_MAX;
    if (experts < 0 || n < 1 || k < kGroup || k % kGroup != 0 || std::max({experts, n, k}) > kMost)
      throw ArgumentError(fmt::format(
          "{}: expected E from 0, N from 1 and a K that is a multiple of {}, each below 2^31, found "
          "[{}, {}, {}]",
          name, kGroup, experts, n, k));
    const bool known = with_stored(name, [&]<class L>() {
      if (part < 0 || part >= L::part_count)
        throw Error(fmt::format("{}: expected a part from 0 to {}, found {}", name, L::part_count - 1, part));
      const Part found = L::part(part, shape);
      to.suffix = found.suffix;
      to.dtype = dtype_name(found.dtype).data();
      to.rows = found.rows, to.cols = found.cols, to.parts = L::part_count;
    });
    if (!known) throw ArgumentError(fmt::format("expected the layout {}, found {}", layout_names(), name));
  });
}

int twofour_borrow(const twofour_stored_layer* stored, int device, const twofour_options* options,
                   twofour_layer** loaded) {
  return guarded_on(kind_of_device(device), [&] {
    given(loaded, "loaded") = nullptr;
    const twofour_stored_layer& from = sized(stored, "twofour_stored_layer");
    LayerInfo info{&given(from.name, "name"),
                   &given(from.layout, "layout"),
                   from.experts,
                   from.hidden,
                   from.intermediate,
                   from.gated != 0};
    std::array<PlacedMatrix, 2> weights;
    static_assert(kMostParts <= TWOFOUR_MOST_PARTS);
    for (int part = 0; part < kMostParts; ++part) {
      weights[0].parts[part] = static_cast<const uint8_t*>(from.w13_parts[part]);
      weights[1].parts[part] = static_cast<const uint8_t*>(from.w2_parts[part]);
    }
    weights[0].global_scale = from.w13_global_scale;
    weights[1].global_scale = from.w2_global_scale;
    LayerOptions how = options_of(options);
    const Device where = device_of(device, how.cuda_device);
    *loaded = new twofour_layer{RuntimeLayer::over(std::move(info), weights, where, how)};
  });
}

int twofour_borrow_matrix(const twofour_stored_matrix* stored, int device, twofour_matrix** matrix) {
  return guarded_on(kind_of_device(device), [&] {
    given(matrix, "matrix") = nullptr;
    const twofour_stored_matrix& from = sized(stored, "twofour_stored_matrix");
    MatrixInfo info{&given(from.name, "name"), &given(from.layout, "layout"),
                    Shape{from.experts, from.n, from.k, from.gated != 0}};
    PlacedMatrix at;
    for (int part = 0; part < kMostParts; ++part)
      at.parts[part] = static_cast<const uint8_t*>(from.parts[part]);
    at.global_scale = from.global_scale;
    LayerOptions how;
    const Device where = device_of(device, how.cuda_device);
    *matrix = new twofour_matrix{RuntimeMatrix::over(std::move(info), at, where, how.cuda_device)};
  });
}

void twofour_release_matrix(twofour_matrix* matrix) { delete matrix; }

int twofour_multiply_bytes(const twofour_matrix* matrix, int64_t rows, size_t* bytes) {
  return guarded_on(device_of(matrix),
                    [&] { given(bytes, "bytes") = given(matrix, "matrix").matrix.workspace_bytes(rows); });
}

int twofour_multiply(const twofour_matrix* matrix, int64_t rows, int32_t dtype, const void* x,
                     const int32_t* ids, void* out, void* workspace, size_t workspace_bytes, void* stream) {
  return guarded_on(device_of(matrix), [&] {
    given(matrix, "matrix")
        .matrix.multiply(rows, float_of(dtype), x, ids, out, workspace, workspace_bytes,
                         static_cast<cuda::Stream>(stream));
  });
}

void twofour_unload(twofour_layer* layer) { delete layer; }

int twofour_workspace_bytes(const twofour_layer* layer, int64_t m, int64_t top_k, size_t* bytes) {
  return guarded_on(device_of(layer),
                    [&] { given(bytes, "bytes") = given(layer, "layer").layer.workspace_bytes(m, top_k); });
}

int twofour_forward(const twofour_layer* layer, const twofour_tokens* tokens, void* workspace,
                    size_t workspace_bytes, void* stream) {
  return guarded_on(device_of(layer), [&] {
    const twofour_tokens& t = sized(tokens, "twofour_tokens");
    cuda::MoeTokens in;
    in.m = t.m, in.topk = t.top_k, in.type = float_of(t.dtype);
    in.hidden = t.hidden, in.topk_ids = t.topk_ids, in.topk_weights = t.topk_weights;
    in.out = t.out, in.error = t.error_flag;
    given(layer, "layer").layer.forward(in, workspace, workspace_bytes, static_cast<cuda::Stream>(stream));
  });
}

int twofour_route(const twofour_artifact* artifact, int64_t layer, const float* hidden, int64_t m,
                  int64_t top_k, int32_t* topk_ids, float* topk_weights) {
  return guarded([&] {
    const RuntimeArtifact& from = given(artifact, "artifact").artifact;
    const size_t index = checked_layer(from, layer);
    if (m < 0 || (m > 0 && !(hidden && topk_ids && topk_weights)))
      throw Error(
          fmt::format("route: expected hidden, topk_ids and topk_weights of {} tokens, found NULL", m));
    const int64_t h = from.layers()[index].h;
    const ExpertChoice chosen = from.route(index, {hidden, static_cast<size_t>(m * h)}, m, top_k);
    std::copy(chosen.ids.begin(), chosen.ids.end(), topk_ids);
    std::copy(chosen.weights.begin(), chosen.weights.end(), topk_weights);
  });
}
