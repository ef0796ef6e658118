#include "lib/synth/synth.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>

#include "formats/dialect.h"
#include "formats/error.h"
#include "formats/half.h"
#include "kernels/numbers/quantize.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/io/file.h"
#include "lib/output/output_directory.h"
#include "lib/synth/plan.h"
#include "lib/synth/weights.h"
#include "lib/threads/interrupt.h"
#include "lib/threads/job_queue.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// Weights that one thread makes at once: its buffers fit the L2 cache.
constexpr int64_t kItemWeights = 128 << 10;
/// Weights between two meetings of the threads.
constexpr int64_t kBatchWeights = 64 << 20;
/// BF16 tensors are drawn as rows of this length, whatever their shape.
constexpr int64_t kFlatRow = SynthWeights::kPiece;
/// What the largest code and the largest block scale make of a global scale of 1.
constexpr float kNvfp4Max = 6 * 448;

/// Makes the tensors and writes them where the plan says. Modules are gathered into batches; of a batch all
/// magnitudes are known before anything is quantized, because gate and up share their global scale.
class Writer {
 public:
  Writer(const fs::path& directory, const SynthFiles& plan, const Nvfp4Dialect& dialect,
         const SynthOptions& options, Progress& progress)
      : plan_(plan), dialect_(dialect), seed_(options.seed), jobs_(options.jobs), progress_(progress) {
    files_.reserve(plan.shards().size());
    for (const SynthShard& shard : plan.shards()) {
      files_.emplace_back(directory / shard.name);
      files_.back().resize(shard.header.size() + shard.data_bytes);
      files_.back().write(0, shard.header);
    }
  }

  /// Adds modules that share a global scale, or one module.
  void add(std::span<const SynthModule> modules) {
    groups_.push_back({modules[0].is_nvfp4(), SynthWeights(seed_, modules[0].name + ".input").key()});
    for (const SynthModule& m : modules) {
      if (m.is_nvfp4()) {
        add_matrix({SynthWeights(seed_, m.name), m.role, m.n, m.k, plan_.find(m.name + dialect_.codes),
                    plan_.find(m.name + dialect_.block_scale), plan_.find(m.name + dialect_.global_scale),
                    plan_.find(m.name + dialect_.input_scale)});
      } else {
        const std::string tensor = m.role == SynthRole::kVector ? m.name : m.name + ".weight";
        const int64_t count = m.n * std::max<int64_t>(m.k, 1);
        add_matrix({SynthWeights(seed_, m.name),
                    m.role,
                    (count + kFlatRow - 1) / kFlatRow,
                    count,
                    plan_.find(tensor),
                    {},
                    {},
                    {}});
      }
    }
    if (batch_weights_ >= kBatchWeights) flush();
  }

