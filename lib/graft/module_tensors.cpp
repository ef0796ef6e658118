#include "lib/graft/module_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "formats/error.h"
#include "formats/module_names.h"
#include "lib/base/findings/and_more.h"
#include "lib/base/findings/options.h"

namespace twofour {
namespace {

/// The last parts of the names of scales by which engines quantize activations.
constexpr std::string_view kActivationScales[] = {
    "input_scale", "input_global_scale", "act_scale", "k_scale", "v_scale", "q_scale", "prob_scale"};

bool is_activation_scale(std::string_view name) {
  return std::any_of(std::begin(kActivationScales), std::end(kActivationScales), [&](std::string_view scale) {
    return leaf_of(name) == scale || name.ends_with(std::string("_") + std::string(scale));
  });
}

bool is_bias(std::string_view name) { return leaf_of(name) == "bias" || name.ends_with("_bias"); }

/// True if `of_base` has the scale, too, and its module has the format of the donor's.
bool is_sound_alone(const Checkpoint& base, const Linear* of_base, const TensorInfo& scale,
                    const Linear* of_donor) {
  const auto ours = base.find(scale.name);
  if (!ours || of_base == nullptr || of_donor == nullptr) return false;
  const TensorInfo& t = base.tensors()[*ours];
  return t.dtype == scale.dtype && t.shape == scale.shape &&
         std::string_view(of_base->format->name) == of_donor->format->name &&
         of_base->scale_rows == of_donor->scale_rows && of_base->scale_cols == of_donor->scale_cols;
}

}  // namespace

ModuleTensors::ModuleTensors(const Checkpoint& checkpoint, const std::vector<Linear>& linears)
    : modules_(checkpoint.tensors().size()) {
  for (const Linear& m : linears) {
    linears_[m.name] = &m;
    weights_[m.name] = m.weight;
    for (const size_t i : m.tensors()) modules_[i] = m.name;
    if (m.bias) modules_[*m.bias] = m.name;
  }
  for (size_t i = 0; i < modules_.size(); ++i) {
    if (!modules_[i].empty()) continue;
    const std::string& name = checkpoint.tensors()[i].name;
    modules_[i] = module_of(name);
    // Parts of a stack follow its name after an underscore: experts.down_proj_bias.
    for (size_t at = name.rfind('_'); at != name.npos && at > modules_[i].size();
         at = name.rfind('_', at - 1)) {
      const auto stack = linears_.find(name.substr(0, at));
      if (stack == linears_.end() || !stack->second->stacked) continue;
      modules_[i] = stack->first;
      break;
    }
    const std::string_view leaf = leaf_of(name);
    if (leaf == "weight" || leaf == "weight_packed" || leaf == "qweight") weights_.emplace(modules_[i], i);
  }
}

const Linear* ModuleTensors::linear(const std::string& module) const {
  const auto at = linears_.find(module);
  return at == linears_.end() ? nullptr : at->second;
}

std::vector<bool> find_replaced(const Checkpoint& base, const ModuleTensors& of_base,
                                const std::vector<bool>& matched, const Checkpoint& donor,
                                const ModuleTensors& of_donor, const std::vector<bool>& comes) {
  std::set<std::string, std::less<>> whole, names;
  for (const auto& [module, weight] : of_donor.weights()) {
    if (comes[weight]) whole.insert(module);
  }
  for (size_t i = 0; i < comes.size(); ++i) {
    if (comes[i]) names.insert(donor.tensors()[i].name);
  }
  const auto is_replaced = [&](size_t i) {
    const std::string& name = base.tensors()[i].name;
    return names.contains(name) || whole.contains(of_base.module(i)) || whole.contains(module_of(name));
  };
  std::vector<bool> goes(matched.size());
  for (size_t i = 0; i < goes.size(); ++i) {
    goes[i] = is_replaced(i);
    if (goes[i] || !matched[i]) continue;
    const auto weight = of_base.weights().find(of_base.module(i));
    goes[i] = weight == of_base.weights().end() || matched[weight->second] || is_replaced(weight->second);
  }
  return goes;
}

void refuse_parts(const Checkpoint& base, const ModuleTensors& of_base, const Checkpoint& donor,
                  const ModuleTensors& of_donor, const std::vector<bool>& comes) {
  std::vector<size_t> apart;
  for (size_t i = 0; i < comes.size(); ++i) {
    const TensorInfo& t = donor.tensors()[i];
    const std::string& module = of_donor.module(i);
    const Linear* theirs = of_donor.linear(module);
    const Linear* ours = of_base.linear(module);
    const bool is_coded =
        (theirs != nullptr && theirs->format->coded) || (comes[i] && ours != nullptr && ours->format->coded);
    const auto weight = of_donor.weights().find(module);
    const bool is_whole = weight != of_donor.weights().end() && comes[weight->second];
    if (!is_coded || is_whole == comes[i]) continue;
    if (comes[i]) {
      if (is_bias(t.name) || (is_activation_scale(t.name) && is_sound_alone(base, ours, t, theirs))) continue;
    } else {
      const std::vector<size_t> needed = theirs->tensors();
      if (std::find(needed.begin(), needed.end(), i) == needed.end()) continue;
    }
    apart.push_back(i);
  }
  if (apart.empty()) return;
  throw Error(fmt::format(
      "{}: expected {} to take quantized modules whole, or biases, or scales of activations that the base "
      "has "
      "in a module of the same format, found that {} {} without {}{}; take '{}'",
      donor.where(apart[0]), options::kTake, donor.tensors()[apart[0]].name,
      comes[apart[0]] ? "comes" : "stays", comes[apart[0]] ? "the codes of its module" : "its codes",
      and_more(apart.size(), " (and {} more such tensors)"), of_donor.module(apart[0])));
}

}  // namespace twofour
