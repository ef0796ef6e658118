#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/convert/convert.h"
#include "lib/io/links.h"
#include "lib/plan/plan.h"
#include "lib/transform/reference_checkpoint.h"
#include "tools/cli/command.h"
#include "tools/cli/option_values.h"
#include "tools/cli/recipe_options.h"

namespace twofour {

/// Options of every command that writes a checkpoint from a checkpoint.
struct ConversionOptions {
  std::string zero_points;                          ///< empty: the recipe's
  std::string source, destination, max_shard_size;  ///< an empty size: the recipe's
  std::vector<std::string> include, exclude, also;
  std::string io = "buffered";
  bool dry_run = false, no_verify = false, check = false, force = false, resume = false;
  bool follow_links = false;
  RemoteOptions remote{};
  RemoteSource* opened = nullptr;      ///< SRC, where it may be a URL; `source` is its path here then
  const FileStates* inputs = nullptr;  ///< files that were opened before, see ConvertOptions
};

/// Adds them to a command; `takes_urls`: SRC may be one.
void add_conversion_options(Arguments& args, ConversionOptions& options, bool takes_urls = true);
/// Adds those that say how the destination is written; `with_check`: --check, which reads SRC first, too;
/// `takes_urls`: where the files of a URL are kept, too.
void add_writing_options(Arguments& args, ConversionOptions& options, bool with_check, bool takes_urls);

/// Adds --follow-links, which every command has that copies files of a checkpoint.
void add_links_option(Arguments& args, bool& follow_links);
Links parse_links(bool follow_links);

/// Adds --io, the way that the bytes of large files pass.
void add_io_option(Arguments& args, std::string& io);
Io parse_io(const std::string& io);

/// Adds SRC, DST and what chooses modules and files, which go into a recipe.
void add_source_and_selection(Arguments& args, ConversionOptions& options, bool takes_urls = true);

/// The recipe that the options ask for: of a file or shipped, or one rule with the chosen modules.
Recipe make_recipe(const RecipeOptions& recipe, const ConversionOptions& options);

/// The reference checkpoint of the options. Its global scales go into the recipe; nullptr if the options keep
/// none.
std::unique_ptr<const ReferenceCheckpoint> keep_global_scales(Recipe& recipe);

/// Where and how fast a run worked, as a line that ends: "cpu, 0.21 s: 0.50 GB/s read, ...".
std::string speed_text(Device device, double seconds, uint64_t read, uint64_t written, bool verified);

/// What a run did to the weights, as complete lines.
std::string weights_text(const ConvertResult& result, bool verbose);
Json result_to_json(const Plan& plan, const ConvertResult& result, Device device);
/// What --dry-run prints of a plan.
Json plan_to_json(const Checkpoint& source, const Plan& plan, int jobs, Device device);

/// Converts as the options ask for or, with --dry-run, only plans, and reports. Returns the exit code.
int run_conversion(const ConversionOptions& options, const RecipeOptions& recipe, const Common& common);

/// A command whose rule is always `to`: adds its options. What is returned converts.
std::function<int()> add_conversion(Arguments& args, const Common& common, const char* to,
                                    RuleCommand command);

/// What solves on that device, with all of --jobs.
Compute solver_of(const Common& common, Device device);

/// An option, and the file that it names; empty: none.
using InputOption = std::pair<std::string, std::string>;

/// Throws Error where a file that is read is in the directory to write, which --force would empty. What is no
/// file that is there, as the name of a recipe, passes.
void check_inputs_apart(const std::string& destination, const std::vector<InputOption>& inputs);

/// The destination, with what --force and --resume say about files that are there. Throws Error as
/// Destination does.
Destination claim_destination(const ConversionOptions& options);

/// How a run writes, by the options.
ConvertOptions convert_options(const ConversionOptions& options, Device device, const Common& common);

/// Compares the source's tensors with the hashes in its twofour.json, as --check asks for.
void check_hashes(const ConversionOptions& options, Progress& progress);

/// What --dry-run prints.
void print_planned(const Checkpoint& source, const Plan& plan, Device device, const Common& common);
/// What was written.
void print_conversion(const ConversionOptions& options, const Plan& plan, const ConvertResult& result,
                      Device device, const Common& common);

/// Writes what a plan says of an opened source or, with --dry-run, shows it. Returns the exit code.
int write_checkpoint(const Destination& destination, const ConversionOptions& options,
                     const Checkpoint& source, const Plan& plan, const ReferenceCheckpoint* kept,
                     const Common& common);

}  // namespace twofour
