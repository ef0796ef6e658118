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
#include "lib/source/checkpoint/matrices.h"

namespace twofour {

/// A matrix [N, K] of a model, in any format of the checkpoint, and its bias.
struct ModelMatrix {
  const Linear* module = nullptr;  ///< nullptr: there is none
  StoredMatrix place{};
  int64_t n = 0, k = 0;
  bool has_bias = false;
  std::string name = {};  ///< as in the files; for an expert in a stack, its own name
  explicit operator bool() const { return module != nullptr; }
};

/// A vector of floats: `count` elements of a tensor, from `first` on, `step` apart.
struct ModelVector {
  std::optional<size_t> tensor{};  ///< none: there is no such vector
  int64_t first = 0, step = 1, count = 0;
  explicit operator bool() const { return tensor.has_value(); }
};

/// The weights of a model by their names, read from the checkpoint each time they are used. Weights in stacks
/// have the names of separate experts: "model.layers.0.mlp.experts.3.gate_proj".
class ModelWeights {
 public:
  /// Size of the buffers of decoded weights in multiply().
  static constexpr int64_t kChunkBytes = 64 << 20;

  /// `checkpoint` must outlive this. Throws Error if tensors beside linears change the meaning of these.
  explicit ModelWeights(const Checkpoint& checkpoint);

  bool has(const std::string& name) const { return matrices_.all().contains(name); }
  /// Throws Error if the matrix is missing, has another size, lacks its bias or has one too many.
  ModelMatrix matrix(const std::string& name, int64_t n, int64_t k, bool has_bias);
  /// The first `n` rows of an embedding, which must have at least that many.
  ModelMatrix table(const std::string& name, int64_t n, int64_t k);
  ModelVector vector(const std::string& name, int64_t count);
  /// Names of experts' blocks of a layer, "model.layers.0.mlp.experts"; empty: there is none.
  std::string expert_block(const std::string& layer) const;
  /// Throws Error if the layers below `layers` have a matrix, a norm or a bias that has not been used: the
  /// model computes something else.
  void refuse_unused(int64_t layers) const;

  std::vector<float> read(const ModelVector& vector) const;
  /// Rows [n0, n1) of a matrix, in float32.
  void read_rows(const ModelMatrix& matrix, int64_t n0, int64_t n1, std::span<float> out) const;

  /// From now on matrices of `weights` replace those that have the same names in the files.
  void replace(Checkpoint weights);
  /// Restores all matrices of the model's own.
  void restore() { replaced_.clear(); }

  /// The place where the rows of a matrix are stored: in its replacement, or in the model's own files.
  struct Stored {
    const Checkpoint& checkpoint;
    const Linear& module;
    StoredMatrix place;
  };
  Stored stored(const ModelMatrix& matrix) const;
  /// The bias [N] of a matrix; empty: it has none.
  std::vector<float> read_bias(const ModelMatrix& matrix) const;

  /// The buffer and the reader of a thread.
  struct Worker {
    explicit Worker(const Checkpoint& checkpoint) : reader(checkpoint) {}
    WeightReader reader;
    std::vector<float> rows;
  };
  Worker make_worker() const { return Worker(checkpoint_); }
  /// out = x w' + bias: `x` [m, K], `out` [m, N], on all threads.
  void multiply(const ModelMatrix& matrix, const float* x, int64_t m, float* out) const;
  /// The same on this thread.
  void multiply(Worker& worker, const ModelMatrix& matrix, const float* x, int64_t m, float* out) const;

 private:
  /// A checkpoint whose matrices replace others.
  struct Replacement {
    explicit Replacement(Checkpoint weights)
        : checkpoint(std::move(weights)), matrices(checkpoint, findings) {}
    Checkpoint checkpoint;
    Findings findings;
    Matrices matrices;
  };
  void read_stored(WeightReader& reader, const Stored& from, int64_t n0, int64_t n1,
                   std::span<float> out) const;
  /// Rows from n0 on of a matrix of floats if its file is mapped; nullptr: they must be read.
  const uint8_t* mapped(const Stored& from, int64_t n0) const;
  /// Computes outputs [n0, n1) of `x`.
  void multiply_strip(Worker& worker, const ModelMatrix& matrix, int64_t n0, int64_t n1, const float* x,
                      int64_t m, float* out) const;
  void add_bias(const ModelMatrix& matrix, int64_t m, float* out) const;

  const Checkpoint& checkpoint_;
  Findings findings_;
  Matrices matrices_;
  std::vector<MappedBytes> files_;  ///< by shard; none if the checkpoint is not stored as it is
  std::set<const Linear*> used_modules_;
  std::set<size_t> used_;
  std::vector<std::unique_ptr<Linear>> tables_;
  std::map<std::string, std::pair<std::shared_ptr<const Replacement>, StoredMatrix>> replaced_;
};

}  // namespace twofour
