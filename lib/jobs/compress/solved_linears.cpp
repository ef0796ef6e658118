#include "lib/jobs/compress/solved_linears.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/jobs/compress/encoded_linears.h"
#include "lib/write/transform/open_to_convert.h"
#include "lib/write/view/layout_choice.h"

namespace twofour {
namespace fs = std::filesystem;

Recipe with_statistics(Recipe recipe, std::shared_ptr<const Statistics> statistics, const std::string& hash,
                       std::shared_ptr<const EncodedBefore> encoded) {
  for (Rule& rule : recipe.rules) {
    if (!can_solve(rule) || rule.method == SolveBy::kMagnitude) continue;
    rule.statistics = statistics;
    rule.encoded = encoded;
    rule.statistics_hash = hash;
    rule.awaits_statistics = false;
    rule.statistics_from = statistics->collected_on();
    rule.statistics_input = statistics->metadata("input");
  }
  return recipe;
}

Recipe without_statistics(Recipe recipe) {
  for (Rule& rule : recipe.rules) {
    rule.statistics = nullptr;
    rule.statistics_hash.clear();
    rule.statistics_from.clear();
    rule.statistics_input.clear();
    rule.awaits_statistics = false;
  }
  return recipe;
}

SolvedLinears::SolvedLinears(const fs::path& source, const Recipe& recipe, const Compute& compute)
    : source_(open_to_pack(source, recipe, Io::kCached, limits_for(compute), compute)),
      plan_(make_plan(source_.shown, recipe, limits_for(compute))),
      compute_(compute) {
  static const std::map<std::string, std::string> kNone;
  if (const ComputedPlan* computed = source_.computed.get())
    take(*source_.stored, computed->quantizes ? computed->texts : kNone, computed->planned);
  take(source_.shown, plan_.config.texts, plan_.transformations);
}

void SolvedLinears::take(const Checkpoint& checkpoint, const std::map<std::string, std::string>& texts,
                         const Transformations& transformations) {
  Source taken{&checkpoint, &texts};
  for (const auto* group : transformations.of<QuantizedGroup>()) {
    taken.groups.push_back(group);
    for (const EncodedMatrix& m : group->matrices()) {
      all_.insert(m.name);
      if (group->encode_rule().statistics != nullptr) by_statistics_.insert(m.name);
    }
  }
  sources_.push_back(std::move(taken));
}

uint64_t SolvedLinears::peak_memory(int jobs) const {
  uint64_t most = plan_.peak_memory(jobs);
  for (const Source& s : sources_) {
    uint64_t largest = 0;
    for (const QuantizedGroup* g : s.groups) largest = std::max(largest, g->worker_bytes());
    most = std::max(most, std::max(largest, MemoryLimits{}.solving_buffers));
  }
  return most;
}

Checkpoint SolvedLinears::solve(const std::set<std::string>& names, const fs::path& folder, int jobs,
                                Progress& progress) const {
  fs::remove_all(folder);
  fs::create_directories(folder);
  size_t files = 0;
  Json notes = Json::array();
  for (const Source& s : sources_) {
    std::vector<GroupEncoding> groups;
    for (const QuantizedGroup* g : s.groups) {
      const bool is_wanted = std::any_of(g->matrices().begin(), g->matrices().end(),
                                         [&](const EncodedMatrix& m) { return names.contains(m.name); });
      if (is_wanted) groups.push_back({g});
    }
    if (groups.empty()) continue;
    GroupFile file(folder / fmt::format("model-{}.safetensors", ++files));
    for (const GroupEncoding& one : groups) file.plan(*one.group, *s.checkpoint);
    file.begin();
    std::vector<GroupEncoding*> all;
    for (size_t i = 0; i < groups.size(); ++i) {
      groups[i].write = file.writer(i);
      all.push_back(&groups[i]);
    }
    encode_groups(*s.checkpoint, all, jobs, compute_, progress);
    for (size_t i = 0; i < groups.size(); ++i) {
      if (groups[i].group->encode_rule().statistics != nullptr)
        notes.push_back(file.note(i, groups[i].results));
    }
    const auto text = s.texts->find("config.json");
    write_work_text(folder / "config.json",
                    text != s.texts->end() ? text->second : s.checkpoint->config().dump());
  }
  Checkpoint made = Checkpoint::open(folder);
  EncodedLinears::write_notes(folder, std::move(notes));
  return made;
}

uint64_t SolvedLinears::bytes() const {
  constexpr uint64_t kTensorWords = 512, kMatrixWords = 1024;  // approximate number of bytes in headers for a
                                                               // tensor, and in notes for a matrix
  uint64_t bytes = 0;
  for (const Source& s : sources_) {
    for (const QuantizedGroup* g : s.groups) {
      for (const TensorInfo& t : g->outputs(*s.checkpoint)) bytes += t.bytes() + kTensorWords;
      bytes += g->matrices().size() * kMatrixWords;
    }
  }
  return bytes;
}

}  // namespace twofour
