#include "lib/recipe/artifact/open_unpacked.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "formats/error.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "lib/base/findings/finding.h"
#include "lib/base/primitives/idle.h"
#include "lib/recipe/artifact/artifact_modules.h"
#include "lib/recipe/artifact/reference_unpacker.h"
#include "lib/recipe/artifact/unpack.h"
#include "lib/source/config/quantization_config.h"

namespace twofour {
namespace {

/// The source of an artifact in a layout, rebuilt from the artifact's records. open_source() returns it as a
/// Checkpoint.
class ArtifactView : public TensorSource {
 public:
  struct Tensor {
    TensorInfo info;
    uint32_t shard;  ///< the artifact's shard with most of the bytes
    // `kind` decides which of these two is set.
    size_t stored;  ///< if copied, the artifact's tensor
    size_t module;  ///< if unpacked, in ArtifactModules::modules
    enum class Kind { kStored, kCodes, kBlockScales, kGlobalScale } kind;
  };

  /// Throws Error if twofour.json does not match the artifact.
  ArtifactView(Checkpoint artifact, ReadPath how, const ViewLimits& limits);
  ~ArtifactView() override;

  const Checkpoint& stored() const override { return artifact_; }
  /// All tensors, sorted by name.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  Json config() const;
  const Json& hf_quant_config() const { return *modules_.hf_quant_config; }
  Findings findings() const;
  /// Reads like Checkpoint::read. Also throws Error if the artifact's bytes violate its layout.
  void read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const override;
  /// Does the same as Checkpoint::reader_bytes.
  uint64_t reader_bytes() const override;

 private:
  struct Tile;
  struct Reader;
  void add_module(size_t module);
  void read_expert(const Tensor& tensor, int64_t e, int64_t begin, std::span<uint8_t> out) const;
  void read_tile(const Tile& tile, int64_t begin, std::span<uint8_t> out) const;
  std::unique_ptr<Reader> take_reader(const Tile& tile) const;

