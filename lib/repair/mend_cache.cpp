#include <algorithm>
#include <cmath>
#include <map>

#include "formats/half.h"
#include "formats/module_names.h"
#include "lib/repair/repair.h"

namespace twofour {
namespace {

constexpr std::string_view kSuffixes[2] = {".k_scale", ".v_scale"};

/// The scales of keys and values of one layer.
struct CacheLayer {
  std::string names[2];  ///< names of the tensors, stored or not
  bool is_there[2] = {}, is_valid[2] = {};
};

/// The attention of a scale: "model.layers.0.self_attn" of "model.layers.0.self_attn.k_proj.k_scale".
std::string attention_of(std::string_view name, int side) {
  name.remove_suffix(kSuffixes[side].size());
  const std::string_view projection = side == 0 ? ".k_proj" : ".v_proj";
  if (name.ends_with(projection)) name.remove_suffix(projection.size());
  return std::string(name);
}

/// The name of the scale of the other side.
std::string other_side(const std::string& name, int side) {
  const std::string attention = attention_of(name, side);
  const bool below = name.size() > attention.size() + kSuffixes[side].size();
  return attention + (below ? side == 0 ? ".v_proj" : ".k_proj" : "") + std::string(kSuffixes[1 - side]);
}

bool holds_scales(const Checkpoint& c, size_t tensor) {
  const TensorInfo& t = c.tensors()[tensor];
  std::vector<float> values = floats_of(c, tensor);
  if (values.empty() && (t.dtype == DType::kBF16 || t.dtype == DType::kF16) && t.bytes() == 2) {
    uint8_t bytes[2];
    c.read(tensor, 0, bytes);
    const auto bits = static_cast<uint16_t>(bytes[0] | bytes[1] << 8);
    values = {t.dtype == DType::kBF16 ? bf16_to_float(bits) : fp16_to_float(bits)};
  }
  return !values.empty() &&
         std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x) && x > 0; });
}

Repair::NewTensor copy_of(const Checkpoint& c, size_t tensor, std::string name) {
  const TensorInfo& t = c.tensors()[tensor];
  std::vector<uint8_t> bytes(t.bytes());
  c.read(tensor, 0, bytes);
  return {std::move(name), t.dtype, t.shape, std::move(bytes)};
}

}  // namespace

bool mend_cache_scales(Repair& r, MendRecord& record) {
  const Checkpoint& c = r.view();
  std::map<std::string, CacheLayer> layers;
  std::vector<std::string> bare;  // attention without scales
  std::string example[2];
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    const std::string& name = c.tensors()[i].name;
    for (const int side : {0, 1}) {
      if (!name.ends_with(kSuffixes[side])) continue;
      CacheLayer& layer = layers[attention_of(name, side)];
      layer.is_there[side] = true;
      layer.is_valid[side] = holds_scales(c, i);
      layer.names[side] = name;
      if (layer.names[1 - side].empty()) layer.names[1 - side] = other_side(name, side);
      example[side] = name;
    }
  }
  if (layers.empty()) return false;
  // Layers of the same kind without either scale.
  for (const TensorInfo& t : c.tensors()) {
    const size_t at = t.name.find(".k_proj.weight");
    const std::string attention = at == std::string::npos ? "" : t.name.substr(0, at);
    if (attention.empty() || layers.contains(attention)) continue;
    for (const auto& [name, layer] : layers) {
      if (kind_of(name) != kind_of(attention)) continue;
      CacheLayer& added = layers[attention];
      for (const int side : {0, 1}) added.names[side] = attention + layer.names[side].substr(name.size());
      break;
    }
  }
  std::vector<Repair::NewTensor> made;
  for (const auto& [attention, layer] : layers) {
    for (const int side : {0, 1}) {
      if (layer.is_valid[side]) continue;
      const char* rule = layer.is_there[side] ? "bad-input-scale" : "missing-kv-scale";
      if (!r.wants(rule)) continue;
      if (layer.is_valid[1 - side]) {
        made.push_back(copy_of(c, *c.find(layer.names[1 - side]), layer.names[side]));
      } else if (const auto at = r.donor ? r.donor->find(layer.names[side]) : std::nullopt;
                 at && holds_scales(*r.donor, *at)) {
        made.push_back(copy_of(*r.donor, *at, layer.names[side]));
        record.from_donor.insert(layer.names[side]);
      } else {
        r.leave(rule, layer.names[side], "the layer has no other scale; a donor may have it");
        continue;
      }
      record.rules.insert(rule);
    }
  }
  if (made.empty()) return false;
  record.takes_from_donor = !record.from_donor.empty();
  if (record.takes_from_donor) refuse_other_model(r);
  record.origin = "the layer's other scale";
  r.set(std::move(made), record);
  return true;
}

}  // namespace twofour
