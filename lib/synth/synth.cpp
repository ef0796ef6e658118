#include "lib/synth/synth.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "formats/e4m3.h"
#include "formats/half.h"
#include "kernels/device/check.h"
#include "lib/base/io/file.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/job_queue.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/synth/auxiliary_files.h"
#include "lib/synth/plan.h"
#include "lib/synth/weights.h"
#include "lib/write/output/output_directory.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// The number of weights that one thread generates at once. Their buffers fit the L2 cache.
constexpr int64_t kItemWeights = 128 << 10;
/// The number of weights in a batch. Threads synchronize between batches.
constexpr int64_t kBatchWeights = 64 << 20;
/// BF16 tensors are drawn as rows of this length, regardless of their shape.
constexpr int64_t kFlatRow = SynthWeights::kPiece;
/// Generates the tensors and writes them to their planned places. Modules are gathered into batches. The
/// largest magnitudes of a batch are measured before anything is quantized, because gate and up share their
/// global scale.
class Writer {
 public:
  Writer(const fs::path& directory, const SynthFiles& plan, const SynthModel& model,
         const SynthOptions& options, Progress& progress)
      : plan_(plan),
        floats_(model.publication->floats),
        experts_(model.experts),
        seed_(options.seed),
        jobs_(options.jobs),
        progress_(progress) {
    files_.reserve(plan.shards().size());
    for (const SynthShard& shard : plan.shards()) {
      files_.emplace_back(directory / shard.name);
      files_.back().resize(shard.header.size() + shard.data_bytes);
      files_.back().write(0, shard.header);
    }
  }

  /// Adds modules that share a scale, or a single module.
  void add(std::span<const SynthModule> modules) {
    const bool measured = modules[0].format != nullptr && needs_amax(*modules[0].format);
    groups_.push_back({measured, SynthWeights(seed_, modules[0].name() + ".input").key()});
    for (const SynthModule& m : modules) add_matrix(m, &m == modules.data());
    if (batch_weights_ >= kBatchWeights) flush();
  }

  /// Writes the modules that were added.
  void flush() {
    for_each_item([&](Item& item) { measure(item); });
    for (const Item& item : items_) {
      Group& group = groups_[matrices_[item.matrix].group];
      group.amax = std::max(group.amax, item.amax);
    }
    for (const Matrix& m : matrices_) {
      write_single(m);
    }
    for_each_item([&](const Item& item) {
      const Matrix& m = matrices_[item.matrix];
      if (m.module.format != nullptr) {
        write_quantized(m, item);
      } else if (m.module.kind == ParameterKind::kNumbers) {
        write_expert_ids(m, item);
      } else {
        write_floats(m, item);
      }
    });
    groups_.clear();
    matrices_.clear();
    items_.clear();
    batch_weights_ = 0;
  }

  void commit() {
    for (AtomicFile& file : files_) {
      check_interrupt();
      file.commit();
    }
  }

 private:
  struct Group {
    bool measured;
    uint64_t key;
    float amax = 0;
    /// The largest magnitude of activations, from 4 to 16.
    float input_amax() const { return static_cast<float>(64 + key % 192) / 16.0f; }
  };
  struct Matrix {
    SynthModule module;
    SynthWeights weights;
    int64_t rows;  ///< for floats, the number of rows of kFlatRow
    int64_t k;     ///< for floats, the number of all elements
    DType type;    ///< type of codes or floats
    std::vector<std::pair<SynthPart, SynthPlace>> places;
    size_t group = 0;
    SynthPlace place(SynthPart part) const {
      const auto at = std::find_if(places.begin(), places.end(), [&](auto& p) { return p.first == part; });
      check(at != places.end(), "a part of the matrix");
      return at->second;
    }
  };
  struct Item {
    size_t matrix;
    int64_t row, rows;
    float amax = 0;
  };

  void add_matrix(const SynthModule& m, bool first) {
    const auto tensors = module_tensors(m, first, floats_);
    Matrix matrix{m, SynthWeights(seed_, m.name()), m.matrix.rows(), m.matrix.k, tensors[0].info.dtype, {}};
    for (const SynthTensor& t : tensors) matrix.places.emplace_back(t.part, plan_.find(t.info.name));
    int64_t row_weights = matrix.k, strip = 1;
    if (m.format == nullptr) {
      matrix.k = 1;
      for (const int64_t size : tensors[0].info.shape) matrix.k *= size;
      matrix.rows = (matrix.k + kFlatRow - 1) / kFlatRow;
      row_weights = kFlatRow;
    } else {
      strip = strip_rows(*m.format) > 0 ? strip_rows(*m.format) : matrix.rows;
    }
    const int64_t step = std::max<int64_t>(1, kItemWeights / row_weights / strip) * strip;
    for (int64_t row = 0; row < matrix.rows; row += step) {
      items_.push_back({matrices_.size(), row, std::min(step, matrix.rows - row)});
    }
    batch_weights_ += matrix.rows * row_weights;
    matrix.group = groups_.size() - 1;
    matrices_.push_back(std::move(matrix));
  }

  template <class F>
  void for_each_item(F f) {
    std::vector<Item*> items;
    for (Item& item : items_) items.push_back(&item);
    const auto work = [&](Item* item) {
      check_interrupt();
      f(*item);
    };
    JobQueue<Item*>(std::move(items))
        .run(
            jobs_, [&] { return work; }, [] {});
  }

  void measure(Item& item) const {
    const Matrix& m = matrices_[item.matrix];
    if (!groups_[m.group].measured) return;
    for (int64_t r = item.row; r < item.row + item.rows; ++r) {
      item.amax = std::max(item.amax, m.weights.row_amax(r, m.k));
    }
  }

