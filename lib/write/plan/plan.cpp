#include "lib/write/plan/plan.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <optional>
#include <set>
#include <typeinfo>

#include "lib/base/io/direct_io.h"
#include "lib/base/io/file.h"
#include "lib/recipe/statistics/solving.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/dialects/output_dialect.h"
#include "lib/source/linears/linears.h"
#include "lib/source/linears/weight_terms.h"
#include "lib/write/plan/auxiliary_files.h"
#include "lib/write/plan/config_texts.h"
#include "lib/write/plan/lay_out_files.h"
#include "lib/write/plan/method.h"
#include "lib/write/plan/tensor_rewrite.h"

namespace twofour {
namespace {

constexpr uint64_t kBaseMemory = 32u << 20;
constexpr uint64_t kMemoryPerTensor = 1024;

/// Stores the places of the parts of each transformation.
void index_parts(Plan& plan) {
  plan.first_part_.assign(plan.transformations.size() + 1, 0);
  for (const OutputTensor& t : plan.tensors) ++plan.first_part_[t.transformation + 1];
  for (size_t t = 0; t < plan.transformations.size(); ++t) plan.first_part_[t + 1] += plan.first_part_[t];
  plan.part_places_.resize(plan.tensors.size());
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const OutputTensor& t = plan.tensors[i];
    plan.part_places_[plan.first_part_[t.transformation] + static_cast<size_t>(t.part)] =
        static_cast<uint32_t>(i);
  }
}

void note_passed_through(Planner& planner) {
  const Checkpoint& c = planner.source;
  size_t passed = 0;
  std::string example;
  for (const Nvfp4Linear& m : c.nvfp4_modules()) {
    if (planner.is_planned(m.codes)) continue;
    if (passed++ == 0) example = m.name;
    if (c.is_computed(m)) continue;
    // Invalid global scales are refused as in modules that are converted. Block scales are checked while they
    // are copied.
    const auto stored = static_cast<int64_t>(c.tensors()[m.global_scale].bytes() / sizeof(float));
    for (int64_t e = 0; e < stored; ++e) read_global_scale(c, m, e, planner.problems);
  }
  if (passed > 0) {
    const bool is_one = passed == 1;
    planner.findings.push_back({Severity::kNote, "passed-through", c.path().string(),
                                fmt::format("{} {} not selected and {} copied unchanged, the first {}",
                                            counted(passed, "NVFP4 module"), is_one ? "is" : "are",
                                            is_one ? "is" : "are", example)});
  }
}

/// Drops the scales of a KV cache if no quantized linear is left, since the configuration that names them is
/// dropped, too.
void drop_kv_scales(PlannedRules& planned) {
  if (!planned.quantizes_nothing()) return;
  Planner& planner = planned.rest;
  const Checkpoint& c = planner.source;
  size_t dropped = 0;
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    const std::string& name = c.tensors()[i].name;
    if ((!name.ends_with(".k_scale") && !name.ends_with(".v_scale")) || planner.is_taken(i)) continue;
    planned.drop(i);
    dropped += planner.is_planned(i);
  }
  if (dropped == 0) return;
  planner.findings.push_back(
      {Severity::kNote, "kv-scales-dropped", c.path().string(),
       fmt::format("{} scales of the KV cache are dropped: the output quantizes nothing", dropped)});
}

/// Rejects input scales that are NaN, infinite or negative, if they are copied unchanged. Rewritten scales
/// were checked before, and dropped scales do not matter. If calibration saw no token, it leaves zero, or
/// infinity if activations are multiplied by the scale.
void check_input_scales(Planner& planner) {
  const Checkpoint& c = planner.source;
  constexpr uint64_t kMost = 1u << 20;  // in bytes; one scale per expert is far less
  size_t zeros = 0;
  std::string first;
  for (const Nvfp4Linear& m : c.nvfp4_modules()) {
    if (!m.input_scale || planner.is_planned(*m.input_scale)) continue;
    const TensorInfo& t = c.tensors()[*m.input_scale];
    if (t.dtype != DType::kF32 || t.bytes() > kMost) continue;
    std::vector<float> stored(static_cast<size_t>(t.bytes() / sizeof(float)));
    c.read(*m.input_scale, 0, {reinterpret_cast<uint8_t*>(stored.data()), stored.size() * sizeof(float)});
    const auto multiplier = [&](float x) { return global_scale_multiplier(*m.dialect, x); };
    const auto bad = std::find_if(stored.begin(), stored.end(),
                                  [&](float x) { return !std::isfinite(multiplier(x)) || x < 0; });
    if (bad != stored.end()) {
      planner.problems.add(
          fmt::format("{}: expected a positive finite input scale, found {}", c.where(*m.input_scale), *bad));
    } else if (std::any_of(stored.begin(), stored.end(), [&](float x) { return multiplier(x) == 0; }) &&
               zeros++ == 0) {
      first = t.name;
    }
  }
  if (zeros > 0) {
    planner.findings.push_back(
        {Severity::kWarning, "zero-input-scales", c.path().string(),
         fmt::format("{} input scales are 0 (infinite as divisors), as in experts without tokens in "
                     "calibration, and are copied unchanged, the first {}",
                     zeros, first)});
  }
}

