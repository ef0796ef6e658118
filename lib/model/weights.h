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

#include "lib/checkpoint/matrices.h"
#include "lib/io/mapped_file.h"

namespace twofour {

/// A matrix [N, K] of a model, in whatever format the checkpoint stores it, and its bias.
struct ModelMatrix {
  const Linear* module = nullptr;  ///< nullptr: there is none
  StoredMatrix place{};
  int64_t n = 0, k = 0;
  bool has_bias = false;
  std::string name = {};  ///< as the files have it, or of an expert apart where they hold a stack
  explicit operator bool() const { return module != nullptr; }
};

/// A vector of floats: `count` elements of a tensor, from the first on, so far apart.
struct ModelVector {
  std::optional<size_t> tensor{};  ///< nothing: there is none
  int64_t first = 0, step = 1, count = 0;
  explicit operator bool() const { return tensor.has_value(); }
};

/// The weights of a model by their names, read from the checkpoint each time they are used. Those of stacks
/// have the names of experts apart: "model.layers.0.mlp.experts.3.gate_proj".
class ModelWeights {
 public:
  /// Buffers of decoded weights that multiply() takes.
  static constexpr int64_t kChunkBytes = 64 << 20;

  /// `checkpoint` outlives this. Throws Error where tensors beside linears change what these mean.
  explicit ModelWeights(const Checkpoint& checkpoint);

  bool has(const std::string& name) const { return matrices_.all().contains(name); }
  /// Throws Error if it is missing, has another size, or lacks its bias or has one too many.
  ModelMatrix matrix(const std::string& name, int64_t n, int64_t k, bool has_bias);
  /// The first `n` rows of an embedding, which must have as many.
  ModelMatrix table(const std::string& name, int64_t n, int64_t k);
  ModelVector vector(const std::string& name, int64_t count);
  /// Names of experts' blocks of a layer, "model.layers.0.mlp.experts"; empty: there is none.
  std::string expert_block(const std::string& layer) const;
  /// Throws Error where the layers below `layers` have a matrix, a norm or a bias that nothing has asked for:
  /// the model computes something else.
  void refuse_unused(int64_t layers) const;

  std::vector<float> read(const ModelVector& vector) const;
  /// Rows [n0, n1) of a matrix, in float32.
  void read_rows(const ModelMatrix& matrix, int64_t n0, int64_t n1, std::span<float> out) const;

  /// From now on matrices of `weights` take the place of those that the files give the same names.
  void replace(Checkpoint weights);
  /// All matrices are the model's own again.
  void restore() { replaced_.clear(); }

  /// Where the rows of a matrix are stored: what takes its place, or the model's own.
  struct Stored {
    const Checkpoint& checkpoint;
    const Linear& module;
    StoredMatrix place;
  };
  Stored stored(const ModelMatrix& matrix) const;
  /// The bias [N] of a matrix; empty: it has none.
  std::vector<float> read_bias(const ModelMatrix& matrix) const;

  /// What a thread decodes into, and reads with.
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
  /// A checkpoint whose matrices take the place of others.
  struct Replacement {
    explicit Replacement(Checkpoint weights)
        : checkpoint(std::move(weights)), matrices(checkpoint, findings) {}
    Checkpoint checkpoint;
    Findings findings;
    Matrices matrices;
  };
  void read_stored(WeightReader& reader, const Stored& from, int64_t n0, int64_t n1,
                   std::span<float> out) const;
  /// Rows [n0, n1) of a matrix of floats where its file is mapped; nullptr: they are to be read.
  const uint8_t* mapped(const Stored& from, int64_t n0) const;
  /// Outputs [n0, n1) of `x`.
  void multiply_strip(Worker& worker, const ModelMatrix& matrix, int64_t n0, int64_t n1, const float* x,
                      int64_t m, float* out) const;
  void add_bias(const ModelMatrix& matrix, int64_t m, float* out) const;

  const Checkpoint& checkpoint_;
  Findings findings_;
  Matrices matrices_;
  std::vector<MappedBytes> files_;  ///< by shard; none of a checkpoint that is not stored as it is
  std::set<const Linear*> used_modules_;
  std::set<size_t> used_;
  std::vector<std::unique_ptr<Linear>> tables_;
  std::map<std::string, std::pair<std::shared_ptr<const Replacement>, StoredMatrix>> replaced_;
};

}  // namespace twofour
