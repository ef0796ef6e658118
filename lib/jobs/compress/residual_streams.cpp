#include "lib/jobs/compress/residual_streams.h"

#include <algorithm>
#include <vector>

#include "lib/base/io/hash.h"

namespace twofour {
namespace {

constexpr uint64_t kPieceNumbers = 4 << 20;

size_t index_of(StreamOf model) { return model == StreamOf::kDense ? 0 : 1; }

std::span<uint8_t> bytes_in(std::span<float> x) {
  return {reinterpret_cast<uint8_t*>(x.data()), x.size_bytes()};
}

std::span<const uint8_t> bytes_in(std::span<const float> x) {
  return {reinterpret_cast<const uint8_t*>(x.data()), x.size_bytes()};
}

/// Calls f(first, piece) for the pieces of `count` numbers. `piece` is memory for the numbers.
template <class F>
void for_each_piece(uint64_t count, F&& f) {
  std::vector<float> piece(std::min(kPieceNumbers, count));
  for (uint64_t first = 0; first < count; first += piece.size())
    f(first, std::span(piece).first(std::min<uint64_t>(piece.size(), count - first)));
}

}  // namespace

Streams::Streams(const std::filesystem::path& folder, int models, uint64_t tokens, int64_t hidden,
                 bool in_memory, const cuda::DeviceStream* stream)
    : models_(models),
      tokens_(tokens),
      hidden_(hidden),
      in_memory_(in_memory),
      stream_(stream),
      memory_{FloatArray(stream), FloatArray(stream)} {
  for (int i = 0; i < 2; ++i) {
    files_[i] = std::make_unique<WorkFile>(folder / name_before(i), numbers() * sizeof(float));
    if (in_memory) memory_[i].resize(numbers());
  }
}

uint64_t Streams::bytes(int models, uint64_t tokens, int64_t hidden) {
  return 2 * static_cast<uint64_t>(models) * tokens * static_cast<uint64_t>(hidden) * sizeof(float);
}

uint64_t Streams::first_of(StreamOf model, uint64_t row) const {
  return (index_of(model) * tokens_ + row) * static_cast<uint64_t>(hidden_);
}

void Streams::begin_layer(int64_t layer) {
  before_ = static_cast<int>(layer % 2);
  advanced_[0] = advanced_[1] = false;
}

void Streams::read(StreamOf model, uint64_t row, uint64_t rows, FloatArray& out) const {
  const uint64_t count = rows * static_cast<uint64_t>(hidden_);
  const int now = advanced_[index_of(model)] ? 1 - before_ : before_;
  if (in_memory_ && out.on_device() == memory_[now].on_device()) {
    memory_[now].copy_to(first_of(model, row), count, out.resize(count));
  } else if (out.on_device()) {
    std::vector<float> read(count);
    read_to_host(model, row, read);
    out.assign_from_host(read);
  } else {
    out.resize(count);
    read_to_host(model, row, {out.data(), count});
  }
}

void Streams::read_to_host(StreamOf model, uint64_t row, std::span<float> out) const {
  const int now = advanced_[index_of(model)] ? 1 - before_ : before_;
  const uint64_t first = first_of(model, row);
  if (in_memory_) {
    memory_[now].copy_to_host(first, out);
  } else {
    files_[now]->read(first * sizeof(float), bytes_in(out));
  }
}

void Streams::write(StreamOf model, uint64_t row, const FloatArray& rows) {
  const uint64_t first = first_of(model, row);
  const int next = 1 - before_;
  if (in_memory_ && rows.on_device() == memory_[next].on_device())
    return rows.copy_to(0, rows.size(), memory_[next].data() + first);
  std::vector<float> read;
  std::span<const float> own(rows.data(), rows.size());
  if (rows.on_device()) {
    read.resize(rows.size());
    rows.copy_to_host(0, read);
    own = read;
  }
  if (in_memory_) {
    std::copy(own.begin(), own.end(), memory_[next].data() + first);
  } else {
    files_[next]->write(first * sizeof(float), bytes_in(own));
  }
}

void Streams::advance(StreamOf model) { advanced_[index_of(model)] = true; }

void Streams::write_first(uint64_t row, std::span<const float> rows) {
  for (int model = 0; model < models_; ++model) {
    const uint64_t first = first_of(model == 0 ? StreamOf::kDense : StreamOf::kCompressed, row);
    if (!in_memory_) {
      files_[0]->write(first * sizeof(float), bytes_in(rows));
    } else if (stream_ != nullptr) {
      cuda::copy_to_device(rows.data(), memory_[0].data() + first, rows.size_bytes(), *stream_);
    } else {
      std::copy(rows.begin(), rows.end(), memory_[0].data() + first);
    }
  }
}

void Streams::load(int64_t layer) {
  if (!in_memory_) return;
  FloatArray& to = memory_[layer % 2];
  for_each_piece(numbers(), [&](uint64_t first, std::span<float> piece) {
    files_[layer % 2]->read(first * sizeof(float), bytes_in(piece));
    if (stream_ != nullptr) {
      cuda::copy_to_device(piece.data(), to.data() + first, piece.size_bytes(), *stream_);
    } else {
      std::copy(piece.begin(), piece.end(), to.data() + first);
    }
  });
}

std::string Streams::keep(int64_t layer) const {
  const WorkFile& file = *files_[layer % 2];
  Hasher hasher;
  // Copies of the device have a stream of their own, since the other one has the work of the layer that runs.
  const std::unique_ptr<cuda::DeviceStream> own =
      stream_ != nullptr && in_memory_ ? std::make_unique<cuda::DeviceStream>() : nullptr;
  for_each_piece(numbers(), [&](uint64_t first, std::span<float> piece) {
    const auto bytes = bytes_in(piece);
    if (!in_memory_) {
      file.read(first * sizeof(float), bytes);
    } else {
      const float* from = memory_[layer % 2].data() + first;
      if (own != nullptr) {
        cuda::copy_to_host(from, piece.data(), piece.size_bytes(), *own);
      } else {
        std::copy_n(from, piece.size(), piece.data());
      }
      file.write(first * sizeof(float), bytes);
    }
    hasher.update(bytes);
  });
  file.flush();
  return hasher.digest().hex();
}

}  // namespace twofour
