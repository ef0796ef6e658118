#include "lib/compress/solved_linears.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "formats/json.h"
#include "formats/safetensors.h"
#include "lib/artifact/open_source.h"
#include "lib/io/file.h"
#include "lib/transform/row_encoder.h"
#include "lib/view/layout_choice.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// The tensors of groups as one file, written group by group.
class GroupFile {
 public:
  explicit GroupFile(const fs::path& path) : file_(path) {}
  void plan(const QuantizedGroup& group, const Checkpoint& source) {
    for (const TensorInfo& t : group.outputs(source)) {
      tensors_.push_back(t);
      tensors_.back().end -= tensors_.back().begin;
      tensors_.back().begin = 0;
    }
  }
  void begin() {
    const uint64_t bytes = assign_offsets(tensors_);
    for (const TensorInfo& t : tensors_) places_[t.name] = t.begin;
    const std::string header = format_safetensors_header(tensors_, {{"format", "pt"}});
    begin_ = header.size();
    file_.resize(begin_ + bytes);
    file_.write(0, header);
  }
  /// Takes the bytes of a group's parts, each front to back.
  Encoder::Write writer(const QuantizedGroup& group, const Checkpoint& source) {
    std::vector<uint64_t> at;
    for (const TensorInfo& t : group.outputs(source)) at.push_back(begin_ + places_.at(t.name));
    return [this, at](int part, std::span<const uint8_t> bytes) mutable {
      uint64_t& offset = at[static_cast<size_t>(part)];
      file_.write(offset, bytes);
      offset += bytes.size();
    };
  }
  void commit() { file_.commit(); }

 private:
  AtomicFile file_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, uint64_t> places_;
  uint64_t begin_ = 0;
};

}  // namespace

Recipe with_statistics(Recipe recipe, std::shared_ptr<const Statistics> statistics, const std::string& hash) {
  for (Rule& rule : recipe.rules) {
    if (!can_solve(rule) || rule.method == "magnitude") continue;
    rule.statistics = statistics;
    rule.statistics_hash = hash;
    rule.statistics_from = statistics->collected_on();
    rule.statistics_input = statistics->metadata("input");
  }
  return recipe;
}

SolvedLinears::SolvedLinears(const fs::path& source, const Recipe& recipe, const Compute& compute)
    : stored_(open_source(source)),
      view_(open_to_convert(source, recipe, Io::kCached, limits_for(compute), compute)),
      computed_(plan_computed(stored_, recipe, limits_for(compute))),
      plan_(make_plan(view_, recipe, limits_for(compute))),
      compute_(compute) {
  static const std::map<std::string, std::string> kNone;
  if (computed_) take(stored_, computed_->quantizes ? computed_->texts : kNone, computed_->planned);
  take(view_, plan_.texts, plan_.transformations);
}

template <class Transformations>
void SolvedLinears::take(const Checkpoint& checkpoint, const std::map<std::string, std::string>& texts,
                         const Transformations& transformations) {
  Source taken{&checkpoint, &texts};
  for (const auto& one : transformations) {
    const auto* group = dynamic_cast<const QuantizedGroup*>(one.get());
    if (group == nullptr) continue;
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
    for (GroupEncoding& one : groups) {
      one.write = file.writer(*one.group, *s.checkpoint);
      all.push_back(&one);
    }
    encode_groups(*s.checkpoint, all, jobs, compute_, progress);
    file.commit();
    const auto text = s.texts->find("config.json");
    write_text(folder / "config.json", text != s.texts->end() ? text->second : s.checkpoint->config().dump());
  }
  return Checkpoint::open(folder);
}

}  // namespace twofour
