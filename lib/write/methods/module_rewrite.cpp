#include "lib/write/methods/module_rewrite.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"

namespace twofour {
namespace {

/// The hash of the source of a module's part. If the part was copied, it is the hash of the part itself.
std::string source_hash(const Json& result, const char* key, const Hash128& output) {
  return result.is_object() && result.contains(key) ? result.at(key).get<std::string>() : output.hex();
}

}  // namespace

ModuleRewrite::ModuleRewrite(const Nvfp4Linear& module, std::string becomes, Scales scales, bool prunes,
                             std::optional<double> tolerance)
    : PartedRewrite(std::move(becomes), tolerance),
      module_(module),
      scales_(std::move(scales)),
      prunes_(prunes) {}

std::vector<TensorInfo> PartedRewrite::outputs(const Checkpoint&) const {
  std::vector<TensorInfo> all;
  for (const Part& part : parts_) all.push_back(part.info);
  return all;
}

std::vector<size_t> PartedRewrite::sources() const {
  std::vector<size_t> all = consumed_;
  for (const Part& part : parts_) all.push_back(part.source);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::vector<Unit> PartedRewrite::units(const Checkpoint&) const {
  std::vector<Unit> all;
  for (size_t p = 0; p < parts_.size(); ++p) {
    const auto units = parts_[p].rewrite->units(static_cast<int>(p), parts_[p].info.bytes());
    all.insert(all.end(), units.begin(), units.end());
  }
  return all;
}

uint64_t PartedRewrite::worker_bytes() const {
  uint64_t most = 0;
  for (const Part& part : parts_) {
    // The buffers hold the codes and scales that are read, and the bytes that are written.
    const uint64_t out = std::min(part.rewrite->step(), std::max<uint64_t>(part.info.bytes(), 1));
    most = std::max(most, 2 * out + out / 4);
  }
  return most;
}

std::string PartedRewrite::decision(int part) const {
  return parts_[static_cast<size_t>(part)].changes ? becomes_ : "copy";
}

std::string PartedRewrite::origin(const Checkpoint& source, int part) const {
  return source.where(parts_[static_cast<size_t>(part)].source);
}

bool PartedRewrite::passes(size_t tensor) const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [&](const Part& part) { return part.source == tensor && !part.changes; });
}

bool PartedRewrite::converts(const Checkpoint& source, size_t tensor) const {
  return std::any_of(parts_.begin(), parts_.end(), [&](const Part& part) {
    return part.source == tensor && part.info.dtype != source.tensors()[tensor].dtype;
  });
}

Json PartedRewrite::part_entries(const Checkpoint& source, const std::vector<Json>& tensors) const {
  Json all = Json::array();
  for (size_t p = 0; p < tensors.size(); ++p) {
    all.push_back(with_origin(source, parts_[p].source, tensors[p]));
  }
  return all;
}

Json ModuleRewrite::empty_result() const {
  Json json = Json::object();
  if (prunes_) json["quality"] = to_json(Quality{});
  if (!passes(module_.codes)) json["codes"] = Hash128{}.hex();
  if (!passes(module_.block_scale)) json["scales"] = Hash128{}.hex();
  return json.empty() ? Json(nullptr) : json;
}

void ModuleRewrite::check_result(const Json& result) const {
  const Json model = empty_result();
  if (model.is_null() || !result.is_object() || result.size() != model.size()) {
    throw Error(fmt::format("{}: expected {} results, found others", module_.name, model.size()));
  }
  for (const auto& [key, value] : model.items()) {
    if (key == "quality") {
      quality_from_json(result.at(key));
    } else {
      parse_hash(key, result.at(key).get<std::string>());
    }
  }
}

