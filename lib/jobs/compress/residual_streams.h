#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "lib/base/io/work_file.h"

namespace twofour {

/// The model to which a residual stream belongs.
enum class StreamOf { kDense, kCompressed };

/// The residual streams of all tokens, [tokens, H] for each model, in files. The streams before a layer stay
/// until the streams after it are complete. So the layer can be repeated if a run is killed.
class Streams {
 public:
  /// The files are in `folder`. `models` is 1 or 2.
  Streams(const std::filesystem::path& folder, int models, uint64_t tokens, int64_t hidden);
  /// Begins a layer with the streams before it.
  void begin_layer(int64_t layer);
  /// Reads rows that begin at `row`, in their present state. Until advance() this is the stream before the
  /// layer, afterwards the stream that was written.
  void read(StreamOf model, uint64_t row, std::span<float> out) const;
  void write(StreamOf model, uint64_t row, std::span<const float> rows);
  /// From now on read() returns the rows of this model that write() wrote.
  void advance(StreamOf model);
  /// Writes the streams before the first layer.
  void write_first(uint64_t row, std::span<const float> rows);
  /// Flushes the streams after the layer to disk.
  void flush() const;
  /// The name of the file that has the streams before a layer.
  static const char* name_before(int64_t layer) { return layer % 2 == 0 ? "streams-even" : "streams-odd"; }
  static uint64_t bytes(int models, uint64_t tokens, int64_t hidden);

 private:
  uint64_t offset(StreamOf model, uint64_t row) const;

  int models_;
  uint64_t tokens_;
  int64_t hidden_;
  std::unique_ptr<WorkFile> files_[2];
  int before_ = 0;
  bool advanced_[2] = {false, false};
};

}  // namespace twofour
