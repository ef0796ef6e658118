#pragma once
#include <optional>
#include <string>
#include <utility>

namespace twofour {

/// The group of linears that engines put into one (gate and up; q, k and v), so that they need one global
/// scale: what stands before the module's last dot, and which group. Nothing for a module that stays alone.
std::optional<std::pair<std::string, size_t>> fused_group(const std::string& module);

}  // namespace twofour
