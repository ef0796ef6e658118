#include "lib/jobs/choose/choose_by_size.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "formats/error.h"
#include "formats/naming.h"
#include "kernels/device/isa.h"
#include "lib/base/findings/options.h"
#include "lib/base/findings/version.h"
#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"
#include "lib/base/names/pattern.h"
#include "lib/jobs/compress/compress_checkpoint.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/recipe/choice/format_choice.h"
#include "lib/recipe/statistics/check_statistics.h"
#include "lib/write/transform/open_to_convert.h"
#include "lib/write/view/layout_choice.h"

namespace twofour {

namespace fs = std::filesystem;

namespace choose_by_size {
namespace {

constexpr const char *kCollected = "collected", *kFormats = "formats", *kLosses = "losses.json";

fs::path choosing_folder(const fs::path& destination) {
  fs::path path = work_folder_of(destination);
  return path.replace_extension(".choosing");
}

bool is_choosing_folder(const fs::path& folder) {
  if (!fs::is_directory(fs::symlink_status(folder))) return false;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name != kCollected && name != kFormats && name != kLosses && name != WorkFolder::kLock) return false;
  }
  return true;
}

/// The mean of bits, rounded up to a thousandth.
std::string mean_bits(uint64_t bits, uint64_t weights) {
  return fmt::format("{:g}",
                     std::ceil(static_cast<double>(bits) / static_cast<double>(weights) * 1e3 - 1e-6) / 1e3);
}

/// The patterns that choose the linears of a unit. Routed experts are many, so their block stands for them.
std::vector<NamePattern> patterns_of(const SizedUnit& unit, bool as_block) {
  const auto name = parse_module_name(*unit.sources.begin());
  if (as_block) return {exact_pattern(unit.name)};
  if (name && name->kind == BlockKind::kRoutedExperts) return {NamePattern(name->block + ".*")};
  std::vector<NamePattern> patterns;
  for (const std::string& source : unit.sources) patterns.push_back(exact_pattern(source));
  return patterns;
}

}  // namespace
}  // namespace choose_by_size

double SizeChoice::share(size_t format) const {
  uint64_t taken = 0;
  for (size_t i = 0; i < units.size(); ++i) taken += option(i).format == format ? units[i].weights : 0;
  return static_cast<double>(taken) / static_cast<double>(weights);
}

SizeChooser::SizeChooser(const fs::path& source, const fs::path& destination, SizeRequest request,
                         CompressInput input, const ConvertOptions& options)
    : source_(source),
      folder_(choose_by_size::choosing_folder(destination)),
      request_(std::move(request)),
      input_(std::move(input)),
      options_(options),
      opened_(open_source(source, ReadPath::kFast, {}, options.io, request_.recipe.zero_points)),
      base_(request_.recipe.rules.at(0)) {
  if (base_.dialect.empty()) base_.dialect = output_engine(request_.engine).dialect;
  plan_menu();
  units_ = sized_units(opened_, menu_);
  leave_uncollected();
  for (const TensorInfo& t : opened_.tensors()) rest_bytes_ += t.bytes();
  for (const SizedUnit& unit : units_) weights_ += unit.weights, rest_bytes_ -= unit.own_bytes;
  check_goal();
}

Recipe SizeChooser::recipe_of(std::vector<Rule> rules) const {
  Recipe recipe = request_.recipe;
  recipe.rules = std::move(rules);
  return recipe;
}