/// The twofour.json of a source that has one. Throws Error if it is damaged or belongs to another checkpoint,
/// since the same may apply to the weights beside it. The twofour.json of an artifact in a layout was read
/// when the artifact was opened.
std::optional<Manifest> read_sound_manifest(const Checkpoint& source) {
  const auto path = source.path() / kManifestName;
  std::error_code error;
  if (!source.is_directory() || source.is_view() || !std::filesystem::exists(path, error)) return {};
  size_t tensors = 0;
  for (const Shard& shard : source.shards()) tensors += shard.tensor_count;
  Manifest manifest = read_manifest(path, tensors);
  if (!manifest.integrity_error.empty())
    throw Error(fmt::format("{}: {}", path.string(), manifest.integrity_error));
  return manifest;
}

/// Checks that a name is UTF-8, since twofour.json names every file of the source.
void check_name(const std::filesystem::path& directory, const std::string& name, Problems& problems) {
  if (Json::parse(json_quote(name)) == Json(name)) return;
  problems.add(fmt::format("{}: expected a name in UTF-8, which twofour.json requires, found another",
                           (directory / name).string()));
}

/// Checks the length of a name. A copy has a longer name until it is complete.
void check_length(const std::filesystem::path& directory, const std::string& name, Problems& problems) {
  const std::string last = std::filesystem::path(name).filename().string();
  const size_t added = temporary_name("").size();
  if (last.size() + added <= NAME_MAX) return;
  problems.add(fmt::format(
      "{}: expected a name of at most {} bytes, because its temporary name is {} longer, found {}",
      (directory / name).string(), NAME_MAX - added, added, last.size()));
}

/// Runs `f`. If it throws Error, the message gets the rule of the recipe file that it concerns.
template <class F>
void with_label(const std::string& label, F&& f) {
  try {
    f();
  } catch (const Error& e) {
    if (label.empty() || typeid(e) != typeid(Error)) throw;  // other errors differ in type
    throw Error(fmt::format("{}: {}", label, e.what()));
  }
}

/// Throws Error if the source has codes of a format that is known only by name. They would be copied, and the
/// new configuration would not mention them.
void refuse_unread_codes(const Checkpoint& source) {
  const auto unread = find_unread_codes(source.tensors());
  if (unread.empty()) return;
  throw Error(fmt::format("{}: expected a format that twofour reads, found {}{} ({} in all)",
                          source.where(unread[0].tensor), unread[0].format, kNotSupported,
                          counted(unread.size(), "module")));
}

/// True if a dialect has the format of a rule `to` one of kMxFormats, and of every other rule.
bool has_mx_format(const OutputDialect& dialect, std::string_view to) {
  for (const WeightFormat format : kMxFormats) {
    if (to != format->to) continue;
    Scheme scheme{format->tiles ? WeightFormat::kFp8 : format, Granularity::kBlock, 1, kMxGroup};
    return !dialect.entry(scheme).is_null();
  }
  return true;
}

