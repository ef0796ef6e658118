#include "lib/base/names/block_orders.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "formats/module_kinds.h"
#include "formats/module_names.h"
#include "formats/module_parts.h"
#include "formats/module_roles.h"
#include "lib/base/names/weight_names.h"

namespace twofour {
namespace {

/// True if linears, or stacks of linears, are stored below a block. Pieces of an embedding do not count.
bool has_linears(std::span<const TensorInfo> tensors, const std::string& block) {
  const std::string below = block.empty() ? "" : block + ".";
  return std::ranges::any_of(tensors_below(tensors, below).tensors, [&](const TensorInfo& t) {
    const auto weight = t.shape.size() < 2 ? std::nullopt : weight_name(t);
    return weight && weight->linear != block && table_of_piece(weight->linear).empty() &&
           (weight->is_stack || is_linear_name(weight->linear));
  });
}

bool is_integer(DType dtype) {
  constexpr DType kIntegers[] = {DType::kI8, DType::kI16, DType::kI32, DType::kI64,
                                 DType::kU8, DType::kU16, DType::kU32, DType::kU64};
  return std::find(std::begin(kIntegers), std::end(kIntegers), dtype) != std::end(kIntegers);
}

bool is_in_layer(std::string_view name) {
  return !is_in_tower(name) && any_part(name, [](std::string_view part) { return is_number_part(part); });
}

/// The relation of integers to 0, 1, 2, ... `kGroups` is 0, 0, ..., 1, 1, ... of equal groups, or -1
/// everywhere, which compressed-tensors writes for inputs in the order of their groups.
enum class Order { kKept, kGroups, kPermuted, kNone };

Order order_of(const std::vector<uint64_t>& values, uint64_t unset) {
  const uint64_t count = values.size();
  std::vector<bool> seen(count);
  bool is_kept = true, is_unset = true, is_permuted = true, is_grouped = true;
  const auto size = static_cast<uint64_t>(std::find(values.begin(), values.end(), 1) - values.begin());
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t value = values[i];
    is_kept = is_kept && value == i;
    is_unset = is_unset && value == unset;
    is_grouped = is_grouped && size > 0 && value == i / size;
    is_permuted = is_permuted && value < count && !seen[value];
    if (value < count) seen[value] = true;
  }
  if (is_kept) return Order::kKept;
  if (is_unset || (is_grouped && count % size == 0)) return Order::kGroups;
  return is_permuted ? Order::kPermuted : Order::kNone;
}

}  // namespace

std::vector<BlockOrder> find_block_orders(
    std::span<const TensorInfo> tensors,
    const std::function<void(size_t, uint64_t, std::span<uint8_t>)>& read, const std::vector<bool>* whole) {
  constexpr uint64_t kMostBytes = 16u << 20;
  const auto find_order = [&](size_t i) {
    const TensorInfo& t = tensors[i];
    std::vector<uint8_t> bytes(t.bytes());
    read(i, 0, bytes);
    const auto width = static_cast<size_t>(dtype_bits(t.dtype)) / 8;
    std::vector<uint64_t> values(bytes.size() / width);
    for (size_t at = 0; at < bytes.size(); ++at)
      values[at / width] |= uint64_t{bytes[at]} << (8 * (at % width));
    return order_of(values, ~uint64_t{0} >> (64 - 8 * width));
  };
  std::vector<BlockOrder> found;
  std::map<std::string, bool, std::less<>> holders;  // blocks that were looked at
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& t = tensors[i];
    const bool is_named = names_order(leaf_of(t.name)),
               is_vector = is_integer(t.dtype) && t.shape.size() == 1;
    if ((!is_named && !(is_vector && is_in_layer(t.name))) || parse_part_name(t.name)) continue;
    std::string block(parent_of(t.name));
    if (is_router(block)) block = parent_of(block);
    const auto [at, is_new] = holders.try_emplace(block, false);
    if (is_new) at->second = has_linears(tensors, block);
    if (!at->second) continue;
    if (is_integer(t.dtype)) {
      const bool is_readable = read && (whole == nullptr || (*whole)[i]) && t.bytes() <= kMostBytes;
      const Order order = is_readable ? find_order(i) : Order::kKept;
      if (order == Order::kKept || order == Order::kGroups || (order == Order::kNone && !is_named)) continue;
    }
    std::string problem = fmt::format(
        "expected modules whose inputs and experts are in the order of their tensors, found this tensor "
        "beside "
        "those of {}, which may give them another order",
        block.empty() ? "the model" : block);
    found.push_back({i, std::move(block), std::move(problem)});
  }
  return found;
}

bool names_order(std::string_view leaf) {
  constexpr std::string_view kWords[] = {"perm",       "permutation", "permute", "reorder",
                                         "reordering", "rotation",    "hadamard"};
  while (!leaf.empty()) {
    const size_t end = std::min(leaf.find('_'), leaf.size());
    std::string_view word = leaf.substr(0, end);
    if (word.ends_with('s')) word.remove_suffix(1);
    if (std::find(std::begin(kWords), std::end(kWords), word) != std::end(kWords)) return true;
    leaf.remove_prefix(std::min(end + 1, leaf.size()));
  }
  return false;
}

}  // namespace twofour