/// Plans each format alone. Leaves out formats of the default menu that the engine or the model refuses.
void SizeChooser::plan_menu() {
  const OutputEngine& engine = output_engine(request_.engine);
  const bool asked = !request_.menu.empty();
  std::vector<std::string> loaded, refused;
  const auto plan = [&](const std::string& format) -> std::string {
    if (format == kStays) return "";
    try {
      auto linears = std::make_shared<const SolvedLinears>(
          source_, recipe_of({without_solving(rule_of_format(format, base_))}), compute());
      std::string refusal = find_engine_refusal(engine, opened_, linears->plan());
      if (refusal.empty()) menu_.push_back({format, std::move(linears)});
      return refusal;
    } catch (const Interrupted&) {
      throw;
    } catch (const Error& e) {
      return e.what();
    }
  };
  for (const std::string& format : asked ? request_.menu : default_menu()) {
    const std::string refusal = plan(format);
    if (refusal.empty()) {
      loaded.push_back(format);
      if (format == kStays) menu_.push_back({format});
    } else {
      refused.push_back(fmt::format("{} ({})", format, refusal));
    }
  }
  if (asked && !refused.empty()) {
    std::string nearest;
    for (const std::string& format : default_menu()) {
      if (std::find(request_.menu.begin(), request_.menu.end(), format) != request_.menu.end()) continue;
      if (plan(format).empty()) loaded.push_back(format);
    }
    throw Error(fmt::format("{}: expected formats that {} loads in the {} dialect, as {}, found {}",
                            options::kMenu, engine.word, base_.dialect, fmt::join(loaded, ","),
                            fmt::join(refused, "; ")));
  }
  if (std::none_of(menu_.begin(), menu_.end(), [](const MenuFormat& f) { return f.linears != nullptr; })) {
    throw Error(fmt::format("{}: expected a format beside {} that {} loads, found none{}{}", options::kMenu,
                            kStays, engine.word, refused.empty() ? "" : ": ", fmt::join(refused, "; ")));
  }
}

/// Leaves out units without statistics of the text, which are collected for linears that can be NVFP4.
void SizeChooser::leave_uncollected() {
  if (!request_.statistics.empty()) return;
  const SolvedLinears collected(source_, recipe_of({without_solving(rule_of_format("nvfp4", base_))}),
                                compute());
  std::erase_if(units_, [&](const SizedUnit& unit) {
    return !std::all_of(unit.modules.begin(), unit.modules.end(),
                        [&](const std::string& name) { return collected.all().contains(name); });
  });
}

uint64_t SizeChooser::limit() const {
  if (request_.bytes) return *request_.bytes - rest_bytes_;
  return static_cast<uint64_t>(*request_.bits * static_cast<double>(weights_) * (1 + 1e-12));
}

void SizeChooser::check_goal() const {
  uint64_t bits = 0, bytes = 0;
  for (const SizedUnit& unit : units_) {
    uint64_t least_bits = UINT64_MAX, least_bytes = UINT64_MAX;
    for (const SizedUnit::Option& o : unit.options)
      least_bits = std::min(least_bits, o.bits), least_bytes = std::min(least_bytes, o.bytes);
    bits += least_bits, bytes += least_bytes;
  }
  std::vector<std::string> words;
  for (const MenuFormat& f : menu_) words.push_back(f.word);
  if (request_.bits && (!std::isfinite(*request_.bits) || limit() < bits)) {
    throw Error(fmt::format("{}: expected {} bits or more, the least of {}, found {}", request_.option(),
                            choose_by_size::mean_bits(bits, weights_), fmt::join(words, ","),
                            *request_.bits));
  }
  if (request_.bytes && *request_.bytes < rest_bytes_ + bytes) {
    throw Error(fmt::format(
        "{}: expected {} bytes or more, the least of {}, of which {} are tensors that stay as they are, "
        "found {}",
        request_.option(), rest_bytes_ + bytes, fmt::join(words, ","), rest_bytes_, *request_.bytes));
  }
}

void SizeChooser::prepare_folder() {
  using namespace choose_by_size;
  found_ = !is_absent(folder_);
  if (found_ && !is_choosing_folder(folder_)) {
    throw Error(
        fmt::format("{}: expected no folder, found one that twofour did not create", folder_.string()));
  }
  auto lock = std::make_unique<WorkFolder>(folder_);
  const bool has_work = Compression::layers_done(folder_ / kCollected) || !is_absent(folder_ / kLosses);
  if (has_work && options_.existing == Existing::kRefuse) {
    throw Error(fmt::format(
        "{}: expected no folder, found one of an unfinished run; {} continues it, {} begins again",
        folder_.string(), options::kResume, options::kForce));
  }
  if (options_.existing != Existing::kResume) lock->clear();
  lock_ = std::move(lock);
}

