#include "lib/write/methods/method_list.h"

#include "formats/layouts/layouts.h"

namespace twofour {

std::vector<MethodRow>& methods() {
  static std::vector<MethodRow> all = [] {
    std::vector<MethodRow> rows;
    for_each_layout([&]<class L>() { rows.push_back({L::name, kToLayout, make_to_layout}); });
    rows.push_back({"nvfp4", kToDialect, make_to_dialect});
    rows.push_back({"fp8", kToFp8, make_to_fp8});
    rows.push_back({"mxfp8", kToMx, make_to_mxfp8});
    rows.push_back({"mxfp4", kToMx, make_to_mxfp4});
    rows.push_back({"bf16", kToBf16, make_to_bf16});
    rows.push_back({"keep", kKeeps, make_keep});
    rows.push_back({"prune", kDropsCodes, make_prune});
    rows.push_back({"quantize", kToNvfp4, make_quantize});
    return rows;
  }();
  return all;
}

}  // namespace twofour
