#include "lib/run/eval/windows.h"

#include <algorithm>

namespace twofour {

std::vector<EvalWindow> cut_windows(std::span<const int32_t> text, int64_t context, int64_t stride,
                                    int64_t most) {
  std::vector<EvalWindow> windows;
  const auto size = static_cast<int64_t>(text.size());
  int64_t judged = 1;  // number of tokens that need no further prediction
  for (int64_t begin = 0; judged < size && static_cast<int64_t>(windows.size()) < most; begin += stride) {
    const int64_t end = std::min(size, begin + context);
    const auto tokens = text.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    windows.push_back({{tokens.begin(), tokens.end()}, std::max<int64_t>(judged - begin, 1)});
    judged = end;
  }
  // Drops a last window without predictions. It occurs if only one token is left.
  if (!windows.empty() && windows.back().predictions() == 0) windows.pop_back();
  return windows;
}

}  // namespace twofour
