#include "lib/artifact/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/manifest_text.h"
#include "lib/findings/version.h"

namespace twofour {
namespace {

/// A figure with `digits` significant digits, so that the last bit of a library's logarithm doesn't show.
Json figure(double value, int digits) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.{}g}", value, digits).c_str(), nullptr);
}

Json quality_to_json(const Quality& q) {
  Json json = {{"retained_energy", figure(q.retained_energy(), 9)},
               {"relative_error", figure(q.relative_error(), 9)},
               {"snr_db", figure(q.snr_db(), 6)},
               {"cosine", figure(q.cosine(), 9)},
               {"tied_share", figure(q.tied_share(), 9)}};
  if (q.fold_energy > 0) json["fold_relative_error"] = figure(std::sqrt(q.fold_error / q.fold_energy), 9);
  return json;
}

Json tensor_to_json(const Checkpoint& c, const OutputTensor& t, const Hash128& hash) {
  Json json = {{"name", t.info.name},
               {"dtype", dtype_name(t.info.dtype)},
               {"shape", t.info.shape},
               {"xxh3_128", hash.hex()}};
  const bool has_source = t.kind == OutputTensor::Kind::kCopy || t.kind == OutputTensor::Kind::kDerived;
  if (has_source && c.tensors()[t.source].name != t.info.name) json["from"] = c.tensors()[t.source].name;
  return json;
}

/// A rewritten module: what it was and what was made of it.
Json module_to_json(const Checkpoint& c, const Plan& plan, const ConversionRecord& record, size_t i,
                    Json tensors) {
  const ModulePlan& module = plan.modules[i];
  const Nvfp4Module& m = c.nvfp4_modules()[module.module];
  Json bits = Json::array();
  for (const uint32_t b : module.stored_bits) bits.push_back(fmt::format("{:08x}", b));
  Json json = {
      {"name", m.name}, {"layout", plan.recipe.layout}, {"shape", {m.e, m.n, m.k}}, {"gated", false}};
  if (rewrite_of(plan.recipe.layout) == Rewrite::kPrune) {
    json["quality"] = quality_to_json(record.quality[plan.targets.size() + i]);
  }
  json["tensors"] = std::move(tensors);
  Json from = {{"module", m.name}, {"dialect", m.dialect->name}, {"global_scale_bits", std::move(bits)}};
  if (module.input_scale_bits != 0) from["input_scale_bits"] = fmt::format("{:08x}", module.input_scale_bits);
  from["codes_xxh3_128"] = record.modules[i].codes.hex();
  from["scales_xxh3_128"] = record.modules[i].scales.hex();
  json["sources"] = Json::array({std::move(from)});
  return json;
}

Json error_to_json(const EncodeError& e) {
  return {{"relative_error", figure(e.relative_error(), 9)}, {"snr_db", figure(e.snr_db(), 6)}};
}

const char* format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFp8:
      return "fp8";
    case WeightFormat::kMxfp4:
      return "mxfp4";
    case WeightFormat::kNvfp4:
      return "nvfp4";
    default:
      return "float";
  }
}

/// An encoded matrix: what of the source it was and what was made of it.
Json matrix_to_json(const Checkpoint& c, const Plan& plan, const EncodedMatrix& m, const EncodedResult& r,
                    Json tensors) {
  const WeightModule& source = plan.weights[m.module];
  Json quality = error_to_json(r.error);
  if (!plan.recipe.pattern.empty()) quality["pruned_after"] = error_to_json(r.pruned_after);
  Json json = {{"name", m.name},
               {"layout", plan.recipe.layout},
               {"shape", {1, m.rows, m.k}},
               {"gated", false},
               {"quality", std::move(quality)}};
  if (r.global_scale != 0) json["global_scale_bits"] = fmt::format("{:08x}", r.global_scale);
  if (r.cast) json["cast"] = "exact";
  json["tensors"] = std::move(tensors);
  Json from = {{"module", source.name},
               {"format", format_name(source.format)},
               {"dtype", dtype_name(c.tensors()[source.weight].dtype)}};
  if (source.stacked) {
    from["expert"] = m.expert;
    from["rows"] = {{"first", m.first}, {"step", m.step}};
  }
  from["weights_xxh3_128"] = r.source.hex();  // as float32
  json["sources"] = Json::array({std::move(from)});
  return json;
}

