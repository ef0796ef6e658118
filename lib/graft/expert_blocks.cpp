#include "lib/graft/expert_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>

#include "formats/module_names.h"
#include "lib/base/findings/problems.h"
#include "lib/graft/module_patterns.h"

namespace twofour {
namespace {

/// A name, split into the block of experts and the rest below it.
struct BelowExperts {
  std::string_view block;
  std::string_view rest;  ///< "7.up_proj.weight", "gate_up_proj"
};

/// Suffixes of Granite's stacks of experts, which have no block of their own.
constexpr std::string_view kBareStacks[] = {"input_linear.", "output_linear."};

std::optional<BelowExperts> below_experts(std::string_view name) {
  for (size_t at = 0; at != name.npos; at = name.find('.', at), at += at != name.npos) {
    const std::string_view rest = name.substr(at);
    constexpr std::string_view kBlock = "experts.";
    if (rest.starts_with(kBlock))
      return BelowExperts{name.substr(0, at + kBlock.size() - 1), rest.substr(kBlock.size())};
    for (const std::string_view stack : kBareStacks) {
      if (at > 0 && rest.starts_with(stack)) return BelowExperts{name.substr(0, at - 1), rest};
    }
  }
  return std::nullopt;
}

std::optional<int64_t> leading_number(std::string_view rest) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  const bool is_number =
      error == std::errc() && value >= 0 && end != rest.data() + rest.size() && *end == '.';
  return is_number ? std::optional(value) : std::nullopt;
}

/// The module that has a block's router. This is the module above the block or, if stacks have no block of
/// their own, the block itself.
std::string_view home_of(std::string_view block) {
  constexpr std::string_view kBlock = ".experts";
  return block.ends_with(kBlock) ? block.substr(0, block.size() - kBlock.size())
         : block == "experts"    ? std::string_view()
                                 : block;
}

/// The last parts of names of router tensors that all experts share. An example is gemma-4's scale of the
/// hidden state.
constexpr std::string_view kUndividedParts[] = {"scale", "root_size", "input_scale", "input_global_scale"};

int64_t elements(const TensorInfo& t) {
  int64_t count = 1;
  for (const int64_t d : t.shape) count *= d;
  return count;
}

/// True if the bytes of a tensor are `experts` slices, one after the other, as in [E, ...] or [1, E].
bool is_divided(const TensorInfo& t, int64_t experts) {
  const auto first = std::find_if(t.shape.begin(), t.shape.end(), [](int64_t d) { return d != 1; });
  return first != t.shape.end() && *first == experts;
}

class BlockFinder {
 public:
  explicit BlockFinder(const Checkpoint& c) : c_(c) {}

  std::vector<ExpertBlock> find() {
    for (size_t i = 0; i < c_.tensors().size(); ++i) {
      if (const auto below = below_experts(c_.tensors()[i].name)) add_expert(i, *below);
    }
    for (auto& [name, block] : blocks_) count_experts(block);
    for (size_t i = 0; i < c_.tensors().size(); ++i) add_router(i);
    std::vector<ExpertBlock> found;
    for (auto& [name, block] : blocks_) {
      check_router(block);
      found.push_back(std::move(block));
    }
    problems_.refuse();
    return found;
  }

 private:
  const TensorInfo& info(size_t i) const { return c_.tensors()[i]; }
  void expect(size_t i, const std::string& expected) {
    problems_.add("{}: expected {}, found {}", c_.where(i), expected, describe(info(i)));
  }

  void add_expert(size_t i, const BelowExperts& below) {
    ExpertBlock& block = blocks_[std::string(below.block)];
    block.name = below.block;
    if (const auto number = leading_number(below.rest)) {
      const auto at = static_cast<size_t>(below.rest.data() - info(i).name.data());
      block.tensors.push_back({i, ExpertTensor::Kind::kExpert, *number, at});
    } else {
      block.tensors.push_back({i, ExpertTensor::Kind::kStack});
    }
  }

  void count_experts(ExpertBlock& block) {
    std::set<int64_t> numbers;
    for (const ExpertTensor& t : block.tensors) {
      if (t.kind == ExpertTensor::Kind::kExpert) numbers.insert(t.expert);
      if (t.kind == ExpertTensor::Kind::kStack && numbers.empty() && info(t.tensor).shape.size() >= 3)
        block.experts = info(t.tensor).shape[0];
    }
    if (!numbers.empty()) {
      block.experts = *numbers.rbegin() + 1;
      if (static_cast<int64_t>(numbers.size()) != block.experts) {
        problems_.add("{}: expected experts 0 to {}, found {} of them", block.name, block.experts - 1,
                      numbers.size());
      }
    }
    for (ExpertTensor& t : block.tensors) {
      if (t.kind != ExpertTensor::Kind::kStack) continue;
      const bool leads = !info(t.tensor).shape.empty() && info(t.tensor).shape[0] == block.experts;
      if (leads && info(t.tensor).bytes() % static_cast<uint64_t>(block.experts) == 0) continue;
      if (elements(info(t.tensor)) != 1)
        expect(t.tensor, fmt::format("a slice for each of {} experts", block.experts));
      t.kind = ExpertTensor::Kind::kWhole;
    }
  }

  void add_router(size_t i) {
    const std::string& name = info(i).name;
    // The home of a block (home_of()) is a module above this tensor.
    for (size_t dot = name.rfind('.'); dot != name.npos;
         dot = dot == 0 ? name.npos : name.rfind('.', dot - 1)) {
      const std::string home = name.substr(0, dot);
      for (const std::string& block : {home + ".experts", home}) {
        const auto at = blocks_.find(block);
        if (at == blocks_.end() || home_of(block) != home) continue;
        const std::string_view rest = std::string_view(name).substr(dot + 1);
        if (is_router_part(rest.substr(0, rest.find('.')))) add_router_tensor(i, leaf_of(rest), at->second);
        return;
      }
    }
  }

  void add_router_tensor(size_t i, std::string_view leaf, ExpertBlock& block) {
    if (leaf == "tid2eid") {
      problems_.add(
          fmt::format("{}: expected experts that a router chooses, found a hash layer, which assigns each "
                      "token expert numbers: experts of such a model cannot be dropped",
                      c_.where(i)));
      return;
    }
    const bool whole =
        std::find(std::begin(kUndividedParts), std::end(kUndividedParts), leaf) != std::end(kUndividedParts);
    if (whole || elements(info(i)) == 1) {
      block.tensors.push_back({i, ExpertTensor::Kind::kWhole});
    } else if (is_divided(info(i), block.experts)) {
      block.tensors.push_back({i, ExpertTensor::Kind::kRouter});
    } else {
      expect(i, fmt::format("a row for each of {} experts of {}", block.experts, block.name));
    }
  }

  void check_router(const ExpertBlock& block) {
    const bool has_rows = std::any_of(block.tensors.begin(), block.tensors.end(), [&](const ExpertTensor& t) {
      return t.kind == ExpertTensor::Kind::kRouter && info(t.tensor).shape.size() >= 2 &&
             info(t.tensor).shape[0] == block.experts;
    });
    if (has_rows || !problems_.empty()) return;
    problems_.add("{}: expected a router with a row for each of {} experts beside it, found none", block.name,
                  block.experts);
  }

  const Checkpoint& c_;
  std::map<std::string, ExpertBlock> blocks_;
  Problems problems_;
};

}  // namespace

std::vector<ExpertBlock> find_expert_blocks(const Checkpoint& checkpoint) {
  return BlockFinder(checkpoint).find();
}

}  // namespace twofour