/// Fills in the dialect of a recipe from a file. It is the source's own dialect if the recipe asks for that.
/// It is another if a rule makes a format that the source's dialect cannot store: the first that has all. It
/// is empty if no rule needs a dialect.
void complete_dialect(const Checkpoint& source, Recipe& recipe) {
  if (recipe.dialect == "source") {
    constexpr unsigned kEncoding = kToNvfp4 | kToFp8 | kToMx;
    const OutputDialect* own = source_dialect(source);
    bool encodes = false, nvfp4 = false;
    for (const Rule& rule : recipe.rules) {
      const MethodRow* row = find_method(rule.to);
      encodes = encodes || (row != nullptr && (row->kind & kEncoding) != 0);
      nvfp4 = nvfp4 || rule.to == "quantize";
    }
    const auto has_all = [&](const OutputDialect& d) {
      return std::all_of(recipe.rules.begin(), recipe.rules.end(),
                         [&](const Rule& rule) { return has_mx_format(d, rule.to); });
    };
    if (own != nullptr && ((nvfp4 && own->nvfp4 == nullptr) || !has_all(*own))) own = nullptr;
    const auto all = output_dialects();
    const auto first = std::find_if(all.begin(), all.end(), has_all);
    recipe.dialect = own != nullptr ? own->name
                     : encodes      ? (first == all.end() ? all.begin() : first)->name
                                    : "";
  }
  const unsigned kinds = rule_setting(keys::kDialect).asked.methods;
  for (Rule& rule : recipe.rules) {
    const MethodRow* row = find_method(rule.to);
    if (row != nullptr && (row->kind & kinds) != 0 && rule.dialect.empty()) rule.dialect = recipe.dialect;
  }
}

/// Leaves out the files of a source that a repair drops or replaces, and adds those that it keeps beside
/// the weights.
void add_repaired_files(const Checkpoint& source, Plan& plan, Problems& problems) {
  for (const std::string& name : source.dropped_files()) plan.auxiliary_files.erase(name);
  for (const auto& [name, text] : plan.config.texts) plan.auxiliary_files.erase(name);
  for (const std::string& name : source.kept_files()) {
    const auto shard = std::find_if(source.shards().begin(), source.shards().end(),
                                    [&](const Shard& s) { return s.name == name; });
    plan.auxiliary_files[name] = shard->file.size();
    if (std::any_of(plan.files.begin(), plan.files.end(), [&](auto& f) { return f.name == name; }))
      problems.add(fmt::format("{}: expected another name than that of a file of the output, found {}",
                               source.path().string(), name));
  }
}

/// The tensors that the transformations write. Adds up what their work takes.
std::vector<OutputTensor> list_outputs(const Checkpoint& source, Plan& plan) {
  std::vector<OutputTensor> outputs;
  for (size_t t = 0; t < plan.transformations.size(); ++t) {
    const Transformation& one = *plan.transformations[t];
    int part = 0;
    for (TensorInfo& info : one.outputs(source)) {
      outputs.push_back({std::move(info), static_cast<uint32_t>(t), part++, 0});
    }
    plan.unit_bytes = std::max(plan.unit_bytes, one.worker_bytes());
    plan.source_names += one.keeps() ? 0 : one.sources().size();
    for (const Unit& unit : one.units(source)) plan.read_bytes += unit.read;
  }
  return outputs;
}

/// Plans the files without weights: those that are copied, and README.md.
void plan_other_files(const Checkpoint& source, Plan& plan, Problems& problems) {
  plan.auxiliary_files = copied_files(source, plan.recipe.links, plan.findings);
  if (!plan.config.keeps_source) {
    for (const char* name : {"config.json", "hf_quant_config.json"}) plan.auxiliary_files.erase(name);
  }
  if (plan.recipe.edit.kind == Edit::Kind::kRepair) add_repaired_files(source, plan, problems);
  const bool same_formats = plan.config.keeps_source || plan.recipe.edit;
  for (const char* name : kSideConfigs) {
    if (same_formats || plan.auxiliary_files.erase(name) == 0) continue;
    plan.findings.push_back(
        {Severity::kNote, "stale-config", name, "describes weights as the source stores them: not copied"});
  }
  plan.readme = plan_readme(source, plan.recipe.readme, plan.auxiliary_files, problems);
  for (const Shard& s : source.shards()) check_name(source.path(), s.name, problems);
  for (const auto& [name, bytes] : plan.auxiliary_files) {
    check_name(source.path(), name, problems);
    check_length(source.path(), name, problems);
  }
}

}  // namespace