/// Bytes that go into the artifact in another form, and are few.
void add_scalars(const Checkpoint& c, const Plan& plan, Hasher& hasher) {
  std::vector<uint8_t> bytes;
  const auto add = [&](size_t tensor) {
    bytes.resize(c.tensors()[tensor].bytes());
    c.read(tensor, 0, bytes);
    hasher.update(bytes);
  };
  for (const OutputTensor& t : plan.tensors) {
    if (t.op == Op::kReciprocal || t.op == Op::kToF32 || t.op == Op::kToBf16) add(t.source);
  }
  for (const size_t tensor : plan.merged) {
    if (c.tensors()[tensor].dtype != DType::kF8E4M3) add(tensor);  // block scales count with their module
  }
}

Json sources_to_json(const Checkpoint& c, const Target& target, const TargetScales& scales,
                     const std::vector<SliceHashes>& slices) {
  Json sources = Json::array();
  for (size_t i = 0; i < target.sources.size(); ++i) {
    const SourceRows& s = target.sources[i];
    const Nvfp4Module& m = c.nvfp4_modules()[s.module];
    Json source = {{"module", m.name}, {"dialect", m.dialect->name}};
    if (m.dialect->stacked) {
      source["expert"] = s.expert;
      source["k_outer"] = m.k_outer;
    }
    source["rows"] = {s.first, s.step, s.count};
    source["global_scale_shape"] = c.tensors()[m.global_scale].shape;
    source["global_scale_bits"] = fmt::format("{:08x}", scales.stored_bits[i]);
    source["codes_xxh3_128"] = slices[i].codes.hex();
    source["scales_xxh3_128"] = slices[i].scales.hex();
    sources.push_back(std::move(source));
  }
  return sources;
}

/// Takes what a manifest says of a source of a target or of a rewritten module.
void take_source(const std::string& where, const Json& json, Manifest& manifest) {
  const Json& bits = json.at("global_scale_bits");
  if (!bits.is_array()) {
    manifest.stored_bits.push_back(parse_bits(where, bits));
    return;
  }
  for (const Json& b : bits) manifest.stored_bits.push_back(parse_bits(where, b));
  if (bits.size() != 1) return;
  const auto input = json.find("input_scale_bits");
  manifest.originals[json.at("module").get<std::string>()] = {
      json.at("dialect").get<std::string>(), manifest.stored_bits.back(),
      input == json.end() ? 0 : parse_bits(where, *input)};
}

/// The end of a manifest whose other text has that hash.
std::string seal(const Hash128& hash) {
  return fmt::format("\"manifest_xxh3_128\": \"{}\"\n}}\n", hash.hex());
}

}  // namespace

std::string manifest_damage(const InputFile& file) {
  std::string found(std::min<uint64_t>(file.size(), seal({}).size()), '\0');
  const uint64_t before = file.size() - found.size();
  file.read(before, {reinterpret_cast<uint8_t*>(found.data()), found.size()});
  const Hash128 hash = hash_range(file, 0, before, [](uint64_t) {});
  if (found == seal(hash)) return {};
  const size_t key = found.find(": ");
  return fmt::format("expected it to end with {}, the hash of all before, found {}", hash.hex(),
                     json_quote(key == found.npos ? found : found.substr(key + 2, 34)));
}

