#include <doctest/doctest.h>

#include <string>

#include "tests/support/message.h"
#include "tests/support/outcome.h"
#include "tests/support/program.h"
#include "tests/support/scratch.h"

namespace cli_card_test {

using namespace twofour;

TEST_CASE("twofour card prints the card of an artifact, and refuses anything else with one error") {
  const Scratch scratch;
  const std::string source = (scratch / "source").string(), artifact = (scratch / "artifact").string();
  REQUIRE(run_program({"synth", source, "--shape", "tiny", "-q"}).code == 0);
  REQUIRE(run_program({"convert", source, artifact, "--to", "g8", "-q"}).code == 0);

  const Outcome card =
      run_program({"card", artifact, "--base-model", "org/a: \"b\"", "--quantized-by", "me"});
  CHECK(card.code == 0);
  CHECK(card.err.empty());
  CHECK(
      card.out.starts_with("---\nbase_model: \"org/a: \\\"b\\\"\"\nbase_model_relation: quantized\n"
                           "quantized_by: \"me\"\ntags:\n- \"g8\"\n- \"nvfp4\"\n- \"twofour\"\n---\n\n"
                           "# a: \"b\": g8\n\n"));
  CHECK(json_of(run_program({"card", artifact, "--json", "--base-model", "org/a: \"b\"", "--quantized-by",
                             "me"}))["text"] == card.out);

  check_one_line(run_program({"card", source}), "expected a twofour artifact, found no twofour.json");
}

}  // namespace cli_card_test
