#include "lib/jobs/compress/residual_streams.h"

namespace twofour {
namespace {

size_t index_of(StreamOf model) { return model == StreamOf::kDense ? 0 : 1; }

}  // namespace

Streams::Streams(const std::filesystem::path& folder, int models, uint64_t tokens, int64_t hidden)
    : models_(models), tokens_(tokens), hidden_(hidden) {
  const uint64_t size = bytes(models, tokens, hidden) / 2;
  files_[0] = std::make_unique<WorkFile>(folder / name_before(0), size);
  files_[1] = std::make_unique<WorkFile>(folder / name_before(1), size);
}

uint64_t Streams::bytes(int models, uint64_t tokens, int64_t hidden) {
  return 2 * static_cast<uint64_t>(models) * tokens * static_cast<uint64_t>(hidden) * sizeof(float);
}

uint64_t Streams::offset(StreamOf model, uint64_t row) const {
  return (index_of(model) * tokens_ + row) * static_cast<uint64_t>(hidden_) * sizeof(float);
}

void Streams::begin_layer(int64_t layer) {
  before_ = static_cast<int>(layer % 2);
  advanced_[0] = advanced_[1] = false;
}

void Streams::read(StreamOf model, uint64_t row, std::span<float> out) const {
  const int file = advanced_[index_of(model)] ? 1 - before_ : before_;
  files_[file]->read(offset(model, row), {reinterpret_cast<uint8_t*>(out.data()), out.size_bytes()});
}

void Streams::write(StreamOf model, uint64_t row, std::span<const float> rows) {
  files_[1 - before_]->write(offset(model, row),
                             {reinterpret_cast<const uint8_t*>(rows.data()), rows.size_bytes()});
}

void Streams::advance(StreamOf model) { advanced_[index_of(model)] = true; }

void Streams::write_first(uint64_t row, std::span<const float> rows) {
  for (int model = 0; model < models_; ++model) {
    files_[0]->write(offset(model == 0 ? StreamOf::kDense : StreamOf::kCompressed, row),
                     {reinterpret_cast<const uint8_t*>(rows.data()), rows.size_bytes()});
  }
}

void Streams::flush() const { files_[1 - before_]->flush(); }

}  // namespace twofour
