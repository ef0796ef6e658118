#include "lib/methods/method_list.h"

#include "formats/layouts/layouts.h"

namespace twofour {

namespace {

// What a rule may say beside `to` and its patterns.
constexpr const char* kLayout[] = {"--fold",        "--pattern",    "--arithmetic",
                                   "--block-scale", "--zero-block", "--exact"};
constexpr const char* kPattern[] = {"--pattern"};
constexpr const char* kInputScales[] = {"--input-scale", "--one-input-scale-a-layer"};
constexpr const char* kDialect[] = {"--dialect", "--input-scale", "--one-input-scale-a-layer"};
constexpr const char* kFp8[] = {"--dialect",     "--granularity", "--block",
                                "--scale-dtype", "--odd-blocks",  "--exact"};
constexpr const char* kMx[] = {"--dialect", "--arithmetic", "--exact"};
constexpr const char* kQuantize[] = {"--dialect",     "--pattern",     "--arithmetic",
                                     "--block-scale", "--zero-block",  "--keep-global-scale",
                                     "--exact",       "--input-scale", "--one-input-scale-a-layer"};

}  // namespace

std::vector<MethodRow>& methods() {
  static std::vector<MethodRow> all = [] {
    std::vector<MethodRow> rows;
    for_each_layout([&]<class L>() { rows.push_back({L::name, kLayout, make_to_layout}); });
    rows.push_back({"nvfp4", kDialect, make_to_dialect});
    rows.push_back({"fp8", kFp8, make_to_fp8});
    rows.push_back({"mxfp8", kMx, make_to_mxfp8});
    rows.push_back({"mxfp4", kMx, make_to_mxfp4});
    rows.push_back({"bf16", {}, make_to_bf16});
    rows.push_back({"keep", kInputScales, make_keep});
    rows.push_back({"prune", kPattern, make_prune});
    rows.push_back({"quantize", kQuantize, make_quantize});
    return rows;
  }();
  return all;
}

}  // namespace twofour
