#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "lib/base/io/work_file.h"
#include "lib/run/decoder/float_array.h"

namespace twofour {

/// The model to which a residual stream belongs.
enum class StreamOf { kDense, kCompressed };

/// The residual streams of all tokens, [tokens, H] for each model, in memory or in files. The streams before
/// a layer stay until the streams after it are complete. So the layer can be repeated if a run is killed.
class Streams {
 public:
  /// The files are in `folder`. `models` is 1 or 2. With `in_memory`, files are read by load() and written by
  /// keep() only, and the memory is on the device of `stream` if that is not null. Otherwise the files have
  /// the streams at any time.
  Streams(const std::filesystem::path& folder, int models, uint64_t tokens, int64_t hidden, bool in_memory,
          const cuda::DeviceStream* stream);
  /// Begins a layer with the streams before it.
  void begin_layer(int64_t layer);
  /// Reads `rows` rows that begin at `row`, in their present state. Until advance() this is the stream before
  /// the layer, afterwards the stream that was written.
  void read(StreamOf model, uint64_t row, uint64_t rows, FloatArray& out) const;
  void read_to_host(StreamOf model, uint64_t row, std::span<float> out) const;
  void write(StreamOf model, uint64_t row, const FloatArray& rows);
  /// From now on read() returns the rows of this model that write() wrote.
  void advance(StreamOf model);
  /// Writes the streams before the first layer.
  void write_first(uint64_t row, std::span<const float> rows);
  /// Reads the streams before `layer` from their file.
  void load(int64_t layer);
  /// Writes the streams before `layer` to their file and flushes it. Returns the file's hash. Another thread
  /// may call this while that layer runs.
  std::string keep(int64_t layer) const;
  /// The name of the file that has the streams before a layer.
  static const char* name_before(int64_t layer) { return layer % 2 == 0 ? "streams-even" : "streams-odd"; }
  static uint64_t bytes(int models, uint64_t tokens, int64_t hidden);

 private:
  uint64_t first_of(StreamOf model, uint64_t row) const;
  uint64_t numbers() const {
    return static_cast<uint64_t>(models_) * tokens_ * static_cast<uint64_t>(hidden_);
  }

  int models_;
  uint64_t tokens_;
  int64_t hidden_;
  bool in_memory_;
  const cuda::DeviceStream* stream_;
  std::unique_ptr<WorkFile> files_[2];
  FloatArray memory_[2];  ///< with the same contents as the files, if in_memory_
  int before_ = 0;
  bool advanced_[2] = {false, false};
};

}  // namespace twofour
