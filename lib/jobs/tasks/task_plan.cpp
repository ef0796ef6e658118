#include "lib/jobs/tasks/task_plan.h"
#include "lib/recipe/artifact/open_unpacked.h"

#include <fmt/format.h>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/graft/open_edited.h"
#include "lib/jobs/convert/convert.h"
#include "lib/jobs/convert/resume.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/write/transform/open_to_convert.h"

namespace twofour {

std::string plan_seal(std::string_view before) {
  return fmt::format("\"plan_xxh3_128\": \"{}\"\n}}\n", hash_text(before).hex());
}

namespace {

namespace fs = std::filesystem;

/// The number of the format. It changes when an older program would misunderstand the plan.
constexpr int kPlanFormat = 4;

fs::path whole_path(const fs::path& path) {
  const fs::path whole = fs::weakly_canonical(fs::absolute(path));  // only the file system can resolve
                                                                    // "link/.."
  return whole.has_filename() ? whole : whole.parent_path();
}

/// Throws Error unless the text of a plan ends with the hash of the preceding text.
void check_seal(std::string_view where, std::string_view text) {
  const size_t length = plan_seal("").size();
  const std::string_view before = text.substr(0, text.size() - std::min(length, text.size()));
  if (plan_seal(before) == text.substr(before.size())) return;
  throw Error(fmt::format(
      "{}: expected it to end with the hash of the text before it, {}, found another text: it was "
      "edited or cut; plan again",
      where, hash_text(before).hex()));
}

/// The name that a source has in a plan.
fs::path name_of_source(const Checkpoint& source) {
  const std::string remote = remote_name(given_path(source));
  return remote.empty() ? whole_path(given_path(source)) : fs::path(remote);
}

Hash128 hash_outputs(const Plan& plan) {
  Hasher hasher;
  for (const OutputFile& file : plan.files) {
    hasher.update(file.name);
    hasher.update(file.header);
  }
  for (const auto& transformation : plan.transformations) {
    for (const auto& scale : transformation->stored_scales())
      if (scale.bits) hasher.update(fmt::format("{:08x}", *scale.bits));
  }
  return hasher.digest();
}

/// The file that the rules use. Empty if they use none.
template <class File>
fs::path file_of_rules(const Recipe& recipe, std::shared_ptr<const File> Rule::*file) {
  for (const Rule& rule : recipe.rules) {
    if (rule.*file) return whole_path((rule.*file)->path());
  }
  return {};
}

}  // namespace

Hash128 TaskFile::id() const { return hash_text(fingerprint + outputs.hex()); }

TaskFile make_task_plan(const Checkpoint& source, const Plan& plan, const fs::path& destination,
                        const ReferenceCheckpoint* kept, const fs::path& donor) {
  check_pinned(source);
  return {name_of_source(source),
          whole_path(destination),
          kept != nullptr ? whole_path(given_path(kept->checkpoint())) : fs::path(),
          donor.empty() ? donor : whole_path(donor),
          file_of_rules(plan.recipe, &Rule::statistics),
          file_of_rules(plan.recipe, &Rule::masks),
          json_line(fingerprint(source, plan, kept)),
          hash_outputs(plan),
          plan.files.size(),
          plan.recipe.links};
}

std::string format_task_plan(const TaskFile& plan) {
  Json json = {{"format", kPlanFormat}, {"source", plan.source.string()}};
  if (!plan.kept.empty()) json["keep_global_scale"] = plan.kept.string();
  if (!plan.donor.empty()) json["donor"] = plan.donor.string();
  if (!plan.statistics.empty()) json["statistics"] = plan.statistics.string();
  if (!plan.masks.empty()) json["masks"] = plan.masks.string();
  if (plan.links == Links::kFollowed) json["follow_links"] = true;
  json["destination"] = plan.destination.string();
  json["files"] = plan.files;
  json["outputs_xxh3_128"] = plan.outputs.hex();
  json["fingerprint"] = Json::parse(plan.fingerprint);
  std::string text = json.dump(1);
  text.replace(text.rfind("\n}"), 2, ",\n ");
  return text + plan_seal(text);
}

TaskFile parse_task_plan(std::string_view where, std::string_view text) {
  const Json json = parse_json(where, text);
  const auto path = [&](const char* key) {
    const fs::path found = json.at(key).get<std::string>();
    const bool is_address = key == std::string_view("source") && is_remote_address(found.string());
    if (found.is_absolute() || is_address) return found;
    throw Error(fmt::format("{}: {}: expected an absolute path, found {}", where, key,
                            json_quote_short(found.string())));
  };
  const auto optional_path = [&](const char* key) { return json.contains(key) ? path(key) : fs::path(); };
  try {
    if (const Json& format = json.at("format"); format != kPlanFormat) {
      throw Error(fmt::format("{}: expected a plan of format {}, found {}; plan again", where, kPlanFormat,
                              json_line(format)));
    }
    check_seal(where, text);
    TaskFile plan{path("source"),
                  path("destination"),
                  optional_path("keep_global_scale"),
                  optional_path("donor"),
                  optional_path("statistics"),
                  optional_path("masks"),
                  json_line(json.at("fingerprint")),
                  parse_hash(where, json.at("outputs_xxh3_128").get<std::string>()),
                  whole_number<uint64_t>(json.at("files")),
                  json.value("follow_links", false) ? Links::kFollowed : Links::kInside};
    recipe_from_json(where, json.at("fingerprint").at("recipe"));
    return plan;
  } catch (const Json::exception&) {
    throw Error(fmt::format("{}: expected a plan that twofour plan wrote, found something else", where));
  }
}

void check_same_plan(const std::string& where, const TaskFile& planned, const TaskFile& found) {
  check_fingerprint(where, Json::parse(planned.fingerprint), Json::parse(found.fingerprint), "plan again");
  if (planned.files != found.files) {
    throw Error(fmt::format("{}: files: expected {} (from the recipe), found {}: it was edited; plan again",
                            where, found.files, planned.files));
  }
  if (planned.outputs == found.outputs) return;
  throw Error(
      fmt::format("{}: expected the files and global scales that were planned ({}), found others ({})", where,
                  planned.outputs.hex(), found.outputs.hex()));
}

PlannedSource open_planned(const std::string& where, const TaskFile& planned, Io io, const Compute& compute,
                           const std::optional<CacheOptions>& cache) {
  Recipe recipe = recipe_from_json(where, Json::parse(planned.fingerprint).at("recipe"));
  recipe.links = planned.links;
  open_statistics(recipe, planned.statistics);
  open_masks(recipe, planned.masks);
  auto opened = std::make_unique<RemoteSource>(planned.source.string(), cache);
  const fs::path& path = opened->path();
  PlannedSource found{std::move(opened),
                      recipe.edit ? open_edited(path, planned.donor, recipe.edit, io)
                                  : open_to_convert(path, recipe, io, {}, compute),
                      {},
                      nullptr};
  if (!planned.kept.empty())
    found.kept = std::make_unique<const ReferenceCheckpoint>(open_source(planned.kept));
  found.plan = make_plan(found.source, recipe);
  check_same_plan(
      where, planned,
      make_task_plan(found.source, found.plan, planned.destination, found.kept.get(), planned.donor));
  return found;
}

}  // namespace twofour
