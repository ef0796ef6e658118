#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "formats/atom.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "lib/base/findings/options.h"
#include "lib/look/inspect/inspect.h"
#include "lib/recipe/artifact/artifact_modules.h"
#include "lib/recipe/artifact/manifest.h"

namespace twofour {
namespace {

std::string code_text(unsigned code) {
  return fmt::format("0x{:X} ({})", code & 15, e2m1_to_float(code & 15));
}

std::string scale_text(unsigned byte) { return fmt::format("block scale {}", e4m3_to_float(byte)); }

std::string sparse_byte_text(const Source& s, uint8_t byte) {
  const int64_t k = s.group * kGroup;
  if (s.byte < 4) {
    return fmt::format("kept codes of quad k {}-{}: {}, {}", k + 4 * s.byte, k + 4 * s.byte + 3,
                       code_text(byte), code_text(byte >> 4));
  }
  if (s.byte < 6) {
    const int64_t first = k + 8 * (s.byte - 4);
    std::string text =
        fmt::format("places of the kept codes: k {} and {}, k {} and {}", first + (byte & 3),
                    first + (byte >> 2 & 3), first + 4 + (byte >> 4 & 3), first + 4 + (byte >> 6));
    for (const int shift : {0, 4}) {
      if (is_legal_meta(static_cast<unsigned>(byte >> shift))) continue;
      text += fmt::format("; illegal: expected two rising places in quad k {}-{}", first + shift,
                          first + shift + 3);
    }
    return text;
  }
  return fmt::format("k {}-{}: {}", k, k + kGroup - 1, scale_text(byte));
}

std::string dense_byte_text(const Source& s, uint8_t byte) {
  const int64_t k = s.group * kGroup;
  if (s.byte == 8) return fmt::format("k {}-{}: {}", k, k + kGroup - 1, scale_text(byte));
  return fmt::format("k {} and {}: codes {}, {}", k + 2 * s.byte, k + 2 * s.byte + 1, code_text(byte),
                     code_text(byte >> 4));
}

/// Describes a byte of an artifact. Names the target and the part that the tensor is and, by the layout's
/// map, the weights that the byte holds.
std::optional<std::string> describe_artifact_byte(const Checkpoint& c, const TensorInfo& t,
                                                  const std::string& layout, uint64_t offset, uint8_t byte) {
  std::optional<std::string> text;
  const Manifest manifest = read_manifest(c.path() / kManifestName, c.tensors().size());
  if (!manifest.integrity_error.empty()) {
    throw Error(fmt::format("{}: {}", (c.path() / kManifestName).string(), manifest.integrity_error));
  }
  for (const auto& [name, shape] : manifest.shapes) {
    if (!t.name.starts_with(name) || t.name.size() <= name.size() + 1) continue;
    const std::string_view suffix = std::string_view(t.name).substr(name.size() + 1);
    with_layout(layout, [&]<class L>() {
      for (int p = 0; p < L::part_count; ++p) {
        const Part part = L::part(p, shape);
        if (suffix != part.suffix) continue;
        // A manifest that does not match the tensor does not describe its bytes.
        if (t.shape != std::vector<int64_t>{shape.e, part.rows, part.cols} || part.bytes() == 0) return;
        const auto i = static_cast<int64_t>(offset);
        const Place at{i / part.bytes(), i % part.bytes() / part.cols, i % part.cols};
        const Source s = L::source(p, shape, at);
        text = fmt::format("expert {}, row {}, column {}: ", at.e, at.row, at.col);
        constexpr bool sparse = std::is_same_v<typename L::Atom, SparseGroup>;
        const std::string what = sparse ? sparse_byte_text(s, byte) : dense_byte_text(s, byte);
        *text += s.byte == kPadding ? "padding" : fmt::format("n {}, {}", s.n, what);
      }
    });
    if (suffix == "global_scale")
      text = fmt::format("expert {}: byte {} of its float32 global scale", offset / 4, offset % 4);
  }
  return text;
}

std::optional<std::string> describe_module_byte(const Checkpoint& c, size_t tensor, uint64_t offset,
                                                uint8_t byte) {
  for (const Nvfp4Linear& m : c.nvfp4_modules()) {
    if (tensor != m.codes && tensor != m.block_scale) continue;
    const int64_t per_byte = tensor == m.codes ? 2 : kGroup, width = m.k / per_byte;
    const auto i = static_cast<int64_t>(offset) % (m.n * width),
               e = static_cast<int64_t>(offset) / (m.n * width);
    const int64_t n = m.k_outer ? i % m.n : i / width, k = (m.k_outer ? i / m.n : i % width) * per_byte;
    const std::string where =
        fmt::format("{}{}n {}, ", m.name, m.e > 1 ? fmt::format(", expert {}, ", e) : ", ", n);
    if (tensor == m.block_scale)
      return fmt::format("{}k {}-{}: {}", where, k, k + kGroup - 1, scale_text(byte));
    return fmt::format("{}k {} and {}: codes {}, {}", where, k, k + 1, code_text(byte), code_text(byte >> 4));
  }
  return std::nullopt;
}

/// The layout of a tensor in an artifact with several layouts. Empty if the tensor does not belong to a
/// layout.
std::string layout_of(const Checkpoint& artifact, size_t tensor) {
  for (const ArtifactMatrix& m : read_artifact_modules(artifact).matrices) {
    const bool is_part = std::find(m.parts.begin(), m.parts.end(), tensor) != m.parts.end();
    if (is_part || m.global_scale == tensor) return m.layout;
  }
  return "";
}

}  // namespace

std::string describe_byte(const Checkpoint& c, const std::string& name, uint64_t offset) {
  const auto at = c.find(name);
  if (!at)
    throw Error(fmt::format("{}: expected a tensor of this checkpoint, found '{}'", options::kAt, name));
  const TensorInfo& t = c.tensors()[*at];
  if (offset >= t.bytes()) {
    throw Error(fmt::format("{}: {}: expected an offset below its {} bytes, found {}", options::kAt, name,
                            t.bytes(), offset));
  }
  uint8_t byte = 0;
  c.read(*at, offset, {&byte, 1});
  const std::string head = fmt::format("{} {}, byte {} = 0x{:02X}: ", name, describe(t), offset, byte);
  const Shard& shard = c.shard_of(*at);
  const auto layout = shard.metadata.find("twofour.layout");
  if (layout != shard.metadata.end()) {
    std::string own = layout->second;
    if (own == kMixedLayout) own = layout_of(c, *at);
    if (const auto text = describe_artifact_byte(c, t, own, offset, byte)) return head + *text;
  }
  if (const auto text = describe_module_byte(c, *at, offset, byte)) return head + *text;
  const auto bits = static_cast<uint64_t>(dtype_bits(t.dtype));
  return head +
         fmt::format("byte {} of element {}", offset % std::max<uint64_t>(1, bits / 8), offset * 8 / bits);
}

}  // namespace twofour
