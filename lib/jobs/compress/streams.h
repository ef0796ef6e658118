#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "lib/base/io/work_file.h"

namespace twofour {

/// The model of a residual stream.
enum class StreamOf { kDense, kCompressed };

/// The residual streams of all tokens, [tokens, H] of each model, in files. Streams before a layer stay until
/// those after it are complete, so that the layer can be repeated if a run is killed.
class Streams {
 public:
  /// Files in `folder`. `models`: 1 or 2.
  Streams(const std::filesystem::path& folder, int models, uint64_t tokens, int64_t hidden);
  /// Begins a layer, with the streams before it.
  void begin_layer(int64_t layer);
  /// Reads rows from `row` on in their present state: before the layer, until they are written.
  void read(StreamOf model, uint64_t row, std::span<float> out) const;
  void write(StreamOf model, uint64_t row, std::span<const float> rows);
  /// From now on rows of a model are read as they were written.
  void advance(StreamOf model);
  /// The streams before the first layer.
  void write_first(uint64_t row, std::span<const float> rows);
  /// Flushes the streams after the layer to disk.
  void flush() const;
  /// The file with the streams before a layer.
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
