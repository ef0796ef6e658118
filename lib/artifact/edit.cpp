#include "lib/artifact/edit.h"

#include <fmt/format.h>

namespace twofour {

std::string_view Edit::name() const {
  return kind == Kind::kNone ? "" : kind == Kind::kGraft ? "graft" : "drop";
}

Hash128 hash_descriptions(std::span<const TensorInfo> tensors) {
  Hasher hasher;
  for (const TensorInfo& t : tensors) {
    hasher.update(t.name);
    hasher.update(fmt::format(" {}\n", describe(t.dtype, t.shape)));
  }
  return hasher.digest();
}

Json graft_base_to_json(const GraftBase& base) {
  return {{"tensors_xxh3_128", base.tensors.hex()}, {"texts", Json(base.texts)}};
}

GraftBase graft_base_from_json(std::string_view where, const Json& json) {
  GraftBase base{parse_hash(where, json.at("tensors_xxh3_128").get<std::string>()), {}};
  for (const auto& [name, text] : json.at("texts").items()) base.texts[name] = text.get<std::string>();
  return base;
}

Json edit_to_json(const Edit& edit) {
  if (edit.kind == Edit::Kind::kGraft) return {{"graft", {{"take", Json(edit.patterns)}}}};
  if (edit.kind == Edit::Kind::kDropModules) return {{"drop", {{"modules", Json(edit.patterns)}}}};
  return {{"drop", {{"experts", Json(edit.experts)}}}};
}

Edit edit_from_json(const Json& json) {
  Edit edit;
  if (json.contains("graft")) {
    edit.kind = Edit::Kind::kGraft;
    edit.patterns = json.at("graft").at("take").get<std::vector<std::string>>();
    return edit;
  }
  const Json& drop = json.at("drop");
  if (drop.contains("modules")) {
    edit.kind = Edit::Kind::kDropModules;
    edit.patterns = drop.at("modules").get<std::vector<std::string>>();
    return edit;
  }
  edit.kind = Edit::Kind::kDropExperts;
  for (const auto& [block, numbers] : drop.at("experts").items()) {
    for (const Json& number : numbers) edit.experts[block].push_back(whole_number<int64_t>(number));
  }
  return edit;
}

}  // namespace twofour
