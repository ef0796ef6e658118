#pragma once
#include <string>
#include <vector>

#include "lib/plan.h"
#include "tools/command.h"

namespace twofour {

/// What every command that writes a checkpoint from a checkpoint is told.
struct ConversionOptions {
  std::string source, destination, max_shard_size = "5GB";
  std::vector<std::string> include, exclude, also;
  std::string keep_global_scale;  ///< quantize: checkpoint whose global scales are kept
  bool dry_run = false, no_verify = false, force = false, resume = false;
};

/// Adds them to a command.
void add_conversion_options(CLI::App& app, ConversionOptions& options);

/// Completes `recipe` by the options, converts or, with --dry-run, only plans, and reports. Returns the exit
/// code.
int run_conversion(const ConversionOptions& options, Recipe recipe, const Common& common,
                   const char* command);

}  // namespace twofour
