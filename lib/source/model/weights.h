#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lib/base/io/mapped_file.h"
#include "lib/source/linears/matrices.h"

namespace twofour {

/// A matrix [N, K] of a model and its bias, in any format of the checkpoint.
struct ModelMatrix {
  const Linear* module = nullptr;  ///< the linear that holds the matrix; null if the matrix does not exist
  StoredMatrix place{};
  int64_t n = 0, k = 0;
  bool has_bias = false;
  /// The matrix's name in the files. An expert in a stack has its own name.
  std::string name = {};
  std::optional<int64_t> from = {};  ///< the first row, if this is a part of a matrix
  explicit operator bool() const { return module != nullptr; }
  /// Rows [n0, n1) of a matrix without bias.
  ModelMatrix rows(int64_t n0, int64_t n1) const;
};

/// A vector of floats. It has `count` elements of a tensor, every `step`-th one from `first` on.
struct ModelVector {
  std::optional<size_t> tensor{};  ///< empty if the vector does not exist
  int64_t first = 0, step = 1, count = 0;
  float plus = 0;  ///< added to each element that is read: 1 for norms that multiply by 1 + w
  explicit operator bool() const { return tensor.has_value(); }
};

/// The weights of a model, found by their names. They are read from the checkpoint each time they are used.
/// Weights in a stack have the names of separate experts: "model.layers.0.mlp.experts.3.gate_proj".
class ModelWeights {
 public:
  /// The size in bytes of the buffers for decoded weights in multiply().
  static constexpr int64_t kChunkBytes = 64 << 20;

  /// `checkpoint` must outlive this object. Throws Error if tensors beside linears change the meaning of the
  /// linears' weights.
  explicit ModelWeights(const Checkpoint& checkpoint);

  /// The prefix of "layers.0" and of the embedding in the files: "model." or, in a checkpoint that also reads
  /// images, "model.language_model." or "language_model.model.". DeepSeek-V4's own files have "", and
  /// Nemotron-H's "backbone.".
  const std::string& prefix() const { return prefix_; }
  /// The name of the embedding, with the prefix.
  std::string embedding_name() const { return prefix_ + embedding_name_; }
  /// The name of the head: "lm_head", "language_model.lm_head" or "head".
  const std::string& head_name() const { return head_name_; }
  bool has(const std::string& name) const { return matrices_.all().contains(name); }
  /// Returns a matrix. Throws Error if it is missing, has a different size, lacks its bias, or has a bias and
  /// `has_bias` is false.
  ModelMatrix matrix(const std::string& name, int64_t n, int64_t k, bool has_bias);
  /// Returns a matrix whose products get no bias, even where a tensor NAME.bias exists: a router's bias may
  /// only count in the choice.
  ModelMatrix matrix_without_bias(const std::string& name, int64_t n, int64_t k);
  /// Returns the first `n` rows of an embedding. The embedding must have at least `n` rows.
  ModelMatrix table(const std::string& name, int64_t n, int64_t k);
  ModelVector vector(const std::string& name, int64_t count);
  /// Returns the elements of a tensor of floats with this shape.
  ModelVector tensor(const std::string& name, const std::vector<int64_t>& shape);
  /// Returns a tensor of whole numbers with this shape.
  size_t numbers(const std::string& name, const std::vector<int64_t>& shape);
  /// Reads `count` numbers of such a tensor from `first` on.
  std::vector<int64_t> read_numbers(size_t tensor, int64_t first, int64_t count) const;
  bool has_tensor(const std::string& name) const { return checkpoint_.find(name).has_value(); }
  /// Returns the name of a layer's block of experts, "model.layers.0.mlp.experts"; empty: the layer has none.
  std::string expert_block(const std::string& layer) const;
  /// Throws Error if a layer below `layers` has a matrix, norm or bias that has not been used, or if a later
  /// layer is no draft. In these cases the model computes something else.
  void refuse_unused(int64_t layers) const;

  std::vector<float> read(const ModelVector& vector) const;
  /// Reads rows [n0, n1) of a matrix as float32.
  void read_rows(const ModelMatrix& matrix, int64_t n0, int64_t n1, std::span<float> out) const;

  /// From now on, matrices of `weights` replace matrices of the same names.
  void replace(Checkpoint weights);
  /// Ends all replacements.
  void restore() { replaced_.clear(); }

  /// The storage of a matrix's rows, which is its replacement or the model's own files.
  struct Stored {
    const Checkpoint& checkpoint;
    const Linear& module;
    StoredMatrix place;
  };
  Stored stored(const ModelMatrix& matrix) const;
  /// Reads the bias [N] of a matrix. Empty if it has none.
  std::vector<float> read_bias(const ModelMatrix& matrix) const;

  /// The buffer and the reader that one thread uses.
  struct Worker {
    explicit Worker(const Checkpoint& checkpoint) : reader(checkpoint) {}
    WeightReader reader;
    std::vector<float> rows;
  };
  Worker make_worker() const { return Worker(checkpoint_); }
  /// Computes out = x w' + bias on all threads. `x` is [m, K], `out` [m, N], and w' the transposed matrix.
  void multiply(const ModelMatrix& matrix, const float* x, int64_t m, float* out) const;
  /// Computes out = x w' with the rows [n0, n1) of a matrix without bias. `out` is [m, n1 - n0].
  void multiply_rows(const ModelMatrix& matrix, int64_t n0, int64_t n1, const float* x, int64_t m,
                     float* out) const;
  /// Computes out = x w' + bias on the calling thread, with its `worker`.
  void multiply(Worker& worker, const ModelMatrix& matrix, const float* x, int64_t m, float* out) const;

 private:
  /// A checkpoint whose matrices replace matrices of the model.
  struct Replacement {
    explicit Replacement(Checkpoint weights)
        : checkpoint(std::move(weights)), matrices(checkpoint, findings) {}
    Checkpoint checkpoint;
    Findings findings;
    Matrices matrices;
  };
  bool has_table(const std::string& name) const;
  void read_stored(WeightReader& reader, const Stored& from, int64_t n0, int64_t n1,
                   std::span<float> out) const;
  /// Returns the rows of a float matrix from n0 on if its file is mapped into memory. Null if they must be
  /// read.
  const uint8_t* mapped(const Stored& from, int64_t n0) const;
  /// Computes outputs [n0, n1) for all m rows of `x`. Rows of `out` are `stride` floats apart.
  void multiply_strip(Worker& worker, const ModelMatrix& matrix, int64_t n0, int64_t n1, const float* x,
                      int64_t m, float* out, int64_t stride) const;
  /// Computes outputs [first, last) on all threads, without bias. `out` is [m, last - first].
  void multiply_range(const ModelMatrix& matrix, int64_t first, int64_t last, const float* x, int64_t m,
                      float* out) const;
  void add_bias(const ModelMatrix& matrix, int64_t m, float* out) const;

  const Checkpoint& checkpoint_;
  std::string prefix_ = "model.", embedding_name_ = "embed_tokens", head_name_ = "lm_head";
  Findings findings_;
  Matrices matrices_;
  /// Mapped files, by shard. Empty if tensors are not the bytes of the files.
  std::vector<MappedBytes> files_;
  std::set<const Linear*> used_modules_;
  std::set<size_t> used_;
  std::vector<std::unique_ptr<Linear>> tables_;
  std::map<std::string, std::pair<std::shared_ptr<const Replacement>, StoredMatrix>> replaced_;
};

}  // namespace twofour