  /// Writes what was added.
  void flush() {
    for_each_item([&](Item& item) { measure(item); });
    for (const Item& item : items_) {
      Group& group = groups_[matrices_[item.matrix].group];
      group.amax = std::max(group.amax, item.amax);
    }
    for (const Matrix& m : matrices_) {
      if (groups_[m.group].quantized) write_scalars(m, groups_[m.group]);
    }
    for_each_item([&](const Item& item) {
      const Matrix& m = matrices_[item.matrix];
      if (groups_[m.group].quantized) {
        write_nvfp4(m, item, groups_[m.group].global_scale());
      } else {
        write_bf16(m, item);
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
    bool quantized;
    uint64_t key;
    float amax = 0;
    /// The multiplier, such that the largest weight becomes the largest code times the largest block scale.
    float global_scale() const { return amax / kNvfp4Max; }
    /// Likewise of activations, which reach 4 to 16.
    float input_scale() const { return static_cast<float>(64 + key % 192) / 16.0f / kNvfp4Max; }
  };
  struct Matrix {
    SynthWeights weights;
    SynthRole role;
    int64_t rows;  ///< of a BF16 tensor: flat ones
    int64_t k;     ///< of a BF16 tensor: all elements
    SynthPlace codes, block_scale, global_scale, input_scale;
    size_t group = 0;
  };
  struct Item {
    size_t matrix;
    int64_t row, rows;
    float amax = 0;
  };

  void add_matrix(Matrix matrix) {
    const bool quantized = groups_.back().quantized;
    const int64_t row_weights = quantized ? matrix.k : kFlatRow;
    const int64_t step = std::max<int64_t>(1, kItemWeights / row_weights);
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
    if (!groups_[m.group].quantized) return;
    for (int64_t r = item.row; r < item.row + item.rows; ++r) {
      item.amax = std::max(item.amax, m.weights.row_amax(r, m.k));
    }
  }

  void write_nvfp4(const Matrix& m, const Item& item, float global_scale) {
    const int64_t k = m.k;
    std::vector<uint8_t> codes(static_cast<size_t>(item.rows * k / 2));
    std::vector<uint8_t> scales(static_cast<size_t>(item.rows * k / kGroup));
    std::array<float, SynthWeights::kPiece> weights;
    for (int64_t r = 0; r < item.rows; ++r) {
      for (int64_t first = 0; first < k; first += SynthWeights::kPiece) {
        const int64_t count = std::min(SynthWeights::kPiece, k - first), at = r * k + first;
        m.weights.draw(item.row + r, first, std::span(weights).first(static_cast<size_t>(count)));
        quantize_nvfp4_row(weights.data(), count, global_scale, codes.data() + at / 2,
                           scales.data() + at / kGroup);
      }
    }
    const auto before = static_cast<uint64_t>(item.row * k);
    write(m.codes, before / 2, codes);
    write(m.block_scale, before / kGroup, scales);
  }

  void write_bf16(const Matrix& m, const Item& item) {
    const int64_t begin = item.row * kFlatRow, end = std::min(m.k, begin + item.rows * kFlatRow);
    std::vector<uint16_t> out(static_cast<size_t>(end - begin));
    std::array<float, kFlatRow> weights;
    const float center = m.role == SynthRole::kVector ? 1.0f : 0.0f;
    for (int64_t at = begin; at < end; at += kFlatRow) {
      const auto count = static_cast<size_t>(std::min(kFlatRow, end - at));
      m.weights.draw(at / kFlatRow, 0, std::span(weights).first(count));
      uint16_t* row = out.data() + (at - begin);
      for (size_t i = 0; i < count; ++i) row[i] = bf16_from_float(weights[i] + center);
    }
    write(m.codes, static_cast<uint64_t>(begin) * 2,
          {reinterpret_cast<const uint8_t*>(out.data()), out.size() * sizeof(uint16_t)});
  }

  void write_scalars(const Matrix& m, const Group& group) {
    const auto put = [&](SynthPlace place, float multiplier) {
      const float stored = dialect_.divides ? 1.0f / multiplier : multiplier;
      write(place, 0, std::bit_cast<std::array<uint8_t, sizeof(float)>>(stored));
    };
    put(m.global_scale, group.global_scale());
    put(m.input_scale, group.input_scale());
  }

  void write(SynthPlace place, uint64_t offset, std::span<const uint8_t> bytes) {
    files_[place.shard].write(place.offset + offset, bytes);
    progress_.done += bytes.size();
  }

  const SynthFiles& plan_;
  const Nvfp4Dialect& dialect_;
  uint64_t seed_;
  int jobs_;
  Progress& progress_;
  std::vector<AtomicFile> files_;
  std::vector<Group> groups_;
  std::vector<Matrix> matrices_;
  std::vector<Item> items_;
  int64_t batch_weights_ = 0;
};

SynthModel find_model(const SynthOptions& options) {
  const auto shapes = synth_shape_table();
  const auto shape = std::find_if(shapes.begin(), shapes.end(),
                                  [&](const SynthShape& s) { return s.name == options.shape; });
  if (shape == shapes.end()) {
    throw Error(fmt::format("synth: expected a shape of {}, found '{}'", fmt::join(synth_shapes(), ", "),
                            options.shape));
  }
  const auto check = [](const char* what, int64_t found, int64_t least, int64_t most) {
    if (found >= least && found <= most) return;
    throw Error(fmt::format("synth: {}: expected {} to {}, found {}", what, least, most, found));
  };
  if (shape->experts_key == nullptr && options.experts) {
    throw Error(fmt::format("synth: experts: expected none, as {} is a dense model, found {}", shape->name,
                            *options.experts));
  }
  const SynthModel model{&*shape, options.layers.value_or(shape->layers),
                         options.experts.value_or(shape->experts), options.vocab};
  check("layers", model.layers, 1, 1000);
  check("vocab", model.vocab, 1, 10'000'000);
  if (model.experts < shape->top_k || model.experts > kSynthMostExperts) {
    throw Error(
        fmt::format("synth: experts: expected {} to {}, as the router of {} picks {} a token, found {}",
                    shape->top_k, kSynthMostExperts, shape->name, shape->top_k, model.experts));
  }
  return model;
}

const Nvfp4Dialect& find_dialect(const std::string& name) {
  std::vector<std::string_view> names;
  for (const Nvfp4Dialect& d : nvfp4_dialects()) {
    if (d.stacked) continue;
    if (d.name == name) return d;
    names.push_back(d.name);
  }
  throw Error(fmt::format("synth: expected a dialect of {}, found '{}'", fmt::join(names, ", "), name));
}

}  // namespace

int64_t synth_least_experts(const std::string& shape) {
  for (const SynthShape& s : synth_shape_table()) {
    if (s.name == shape) return s.top_k;
  }
  throw Error(
      fmt::format("synth: expected a shape of {}, found '{}'", fmt::join(synth_shapes(), ", "), shape));
}

std::vector<std::string> synth_shapes() {
  std::vector<std::string> names;
  for (const SynthShape& shape : synth_shape_table()) names.emplace_back(shape.name);
  return names;
}

SynthResult synth(const fs::path& directory, const SynthOptions& options, Progress& progress) {
  const SynthModel model = find_model(options);
  const Nvfp4Dialect& dialect = find_dialect(options.dialect);
  OutputDirectory::check(directory, {}, Existing::kRefuse, false);

  progress.phase = "planning";
  const SynthFiles plan(model, dialect, options.max_shard_size);
  SynthResult result{plan.data_bytes(), plan.tensor_count(), plan.shards().size()};
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
    write_headers(directory, plan, model, dialect);
  } else {
    Writer writer(directory, plan, dialect, options, progress);
    for_each_module(model, [&](std::span<const SynthModule> modules) { writer.add(modules); });
    writer.flush();
    progress.phase = "flushing";
    writer.commit();
  }
  for (const auto& [name, text] : synth_auxiliary_files(model, dialect))
    write_text(destination.add(name), text);
  write_text(destination.add(kIndexName), plan.index());
  destination.finish();
  return result;
}

}  // namespace twofour
