#include "lib/repair/repair.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>

#include "lib/base/names/natural.h"
#include "lib/lint/lint.h"

namespace twofour {

Json mend_to_json(const MendRecord& record) {
  Json json = {{"mend", record.mend}, {"rules", Json::array()}};
  for (const LintRule& rule : lint_rules()) {
    if (record.rules.contains(rule.id)) json["rules"].push_back(rule.id);
  }
  bool has_values = false;
  for (const auto& [name, values] : record.tensors) {
    json["tensors"].push_back(name);
    has_values = has_values || !values.empty();
  }
  if (has_values) {
    for (const auto& [name, values] : record.tensors) json["values"].push_back(values);
  }
  for (const std::string& place : record.dropped) json["dropped"].push_back(place);
  for (const std::string& file : record.files) json["files"].push_back(file);
  const auto shown = [](const Json& value) { return value.is_null() ? "absent" : json_line(value); };
  for (const MendRecord::Setting& setting : record.settings) {
    json["settings"].push_back(fmt::format("{}: {}", setting.file, setting.key));
    json["before"].push_back(shown(setting.before));
    json["after"].push_back(shown(setting.after));
  }
  if (!record.prefix.empty()) json["prefix"] = record.prefix;
  for (const auto& [module, loss] : record.loss) json["loss"][module] = loss;
  return json;
}

Repair::Repair(const Checkpoint& from, const LooseFiles& found_files, const Checkpoint* other,
               const RepairSettings& asked, const LintReport& found)
    : source(from), loose(found_files), donor(other), settings(asked), report(found) {
  add_tensors(source, std::vector<bool>(source.tensors().size(), true), 0, edited.tensors);
  edited.config = source.config();
  edited.hf_quant = source.hf_quant_config();
  edited.may_be_broken = true;
}

bool Repair::wants(std::string_view rule) const {
  return settings.only.empty() || settings.only.contains(std::string(rule));
}

namespace {

void collect(const std::vector<LintFinding>& findings, std::string_view rule, bool with_consequences,
             std::vector<const LintFinding*>& to) {
  for (const LintFinding& f : findings) {
    if (lint_rules()[f.rule].id == rule) to.push_back(&f);
    if (with_consequences) collect(f.consequences, rule, true, to);
  }
}

std::vector<const LintFinding*> collect_wanted(const Repair& repair, const LintReport& report,
                                               std::initializer_list<std::string_view> rules,
                                               bool with_consequences) {
  std::vector<const LintFinding*> findings;
  for (const std::string_view rule : rules) {
    if (repair.wants(rule)) collect(report.findings, rule, with_consequences, findings);
  }
  return findings;
}

size_t count_faults(const std::vector<LintFinding>& findings) {
  size_t count = 0;
  for (const LintFinding& f : findings)
    count += (f.severity != Severity::kNote) + count_faults(f.consequences);
  return count;
}

}  // namespace

std::vector<const LintFinding*> Repair::found_in_source(std::initializer_list<std::string_view> rules) const {
  return collect_wanted(*this, report, rules, true);
}

std::vector<const LintFinding*> Repair::found(std::initializer_list<std::string_view> rules) {
  faults();
  return collect_wanted(*this, *lint_, rules, false);
}

size_t Repair::faults() {
  if (!lint_) lint_ = lint_outline(view());
  return count_faults(lint_->findings);
}

const Checkpoint& Repair::view() {
  if (!view_) view_ = outline(source, donor, edited);
  return *view_;
}

void Repair::changed() {
  sort_by_name(edited.tensors);
  lint_.reset();
  view_.reset();
}

bool Repair::try_change(const std::function<void()>& change, std::initializer_list<std::string_view> rules) {
  // With rules, findings of others may follow, which later mends take away.
  const auto count = [&] { return rules.size() == 0 ? faults() : found(rules).size(); };
  const size_t before = count();
  Edited saved = edited;
  change();
  changed();
  if (count() < before) return true;
  for (const LintFinding& f : lint_->findings) {
    if (f.severity == Severity::kNote) continue;
    rejected_ = fmt::format("{}: {} ({})", f.where(), f.message, lint_rules()[f.rule].id);
    break;
  }
  edited = std::move(saved);
  changed();
  return false;
}

EditedTensor* Repair::find(std::string_view name) {
  const auto at = std::lower_bound(edited.tensors.begin(), edited.tensors.end(), name,
                                   [](const EditedTensor& t, std::string_view n) { return t.info.name < n; });
  return at == edited.tensors.end() || at->info.name != name ? nullptr : &*at;
}

namespace {

/// The bits of float32 numbers in hexadecimal, with blanks between.
std::string bits_text(const std::vector<uint8_t>& bytes) {
  std::string text;
  for (size_t at = 0; at + sizeof(uint32_t) <= bytes.size(); at += sizeof(uint32_t)) {
    uint32_t bits = 0;
    std::memcpy(&bits, &bytes[at], sizeof(bits));
    text += fmt::format("{}{:08x}", text.empty() ? "" : " ", bits);
  }
  return text;
}

}  // namespace

void Repair::set(std::vector<NewTensor> tensors, MendRecord& record) {
  std::vector<EditedTensor> added;
  for (NewTensor& t : tensors) {
    record.tensors[t.name] = t.dtype == DType::kF32 ? bits_text(t.bytes) : "";
    record.bytes += t.bytes.size();
    note_number(t, record);
    EditedTensor made{{t.name, t.dtype, t.shape, 0, t.bytes.size()}, 0, 0};
    made.made = std::make_shared<const std::vector<uint8_t>>(std::move(t.bytes));
    if (EditedTensor* const old = find(t.name)) {
      made.shard = old->shard;
      *old = std::move(made);
    } else {
      added.push_back(std::move(made));
    }
  }
  std::move(added.begin(), added.end(), std::back_inserter(edited.tensors));
  changed();
}

void Repair::note_number(const NewTensor& t, MendRecord& record) {
  float after = 0;
  if (t.dtype != DType::kF32 || t.bytes.size() != sizeof(after)) return;
  std::memcpy(&after, t.bytes.data(), sizeof(after));
  const auto at = view().find(t.name);
  const std::vector<float> before = at ? floats_of(view(), *at) : std::vector<float>{};
  if (before.size() == 1) record.numbers[t.name] = {before[0], after};
}

void Repair::drop(const std::function<bool(const EditedTensor&)>& goes, MendRecord& record) {
  std::erase_if(edited.tensors, [&](const EditedTensor& t) {
    if (!goes(t)) return false;
    record.dropped.insert(origin_of(t));
    return true;
  });
  changed();
}

std::string Repair::origin_of(const EditedTensor& t) const {
  const size_t own = source.shards().size();
  const Checkpoint& c = t.shard < own ? source : *donor;
  const size_t shard = t.shard < own ? t.shard : t.shard - own;
  const auto is_origin = [&](size_t i) {
    return c.shard_index_of(i) == shard && c.tensors()[i].begin == t.begin;
  };
  auto at = c.find(t.info.name);
  for (size_t i = 0; i < c.tensors().size() && !(at && is_origin(*at)); ++i) at = i;  // it was renamed
  return fmt::format("{}: {}", c.shards()[shard].name, at ? c.tensors()[*at].name : t.info.name);
}

void Repair::leave(std::string_view rule, std::string where, std::string why) {
  const LintRule& row = lint_rules()[*find_lint_rule(rule)];
  unmended.push_back({row.severity, row.id, std::move(where), std::move(why)});
}

std::string kind_of(const std::string& module) { return split_numbers(module).name_template; }

std::vector<float> floats_of(const Checkpoint& c, size_t tensor) {
  const TensorInfo& t = c.tensors()[tensor];
  constexpr uint64_t kMost = 1u << 20;
  if (t.dtype != DType::kF32 || t.bytes() > kMost) return {};
  std::vector<float> values(t.bytes() / sizeof(float));
  c.read(tensor, 0, {reinterpret_cast<uint8_t*>(values.data()), t.bytes()});
  return values;
}

std::vector<uint8_t> bytes_of(const std::vector<float>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

}  // namespace twofour
