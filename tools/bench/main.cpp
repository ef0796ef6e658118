#include "tools/bench/bench.h"
#include "tools/cli/program.h"

namespace twofour {
namespace {

constexpr Command kCommands[] = {
    {"convert", "Prune and pack against memcpy, whole commands against cp, in alternating rounds",
     setup_bench_convert, "convert --to v7 --rounds 3"},
    {"decoder", "A whole model: a prompt, and tokens behind it, against what a copy moves",
     setup_bench_decoder, "decoder artifact --prompt 1024", false, CudaWork::kAll},
    {"kernels", "CUDA kernels by shape: weight bytes a second and their share of what a copy moves",
     setup_bench_kernels, "kernels --only 'multiply v7'", false, CudaWork::kAll},
    {"open", "Open, lint --headers-only and inspect many tensors against parsing their headers alone",
     setup_bench_open, "open --tensors 100000"},
    {"lint", "Lint every weight byte against cat, in alternating rounds", setup_bench_lint,
     "lint --shape qwen3-next"},
    {"plan", "Plan a checkpoint of terabytes that has only headers, against parsing the headers",
     setup_bench_plan, "plan --layers 140 --tasks 64"},
    {"solve",
     "Weights chosen by statistics, against one product with the Hessian, on every instruction set and on a "
     "GPU",
     setup_bench_solve, "solve --rounds 3", false, CudaWork::kAll},
    {"io", "The disk: cold reads, writes with fsync, through the page cache and past it, against plain loops",
     setup_bench_io, "io --work /mnt/disk --size 2GB"},
    {"help", "Show the help of the program or of a command", setup_help, "help convert"},
};

}  // namespace
}  // namespace twofour

int main(int argc, char** argv) {
  return twofour::run_program(
      argc, argv,
      {"twofour-bench", "Measures twofour and its kernels against cp, cat, memcpy and copies on the device",
       twofour::kCommands, "Exit codes: 0 done, 2 trouble, 130 interrupted."});
}
