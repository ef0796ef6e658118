#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/run/decoder/decoder.h"
#include "lib/run/gradients/gradients.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/view/substituted_tensors.h"

namespace twofour {

/// The numbers of an artifact that recovery tunes: the weights of norms, and the global scales of linears.
/// Each is its value in the artifact times 1 + an offset. Linears that store one global scale, and linears
/// of one input and parent whose scales are equal, share an offset, since engines join them.
class TunedValues {
 public:
  /// Finds them. `model` is opened from the directory of `stored`, the tensors of the artifact. Both must
  /// outlive this object.
  TunedValues(const Checkpoint& stored, const Decoder& model);

  /// Number of offsets.
  size_t size() const { return norm_numbers_ + scales_.size(); }
  size_t norms() const { return norms_.size(); }
  size_t scales() const { return scales_.size(); }
  /// The offset of a linear, by its name in gradients. Nothing if its format has no global scale.
  std::optional<size_t> find_scale(const std::string& linear) const;
  /// The first offset of a norm, and the numbers that its offsets multiply, by its tensor in the model.
  std::optional<std::pair<size_t, std::span<const double>>> find_norm(size_t tensor) const;

  /// The bytes of all tuned tensors of the model for these offsets, rounded to their types. Numbers whose
  /// offset is 0 keep their bytes.
  TensorBytes shown(std::span<const double> offsets) const { return bytes(offsets, true); }
  /// The same of the artifact's tensors.
  TensorBytes stored(std::span<const double> offsets) const { return bytes(offsets, false); }
  /// True for tensors of the artifact that have global scales.
  bool is_scale(const std::string& tensor) const { return scale_tensors_.contains(tensor); }

 private:
  /// A number of a tensor. If `divides`, the tensor has its reciprocal.
  struct Place {
    std::string tensor;
    int64_t element;
    bool divides;
    auto operator<=>(const Place&) const = default;
  };
  struct Norm {
    std::string name;
    DType dtype;
    double plus;
    size_t first;                ///< the first offset
    std::vector<double> values;  ///< factors, with `plus` added
  };
  struct Scale {
    double value = 0;  ///< multiplier
    std::vector<Place> shown, stored;
  };

  void add_norm(const ModelVector& norm);
  void add_scale(const std::string& linear, const std::string& kin);
  std::vector<Place> stored_places(const Place& shown, const Nvfp4Linear& module, int64_t expert) const;
  TensorBytes bytes(std::span<const double> offsets, bool shown) const;

  const Checkpoint& stored_;
  const Decoder& model_;
  std::map<std::string, std::vector<Place>> in_layouts_;  ///< by tensor of the model: places of its elements
  std::vector<Norm> norms_;
  std::map<size_t, size_t> norm_of_;  ///< by tensor of the model
  size_t norm_numbers_ = 0;
  std::vector<Scale> scales_;
  std::map<std::string, size_t> scale_of_;      ///< by linear
  std::map<std::string, size_t> scale_of_kin_;  ///< by linears that share
  std::map<Place, size_t> scale_at_;            ///< by place in the artifact
  std::map<std::string, bool> scale_tensors_;   ///< scales of the artifact
};

/// Sums of the gradients in the offsets of an artifact's numbers.
class TunedGradients : public GradientWatcher {
 public:
  TunedGradients(const Decoder& model, const TunedValues& values, std::span<const double> offsets)
      : model_(model), values_(values), offsets_(offsets), sums_(values.size()) {}
  void see_gradient(size_t group, std::span<const float> x, std::span<const int64_t> tokens,
                    std::span<const OutputGradient> outputs) override;
  bool wants_norms() const override { return true; }
  void see_norm_gradient(const ModelVector& norm, std::span<const double> dweight) override;
  std::span<const double> sums() const { return sums_; }

 private:
  const Decoder& model_;
  const TunedValues& values_;
  std::span<const double> offsets_;
  std::vector<double> sums_;
};

}  // namespace twofour