Hash128 content_hash(const Checkpoint& source, const Plan& plan, const ConversionRecord& record) {
  Hasher hasher;
  const auto add = [&](const std::string& text) { hasher.update(text); };
  for (const Shard& s : source.shards()) add(s.header_hash.hex());
  for (size_t t = 0; t < plan.targets.size(); ++t) {
    for (size_t i = 0; i < record.slices[t].size(); ++i) {
      add(record.slices[t][i].codes.hex() + record.slices[t][i].scales.hex());
      add(fmt::format("{:08x}", plan.scales[t].stored_bits[i]));
    }
  }
  for (size_t m = 0; m < plan.modules.size(); ++m) {
    add(record.modules[m].codes.hex() + record.modules[m].scales.hex());
    for (const uint32_t bits : plan.modules[m].stored_bits) add(fmt::format("{:08x}", bits));
  }
  for (const EncodedResult& r : record.matrices) add(r.source.hex());
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const OutputTensor& t = plan.tensors[i];
    const bool bias =
        t.kind == OutputTensor::Kind::kEncoded && t.part == static_cast<int>(EncodedPart::kBias);
    if (t.kind == OutputTensor::Kind::kCopy || bias) add(record.outputs[i].hex());
  }
  add_scalars(source, plan, hasher);
  return hasher.digest();
}

void format_manifest(const Checkpoint& source, const Plan& plan, const ConversionRecord& record,
                     const Tool& tool, const std::function<void(std::string_view)>& sink) {
  std::string pending;
  Hasher hasher;
  const auto flush = [&] {
    hasher.update(pending);
    sink(pending);
    pending.clear();
  };
  const auto put = [&](std::string_view text) {
    pending += text;
    if (pending.size() >= (1u << 20)) flush();
  };

  put(fmt::format("{{\n\"format\": {},\n", kManifestFormat));
  put(fmt::format("\"tool\": {},\n",
                  json_line({{"name", "twofour"}, {"version", tool.version}, {"commit", tool.commit}})));
  put(fmt::format("\"recipe\": {},\n", json_line(recipe_to_json(plan.recipe))));
  put("\"source\": {\"files\": [");
  for (const Shard& s : source.shards()) {
    put(&s == &source.shards().front() ? "\n" : ",\n");
    put(json_line({{"name", s.name}, {"bytes", s.file.size()}, {"header_xxh3_128", s.header_hash.hex()}}));
  }
  put("],\n");
  if (!source.hf_quant_config().is_null()) {
    put(fmt::format("\"hf_quant_config\": {},\n", json_line(source.hf_quant_config())));
  }
  put(fmt::format("\"content_xxh3_128\": \"{}\"}},\n", content_hash(source, plan, record).hex()));

  // Tensors of the targets, of the rewritten modules or of the encoded matrices, whichever the plan has.
  std::vector<Json> parts(plan.targets.size() + plan.modules.size() + plan.matrices.size(), Json::array());
  std::vector<size_t> copies;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const OutputTensor& t = plan.tensors[i];
    const bool of_target = t.kind == OutputTensor::Kind::kPart ||
                           t.kind == OutputTensor::Kind::kGlobalScale ||
                           t.kind == OutputTensor::Kind::kEncoded;
    if (of_target || t.module != OutputTensor::kNoModule) {
      parts[of_target ? t.source : t.module].push_back(tensor_to_json(source, t, record.outputs[i]));
    } else {
      copies.push_back(i);
    }
  }
  put("\"files\": {");
  for (auto it = record.files.begin(); it != record.files.end(); ++it) {
    put(fmt::format("{}{}: \"{}\"", it == record.files.begin() ? "\n" : ",\n", json_quote(it->first),
                    it->second.hex()));
  }
  put("},\n\"modules\": [");
  for (size_t t = 0; t < plan.targets.size(); ++t) {
    const Target& target = plan.targets[t];
    put(t == 0 ? "\n" : ",\n");
    put(json_line({{"name", target.name},
                   {"layout", plan.recipe.layout},
                   {"shape", {target.shape.e, target.shape.n, target.shape.k}},
                   {"gated", target.shape.gated},
                   {"quality", quality_to_json(record.quality[t])},
                   {"tensors", std::move(parts[t])},
                   {"sources", sources_to_json(source, target, plan.scales[t], record.slices[t])}}));
  }
  for (size_t m = 0; m < plan.modules.size(); ++m) {
    put(m == 0 ? "\n" : ",\n");
    put(json_line(module_to_json(source, plan, record, m, std::move(parts[m]))));
  }
  for (size_t m = 0; m < plan.matrices.size(); ++m) {
    put(m == 0 ? "\n" : ",\n");
    put(json_line(matrix_to_json(source, plan, plan.matrices[m], record.matrices[m], std::move(parts[m]))));
  }
  put("],\n\"copied\": [");
  for (const size_t i : copies) {
    put(i == copies.front() ? "\n" : ",\n");
    put(json_line(tensor_to_json(source, plan.tensors[i], record.outputs[i])));
  }
  put("],\n");
  flush();
  sink(seal(hasher.digest()));
}