std::shared_ptr<const Statistics> SizeChooser::open_statistics(Progress& progress) {
  if (!request_.statistics.empty())
    return std::make_shared<const Statistics>(Statistics::open(request_.statistics));
  CompressInput input = input_;
  input.sequential = Sequential::kNone;
  const Recipe recipe = recipe_of({rule_of_format("nvfp4", base_)});
  Compression compression(source_, recipe, std::move(input), compute(), options_.jobs);
  if (options_.device == Device::cuda) compression.use_cuda();
  compression.collect(folder_ / choose_by_size::kCollected, progress);
  return std::make_shared<const Statistics>(
      Statistics::open(Compression::statistics_of(folder_ / choose_by_size::kCollected)));
}

Json SizeChooser::losses_key(const Statistics& statistics) const {
  Json units = Json::array();
  for (const SizedUnit& unit : units_) {
    units.push_back({unit.name, unit.weights});
    for (const SizedUnit::Option& o : unit.options) units.push_back({menu_[o.format].word, o.bits, o.bytes});
  }
  return {{"version", version()},
          {"weights", final_norm_hash(opened_)},
          {"recipe", recipe_to_json(recipe_of({base_}))},
          {"statistics", statistics.hash().hex()},
          {"device", device_name(options_.device)},
          {"isa", std::string(isa_name(options_.isa))},
          {"units", std::move(units)}};
}

bool SizeChooser::read_losses(const Json& key) {
  const fs::path path = folder_ / choose_by_size::kLosses;
  if (is_absent(path)) return false;
  const std::string text = read_text(path);
  if (!is_sealed_object(text)) return false;
  const Json json = parse_json(path.string(), text);
  if (json.at("key") != key) return false;
  size_t next = 0;
  for (SizedUnit& unit : units_) {
    for (SizedUnit::Option& o : unit.options)
      o.loss = std::bit_cast<double>(whole_number<uint64_t>(json.at("losses").at(next++)));
  }
  return true;
}

void SizeChooser::write_losses(const Json& key) const {
  Json losses = Json::array();  // as bits, so that they are read back exactly
  for (const SizedUnit& unit : units_) {
    for (const SizedUnit::Option& o : unit.options) losses.push_back(std::bit_cast<uint64_t>(o.loss));
  }
  const Json json = {{"key", key}, {"losses", std::move(losses)}};
  write_text(folder_ / choose_by_size::kLosses, seal_object(json.dump()));
}

void SizeChooser::find_losses(const std::shared_ptr<const Statistics>& statistics, Progress& progress) {
  const Json key = losses_key(*statistics);
  if (read_losses(key)) return;
  std::vector<MenuFormat> solved = menu_;
  const std::string hash = statistics->hash().hex();
  for (MenuFormat& f : solved) {
    if (!f.linears) continue;
    const Recipe recipe = with_statistics(recipe_of({rule_of_format(f.word, base_)}), statistics, hash);
    f.linears = std::make_shared<const SolvedLinears>(source_, recipe, compute());
  }
  measure_losses(solved, *statistics, folder_ / choose_by_size::kFormats, compute(), units_, progress);
  write_losses(key);
}

Recipe SizeChooser::chosen_recipe(const SizeChoice& choice) const {
  std::vector<Rule> rules;
  for (size_t format = 0; format < menu_.size(); ++format) {
    if (!menu_[format].linears) continue;
    Rule rule = rule_of_format(menu_[format].word, base_);
    std::vector<NamePattern> patterns;
    for (size_t i = 0; i < units_.size(); ++i) {
      if (choice.option(i).format != format) continue;
      for (NamePattern& p : choose_by_size::patterns_of(units_[i], makes_layout(rule)))
        patterns.push_back(std::move(p));
    }
    if (patterns.empty()) continue;
    rule.selection = {};
    rule.selection.draft_experts = base_.selection.draft_experts;
    rule.selection.include = patterns;
    if (!makes_layout(rule)) rule.selection.also = std::move(patterns);
    rules.push_back(std::move(rule));
  }
  if (rules.empty()) {
    throw Error(
        fmt::format("{}: expected a size below that of the model, found one in which all stays as it is",
                    request_.option()));
  }
  return recipe_of(std::move(rules));
}

