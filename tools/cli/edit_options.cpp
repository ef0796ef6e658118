#include "tools/cli/edit_options.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <optional>

#include "formats/error.h"
#include "lib/graft/kept_experts.h"
#include "lib/graft/open_edited.h"
#include "lib/jobs/convert/resume.h"

namespace twofour {
namespace {

std::optional<int64_t> count_of(const std::string& text) {
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(count) : std::nullopt;
}

Edit make_edit(const EditOptions& o, const std::string& source_path) {
  if (!o.by.empty() && o.experts.empty())
    throw Error(fmt::format("--by: expected with --experts only, found with {}",
                            o.take.empty() ? "--modules" : "--take"));
  if (!o.take.empty()) return {.kind = Edit::Kind::kGraft, .patterns = o.take};
  if (!o.modules.empty()) return {.kind = Edit::Kind::kDropModules, .patterns = o.modules};
  const auto count = count_of(o.experts);
  if (count && *count < 1)
    throw Error(fmt::format("--experts: expected a number from 1, or a file, found {}", o.experts));
  if (count.has_value() == o.by.empty()) {
    throw Error(
        count ? fmt::format("--experts {}: expected --by FILE, which says the experts that stay", *count)
              : fmt::format("--by: expected with a number of experts only, found with --experts {}",
                            o.experts));
  }
  const Checkpoint source = open_editable(source_path);
  return count ? keep_salient_experts(source, *count, o.by) : keep_named_experts(source, o.experts);
}

}  // namespace

Recipe edit_recipe(const EditOptions& o, const ConversionOptions& common) {
  const std::string size = common.max_shard_size.empty() ? "5GB" : common.max_shard_size;
  Recipe recipe(make_edit(o, common.source), parse_size_option("--max-shard-size", size));
  recipe.links = parse_links(common.follow_links);
  recipe.readme = parse_readme(common.no_readme);
  if (common.resume) take_absent_settings(common.destination, recipe);
  return recipe;
}

Argument& add_take_option(Arguments& args, EditOptions& o, const std::string& where) {
  return args
      .option("--take", o.take,
              fmt::format("Modules or tensors of {}: name, glob, re:regex or role (mtp, head, embeddings, "
                          "experts, attention, ...)",
                          where))
      .value_name("PATTERN");
}

void add_drop_options(Arguments& args, EditOptions& o) {
  const ArgumentGroup group(args, "Dropping");
  args.option("--modules", o.modules,
              "Modules or tensors that go: name, glob, re:regex or role (mtp, head, ...); of the layers the "
              "last alone")
      .value_name("PATTERN");
  args.option("--experts", o.experts,
              "Experts that stay in each layer: a number, with --by, or a JSON file {\"BLOCK\": [numbers]}")
      .value_name("N|FILE");
  args.option(
          "--by", o.by,
          "Safetensors file with BLOCK.saliency F32 [E] for each block of experts; the largest stay, on a "
          "tie the lower number, and with groups of experts equally many of each")
      .value_name("FILE");
}

}  // namespace twofour
