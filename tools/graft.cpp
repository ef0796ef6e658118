#include <memory>

#include "lib/graft/open_edited.h"
#include "lib/write/output/destination.h"
#include "tools/cli/arguments.h"
#include "tools/cli/conversion_options.h"
#include "tools/cli/edit_options.h"
#include "tools/cli/option_values.h"

namespace twofour {
namespace {

struct GraftArguments {
  ConversionOptions common;
  EditOptions edit;
};

int run_graft(const GraftArguments& given, const Common& common) {
  GraftArguments o = given;
  take_whole_directory(o.common, common);
  const Recipe recipe = edit_recipe(o.edit, o.common);
  const Destination destination = claim_destination(o.common);
  check_apart_from_kept(o.common.destination, o.edit.donor);
  const Checkpoint grafted = open_edited(o.common.source, o.edit.donor, recipe.edit, parse_io(o.common.io));
  check_config(grafted, o.common);
  return write_checkpoint(destination, o.common, grafted, make_plan(grafted, recipe), nullptr, common);
}

}  // namespace

std::function<int()> setup_graft(Arguments& args, const Common& common) {
  auto o = std::make_shared<GraftArguments>();
  args.option("BASE", o->common.source, "Hugging Face checkpoint directory that modules come into")
      .required()
      .as_checkpoint();
  args.option("DONOR", o->edit.donor, "Checkpoint directory or file that they come from")
      .required()
      .as_checkpoint();
  args.option("OUT", o->common.destination, "Directory to write; absent or empty").required();
  add_take_option(args, o->edit, "DONOR").required();
  o->common.max_shard_size = "5GB";
  add_shard_size_option(args, o->common.max_shard_size);
  add_writing_options(args, o->common, false, false);
  add_config_option(args, o->common.without_config);
  args.footer(
      "Matching tensors of DONOR come, byte for byte. Tensors of BASE go that match, have these names or "
      "belong to modules whose weights come. Of quantized modules, only biases and scales of activations "
      "come "
      "alone.\n"
      "config.json and hf_quant_config.json of BASE are kept, but for the count of draft layers, lists with "
      "an entry a layer, what says whether there are modules of a kind (n_shared_experts), and what says how "
      "the modules that come are quantized. What these cannot say is refused, like shapes that do not fit "
      "BASE. Where nothing of BASE is replaced, twofour drop of all that came gives BASE's files back.\n"
      "twofour validate OUT --source BASE --donor DONOR proves the result.");
  return [o, &common] { return run_graft(*o, common); };
}

}  // namespace twofour
