#include <memory>

#include "lib/graft/open_edited.h"
#include "lib/write/output/destination.h"
#include "tools/cli/arguments.h"
#include "tools/cli/conversion_options.h"
#include "tools/cli/edit_options.h"
#include "tools/cli/option_values.h"

namespace twofour {
namespace {

struct DropArguments {
  ConversionOptions common;
  EditOptions edit;
};

int run_drop(const DropArguments& given, const Common& common) {
  DropArguments o = given;
  take_whole_directory(o.common, common);
  const Destination destination = claim_destination(o.common);
  check_inputs_apart(o.common.destination, {{"--by", o.edit.by}, {"--experts", o.edit.experts}});
  const Recipe recipe = edit_recipe(o.edit, o.common);
  const Checkpoint left = open_edited(o.common.source, {}, recipe.edit, parse_io(o.common.io));
  check_config(left, o.common);
  return write_checkpoint(destination, o.common, left, make_plan(left, recipe), nullptr, common);
}

}  // namespace

std::function<int()> setup_drop(Arguments& args, const Common& common) {
  auto o = std::make_shared<DropArguments>();
  args.option("SRC", o->common.source, "Hugging Face checkpoint directory").required().as_checkpoint();
  args.option("OUT", o->common.destination, "Directory to write; absent or empty").required();
  add_drop_options(args, o->edit);
  args.exactly_one_of({"--modules", "--experts"});
  o->common.max_shard_size = "5GB";
  add_shard_size_option(args, o->common.max_shard_size);
  add_writing_options(args, o->common, false, false);
  add_config_option(args, o->common.without_config);
  args.footer(
      "BLOCK is the name above the experts: model.layers.3.mlp.experts. Experts that stay are numbered anew "
      "in "
      "their order, or sliced out of stacks; nothing is quantized again. The router's rows, its biases, the "
      "counts in config.json and what names single modules follow. Draft layers have experts too: drop them "
      "first, or give their saliency.\n"
      "Where all modules of a kind go, config.json says that there are none (n_shared_experts, q_lora_rank, "
      "biases), and where the last quantized module goes, nothing of quantization. A configuration by which "
      "an engine would find another format than a module has is refused.\n"
      "twofour validate OUT --source SRC proves the result.");
  return [o, &common] { return run_drop(*o, common); };
}

}  // namespace twofour
