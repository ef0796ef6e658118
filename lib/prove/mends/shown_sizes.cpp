#include <algorithm>

#include "formats/json/access.h"
#include "lib/prove/mends/prove_repair.h"

namespace twofour {
namespace {

/// The parts of a name: "model", "layers", "3", "mlp".
std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    parts.push_back(name.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::optional<int64_t> number_in(const std::string& part) {
  if (part.empty() || part.size() > 6 || part.find_first_not_of("0123456789") != part.npos)
    return std::nullopt;
  return std::stoll(part);
}

/// The sizes of a language model, as far as its tensors show them.
class ShownSizes {
 public:
  explicit ShownSizes(const MendedState& state) {
    for (const auto& [name, t] : state.tensors) take(parts_of(name), t.info);
    for (const auto& [layer, is_draft] : drafts_) {
      if (!is_draft) layers_ = std::max(layers_, layer + 1);
    }
  }
  /// The values that a key may have. Empty: the tensors do not show it.
  std::set<int64_t> values(const std::string& key) const {
    const auto only = [](int64_t value) { return value > 0 ? std::set{value} : std::set<int64_t>(); };
    if (key == "hidden_size") return only(hidden_);
    if (key == "vocab_size") return only(vocabulary_);
    if (key == "num_hidden_layers") return only(layers_);
    if (key == "num_experts" || key == "num_local_experts" || key == "n_routed_experts")
      return only(experts_);
    if (key == "moe_intermediate_size") return expert_rows_;
    if (key == "intermediate_size") return dense_rows_.empty() ? expert_rows_ : dense_rows_;
    return {};
  }

 private:
  void take(const std::vector<std::string>& parts, const TensorInfo& t) {
    const std::string& leaf = parts.back();
    const bool is_matrix = t.shape.size() == 2;
    const std::string owner = parts.size() > 1 ? parts[parts.size() - 2] : "";
    if (owner == "embed_tokens" && leaf == "weight" && is_matrix)
      vocabulary_ = t.shape[0], hidden_ = t.shape[1];
    const auto at = std::find(parts.begin(), parts.end(), "layers");
    if (at == parts.end() || at + 1 == parts.end()) return;
    if (at != parts.begin() && *(at - 1) != "model" && *(at - 1) != "language_model") return;  // a tower's
    const auto layer = number_in(*(at + 1));
    if (!layer) return;
    bool& is_draft = drafts_[*layer];
    for (const char* part : {"eh_proj", "enorm", "hnorm", "shared_head"})
      is_draft = is_draft || std::find(at, parts.end(), part) != parts.end();
    const bool is_up = owner == "gate_proj" || owner == "up_proj" || owner == "w1" || owner == "w3";
    const bool is_weight = leaf == "weight" || leaf == "weight_packed";
    const auto experts = std::find(at, parts.end(), "experts");
    if (experts != parts.end()) {
      const auto number = experts + 1 == parts.end() ? std::nullopt : number_in(*(experts + 1));
      if (!number) return;
      experts_ = std::max(experts_, *number + 1);
      if (is_up && is_weight && is_matrix) expert_rows_.insert(t.shape[0]);
    } else if (is_up && is_weight && is_matrix && parts.size() > 2 && parts[parts.size() - 3] == "mlp") {
      dense_rows_.insert(t.shape[0]);
    }
  }

  int64_t vocabulary_ = 0, hidden_ = 0, layers_ = 0, experts_ = 0;
  std::set<int64_t> dense_rows_, expert_rows_;
  std::map<int64_t, bool> drafts_;  ///< by layer: true for a draft of later tokens
};

}  // namespace

std::set<int64_t> shown_sizes(const MendedState& state, const std::string& key) {
  return ShownSizes(state).values(key);
}

}  // namespace twofour
