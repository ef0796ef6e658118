#include "tools/cli/conversion_options.h"

namespace twofour {

std::function<int()> setup_quantize(Arguments& args, const Common& common) {
  auto run = add_conversion(args, common, "quantize", kQuantizes);
  args.footer(
      "Quantizes every linear except embeddings, heads, routers, norms, convolutions, vision towers and MTP, "
      "which stay in floats. Weights in FP8 or MXFP4 are quantized wherever they are. --also adds modules.\n"
      "Only weights are quantized: activations need calibration data. Engines run the output as W4A16.\n"
      "Gate and up share a global scale, and so do q, k and v. A stack of experts becomes one matrix per "
      "expert.\n"
      "MXFP4 is cast without loss where its block scales allow.");
  return run;
}

}  // namespace twofour
