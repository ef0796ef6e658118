#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "formats/layouts/gate_up_interleaved8.h"
#include "formats/layouts/kmajor_packed.h"
#include "formats/layouts/kmajor_planes.h"

namespace twofour {

/// All layouts of twofour. To add a layout, write a header, add its name to this list, and add a golden file.
using Layouts = std::tuple<KMajorPlanes, KMajorPacked, GateUpInterleaved8>;

/// Calls `f.template operator()<Layout>()` for the layout called `name`; returns false if no layout has that
/// name.
template <class F>
bool with_layout(std::string_view name, F&& f) {
  return std::apply(
      [&](auto... layout) {
        return (
            (decltype(layout)::name == name ? (f.template operator()<decltype(layout)>(), true) : false) ||
            ...);
      },
      Layouts{});
}

/// Calls `f.template operator()<Layout>()` for every layout.
template <class F>
void for_each_layout(F&& f) {
  std::apply([&](auto... layout) { (f.template operator()<decltype(layout)>(), ...); }, Layouts{});
}

/// The sparsity pattern of a layout, "2:4". Empty for unknown names and for layouts that hold all weights.
inline std::string_view layout_pattern(std::string_view name) {
  std::string_view pattern;
  with_layout(name, [&]<class L>() {
    if constexpr (std::is_same_v<typename L::Atom, SparseGroup>) pattern = L::pattern;
  });
  return pattern;
}

/// The number of parts of the layout that has the most parts.
inline constexpr int kMostParts =
    std::apply([](auto... layout) { return std::max({decltype(layout)::part_count...}); }, Layouts{});

/// The names of all layouts as words for a message: "v7, v7-packed or g8".
inline std::string layout_names() {
  std::string names;
  int left = std::tuple_size_v<Layouts>;
  for_each_layout([&]<class L>() {
    --left;
    names.append(L::name).append(left > 1 ? ", " : left == 1 ? " or " : "");
  });
  return names;
}

}  // namespace twofour