Hash128 write_manifest(const std::filesystem::path& path, const Checkpoint& source, const Plan& plan,
                       const ConversionRecord& record) {
  AtomicFile file(path);
  uint64_t position = 0;
  Hasher hasher;
  const auto write = [&](std::string_view text) {
    file.write(position, text);
    hasher.update(text);
    position += text.size();
  };
  format_manifest(source, plan, record, {version(), version_commit()}, write);
  file.commit();
  return hasher.digest();
}

Manifest read_manifest(const std::filesystem::path& path, size_t tensors) {
  const std::string where = path.string();
  Manifest manifest;
  // Each tensor and module is taken and dropped as it is parsed, so the document is never held whole. The
  // parser looks at all of an array after each object that stays, so of those there may not be many.
  constexpr int kMaxKept = 20'000;
  int kept = 0;
  const auto take = [&](int, Json::parse_event_t event, Json& json) {
    if (event != Json::parse_event_t::object_end) return true;
    manifest.folds += json.contains("fold_relative_error");
    // A source: its bytes count through the content hash.
    if (json.contains("codes_xxh3_128")) {
      take_source(where, json, manifest);
      return false;
    }
    if (json.contains("weights_xxh3_128")) return false;
    if (json.contains("gated")) {
      const Json& shape = json.at("shape");
      manifest.shapes[json.at("name").get<std::string>()] = {
          whole_number<int64_t>(shape.at(0)), whole_number<int64_t>(shape.at(1)),
          whole_number<int64_t>(shape.at(2)), json.at("gated").get<bool>()};
      kept = 0;
      return false;
    }
    if (!json.contains("xxh3_128")) {
      if (++kept > kMaxKept)
        throw Error(fmt::format("{}: expected a manifest of twofour, found too many objects", where));
      return true;
    }
    const auto dtype = dtype_from_name(json.at("dtype").get<std::string>());
    std::vector<int64_t> shape;
    for (const Json& dimension : json.at("shape")) shape.push_back(whole_number<int64_t>(dimension));
    manifest.outputs[json.at("name").get<std::string>()] = {
        parse_hash(where, json.at("xxh3_128").get<std::string>()),
        dtype ? describe(*dtype, shape) : "an unknown type"};
    return false;
  };
  try {
    auto [json, damage] = parse_manifest_text(path, tensors, take);
    manifest.damage = std::move(damage);
    if (whole_number<int64_t>(json.at("format")) != kManifestFormat) {
      throw Error(fmt::format("{}: expected manifest format {}, found {}", where, kManifestFormat,
                              whole_number<int64_t>(json.at("format"))));
    }
    manifest.version = json.at("tool").at("version").get<std::string>();
    manifest.commit = json.at("tool").at("commit").get<std::string>();
    manifest.recipe = recipe_from_json(where, json.at("recipe"));
    for (const auto& [name, hash] : json.at("files").items()) {
      manifest.files[name] = parse_hash(where, hash.get<std::string>());
    }
    for (const Json& file : json.at("source").at("files")) {
      manifest.sources.push_back({file.at("name").get<std::string>(),
                                  whole_number<uint64_t>(file.at("bytes")),
                                  parse_hash(where, file.at("header_xxh3_128").get<std::string>())});
    }
    manifest.source_content = json.at("source").at("content_xxh3_128").get<std::string>();
  } catch (const Json::exception&) {
    throw Error(fmt::format("{}: expected a manifest of twofour, found something else", where));
  }
  return manifest;
}

}  // namespace twofour
