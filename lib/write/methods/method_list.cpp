#include "lib/write/methods/method_list.h"

#include "formats/layouts/layouts.h"
#include "formats/weight_format.h"

namespace twofour {

std::vector<MethodRow>& methods() {
  static std::vector<MethodRow> all = [] {
    std::vector<MethodRow> rows;
    for_each_layout([&]<class L>() { rows.push_back({L::name, kToLayout, make_to_layout}); });
    rows.push_back({"nvfp4", kToDialect, make_to_dialect});
    rows.push_back({"fp8", kToFp8, make_to_fp8});
    for (const WeightFormat format : kMxFormats) rows.push_back({format->to, kToMx, make_to_mx});
    rows.push_back({"bf16", kToBf16, make_to_bf16});
    rows.push_back({"keep", kKeeps, make_keep});
    rows.push_back({"prune", kDropsCodes, make_prune});
    rows.push_back({"quantize", kToNvfp4, make_quantize});
    return rows;
  }();
  return all;
}

}  // namespace twofour
