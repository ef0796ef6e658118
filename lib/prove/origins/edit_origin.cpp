#include "lib/prove/origins/edit_origin.h"

#include <algorithm>
#include <limits>

#include "formats/naming.h"
#include "lib/base/findings/problems.h"
#include "lib/source/config/model_config.h"
#include "lib/source/linears/linears.h"

namespace twofour {
namespace {

int64_t layers_of(const Checkpoint& c) {
  const Json& count = model_setting(c.config(), "num_hidden_layers");
  return count.is_number_integer() ? count.get<int64_t>() : std::numeric_limits<int64_t>::max();
}

std::string without_last_part(std::string_view name) {
  return std::string(name.substr(0, std::min(name.rfind('.'), name.size())));
}

/// The number at the beginning of a text, before a dot. -1 if there is none.
int64_t number_before_dot(std::string_view text) {
  const size_t dot = text.find('.');
  if (dot == text.npos || dot == 0 || text.substr(0, dot).find_first_not_of("0123456789") != text.npos)
    return -1;
  return std::stoll(std::string(text.substr(0, dot)));
}

/// The modules that a tensor may belong to, by its name: X for "X.input_scale" and, with stacks, "X_scales".
std::vector<std::string> homes_of(const std::string& name) {
  std::vector<std::string> homes{name};
  const size_t dot = name.rfind('.');
  for (size_t at = name.rfind('_'); at != name.npos && dot != name.npos && at > dot;
       at = name.rfind('_', at - 1))
    homes.push_back(name.substr(0, at));
  homes.push_back(without_last_part(name));
  return homes;
}

/// The names of the tensors with codes or values, by module.
std::map<std::string, std::string> weights_of(const Checkpoint& c) {
  std::map<std::string, std::string> weights;
  Problems ignored;
  for (const Linear& m : find_weight_modules(c, ignored)) weights[m.name] = c.tensors()[m.weight].name;
  for (const TensorInfo& t : c.tensors()) {
    for (const std::string_view end : {".weight", ".weight_packed", ".qweight"}) {
      if (t.name.ends_with(end)) weights.emplace(t.name.substr(0, t.name.size() - end.size()), t.name);
    }
  }
  return weights;
}

bool contains_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](auto p) { return text.find(p) != text.npos; });
}

}  // namespace

EditOrigins::EditOrigins(const Edit& edit, const Checkpoint& base, const Checkpoint* donor)
    : edit_(edit), base_(base), donor_(donor), base_layers_(layers_of(base)), donor_layers_(base_layers_) {
  for (const std::string& text : edit.patterns) {
    patterns_.push_back(role_from_name(text) ? std::nullopt : std::optional<NamePattern>(text));
  }
  if (donor == nullptr) return;
  if (layers_of(*donor) != std::numeric_limits<int64_t>::max()) donor_layers_ = layers_of(*donor);
  for (const TensorInfo& t : donor->tensors()) taken_.push_back(matches(t.name, donor_layers_));
  for (const auto& [module, weight] : weights_of(*donor)) {
    if (taken_[*donor->find(weight)]) taken_modules_.insert(module);
  }
  base_weights_ = weights_of(base);
}

/// A pattern may match the tensor's module, the tensor itself or, for a KV scale, the projection beside it.
bool EditOrigins::matches(std::string_view tensor, int64_t layers) const {
  std::vector<std::pair<std::string, std::string>> names{{without_last_part(tensor), std::string(tensor)}};
  for (const char kind : {'k', 'v', 'q'}) {
    const std::string scale = std::string(".") + kind + "_scale";
    if (!tensor.ends_with(scale)) continue;
    const std::string projection =
        std::string(tensor.substr(0, tensor.size() - scale.size())) + "." + kind + "_proj";
    names.emplace_back(projection, projection + ".weight");
  }
  for (size_t i = 0; i < patterns_.size(); ++i) {
    for (const auto& [module, name] : names) {
      if (patterns_[i] ? patterns_[i]->matches(module) || patterns_[i]->matches(name)
                       : module_role(module, layers) == role_from_name(edit_.patterns[i]))
        return true;
    }
  }
  return false;
}

/// True if a graft takes the tensor of this name, or the weight of the module that it belongs to.
bool EditOrigins::is_replaced(const std::string& name) const {
  const auto in_donor = donor_->find(name);
  if (in_donor && taken_[*in_donor]) return true;
  const std::vector<std::string> homes = homes_of(name);
  return std::any_of(homes.begin(), homes.end(), [&](auto& home) { return taken_modules_.contains(home); });
}

