#include <fmt/format.h>

#include <memory>

#include "formats/error.h"
#include "kernels/device/device.h"
#include "tools/bench/bench.h"
#include "tools/bench/measure_kernels.h"
#include "tools/cli/arguments.h"

namespace twofour {
namespace {

int run_kernels(const KernelBenchOptions& o, const Common& common) {
  if (common.device == "cpu") throw Error("--device cpu: expected cuda or auto, found twofour-bench kernels");
  KernelBenches benches(o);
  const std::string device = cuda_device()->name;
  const std::string no_cublaslt = cuda::no_cublaslt_reason();
  if (!common.json) fmt::print("{}: copy {:.0f} GB/s\n", device, benches.copy_gb_s());
  if (!common.json && !no_cublaslt.empty()) fmt::print("not measured: cuBLASLt: {}\n", no_cublaslt);
  Json list = Json::array();
  for (const KernelBench& b : benches.run()) {
    list.push_back({{"kernel", b.name},
                    {"shape", b.shape},
                    {"bytes", b.bytes},
                    {"microseconds", spread_to_json(b.microseconds)},
                    {"gb_s", b.gb_s},
                    {"copy_share", b.copy_share},
                    {"tflop_s", b.tflop_s > 0 ? Json(b.tflop_s) : Json()}});
    if (common.json) continue;
    fmt::print("{}, {}: {} us, {:.0f} GB/s, {:.1f} % of copy{}\n", b.name, b.shape,
               spread_text(b.microseconds), b.gb_s, 100 * b.copy_share,
               b.tflop_s > 0 ? fmt::format(", {:.1f} TFLOP/s", b.tflop_s) : "");
  }
  if (common.json) {
    print_json({{"device", device},
                {"copy_gb_s", benches.copy_gb_s()},
                {"no_cublaslt", no_cublaslt.empty() ? Json() : Json(no_cublaslt)},
                {"kernels", list}});
  }
  return kDone;
}

}  // namespace

std::function<int()> setup_bench_kernels(Arguments& args, const Common& common) {
  auto o = std::make_shared<KernelBenchOptions>();
  args.option("--only", o->filter, "Only kernels with this text in 'name, shape'");
  args.option("--rounds", o->rounds, "Measured rounds").range(1, 1000);
  return [o, &common] { return run_kernels(*o, common); };
}

}  // namespace twofour
