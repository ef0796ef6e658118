#include <doctest/doctest.h>

#include "lib/base/io/file.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace validate_manifest_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kBlock = "model.layers.0.mlp.experts";

/// A checkpoint of which one expert's gate and up are folded.
void write_source(const fs::path& path) {
  ExpertSet set = random_experts(2, 48, 96);
  set.gate[1].global = 0.3f;
  Tensors tensors;
  add_experts(tensors, kBlock, set);
  add_modelopt(tensors, "model.layers.0.self_attn.o_proj", random_matrix(16, 32, 9));
  add_bf16(tensors, "model.norm.weight", {96});
  write_checkpoint(path, {tensors});
}

OneRule to(const std::string& layout) {
  OneRule recipe;
  recipe.to = layout;
  if (layout == "prune") recipe.pattern = "4:8-paired";
  return recipe;
}

}  // namespace

TEST_CASE("every claim of twofour.json is derived again from the source") {
  const Scratch scratch;
  write_source(scratch / "src");
  for (const char* layout : {"v7", "v7-packed", "g8", "prune", "nvfp4", "bf16"}) {
    CAPTURE(layout);
    const fs::path out = scratch / layout;
    convert(scratch / "src", out, to(layout));
    CHECK_MESSAGE(validate_from(scratch / "src", out).differences.empty(),
                  text_of(validate_from(scratch / "src", out).differences));
    const std::string text = read_text(out / "twofour.json");
    for (const std::string claim :
         {"retained_energy\":", "fold_relative_error\":", "tied_share\":", "global_scale_bits\":",
          "codes_xxh3_128\":\"", "scales_xxh3_128\":\"", "content_xxh3_128\": \"", "header_xxh3_128\":\"",
          "\"dialect\":\"mo", "\"rows\":[", "\"bytes\":"}) {
      const size_t at = text.find(claim);
      const bool has_quality = std::string(layout) != "nvfp4" && std::string(layout) != "bf16";
      if (at == text.npos && (claim.starts_with("fold") || claim == "\"rows\":[" || !has_quality)) continue;
      REQUIRE_MESSAGE(at != text.npos, claim);
      std::string changed = text;
      size_t digit = at + claim.size();
      while (std::isxdigit(static_cast<unsigned char>(changed[digit])) == 0) ++digit;
      changed[digit] = changed[digit] == '1' ? '2' : '1';
      write_text(out / "twofour.json", changed);
      const ValidateReport report = validate_from(scratch / "src", out);
      CAPTURE(claim);
      REQUIRE_MESSAGE(report.differences.size() == 1, text_of(report.differences));
      CHECK(report.differences[0].id == "manifest");
      CHECK(report.differences[0].message.starts_with("byte " + std::to_string(digit) + ": expected "));
    }
    write_text(out / "twofour.json", text + " ");
    CHECK(findings_of(validate_from(scratch / "src", out).differences, "manifest").size() == 1);
  }
}

}  // namespace validate_manifest_test