bool EditOrigins::stays(const Checkpoint& source, size_t tensor) const {
  const std::string& name = source.tensors()[tensor].name;
  if (&source == donor_) return taken_[tensor];
  if (edit_.kind == Edit::Kind::kDropModules) return !matches(name, base_layers_);
  if (edit_.kind == Edit::Kind::kGraft) {
    if (is_replaced(name)) return false;
    if (!matches(name, base_layers_)) return true;
    for (const std::string& home : homes_of(name)) {
      const auto weight = base_weights_.find(home);
      if (weight != base_weights_.end())  // what belongs to a weight goes with it
        return !matches(weight->second, base_layers_) && !is_replaced(weight->second);
    }
    return false;
  }
  const std::string* block = block_at(name);
  if (block == nullptr || !name.starts_with(*block + ".")) return true;
  const int64_t number = number_before_dot(std::string_view(name).substr(block->size() + 1));
  const auto& kept = edit_.experts.at(*block);
  return number < 0 || std::find(kept.begin(), kept.end(), number) != kept.end();
}

std::optional<TensorOrigin> EditOrigins::of(const std::string& name) const {
  if (edit_.kind == Edit::Kind::kDropExperts) return of_experts(name);
  for (const Checkpoint* source : {donor_, &base_}) {
    if (source == nullptr) continue;
    const auto at = source->find(name);
    if (at && stays(*source, *at)) return TensorOrigin{source, *at, nullptr, 1, source->tensors()[*at].shape};
  }
  return std::nullopt;
}

/// The block of experts that a tensor belongs to or is beside.
const std::string* EditOrigins::block_at(const std::string& name) const {
  for (const auto& [block, kept] : edit_.experts) {
    if (name.starts_with(block + ".")) return &block;
    const std::string home = without_last_part(block);
    const bool beside = block.ends_with(".experts") && name.starts_with(home + ".");
    if (!beside) continue;
    const std::string_view rest = std::string_view(name).substr(home.size() + 1);
    const std::string_view part = rest.substr(0, rest.find('.'));
    if (part == "gate" || part == "router" || part == "moe_statics" ||
        contains_any(rest, {"correction_bias", "expert_bias", "router_bias"}))
      return &block;
  }
  return nullptr;
}

/// The number of experts that a block has in the source. It is the highest number plus one, or the number of
/// slices of a stack.
int64_t EditOrigins::experts_of(const std::string& block) const {
  int64_t highest = -1, stacked = -1;
  const std::string prefix = block + ".";
  const auto tensors = base_.tensors();
  auto at = std::lower_bound(tensors.begin(), tensors.end(), prefix,
                             [](const TensorInfo& t, const std::string& p) { return t.name < p; });
  for (; at != tensors.end() && at->name.starts_with(prefix); ++at) {
    highest = std::max(highest, number_before_dot(std::string_view(at->name).substr(prefix.size())));
    if (at->shape.size() >= 3 && at->name.find("router") == at->name.npos) stacked = at->shape[0];
  }
  return highest >= 0 ? highest + 1 : stacked;
}

std::optional<TensorOrigin> EditOrigins::of_experts(const std::string& name) const {
  const std::string* block = block_at(name);
  std::string source = name;
  bool single = false;
  if (block != nullptr && name.starts_with(*block + ".")) {
    const auto& kept = edit_.experts.at(*block);
    const std::string_view rest = std::string_view(name).substr(block->size() + 1);
    if (const int64_t number = number_before_dot(rest); number >= 0) {
      if (number >= static_cast<int64_t>(kept.size())) return std::nullopt;
      source = *block + "." + std::to_string(kept[static_cast<size_t>(number)]) +
               std::string(rest.substr(rest.find('.')));
      single = true;
    }
  }
  const auto at = base_.find(source);
  if (!at) return std::nullopt;
  const TensorInfo& t = base_.tensors()[*at];
  TensorOrigin origin{&base_, *at, nullptr, 1, t.shape};
  if (block == nullptr || single) return origin;
  // Slices are along the outermost dimension that is larger than one.
  const int64_t experts = experts_of(*block);
  const auto outer = std::find_if(origin.shape.begin(), origin.shape.end(), [](int64_t d) { return d != 1; });
  const bool of_router = !name.starts_with(*block + ".");
  const bool undivided = of_router && (name.ends_with(".scale") || name.ends_with("input_scale"));
  if (undivided || outer == origin.shape.end() || *outer != experts) return origin;
  origin.slices = &edit_.experts.at(*block);
  origin.of = experts;
  *outer = static_cast<int64_t>(origin.slices->size());
  return origin;
}

}  // namespace twofour
