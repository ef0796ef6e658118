#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lib/run/collect/input_sums.h"
#include "lib/run/collect/statistics_writer.h"
#include "lib/run/gradients/gradients.h"

namespace twofour {

/// The sums over gradients that a backward pass makes.
struct GradientRequest {
  bool fisher = false;  ///< `fisher_hessian` and `fisher_rows`
  bool guided = false;  ///< weights of tokens are roots of their squared gradients
  /// The largest size in bytes of the Fisher matrices of the downs of a layer's experts. If they are larger,
  /// the experts share one matrix, scaled for each by its number of tokens.
  uint64_t expert_bytes = uint64_t{2} << 30;
  bool any() const { return fisher || guided; }
};

/// The mean over the outputs of a product of the squared gradient of the loss, for each of `rows` tokens.
std::vector<double> mean_squared_gradients(std::span<const OutputGradient> outputs, size_t rows);

/// True if the gate and up of all experts of a layer are the linears of a group.
bool is_input_of_experts(const InputGroup& group);

/// The entries of a layer with gradients. Each linear has an entry, and so have gate and up of all experts
/// together and the downs of experts without tokens. `groups` receives the group of each entry, or SIZE_MAX.
std::vector<PlannedEntry> gradient_entries(const Decoder& model, const std::vector<InputGroup>& groups,
                                           const GradientRequest& request, std::vector<size_t>& of_groups);

/// Adds up gradients of one layer, or of the head.
class GradientSums : public GradientWatcher {
 public:
  /// `device` computes the products, or the CPU if it is nullptr. The head has one group.
  GradientSums(const Decoder& model, const std::vector<InputGroup>& groups, const GradientRequest& request,
               DeviceSums* device);
  /// Begins a batch of `rows` tokens.
  void begin_batch(size_t rows);
  void see_gradient(size_t group, std::span<const float> x, std::span<const int64_t> tokens,
                    std::span<const OutputGradient> outputs) override;
  void end_batch();
  /// Writes the planned entries of the layer. Call this after the last batch. Throws Error if sums are not
  /// finite.
  void write(const StatisticsWriter& writer);

  /// Bytes of the sums of a layer with these groups.
  static uint64_t bytes(const Decoder& model, const std::vector<InputGroup>& groups,
                        const GradientRequest& request);

 private:
  struct EntryGradients {
    InputSums fisher, guided;
    int64_t tokens = 0;
  };
  size_t index_of(size_t group, std::span<const OutputGradient> outputs) const;
  void add_expert_input(std::span<const float> x, std::span<const int64_t> tokens, std::span<const double> e);

  const std::vector<InputGroup>& groups_;
  const GradientRequest request_;
  std::vector<size_t> of_groups_;
  std::vector<PlannedEntry> entries_;
  std::vector<EntryGradients> sums_;  ///< sums of each entry
  std::map<std::string, std::vector<double>>
      rows_;  ///< for each linear: sums of squared gradients of its outputs
  std::map<std::string, size_t> entry_of_;
  bool shares_fisher_ = false;
  /// For a batch: the inputs of experts, and for each token the sums of e and of its root over the token's
  /// experts.
  std::vector<float> expert_x_;
  std::vector<double> expert_e_, expert_roots_;
  int64_t expert_rows_ = 0;
};

}  // namespace twofour
