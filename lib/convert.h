#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "kernels/device.h"
#include "kernels/isa.h"
#include "lib/checkpoint.h"
#include "lib/encode_result.h"
#include "lib/finding.h"
#include "lib/kept_codes.h"
#include "lib/plan.h"
#include "lib/progress.h"
#include "lib/quality.h"

namespace twofour {

struct ConvertOptions {
  int jobs = 1;
  bool verify = true;  ///< read back what was written and compare hashes
  bool force = false;  ///< replace a directory that twofour wrote
  Isa isa = Isa::portable;
  Device device = Device::cpu;      ///< where layouts are packed; rewrites are the CPU's
  const KeptCodes* kept = nullptr;  ///< quantize: what the recipe's kept scales are from, to compare with
};

struct ConvertResult {
  uint64_t bytes_read = 0;      ///< of the source
  uint64_t bytes_written = 0;   ///< whole files, headers included
  uint64_t bytes_verified = 0;  ///< read back
  double seconds = 0;
  struct Module {
    std::string name;
    Shape shape;
  };
  std::vector<Module> modules;         ///< targets, rewritten modules or encoded matrices of the plan
  std::vector<Quality> quality;        ///< one a module: what pruning cost; none where weights are encoded
  std::vector<EncodedResult> encoded;  ///< one a module of an encoded checkpoint
  Findings findings;                   ///< of the plan and of the run
};

/// Writes the artifact that `plan` describes. Expert by expert, in bounded memory; files appear by rename,
/// the index and twofour.json last. Throws Error on I/O errors, bad block scales and hashes that differ,
/// Interrupted on Ctrl-C; then nothing is left that looks complete.
ConvertResult convert(const Checkpoint& source, const Plan& plan, const std::filesystem::path& destination,
                      const ConvertOptions& options, Progress& progress);

}  // namespace twofour