  Checkpoint artifact_;
  ArtifactModules modules_;
  ViewLimits limits_;
  std::vector<Tensor> tensors_;
  std::unique_ptr<ReferenceUnpacker> reference_;  ///< for reads by the layout's map
  mutable std::mutex mutex_;
  mutable Idle<std::unique_ptr<Reader>> idle_;
};

/// The smallest and the largest number of lines in a tile, which is unpacked to read a few lines. Runs of an
/// artifact's bytes are as long as a tile has rows.
constexpr int64_t kMinTileLines = 16, kMaxTileLines = 256;
/// The columns of a tile begin and end with whole groups of codes.
constexpr int64_t kTileGrain = 8;

std::vector<int64_t> stored_shape(const SourceLinear& m, int64_t width) {
  std::vector<int64_t> shape = m.k_outer ? std::vector{width, m.n} : std::vector{m.n, width};
  if (m.dialect->stacked) shape.insert(shape.begin(), m.e);
  return shape;
}

}  // namespace

/// A part of an expert's codes or block scales. It has lines [first, last), and bytes [c0, c1) of each.
struct ArtifactView::Tile {
  const SourceLinear* module = nullptr;
  Field field = Field::kCodes;
  int64_t e = 0, first = 0, last = 0, c0 = 0, c1 = 0;
  bool operator==(const Tile&) const = default;
};

/// Buffers of one thread.
struct ArtifactView::Reader {
  ArtifactUnpacker unpacker;
  Tile tile{};
  std::vector<uint8_t> bytes{};
};

ArtifactView::ArtifactView(Checkpoint artifact, ReadPath how, const ViewLimits& limits)
    : artifact_(std::move(artifact)), modules_(read_artifact_modules(artifact_)), limits_(limits) {
  if (how == ReadPath::kReference) {
    reference_ = std::make_unique<ReferenceUnpacker>(artifact_, modules_, limits_.reference);
  }
  std::vector<bool> unpacked(artifact_.tensors().size());
  for (const ArtifactMatrix& matrix : modules_.matrices) {
    for (const size_t part : matrix.parts) unpacked[part] = true;
    unpacked[matrix.global_scale] = true;
  }
  for (size_t i = 0; i < unpacked.size(); ++i) {
    if (unpacked[i]) continue;
    if (!modules_.copied.count(artifact_.tensors()[i].name)) {
      throw Error(
          fmt::format("{}: expected the source of {} in a module or among the copied tensors, found neither",
                      (artifact_.path() / kManifestName).string(), json_quote(artifact_.tensors()[i].name)));
    }
    tensors_.push_back({artifact_.tensors()[i], artifact_.shard_index_of(i), i, 0, Tensor::Kind::kStored});
  }
  for (size_t m = 0; m < modules_.modules.size(); ++m) add_module(m);
  std::sort(tensors_.begin(), tensors_.end(),
            [](const Tensor& a, const Tensor& b) { return a.info.name < b.info.name; });
  const auto twice = std::adjacent_find(tensors_.begin(), tensors_.end(),
                                        [](auto& a, auto& b) { return a.info.name == b.info.name; });
  if (twice != tensors_.end()) {
    throw Error(fmt::format("{}: expected one tensor {}, found it twice",
                            (artifact_.path() / kManifestName).string(), json_quote(twice->info.name)));
  }
}

ArtifactView::~ArtifactView() = default;

void ArtifactView::add_module(size_t module) {
  const SourceLinear& m = modules_.modules[module];
  const ArtifactMatrix& matrix = modules_.matrices[m.matrix];
  const auto add = [&](const char* suffix, DType dtype, std::vector<int64_t> shape, uint64_t bytes,
                       size_t from, Tensor::Kind kind) {
    tensors_.push_back({{m.name + suffix, dtype, std::move(shape), 0, bytes},
                        artifact_.shard_index_of(from),
                        0,
                        module,
                        kind});
  };
  const auto weights = static_cast<uint64_t>(m.e * m.n * m.k);
  add(m.dialect->codes, DType::kU8, stored_shape(m, m.k / 2), weights / 2, matrix.parts.front(),
      Tensor::Kind::kCodes);
  add(m.dialect->block_scale, DType::kF8E4M3, stored_shape(m, m.k / kGroup), weights / kGroup,
      matrix.parts.back(), Tensor::Kind::kBlockScales);
  add(m.dialect->global_scale, DType::kF32, m.global_scale_shape, m.global_scale_bits.size() * sizeof(float),
      matrix.global_scale, Tensor::Kind::kGlobalScale);
}

Json ArtifactView::config() const { return original_config(artifact_.config(), hf_quant_config()); }

Findings ArtifactView::findings() const {
  Findings findings = artifact_.findings();
  // Copied tensors are examined again with the rest.
  std::erase_if(findings, [](const Finding& f) { return f.id == "incomplete-module"; });
  findings.insert(findings.end(), modules_.findings.begin(), modules_.findings.end());
  return findings;
}

uint64_t ArtifactView::reader_bytes() const { return limits_.tile + 3 * limits_.load; }

void ArtifactView::read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const {
  const Tensor& t = tensors_[tensor];
  if (t.kind == Tensor::Kind::kStored) return artifact_.read(t.stored, offset, out);
  if (out.empty()) return;
  const SourceLinear& m = modules_.modules[t.module];
  if (t.kind == Tensor::Kind::kGlobalScale) {
    std::memcpy(out.data(), reinterpret_cast<const uint8_t*>(m.global_scale_bits.data()) + offset,
                out.size());
    return;
  }
  const uint64_t expert_bytes = t.info.bytes() / static_cast<uint64_t>(m.e);
  for (uint64_t done = 0; done < out.size();) {
    const uint64_t e = (offset + done) / expert_bytes, begin = (offset + done) % expert_bytes;
    const uint64_t count = std::min<uint64_t>(out.size() - done, expert_bytes - begin);
    read_expert(t, static_cast<int64_t>(e), static_cast<int64_t>(begin), out.subspan(done, count));
    done += count;
  }
}

void ArtifactView::read_expert(const Tensor& t, int64_t e, int64_t begin, std::span<uint8_t> out) const {
  const SourceLinear& m = modules_.modules[t.module];
  const Field field = t.kind == Tensor::Kind::kCodes ? Field::kCodes : Field::kBlockScales;
  if (reference_) return reference_->read(m, field, e, begin, out);
  const int64_t width = m.k / (field == Field::kCodes ? 2 : kGroup);
  const int64_t pitch = m.k_outer ? m.n : width, lines = m.k_outer ? width : m.n;
  const int64_t end = begin + static_cast<int64_t>(out.size());
  const int64_t first = begin / pitch, last = (end + pitch - 1) / pitch;
  const auto tile_lines = [&](int64_t bytes) {
    const int64_t fit = static_cast<int64_t>(limits_.tile) / bytes;
    return std::min(lines, std::clamp(fit, kMinTileLines, kMaxTileLines));
  };
  Tile tile{&m, field, e, 0, lines, 0, pitch};
  if (last - first == 1 && 2 * (end - begin) < pitch) {  // one piece of a line, likely followed by others
    tile.c0 = (begin - first * pitch) / kTileGrain * kTileGrain;
    tile.c1 = std::min(pitch, (end - first * pitch + kTileGrain - 1) / kTileGrain * kTileGrain);
  } else if (2 * (last - first) >= tile_lines(pitch)) {
    auto reader = take_reader(tile);
    const Box box = m.k_outer ? Box{0, m.n, first, last} : Box{first, last, 0, width};
    reader->unpacker.unpack(m, field, e, box, {out.data(), begin, end, pitch, 0, 0, m.k_outer});
    return idle_.give_back(std::move(reader));
  }
  const int64_t step = tile_lines(tile.c1 - tile.c0), tile_pitch = tile.c1 - tile.c0;
  for (int64_t line = first / step * step; line < last; line += step) {
    tile.first = line;
    tile.last = std::min(lines, line + step);
    const int64_t lo = std::max(begin, tile.first * pitch), hi = std::min(end, tile.last * pitch);
    const int64_t at = (lo / pitch - tile.first) * tile_pitch + lo % pitch - tile.c0;
    read_tile(tile, at, out.subspan(static_cast<size_t>(lo - begin), static_cast<size_t>(hi - lo)));
  }
}

/// Reads bytes of a tile from byte `begin` on. Unpacks the tile unless an idle reader still has it.
void ArtifactView::read_tile(const Tile& tile, int64_t begin, std::span<uint8_t> out) const {
  auto reader = take_reader(tile);
  if (reader->tile != tile) {
    const SourceLinear& m = *tile.module;
    const int64_t pitch = tile.c1 - tile.c0, bytes = (tile.last - tile.first) * pitch;
    reader->tile = {};
    reader->bytes.resize(static_cast<size_t>(bytes));
    const Box box = m.k_outer ? Box{tile.c0, tile.c1, tile.first, tile.last}
                              : Box{tile.first, tile.last, tile.c0, tile.c1};
    reader->unpacker.unpack(m, tile.field, tile.e, box,
                            {reader->bytes.data(), 0, bytes, pitch, tile.first, tile.c0, m.k_outer});
    reader->tile = tile;
  }
  std::memcpy(out.data(), &reader->bytes[static_cast<size_t>(begin)], out.size());
  idle_.give_back(std::move(reader));
}

/// Takes an idle reader, if possible one that has the tile. No other thread uses it until the caller gives it
/// back.
std::unique_ptr<ArtifactView::Reader> ArtifactView::take_reader(const Tile& tile) const {
  if (auto reader = idle_.take([&](auto& r) { return r->tile == tile; })) return std::move(*reader);
  return std::unique_ptr<Reader>(new Reader{ArtifactUnpacker(artifact_, modules_, limits_.load)});
}

Checkpoint open_source(const std::filesystem::path& path, ReadPath how, const ViewLimits& limits, Io io,
                       ZeroPoints zero_points) {
  return unpacked(Checkpoint::open(path, io, zero_points), how, limits);
}

Checkpoint unpacked(Checkpoint stored, ReadPath how, const ViewLimits& limits) {
  if (!holds_layout(stored)) return stored;
  const auto view = std::make_shared<const ArtifactView>(std::move(stored), how, limits);
  view->stored().check_same_files();  // with twofour.json, which was opened separately
  std::vector<TensorInfo> tensors;
  std::vector<uint32_t> shards;
  for (const ArtifactView::Tensor& t : view->tensors()) {
    tensors.push_back(t.info);
    shards.push_back(t.shard);
  }
  return Checkpoint::over(view, std::move(tensors), std::move(shards), view->config(),
                          view->hf_quant_config(), view->findings());
}

}  // namespace twofour
