#pragma once
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "formats/half.h"
#include "formats/json.h"
#include "lib/recipe/statistics/check_statistics.h"
#include "tests/support/conversion.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/statistics_builder.h"

/// A small model and statistics of it.
namespace stats_model {

using namespace twofour;

namespace fs = std::filesystem;

inline const std::string kLayer = "model.layers.0.";

/// A layer of linears in BF16: rows beyond 64, so that a proof draws some of them.
inline void write_model(const fs::path& folder) {
  Tensors t;
  unsigned seed = 1;
  for (const char* leaf : {"q_proj", "k_proj", "v_proj"})
    add_floats(t, kLayer + "self_attn." + leaf, random_floats(96, 64, ++seed));
  add_floats(t, kLayer + "self_attn.o_proj", random_floats(64, 96, ++seed));
  for (const char* leaf : {"gate_proj", "up_proj"})
    add_floats(t, kLayer + "mlp." + leaf, random_floats(80, 64, ++seed));
  add_floats(t, kLayer + "mlp.down_proj", random_floats(64, 80, ++seed));
  add_bf16(t, "model.norm.weight", {64}, ++seed);
  write_checkpoint(folder, {t});
}

inline StatisticsBuilder statistics(int64_t tokens = 500) {
  StatisticsBuilder b;
  b.add({kLayer + "self_attn.q_proj", kLayer + "self_attn.k_proj", kLayer + "self_attn.v_proj"}, 64, tokens,
        "hessian", 1);
  b.add({kLayer + "self_attn.o_proj"}, 96, tokens, "packed", 2);
  b.add({kLayer + "mlp.gate_proj", kLayer + "mlp.up_proj"}, 64, tokens, "hessian", 3);
  b.add({kLayer + "mlp.down_proj"}, 80, tokens, "hessian", 4);
  return b;
}

inline double loss_of(const fs::path& folder, const std::string& module) {
  const Json manifest = parse_json(
      "twofour.json",
      std::string(std::istreambuf_iterator<char>(std::ifstream(folder / "twofour.json").rdbuf()), {}));
  for (const Json& m : manifest["modules"]) {
    if (m["name"] == module) return m["quality"]["relative_output_loss"].get<double>();
  }
  return -1;
}

}  // namespace stats_model