Json ModuleRewrite::entries(const Checkpoint& source, const Json& result,
                            const std::vector<Json>& tensors) const {
  Json bits = Json::array();
  for (const uint32_t b : scales_.raw_bits) bits.push_back(fmt::format("{:08x}", b));
  Json entry = {{"name", module_.name},
                {"layout", becomes()},
                {"shape", {module_.e, module_.n, module_.k}},
                {"gated", false}};
  if (prunes_) entry["quality"] = quality_figures(quality_from_json(result.at("quality")));
  Json from = {{"module", module_.name},
               {"dialect", module_.dialect->name},
               {"global_scale_shape", source.tensors()[module_.global_scale].shape},
               {"global_scale_bits", std::move(bits)}};
  if (scales_.input_scale_bits != 0) {
    from["input_scale_shape"] = source.tensors()[*module_.input_scale].shape;
    from["input_scale_bits"] = fmt::format("{:08x}", scales_.input_scale_bits);
  }
  const auto output = [&](size_t tensor) {
    for (size_t p = 0; p < parts().size(); ++p) {
      if (parts()[p].source == tensor) return parse_hash("", tensors[p].at("xxh3_128").get<std::string>());
    }
    return Hash128{};
  };
  from["codes_xxh3_128"] = source_hash(result, "codes", output(module_.codes));
  from["scales_xxh3_128"] = source_hash(result, "scales", output(module_.block_scale));
  entry["tensors"] = part_entries(source, tensors);
  entry["sources"] = Json::array({std::move(from)});
  return Json::array({std::move(entry)});
}

std::string ModuleRewrite::content(const Json& result, std::span<const Hash128> outputs) const {
  std::string text;
  if (result.is_object()) {
    for (const char* key : {"codes", "scales"}) {
      if (result.contains(key)) text += result.at(key).get<std::string>();
    }
  }
  for (size_t p = 0; p < parts().size(); ++p) {
    if (!parts()[p].changes) text += outputs[p].hex();
  }
  for (const uint32_t bits : scales_.raw_bits) text += fmt::format("{:08x}", bits);
  return text + fmt::format("{:08x}", scales_.input_scale_bits);
}

std::vector<Transformation::StoredScale> ModuleRewrite::stored_scales() const {
  std::vector<StoredScale> all;
  for (const uint32_t bits : scales_.raw_bits) all.push_back({module_.global_scale, bits});
  return all;
}

std::vector<ModuleReport> ModuleRewrite::report(const Checkpoint&, const Json& result) const {
  ModuleReport report{module_.name, {module_.e, module_.n, module_.k}};
  if (prunes_) report.quality = quality_from_json(result.at("quality"));
  return {std::move(report)};
}

Json LinearRewrite::empty_result() const { return widens() ? Json(Hash128{}.hex()) : Json(nullptr); }

void LinearRewrite::check_result(const Json& result) const {
  if (!widens()) return Transformation::check_result(result);
  parse_hash(module_.name, result.get<std::string>());
}

Json LinearRewrite::entries(const Checkpoint& source, const Json& result,
                            const std::vector<Json>& tensors) const {
  Json from = {{"module", module_.name},
               {"format", module_.format->key},
               {"dtype", dtype_name(source.tensors()[module_.weight].dtype)}};
  if (widens()) {
    from["weights_xxh3_128"] = result;  // the hash of the weights in float32
  } else {
    for (const auto& [key, tensor] :
         {std::pair{"scale_dtype", module_.scale}, {"input_scale_dtype", module_.input_scale}}) {
      if (tensor && converts(source, *tensor)) from[key] = dtype_name(source.tensors()[*tensor].dtype);
    }
  }
  return Json::array({{{"name", module_.name},
                       {"layout", becomes()},
                       {"shape", {module_.e, module_.n, module_.k}},
                       {"gated", false},
                       {"tensors", part_entries(source, tensors)},
                       {"sources", Json::array({std::move(from)})}}});
}

std::string LinearRewrite::content(const Json& result, std::span<const Hash128> outputs) const {
  if (widens()) return result.get<std::string>();
  std::string text;
  for (const Hash128& hash : outputs) text += hash.hex();
  return text;
}

std::vector<ModuleReport> LinearRewrite::report(const Checkpoint&, const Json&) const {
  return {{module_.name, {module_.e, module_.n, module_.k}}};
}

}  // namespace twofour
