#pragma once
#include <string_view>

namespace twofour {

/// Orders names with runs of digits compared as numbers: layer 2 before layer 10. A total order.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace twofour
