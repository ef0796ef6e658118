#include "tools/cli/size_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "formats/error.h"
#include "tools/cli/option_values.h"

namespace twofour {

void add_size_options(Arguments& args, SizeOptions& o) {
  const ArgumentGroup group(args, "Size");
  args.option(
          "--bits", o.bits,
          "Choose formats by predicted loss: so many bits a weight in the mean, of codes and block scales. "
          "Linears that engines fuse get one format. --dry-run prints the curve")
      .range(1.0, 32.0)
      .value_name("X")
      .default_text("the format that is asked for");
  args.option("--size", o.size, "Likewise, so many bytes of tensors: 90GB")
      .value_name("SIZE")
      .default_text("any")
      .excludes("--bits");
  std::vector<std::string> formats = menu_formats(), engines;
  args.option("--menu", o.menu, "Formats to choose among")
      .one_of(formats)
      .separated_by(',')
      .default_text(fmt::format("{}, as far as the engine loads them", fmt::join(default_menu(), ",")));
  for (const OutputEngine& e : output_engines()) engines.emplace_back(e.word);
  args.option("--for", o.engine, "Choose only what this engine loads").one_of(engines);
}

void check_size_options(const SizeOptions& o) {
  if (o.is_given()) return;
  if (!o.menu.empty()) throw Error("--menu: expected --bits or --size beside it, found neither");
  if (o.engine != SizeOptions{}.engine)
    throw Error("--for: expected --bits or --size beside it, found neither");
}

SizeRequest size_request(const SizeOptions& o, Recipe recipe, const std::string& statistics) {
  SizeRequest request;
  request.bits = o.bits;
  if (!o.size.empty()) request.bytes = parse_size_option("--size", o.size);
  for (const std::string& format : o.menu) {
    if (std::find(request.menu.begin(), request.menu.end(), format) == request.menu.end())
      request.menu.push_back(format);
  }
  request.engine = o.engine;
  request.recipe = std::move(recipe);
  request.statistics = statistics;
  return request;
}

}  // namespace twofour
