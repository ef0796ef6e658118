#pragma once
#include <string>
#include <vector>

#include "lib/artifact/edit.h"
#include "lib/checkpoint/checkpoint.h"
#include "tools/cli/arguments.h"
#include "tools/cli/conversion_options.h"

namespace twofour {

/// What graft and drop ask for, apart from the files that are read and written.
struct EditOptions {
  std::string donor;                       ///< graft
  std::vector<std::string> take, modules;  ///< graft; drop
  std::string experts, by;                 ///< drop
  bool is_given() const { return !take.empty() || !modules.empty() || !experts.empty(); }
};

/// Adds --take. `where` names the donor in its help.
Argument& add_take_option(Arguments& args, EditOptions& options, const std::string& where);
/// Adds --modules, --experts and --by.
void add_drop_options(Arguments& args, EditOptions& options);

/// The edit of a source that they ask for, and how it is written; one of --take, --modules and --experts is
/// given. Throws Error on options that do not go together and on what --by and a list of experts must not
/// say.
Recipe edit_recipe(const EditOptions& options, const ConversionOptions& common);

}  // namespace twofour
