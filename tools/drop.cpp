#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>

#include "formats/error.h"
#include "lib/graft/expert_blocks.h"
#include "lib/graft/open_edited.h"
#include "lib/output/output_directory.h"
#include "tools/cli/arguments.h"
#include "tools/cli/conversion_options.h"
#include "tools/cli/option_values.h"

namespace twofour {
namespace {

struct DropArguments {
  ConversionOptions common;
  std::vector<std::string> modules;
  std::string experts, by;
};

std::optional<int64_t> count_of(const std::string& text) {
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(count) : std::nullopt;
}

Edit edit_of(const DropArguments& o) {
  if (!o.modules.empty()) {
    if (!o.by.empty()) throw Error("--by: expected with --experts only, found with --modules");
    return {.kind = Edit::Kind::kDropModules, .patterns = o.modules};
  }
  const auto count = count_of(o.experts);
  if (count && *count < 1)
    throw Error(fmt::format("--experts: expected a number from 1, or a file, found {}", o.experts));
  if (count.has_value() == o.by.empty()) {
    throw Error(
        count ? fmt::format("--experts {}: expected --by FILE, which says the experts that stay", *count)
              : fmt::format("--by: expected with a number of experts only, found with --experts {}",
                            o.experts));
  }
  const Checkpoint source = open_editable(o.common.source);
  return count ? keep_salient_experts(source, *count, o.by) : keep_named_experts(source, o.experts);
}

int run_drop(const DropArguments& o, const Common& common) {
  OutputDirectory::check(o.common.destination, o.common.source, existing_of(o.common));
  const Edit edit = edit_of(o);
  const Checkpoint left = open_edited(o.common.source, {}, edit, parse_io(o.common.io));
  const Recipe recipe(edit, parse_size_option("--max-shard-size", o.common.max_shard_size));
  return write_checkpoint(o.common, left, make_plan(left, recipe), nullptr, common);
}

}  // namespace

std::function<int()> setup_drop(Arguments& args, const Common& common) {
  auto o = std::make_shared<DropArguments>();
  args.option("SRC", o->common.source, "Hugging Face checkpoint directory").required();
  args.option("OUT", o->common.destination, "Directory to write; absent or empty").required();
  args.option("--modules", o->modules,
              "Modules or tensors that go: name, glob, re:regex or role (mtp, head, ...); of the layers the "
              "last alone")
      .value_name("PATTERN");
  args.option("--experts", o->experts,
              "Experts that stay in each layer: a number, with --by, or a JSON file {\"BLOCK\": [numbers]}")
      .value_name("N|FILE");
  args.option(
          "--by", o->by,
          "Safetensors file with BLOCK.saliency F32 [E] for each block of experts; the largest stay, on a "
          "tie the lower number, and with groups of experts equally many of each")
      .value_name("FILE");
  args.exactly_one_of({"--modules", "--experts"});
  o->common.max_shard_size = "5GB";
  add_shard_size_option(args, o->common.max_shard_size);
  add_writing_options(args, o->common, false);
  args.footer(
      "BLOCK is the name above the experts: model.layers.3.mlp.experts. Experts that stay are numbered anew "
      "in "
      "their order, or sliced out of stacks; nothing is quantized again. The router's rows, its biases, the "
      "counts in config.json and what names single modules follow. Draft layers have experts too: drop them "
      "first, or give their saliency.\n"
      "twofour validate OUT --source SRC proves the result.");
  return [o, &common] { return run_drop(*o, common); };
}

}  // namespace twofour
