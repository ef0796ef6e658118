#include "lib/recipe/choice/format_choice.h"

#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "formats/error.h"
#include "lib/run/runtime/c_guard.h"
#include "lib/run/runtime/twofour.h"

using namespace twofour;

int twofour_choose_formats(int64_t units, const int64_t* counts, const uint64_t* costs, const double* losses,
                           uint64_t limit, int64_t* chosen) {
  return guarded([&] {
    if (units < 0) throw Error(fmt::format("units: expected 0 or more, found {}", units));
    std::vector<ChoiceUnit> all;
    size_t next = 0;
    for (int64_t u = 0; u < units; ++u) {
      ChoiceUnit unit{fmt::format("unit {}", u), {}};
      const int64_t count = (&given(counts, "counts"))[u];
      if (count < 1) throw Error(fmt::format("counts[{}]: expected 1 or more, found {}", u, count));
      for (int64_t i = 0; i < count; ++i, ++next) {
        unit.options.push_back(
            {fmt::format("option {}", i), (&given(costs, "costs"))[next], (&given(losses, "losses"))[next]});
      }
      all.push_back(std::move(unit));
    }
    const FormatChoice found = choose_formats(all, limit);
    for (size_t u = 0; u < found.options.size(); ++u)
      (&given(chosen, "chosen"))[u] = static_cast<int64_t>(found.options[u]);
  });
}
