#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/dtype.h"

namespace twofour {

/// A tensor that a test makes, with its bytes.
struct TensorData {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
};
using Tensors = std::vector<TensorData>;

/// Writes one safetensors file, tensors in the order given, with a header formed here and not by the library.
void write_safetensors(const std::filesystem::path& file, const Tensors& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// Writes a checkpoint directory: one file and no index, or several files and an index that names them all.
/// `config` is the text of config.json; empty: none. Left out, it is that of a model whose stacks hold gate
/// and up in halves where the tensors have such stacks without a bias, else {}.
void write_checkpoint(const std::filesystem::path& directory, const std::vector<Tensors>& shards,
                      const std::optional<std::string>& config = std::nullopt);

/// An NVFP4 matrix as checkpoints store it.
struct Nvfp4Matrix {
  int64_t n, k;
  std::vector<uint8_t> codes;   ///< [n, k/2]
  std::vector<uint8_t> scales;  ///< [n, k/16]
  float global;                 ///< multiplier
};

/// Any codes, -0 and ties among them, and any legal block scales.
Nvfp4Matrix random_matrix(int64_t n, int64_t k, unsigned seed, float global = 0.25f);

/// Rows of `a`, then of `b`.
Nvfp4Matrix stack_rows(const Nvfp4Matrix& a, const Nvfp4Matrix& b);
/// Rows of `a` and `b` in turn.
Nvfp4Matrix interleave_rows(const Nvfp4Matrix& a, const Nvfp4Matrix& b);

/// The tensors of one module under ModelOpt's names; `scale_shape` is that of the global scale.
void add_modelopt(Tensors& to, const std::string& module, const Nvfp4Matrix& m,
                  const std::vector<int64_t>& scale_shape = {});
/// Under compressed-tensors' names; the global scale is stored as its reciprocal, which must be exact.
void add_compressed_tensors(Tensors& to, const std::string& module, const Nvfp4Matrix& m);
/// ModelOpt's stack of experts: codes [E, K/2, N] with `k_outer`, else [E, N, K/2]; `scale_shape` of the
/// global scales, which holds one or E of them.
void add_stack(Tensors& to, const std::string& name, const std::vector<Nvfp4Matrix>& experts, bool k_outer,
               const std::vector<int64_t>& scale_shape);
/// A BF16 tensor of some bytes.
void add_bf16(Tensors& to, const std::string& name, const std::vector<int64_t>& shape, unsigned seed = 1);

/// Gate, up and down of some experts, each expert its own seeds, all with global scale 0.25.
struct ExpertSet {
  std::vector<Nvfp4Matrix> gate, up, down;
};
ExpertSet random_experts(int64_t e, int64_t i, int64_t h, unsigned seed = 1);

/// The experts under `block` with ModelOpt's and Qwen's names: `block`.0.gate_proj.weight and so on.
void add_experts(Tensors& to, const std::string& block, const ExpertSet& experts);

/// The same experts as one producer or another stores them, with a norm beside them: "modelopt" (and two
/// linears that are no experts), "compressed-tensors", "not gated", "stack", "stack, k outer", "stack,
/// interleaved" or "stack, interleaved, k outer".
Tensors experts_stored_as(const std::string& how, const std::string& block, int64_t e, int64_t i, int64_t h);

/// The tensors of v7 for some equal matrices, found by sorting each quad: tensor `name`comp, `name`meta,
/// `name`scale and `name`global_scale.
using Bytes = std::map<std::string, std::vector<uint8_t>>;
void add_expected_v7(Bytes& to, const std::string& name, const std::vector<Nvfp4Matrix>& experts);
/// For gate, up and down: `block`.w13_ and `block`.w2_.
Bytes expected_v7(const std::string& block, const ExpertSet& experts);

}  // namespace twofour
