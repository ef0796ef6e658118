#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/io/links.h"
#include "lib/jobs/convert/convert.h"
#include "lib/write/plan/plan.h"
#include "lib/write/transform/reference_checkpoint.h"
#include "tools/cli/command.h"
#include "tools/cli/recipe_options.h"
#include "tools/cli/source_options.h"

namespace twofour {

/// The options of every command that makes a checkpoint from another checkpoint.
struct ConversionOptions {
  std::string zero_points;                          ///< the recipe's if empty
  std::string source, destination, max_shard_size;  ///< an empty size stands for the recipe's
  std::vector<std::string> include, exclude, also;
  std::string io = "buffered";
  bool dry_run = false, no_verify = false, check = false, force = false, resume = false;
  bool follow_links = false, without_config = false, no_readme = false;
  RemoteOptions remote{};
  RemoteSource* opened = nullptr;      ///< set if SRC may be a URL; `source` is then its local path
  const FileStates* inputs = nullptr;  ///< files that are already open, see ConvertOptions
};

/// Adds the options to a command. With `takes_urls`, SRC may be a URL.
void add_conversion_options(Arguments& args, ConversionOptions& options, bool takes_urls = true);
/// Adds the options for writing the destination. With `with_check`, adds --check, which reads SRC first. With
/// `takes_urls`, adds the options of the cache for the files of a URL.
void add_writing_options(Arguments& args, ConversionOptions& options, bool with_check, bool takes_urls);

/// Adds --follow-links, an option of every command that copies files of a checkpoint.
void add_links_option(Arguments& args, bool& follow_links);
Links parse_links(bool follow_links);
/// Adds --no-readme.
void add_readme_option(Arguments& args, bool& no_readme);
Readme parse_readme(bool no_readme);

/// Adds --without-config, an option of every command that makes a checkpoint from another one.
void add_config_option(Arguments& args, bool& without_config);
/// Throws Error if a source has no config.json, unless --without-config allows it.
void check_config(const Checkpoint& source, const ConversionOptions& options);

/// Replaces SRC by its directory if it is the only weight file beside a config.json, and reports it on
/// stderr.
void take_whole_directory(ConversionOptions& options, const Common& common);

/// Adds --io, the way of reading and writing large files.
void add_io_option(Arguments& args, std::string& io);
Io parse_io(const std::string& io);

/// Adds SRC, DST and the options that choose modules and files for a recipe.
void add_source_and_selection(Arguments& args, ConversionOptions& options, bool takes_urls = true);

/// Makes the recipe that the options ask for. It comes from a file, is a built-in recipe, or is one rule with
/// the chosen modules.
Recipe make_recipe(const RecipeOptions& recipe, const ConversionOptions& options);

/// Opens the reference checkpoint that the recipe names, and puts its global scales into the recipe. Null if
/// the recipe names none.
std::unique_ptr<const ReferenceCheckpoint> keep_global_scales(Recipe& recipe);

/// A text about the change of the weights by a run, as complete lines.
std::string weights_text(const ConvertResult& result, bool verbose);
Json result_to_json(const Plan& plan, const ConvertResult& result, Device device);

/// Converts a checkpoint by the options or, with --dry-run, only plans the conversion. Prints the result.
/// Returns the exit code.
int run_conversion(const ConversionOptions& options, const RecipeOptions& recipe, const Common& common);

/// Adds the options of a command whose rule always has the target `to`. Returns the function that runs the
/// command.
std::function<int()> add_conversion(Arguments& args, const Common& common, const char* to,
                                    RuleCommand command);

/// The solver on a device, with all threads of --jobs.
Compute solver_of(const Common& common, Device device);

/// An option and the file that it names. The file is empty if the option is not given.
using InputOption = std::pair<std::string, std::string>;

/// Throws Error if an input file is in the directory to write, which --force would empty. Names without an
/// existing file, such as the name of a built-in recipe, are allowed.
void check_inputs_apart(const std::string& destination, const std::vector<InputOption>& inputs);

/// Claims the destination. --force and --resume decide the treatment of existing files. Throws Error like
/// Destination.
Destination claim_destination(const ConversionOptions& options);

/// The options of convert() that follow from the options of the command.
ConvertOptions convert_options(const ConversionOptions& options, Device device, const Common& common);

/// Compares the source's tensors with the hashes in its twofour.json, for --check.
void check_hashes(const ConversionOptions& options, Progress& progress);

/// Prints the result of a conversion.
void print_conversion(const ConversionOptions& options, const Plan& plan, const ConvertResult& result,
                      Device device, const Common& common);

/// Writes the planned artifact of an opened source or, with --dry-run, shows the plan. Returns the exit code.
int write_checkpoint(const Destination& destination, const ConversionOptions& options,
                     const Checkpoint& source, const Plan& plan, const ReferenceCheckpoint* kept,
                     const Common& common);

}  // namespace twofour
