#pragma once
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lib/base/io/file.h"
#include "lib/graft/open_edited.h"
#include "lib/jobs/convert/convert.h"
#include "lib/prove/validate/validate.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"

namespace twofour {

/// Writes what an edit makes of a source and a donor.
inline void write_edited(const std::filesystem::path& source, const std::filesystem::path& donor,
                         const Edit& edit, const std::filesystem::path& out, uint64_t shard = 4096) {
  const Checkpoint view = open_edited(source, donor, edit);
  const Plan plan = make_plan(view, Recipe(edit, shard));
  Progress progress;
  convert(view, plan, out, {}, progress);
}

inline Edit graft_of(std::vector<std::string> take) {
  return {.kind = Edit::Kind::kGraft, .patterns = std::move(take)};
}
inline Edit drop_of(std::vector<std::string> modules) {
  return {.kind = Edit::Kind::kDropModules, .patterns = std::move(modules)};
}

/// The findings of the proof, a line each.
inline std::string differences_of_edit(const std::filesystem::path& out, const std::filesystem::path& source,
                                       const std::filesystem::path& donor = {}) {
  Progress progress;
  ValidateOptions options;
  options.donor = donor;
  return text_of(validate(out, source, options, progress).differences);
}

inline void put_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file) << text;
}

/// config.json or another JSON file of a checkpoint.
inline Json json_at(const std::filesystem::path& file) { return parse_json(file.string(), read_text(file)); }

/// The tensors of a language model: `layers` layers with a norm, attention in BF16 and NVFP4 experts (none:
/// an MLP), a head and an embedding; hidden size 32.
inline Tensors language_model(int64_t layers, int64_t experts, unsigned seed, const std::string& dialect) {
  Tensors tensors;
  const auto nvfp4 = [&](const std::string& name, int64_t n, int64_t k) {
    const Nvfp4Matrix m = random_matrix(n, k, ++seed * 31);
    dialect == "compressed-tensors" ? add_compressed_tensors(tensors, name, m)
                                    : add_modelopt(tensors, name, m);
  };
  add_bf16(tensors, "model.embed_tokens.weight", {48, 32}, ++seed);
  add_bf16(tensors, "model.norm.weight", {32}, ++seed);
  add_bf16(tensors, "lm_head.weight", {48, 32}, ++seed);
  for (int64_t l = 0; l < layers; ++l) {
    const std::string layer = fmt::format("model.layers.{}.", l);
    add_bf16(tensors, layer + "input_layernorm.weight", {32}, ++seed);
    for (const char* p : {"q_proj", "k_proj", "v_proj"})
      add_bf16(tensors, layer + "self_attn." + p + ".weight", {32, 32}, ++seed);
    nvfp4(layer + "self_attn.o_proj", 32, 32);
    if (experts > 0) add_bf16(tensors, layer + "mlp.gate.weight", {experts, 32}, ++seed);
    for (int64_t e = 0; e < std::max<int64_t>(1, experts); ++e) {
      const std::string mlp = layer + (experts > 0 ? fmt::format("mlp.experts.{}.", e) : "mlp.");
      nvfp4(mlp + "gate_proj", 16, 32);
      nvfp4(mlp + "up_proj", 16, 32);
      nvfp4(mlp + "down_proj", 32, 16);
    }
  }
  return tensors;
}

}  // namespace twofour
