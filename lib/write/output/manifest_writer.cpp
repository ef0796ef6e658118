#include "lib/write/output/manifest_writer.h"

#include <fmt/format.h>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/base/findings/version.h"
#include "lib/look/inspect/readme_text.h"
#include "lib/recipe/artifact/layout_names.h"
#include "lib/write/plan/config_texts.h"

namespace twofour {
namespace {

Json tensor_to_json(const TensorInfo& t, const Hash128& hash) {
  return {{"name", t.name}, {"dtype", dtype_name(t.dtype)}, {"shape", t.shape}, {"xxh3_128", hash.hex()}};
}

std::vector<Json> tensors_of(const Plan& plan, const ConversionRecord& record, size_t transformation) {
  std::vector<Json> tensors;
  for (const uint32_t i : plan.parts_of(transformation)) {
    tensors.push_back(tensor_to_json(plan.tensors[i].info, record.outputs[i]));
  }
  return tensors;
}

}  // namespace

const Json& ConversionRecord::result(size_t transformation) const {
  static const Json none(nullptr);
  const auto at = results.find(static_cast<uint32_t>(transformation));
  return at == results.end() ? none : at->second;
}

std::vector<Hash128> ConversionRecord::parts(const Plan& plan, size_t transformation) const {
  std::vector<Hash128> hashes;
  for (const uint32_t i : plan.parts_of(transformation)) hashes.push_back(outputs[i]);
  return hashes;
}

Hash128 content_hash(const Checkpoint& source, const Plan& plan, const ConversionRecord& record) {
  Hasher hasher;
  for (const Shard& s : source.shards()) hasher.update(s.header_hash.hex());
  for (size_t t = 0; t < plan.transformations.size(); ++t) {
    std::vector<Hash128> parts = record.parts(plan, t);
    if (plan.recipe.recovery) {  // the source's bytes are those before recovery
      const auto& tuned = plan.recipe.recovery->tuned;
      for (size_t p = 0; p < parts.size(); ++p) {
        const auto at = tuned.find(plan.tensors[plan.parts_of(t)[p]].info.name);
        if (at != tuned.end()) parts[p] = at->second.from;
      }
    }
    hasher.update(plan.transformations[t]->content(record.result(t), parts));
  }
  return hasher.digest();
}

std::string artifact_readme(const Checkpoint& source, const Plan& plan, const ConversionRecord& record) {
  ArtifactFacts facts;
  facts.take(plan.recipe);
  facts.bytes = plan.data_bytes;
  for (const Shard& s : source.shards()) facts.source_bytes += s.file.size();
  const auto written = [&](const char* name, const Json& of_source) {
    const auto text = plan.config.texts.find(name);
    if (text != plan.config.texts.end()) return parse_json(name, text->second);
    return plan.config.keeps_source ? of_source : Json();
  };
  facts.take_config(written("config.json", source.config()),
                    written("hf_quant_config.json", source.hf_quant_config()));
  for (size_t t = 0; t < plan.transformations.size(); ++t) {
    const Transformation& one = *plan.transformations[t];
    if (one.keeps()) continue;
    for (const Json& entry : one.entries(source, record.result(t), tensors_of(plan, record, t)))
      facts.take(entry);
  }
  return readme_text(facts);
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

  put(fmt::format("{{\n\"format\": {},\n", tool.format));
  put(fmt::format("\"tool\": {},\n",
                  json_line({{"name", "twofour"}, {"version", tool.version}, {"commit", tool.commit}})));
  put(fmt::format("\"recipe\": {},\n", json_line(recipe_to_json(plan.recipe))));
  put("\"source\": {\"files\": [");
  for (const Shard& s : source.shards()) {
    put(&s == &source.shards().front() ? "\n" : ",\n");
    put(json_line({{"name", s.name}, {"bytes", s.file.size()}, {"header_xxh3_128", s.header_hash.hex()}}));
  }
  put("],\n");
  const Json hf_quant_config = plan.config.shown_hf_quant_config.value_or(source.hf_quant_config());
  if (!hf_quant_config.is_null()) put(fmt::format("\"hf_quant_config\": {},\n", json_line(hf_quant_config)));
  if (!record.remote.is_null()) put(fmt::format("\"remote\": {},\n", json_line(record.remote)));
  const Json note = source.source_note();
  if (note.is_object()) {
    for (const auto& [key, value] : note.items())
      put(fmt::format("{}: {},\n", json_quote(key), json_line(value)));
  }
  put(fmt::format("\"content_xxh3_128\": \"{}\"}},\n", content_hash(source, plan, record).hex()));

  if (!plan.readme.empty()) put(fmt::format("\"readme\": {},\n", json_quote(plan.readme)));
  put("\"files\": {");
  for (auto it = record.files.begin(); it != record.files.end(); ++it) {
    put(fmt::format("{}{}: \"{}\"", it == record.files.begin() ? "\n" : ",\n", json_quote(it->first),
                    it->second.hex()));
  }
  put("},\n");
  if (plan.config.layouts.size() > 1) {
    put(fmt::format("\"layout\": {},\n\"groups\": [", json_quote(kMixedLayout)));
    for (const LayoutGroup& group : plan.config.layouts) {
      put(&group == &plan.config.layouts.front() ? "\n" : ",\n");
      put(json_line(layout_group_to_json(group)));
    }
    put("],\n");
  }
  const auto put_entries = [&](size_t t, bool& first) {
    const Transformation& one = *plan.transformations[t];
    for (const Json& entry : one.entries(source, record.result(t), tensors_of(plan, record, t))) {
      put(first ? "\n" : ",\n");
      put(json_line(entry));
      first = false;
    }
  };
  put("\"modules\": [");
  bool first = true;
  for (size_t t = 0; t < plan.transformations.size(); ++t) {
    if (!plan.transformations[t]->keeps()) put_entries(t, first);
  }
  put("],\n\"copied\": [");
  first = true;
  for (const OutputTensor& t : plan.tensors) {
    if (t.part == 0 && plan.transformations[t.transformation]->keeps()) put_entries(t.transformation, first);
  }
  put("],\n");
  flush();
  sink(manifest_seal(hasher.digest()));
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

}  // namespace twofour
