#pragma once
#include <filesystem>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/faults/faults.h"

namespace twofour {

/// The kinds of faults of a model, in the numbering of `kClauses`: planted changes are counted by clause.
struct Clause {
  const char* id;
  const char* what;
};
std::span<const Clause> planted_clauses();

/// Sound checkpoints to change, each a model of another family, format or dialect. Lint finds nothing above a
/// note in any of them.
enum class Base {
  kTiny,       ///< qwen3_moe, ModelOpt, 3 layers, 8 experts, tied head, input scales, four shards
  kMoe,        ///< qwen3_moe, ModelOpt, 4 layers, 16 experts, head of its own, input scales, shards
  kMixtral,    ///< mixtral, compressed-tensors, 3 layers, 4 experts, input scales
  kLlama,      ///< llama, ModelOpt, 3 layers, input scales, shards
  kLlamaCt,    ///< llama, compressed-tensors, the same weights
  kLlamaKv,    ///< kLlama with scales of an FP8 KV cache
  kLlamaKvCt,  ///< kLlamaCt with scales of an FP8 KV cache
  kDeepSeek,   ///< deepseek_v3, FP8 blocks, 3 dense layers and 2 of experts, a draft, groups of experts
  kGptOss,     ///< gpt_oss, MXFP4 stacks with biases
  kQwenMixed,  ///< qwen3_5_moe, ModelOpt: W4A16 experts, FP8 attention, linear attention, KV scales, a draft
  kQwenRow,    ///< qwen3_5, compressed-tensors: FP8 by row, NVFP4 MLPs, a draft
  kNemotron,   ///< nemotron_h, ModelOpt: NVFP4 experts without gate, FP8 mamba, a latent projection, a draft
  kInt4,       ///< kimi_k2, compressed-tensors: INT4 experts in groups of 32
  kGlm,        ///< glm_moe_dsa, ModelOpt: indexes of tokens in some layers, a draft behind the last, 640 rows
  kV4,         ///< deepseek_v4, MXFP4 experts: compressors, tables of experts, a draft of its own
  kM3,         ///< minimax_m3_vl, ModelOpt: sparse attention by lists, a draft, a tower with a projector
  kK3,         ///< kimi_k3, MXFP4 experts: linear attention, a tower with a projector
  kFlash,      ///< qwen4_exp, ModelOpt: residual streams, a table of n-grams, a draft, a tower
  kUnknown,    ///< kLlama under a model_type that no table has
  kV7,         ///< an artifact of kTiny
  kG8,         ///< another one
};
inline constexpr Base kLastBase = Base::kG8;
const char* base_name(Base base);
/// Made once and kept. An artifact has all its files as text: a manifest speaks of every byte.
const Save& base_checkpoint(Base base);
/// Writes a base, changed or not.
void write_planted(const Save& save, const std::filesystem::path& directory);

enum class Expect {
  kFault,     ///< the model loads wrongly or computes something else: lint must say so, above a note
  kHarmless,  ///< equal weights and the same forward pass: lint must not say more than a note
};

/// One change of a sound checkpoint.
struct Planted {
  const char* clause;
  Base base;
  Expect expect;
  const char* what;  ///< one of a clause and base
  const char* why;   ///< how the model becomes wrong, or why it stays what it was
  /// The words that a finding must mention for the fault to count as found: words that all occur in its rule,
  /// file, name or message; alternatives after " | ". Empty where nothing is to be found.
  const char* place;
  std::function<void(Save&, std::mt19937&)> change = {};
  /// Afterwards, in the directory.
  std::function<void(const std::filesystem::path&, std::mt19937&)> change_files = {};
  bool against = false;  ///< linted beside the sound checkpoint
};

/// Those that rules may be written by, and those that they are held against: see planted_test.cpp.
std::vector<Planted> planted_changes();
std::vector<Planted> held_out_changes();

// The parts of both, a file each.
std::vector<Planted> planted_sizes();
std::vector<Planted> planted_tensors();
std::vector<Planted> planted_formats();
std::vector<Planted> planted_siblings();
std::vector<Planted> planted_content();
std::vector<Planted> planted_files();
std::vector<Planted> planted_parts();
std::vector<Planted> planted_tokens();
std::vector<Planted> held_out_config();
std::vector<Planted> held_out_weights();

}  // namespace twofour