Plan make_plan(const Checkpoint& source, const Recipe& recipe, const MemoryLimits& limits) {
  Plan plan;
  plan.recipe = recipe;
  plan.limits = limits;
  plan.solves = std::any_of(recipe.rules.begin(), recipe.rules.end(),
                            [](const Rule& r) { return r.statistics != nullptr; });
  complete_dialect(source, plan.recipe);
  std::vector<std::unique_ptr<Method>> all;
  for (Rule& rule : plan.recipe.rules) with_label(rule.label, [&] { all.push_back(make_method(rule)); });
  const bool rewrites = std::any_of(all.begin(), all.end(), [](auto& m) { return m->rewrites_config(); });
  if (rewrites) refuse_entries_that_cannot_be_kept(source);
  if (!plan.recipe.edit) refuse_unread_codes(source);
  const std::optional<Manifest> written = read_sound_manifest(source);
  plan.findings = source.findings();
  plan.reader_bytes = source.reader_bytes();
  Problems problems;
  const bool is_single = plan.recipe.rules.size() == 1 && plan.recipe.dialect.empty();
  const Author author = plan.recipe.rules.empty() ? Author::kPrompt : plan.recipe.rules[0].author;
  Planner planner(
      {source, written ? &*written : nullptr, limits, is_single, plan.findings, problems, author});
  if (!plan.recipe.dialect.empty()) planner.config.set_dialect(output_dialect(plan.recipe.dialect, false));
  if (plan.recipe.readme != Readme::kUnstated) planner.config.name_import();
  std::string what;  // the content of the files for loaders: a layout or a number format
  for (size_t i = 0; i < all.size(); ++i) {
    planner.begin_rule(plan.recipe.rules[i].label);
    with_label(plan.recipe.rules[i].label, [&] { all[i]->plan(plan.recipe.rules[i], planner); });
    const std::string one = all[i]->file_format(plan.recipe.rules[i]);
    if (one == "keep") continue;
    what = what.empty() || what == one ? one : "mixed";
    plan.summary += (plan.summary.empty() ? "" : ", ") + all[i]->summary(plan.recipe.rules[i]);
  }
  PlannedRules planned = planner.end_rules();
  if (plan.recipe.edit) {
    planner.config.set_texts(original_texts(source));
    plan.summary = plan.recipe.what();
  } else {
    if (what.empty()) what = "keep";
    if (planner.config.is_rewritten()) {
      Rule rest{.to = "keep"};
      make_method(rest)->finish(planned);
    }
    refuse_changed_weights(
        source, [&](size_t tensor) { return planner.is_planned(tensor); }, planned.known_linears(), problems,
        [&](size_t tensor) { return planner.is_understood(tensor); });
    drop_kv_scales(planned);
    note_passed_through(planner);
    check_input_scales(planner);
  }
  problems.refuse();
  std::vector<bool> is_block_scale(source.tensors().size());
  // A repair copies what nothing can mend.
  const bool refuses_bad_scales = recipe.edit.kind != Edit::Kind::kRepair;
  for (const Nvfp4Linear& m : source.nvfp4_modules()) is_block_scale[m.block_scale] = refuses_bad_scales;
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    if (!planner.is_planned(i)) planner.add(std::make_unique<KeptTensor>(i, is_block_scale[i]));
  }
  plan.config = planned.config_files();
  problems.refuse();
  plan.transformations = planned.take();

  lay_out_files(plan, what, list_outputs(source, plan));
  index_parts(plan);
  plan_other_files(source, plan, problems);
  problems.refuse();
  return plan;
}

uint64_t Plan::worker_bytes() const {
  return std::max<uint64_t>(1u << 20, unit_bytes) + reader_bytes + kDirectBuffer;
}

int Plan::workers(int jobs) const {
  const uint64_t buffers = solves ? limits.solving_buffers : limits.buffers;
  const uint64_t fit = std::max<uint64_t>(1, buffers / worker_bytes());
  return static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(std::max(jobs, 1)), fit));
}

int Plan::solver_threads(int jobs) const {
  const int each = (std::max(jobs, 1) + workers(jobs) - 1) / workers(jobs);
  return std::min(each, kSolverThreads);
}

uint64_t Plan::peak_memory(int jobs) const {
  return kBaseMemory + kMemoryPerTensor * (tensors.size() + source_names) +
         static_cast<uint64_t>(workers(jobs)) * (worker_bytes() + (2u << 20));
}

}  // namespace twofour
