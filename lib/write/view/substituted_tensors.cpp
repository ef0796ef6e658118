#include "lib/write/view/substituted_tensors.h"

#include <fmt/format.h>

#include <cstring>
#include <span>
#include <utility>

#include "formats/error.h"

namespace twofour {
namespace {

class SubstitutedTensors : public TensorSource {
 public:
  SubstitutedTensors(Checkpoint base, std::shared_ptr<const TensorBytes> bytes)
      : base_(std::move(base)), bytes_(std::move(bytes)), of_(base_.tensors().size()) {
    for (const auto& [name, own] : *bytes_) {
      const auto at = base_.find(name);
      const uint64_t found = at ? base_.tensors()[*at].bytes() : 0;
      if (found != own.size())
        throw Error(fmt::format("{}: expected {} bytes of {}, found {}", base_.path().string(), own.size(),
                                name, found));
      of_[*at] = &own;
    }
  }
  const Checkpoint& stored() const override { return base_; }
  const std::vector<Shard>& shards() const override { return base_.shards(); }
  void check_same_files() const override { base_.check_same_files(); }
  void read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const override {
    if (of_[tensor] == nullptr) return base_.read(tensor, offset, out);
    if (!out.empty()) std::memcpy(out.data(), of_[tensor]->data() + offset, out.size());
  }
  uint64_t reader_bytes() const override { return base_.reader_bytes(); }
  bool is_another() const override { return base_.is_view(); }
  std::map<std::string, std::string> config_texts() const override { return base_.config_texts(); }

 private:
  Checkpoint base_;
  std::shared_ptr<const TensorBytes> bytes_;
  std::vector<const std::vector<uint8_t>*> of_;  ///< by tensor; nullptr: the base's
};

}  // namespace

Checkpoint with_substituted(Checkpoint base, std::shared_ptr<const TensorBytes> bytes) {
  const auto source = std::make_shared<const SubstitutedTensors>(std::move(base), std::move(bytes));
  const Checkpoint& from = source->stored();
  std::vector<TensorInfo> tensors(from.tensors().begin(), from.tensors().end());
  std::vector<uint32_t> shards;
  for (size_t i = 0; i < tensors.size(); ++i) shards.push_back(from.shard_index_of(i));
  return Checkpoint::over(source, std::move(tensors), std::move(shards), from.config(),
                          from.hf_quant_config(), from.findings());
}

}  // namespace twofour
