#include <memory>
#include <string>

#include "lib/look/inspect/model_card.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"

namespace twofour {
namespace {

struct CardArguments {
  std::string directory;
  CardOptions card;
};

int run_card(const CardArguments& o, const Common& common) {
  std::string text = model_card(o.directory, o.card);
  if (common.json) {
    print_json({{"text", std::move(text)}});
  } else {
    print_stdout("{}", Lines{std::move(text)});
  }
  return kDone;
}

}  // namespace

std::function<int()> setup_card(Arguments& args, const Common& common) {
  auto o = std::make_shared<CardArguments>();
  args.option("DIR", o->directory, "Artifact that twofour wrote").required().as_checkpoint();
  args.option("--base-model", o->card.base_model, "Model that was converted, as the Hub names it")
      .default_text("not stated");
  args.option("--quantized-by", o->card.quantized_by, "Who converted it").default_text("not stated");
  args.footer(
      "The license is that of the README.md that came along from the source. Write the card to another file "
      "than that: a shell empties a file before the command reads it, and twofour.json has its hash.");
  return [o, &common] { return run_card(*o, common); };
}

}  // namespace twofour
