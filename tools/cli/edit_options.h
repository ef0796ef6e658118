#pragma once
#include <string>
#include <vector>

#include "lib/recipe/artifact/edit.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "tools/cli/arguments.h"
#include "tools/cli/conversion_options.h"

namespace twofour {

/// The options of graft and drop. The files that are read and written are not among them.
struct EditOptions {
  std::string donor;                       ///< graft
  std::vector<std::string> take, modules;  ///< `take` for graft, `modules` for drop
  std::string experts, by;                 ///< drop
  bool is_given() const { return !take.empty() || !modules.empty() || !experts.empty(); }
};

/// Adds --take. `where` names the donor in its help.
Argument& add_take_option(Arguments& args, EditOptions& options, const std::string& where);
/// Adds --modules, --experts and --by.
void add_drop_options(Arguments& args, EditOptions& options);

/// Makes the recipe that edits a source by the options. One of --take, --modules and --experts must be given.
/// Throws Error on options that contradict each other, and on invalid values of --by and of a list of
/// experts.
Recipe edit_recipe(const EditOptions& options, const ConversionOptions& common);

}  // namespace twofour