void SizeChooser::check_mix(SizeChoice& choice) const {
  Recipe recipe = choice.recipe;
  for (Rule& rule : recipe.rules) rule = without_solving(std::move(rule));
  const MemoryLimits limits = limits_for(compute());
  const Checkpoint source = open_to_convert(source_, recipe, options_.io, limits, compute());
  const Plan plan = make_plan(source, recipe, limits);
  const std::string refusal = find_engine_refusal(output_engine(request_.engine), opened_, plan);
  if (!refusal.empty()) {
    throw Error(fmt::format("{}: expected formats that {} loads beside each other, found {}; choose fewer",
                            options::kMenu, request_.engine, refusal));
  }
  choice.at.bytes = plan.data_bytes;
  if (request_.bytes && plan.data_bytes > *request_.bytes)
    throw Error(fmt::format("{}: expected at most {} bytes of tensors, found {} in the plan",
                            request_.option(), *request_.bytes, plan.data_bytes));
}

SizeChoice SizeChooser::choose(Progress& progress) {
  prepare_folder();
  try {
    const auto statistics = open_statistics(progress);
    find_losses(statistics, progress);
    return choose_by(*statistics);
  } catch (const Interrupted& e) {
    throw Interrupted(fmt::format("{}\n{}: what is measured is kept; {} continues from there", e.what(),
                                  folder_.string(), options::kResume));
  } catch (...) {
    // Without a complete layer there is nothing to resume.
    if (!Compression::layers_done(folder_ / choose_by_size::kCollected)) finish();
    throw;
  }
}

SizeChoice SizeChooser::choose_by(const Statistics& statistics) const {
  std::vector<ChoiceUnit> units;
  for (const SizedUnit& unit : units_) {
    units.push_back({unit.name, {}});
    for (const SizedUnit::Option& o : unit.options)
      units.back().options.push_back({menu_[o.format].word, request_.bits ? o.bits : o.bytes, o.loss});
  }
  const FormatChoice found = choose_formats(units, limit());
  SizeChoice choice;
  for (const MenuFormat& f : menu_) choice.menu.push_back(f.word);
  choice.units = units_;
  choice.chosen = found.options;
  choice.weights = weights_;
  choice.is_best = found.is_best;
  choice.by = loss_by(statistics);
  choice.predictor = fmt::format("{} of {}", choice.by == LossBy::kFisher ? "fisher_hessian" : "the Hessian",
                                 request_.statistics.empty()
                                     ? fmt::format("{} tokens of the text", statistics.metadata("tokens"))
                                     : request_.statistics.string());
  const auto point_of = [&](const std::vector<size_t>& options) {
    SizeChoice::Point point{0, rest_bytes_, 0};
    for (size_t i = 0; i < units_.size(); ++i) {
      const SizedUnit::Option& o = units_[i].options[options[i]];
      point.bits += static_cast<double>(o.bits) / static_cast<double>(weights_);
      point.bytes += o.bytes, point.loss += o.loss;
    }
    return point;
  };
  const FormatCurve curve = format_curve(units);
  std::vector<size_t> options = curve.first.options;
  choice.curve.push_back(point_of(options));
  for (const FormatCurve::Step& step : curve.steps) {
    options[step.unit] = step.option;
    choice.curve.push_back(point_of(options));
  }
  choice.at = point_of(found.options);
  choice.recipe = chosen_recipe(choice);
  check_mix(choice);
  return choice;
}

void SizeChooser::finish_dry_run() {
  if (!found_) finish();
  lock_.reset();
}

void SizeChooser::finish() {
  if (lock_) lock_->remove();
  lock_.reset();
}

}  // namespace twofour