  void write_quantized(const Matrix& m, const Item& item) {
    std::vector<float> weights(static_cast<size_t>(item.rows * m.k));
    for (int64_t r = 0; r < item.rows; ++r) {
      for (int64_t first = 0; first < m.k; first += SynthWeights::kPiece) {
        const auto count = static_cast<size_t>(std::min(SynthWeights::kPiece, m.k - first));
        m.weights.draw(item.row + r, first,
                       std::span(weights).subspan(static_cast<size_t>(r * m.k + first), count));
      }
    }
    for (const SynthBytes& b :
         encode_rows(m.module.matrix, *m.module.format, item.row, weights, groups_[m.group].amax)) {
      write(m.place(b.part), b.offset, b.bytes);
    }
  }

  void write_floats(const Matrix& m, const Item& item) {
    const int64_t begin = item.row * kFlatRow, end = std::min(m.k, begin + item.rows * kFlatRow);
    const bool wide = m.type == DType::kF32;
    const size_t width = wide ? sizeof(float) : sizeof(uint16_t);
    std::vector<uint8_t> out(static_cast<size_t>(end - begin) * width);
    std::array<float, kFlatRow> weights;
    const float center = m.module.is_one ? 1.0f : 0.0f;
    for (int64_t at = begin; at < end; at += kFlatRow) {
      const auto count = static_cast<size_t>(std::min(kFlatRow, end - at));
      m.weights.draw(at / kFlatRow, 0, std::span(weights).first(count));
      uint8_t* row = out.data() + static_cast<size_t>(at - begin) * width;
      for (size_t i = 0; i < count; ++i) {
        const float w = weights[i] + center;
        const uint16_t half = m.type == DType::kF16 ? fp16_from_float(w) : bf16_from_float(w);
        std::memcpy(row + i * width, wide ? static_cast<const void*>(&w) : &half, width);
      }
    }
    write(m.place(SynthPart::kCodes), static_cast<uint64_t>(begin) * width, out);
  }

  /// Writes ids of experts. The ids of a row are consecutive, and the first id depends on the row.
  void write_expert_ids(const Matrix& m, const Item& item) {
    const int64_t begin = item.row * kFlatRow, end = std::min(m.k, begin + item.rows * kFlatRow);
    std::vector<int64_t> ids;
    for (int64_t at = begin; at < end; ++at) {
      const int64_t row = at / m.module.matrix.k, column = at % m.module.matrix.k;
      const uint64_t first = (m.weights.key() >> 32) + static_cast<uint64_t>(row) * 0x9E3779B1u;
      ids.push_back(
          static_cast<int64_t>((first + static_cast<uint64_t>(column)) % static_cast<uint64_t>(experts_)));
    }
    write(m.place(SynthPart::kCodes), static_cast<uint64_t>(begin) * sizeof(int64_t),
          {reinterpret_cast<const uint8_t*>(ids.data()), ids.size() * sizeof(int64_t)});
  }

  void write_single(const Matrix& m) {
    const Group& group = groups_[m.group];
    if (m.module.has_kv_scale) {
      write(m.place(SynthPart::kKvScale), 0,
            std::bit_cast<std::array<uint8_t, sizeof(float)>>(group.input_amax() / kE4m3Max));
    }
    if (m.module.format == nullptr) return;
    for (const SynthBytes& b :
         encode_single(m.module.matrix, *m.module.format, group.amax, group.input_amax())) {
      // If modules share a scale, only the first module writes it.
      if (b.part == SynthPart::kScales && m.module.format->shared && &m != first_of(m.group)) continue;
      write(m.place(b.part), b.offset, b.bytes);
    }
  }

  const Matrix* first_of(size_t group) const {
    return &*std::find_if(matrices_.begin(), matrices_.end(),
                          [&](const Matrix& m) { return m.group == group; });
  }

  void write(SynthPlace place, uint64_t offset, std::span<const uint8_t> bytes) {
    files_[place.shard].write(place.offset + offset, bytes);
    progress_.done += bytes.size();
  }

  const SynthFiles& plan_;
  DType floats_;
  int64_t experts_;
  uint64_t seed_;
  int jobs_;
  Progress& progress_;
  std::vector<AtomicFile> files_;
  std::vector<Group> groups_;
  std::vector<Matrix> matrices_;
  std::vector<Item> items_;
  int64_t batch_weights_ = 0;
};

}  // namespace

SynthResult synth(const fs::path& directory, const SynthOptions& options, Progress& progress) {
  const SynthModel model = make_synth_model(
      {options.shape, options.dialect, options.layers, options.experts, options.vocab, options.small});
  check_destination(directory, {}, Existing::kRefuse, false);

  progress.phase = "planning";
  const SynthFiles plan(model, options.max_shard_size);
  SynthResult result{model.publication->dialect, plan.data_bytes(), plan.tensor_count(),
                     plan.shards().size()};
  for (const SynthShard& shard : plan.shards()) {
    result.files.emplace_back(shard.name, shard.header.size() + shard.data_bytes);
  }
  if (options.dry_run) return result;
  OutputDirectory destination(directory, {}, Existing::kRefuse);
  destination.note(kSynthNote);
  progress.total = plan.data_bytes();

  progress.phase = "writing";
  for (const SynthShard& shard : plan.shards()) destination.add(shard.name);
  if (options.headers_only) {
    write_headers(directory, plan, model);
  } else {
    Writer writer(directory, plan, model, options, progress);
    for_each_module(model, [&](std::span<const SynthModule> modules) { writer.add(modules); });
    writer.flush();
    progress.phase = "flushing";
    writer.commit();
  }
  for (const auto& [name, text] : synth_auxiliary_files(model)) write_text(destination.add(name), text);
  write_text(destination.add(kIndexName), plan.index());
  destination.finish();
  return result;
}

}  // namespace twofour
