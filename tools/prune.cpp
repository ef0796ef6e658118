#include "tools/cli/conversion_options.h"

namespace twofour {

std::function<int()> setup_prune(Arguments& args, const Common& common) {
  auto run = add_conversion(args, common, "prune", kPrunes);
  args.footer(
      "Without --stats the smallest codes of each group are dropped, and all else stays. With it the weights "
      "that are left are chosen anew to keep the output near to what NVFP4 gave: codes and block scales "
      "change, scales of matrices and of inputs stay.");
  return run;
}

}  // namespace twofour
