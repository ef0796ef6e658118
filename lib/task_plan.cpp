#include "lib/task_plan.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/manifest.h"
#include "lib/resume.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// Changes when an older program would misunderstand the plan.
constexpr int kPlanFormat = 1;

fs::path whole_path(const fs::path& path) {
  const fs::path whole = fs::weakly_canonical(fs::absolute(path));  // what "link/.." is only it knows
  return whole.has_filename() ? whole : whole.parent_path();
}

Hash128 hash_outputs(const Plan& plan) {
  Hasher hasher;
  for (const OutputFile& file : plan.files) {
    hasher.update(file.name);
    hasher.update(file.header);
  }
  const auto add_bits = [&](const std::vector<uint32_t>& bits) {
    for (const uint32_t b : bits) hasher.update(fmt::format("{:08x}", b));
  };
  for (const TargetScales& scales : plan.scales) add_bits(scales.stored_bits);
  for (const ModulePlan& module : plan.modules) add_bits(module.stored_bits);
  return hasher.digest();
}

}  // namespace

Hash128 TaskPlan::id() const { return hash_text(fingerprint + outputs.hex()); }

TaskPlan make_task_plan(const Checkpoint& source, const Plan& plan, const fs::path& destination) {
  const fs::path from = source.is_directory() ? source.path() : source.path() / source.shards().front().name;
  return {whole_path(from), whole_path(destination), json_line(fingerprint(source, plan)), hash_outputs(plan),
          plan.files.size()};
}

std::string format_task_plan(const TaskPlan& plan) {
  const Json json = {{"format", kPlanFormat},
                     {"source", plan.source.string()},
                     {"destination", plan.destination.string()},
                     {"files", plan.files},
                     {"outputs_xxh3_128", plan.outputs.hex()},
                     {"fingerprint", Json::parse(plan.fingerprint)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

TaskPlan parse_task_plan(std::string_view where, std::string_view text) {
  const Json json = parse_json(where, text);
  try {
    if (const Json& format = json.at("format"); format != kPlanFormat) {
      throw Error(
          fmt::format("{}: expected a plan of format {}, found {}", where, kPlanFormat, json_line(format)));
    }
    TaskPlan plan{json.at("source").get<std::string>(), json.at("destination").get<std::string>(),
                  json_line(json.at("fingerprint")),
                  parse_hash(where, json.at("outputs_xxh3_128").get<std::string>()),
                  json.at("files").get<size_t>()};
    recipe_from_json(where, json.at("fingerprint").at("recipe"));
    return plan;
  } catch (const Json::exception&) {
    throw Error(fmt::format("{}: expected a plan of twofour, found something else", where));
  }
}

void check_same_plan(const std::string& where, const TaskPlan& planned, const TaskPlan& found) {
  check_fingerprint(where, Json::parse(planned.fingerprint), Json::parse(found.fingerprint), "plan again");
  if (planned.outputs == found.outputs) return;
  throw Error(
      fmt::format("{}: expected the files and global scales that were planned ({}), found others ({})", where,
                  planned.outputs.hex(), found.outputs.hex()));
}

PlannedSource open_planned(const std::string& where, const TaskPlan& planned) {
  PlannedSource found{Checkpoint::open_source(planned.source), {}};
  found.plan =
      make_plan(found.source, recipe_from_json(where, Json::parse(planned.fingerprint).at("recipe")));
  check_same_plan(where, planned, make_task_plan(found.source, found.plan, planned.destination));
  return found;
}

}  // namespace twofour
