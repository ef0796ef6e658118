#include "lib/plan/method.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "formats/error.h"
#include "lib/plan/output_files.h"

namespace twofour {

Planner::Planner(const Checkpoint& from, const Manifest* by, const MemoryLimits& most, Findings& notes,
                 Problems& wrong)
    : source(from),
      written(by),
      limits(most),
      findings(notes),
      problems(wrong),
      taken_(from.tensors().size()) {}

void Planner::add(std::unique_ptr<Transformation> transformation) {
  const std::vector<size_t> sources = transformation->sources();
  const auto taken = std::find_if(sources.begin(), sources.end(), [&](size_t i) { return taken_[i]; });
  if (taken != sources.end()) {
    if (!std::all_of(sources.begin(), sources.end(), [&](size_t i) { return taken_[i]; })) {
      problems.add(
          fmt::format("{}: expected one rule for all tensors of {}, found another rule that takes this",
                      source.where(*taken), transformation->name(source)));
    }
    return;
  }
  for (const size_t i : sources) taken_[i] = true;
  made_.push_back(std::move(transformation));
}

void Planner::add_layout(LayoutGroup group) {
  const auto same = std::find_if(layouts_.begin(), layouts_.end(), [&](const LayoutGroup& g) {
    return g.layout == group.layout && g.pattern == group.pattern;
  });
  if (same == layouts_.end()) {
    layouts_.push_back(std::move(group));
    return;
  }
  std::move(group.modules.begin(), group.modules.end(), std::back_inserter(same->modules));
}

void Planner::set_texts(std::map<std::string, std::string> texts) {
  if (texts_) {
    throw Error(
        fmt::format("{}: expected one rule that changes number formats, found two: one configuration "
                    "cannot describe what both write",
                    source.path().string()));
  }
  texts_ = std::move(texts);
}

std::map<std::string, std::string> Planner::texts() const {
  if (!layouts_.empty() + texts_.has_value() + keeps_config_ > 1) {
    throw Error(
        fmt::format("{}: expected layouts alone or one rule that changes number formats, found both: "
                    "one configuration cannot describe what they write",
                    source.path().string()));
  }
  if (layouts_.empty()) return texts_.value_or(std::map<std::string, std::string>{});
  return {{"config.json", layout_config_text(source, layouts_)}};
}

const MethodRow* find_method(std::string_view name) {
  const auto& all = methods();
  const auto at = std::find_if(all.begin(), all.end(), [&](const MethodRow& m) { return m.name == name; });
  return at == all.end() ? nullptr : &*at;
}

namespace {

struct Word {
  const char* option;
  bool given;
};

std::vector<Word> words_of(const Rule& r) {
  return {{"--dialect", !r.dialect.empty()},
          {"--granularity", !r.granularity.empty()},
          {"--odd-blocks", !r.odd_blocks.empty()},
          {"--pattern", !r.pattern.empty()},
          {"--arithmetic", !r.arithmetic.empty()},
          {"--block-scale", !r.block_scale.empty()},
          {"--zero-block", !r.zero_block.empty()},
          {"--fold strict", r.fold == Fold::kStrict},
          {"--fold any", r.fold == Fold::kAny},
          {"--keep-global-scale", !r.kept.scales.empty()}};
}

/// "a, b or c"
std::string listed(const std::vector<std::string_view>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == names.size() ? " or " : ", ", names[i]);
  }
  return text;
}

bool takes(const MethodRow& row, std::string_view option) {
  option = option.substr(0, option.find(' '));
  return std::any_of(row.options.begin(), row.options.end(), [&](const char* o) { return o == option; });
}

}  // namespace

std::unique_ptr<Method> make_method(Rule& rule) {
  const MethodRow* row = find_method(rule.to);
  if (row == nullptr) {
    std::string names;
    for (const MethodRow& m : methods()) names += fmt::format("{}{}", names.empty() ? "" : ", ", m.name);
    throw Error(fmt::format("--to: expected one of {}, found '{}'", names, rule.to));
  }
  for (const Word& word : words_of(rule)) {
    if (!word.given || takes(*row, word.option)) continue;
    std::vector<std::string_view> names;
    for (const MethodRow& m : methods()) {
      if (takes(m, word.option)) names.push_back(m.name);
    }
    throw Error(fmt::format("{}: expected with --to {} only, found with --to {}", word.option, listed(names),
                            rule.to));
  }
  return row->make(rule);
}

}  // namespace twofour
