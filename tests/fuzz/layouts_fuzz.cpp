#include <vector>

#include "formats/layouts/layout_ops.h"
#include "formats/layouts/layouts.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/weights/layout_reference.h"

// Input: layout, N - 1, K/16 - 1, whether it is gated, then the stored bytes of one expert, zeros where they
// end.

using namespace twofour;

namespace {

/// Weights unpacked from any bytes are packed to the same bytes, but for padding and for copies that
/// disagree.
template <class Layout>
void unpack_and_pack(Shape shape, const uint8_t* data, size_t size) {
  std::vector<std::vector<uint8_t>> stored;
  std::vector<std::span<const uint8_t>> parts;
  for (int p = 0; p < Layout::part_count; ++p) {
    std::vector<uint8_t> bytes(static_cast<size_t>(Layout::part(p, shape).bytes()));
    const size_t take = std::min(size, bytes.size());
    std::copy(data, data + take, bytes.begin());
    data += take;
    size -= take;
    stored.push_back(std::move(bytes));
  }
  for (const auto& bytes : stored) parts.emplace_back(bytes);

  std::vector<typename Layout::Atom> atoms;
  for (int64_t n = 0; n < shape.n; ++n) {
    for (int64_t g = 0; g < shape.groups(); ++g) {
      atoms.push_back(unpack_atom<Layout>(shape, n, g, parts));
      if constexpr (std::is_same_v<typename Layout::Atom, SparseGroup>) {
        const SparseGroup& atom = atoms.back();
        // Metadata of the six legal kinds says where the kept codes stood, so that pruning finds them again.
        const DenseGroup dense = expand(atom);
        for (int q = 0; q < 4; ++q) {
          const unsigned meta = (atom.meta[q / 2] >> 4 * (q % 2)) & 15u;
          const unsigned quad = dense.codes[2 * q] | unsigned{dense.codes[2 * q + 1]} << 8;
          const bool zero = (atom.comp[q] & 0x07) == 0 || (atom.comp[q] & 0x70) == 0;
          promise(!is_legal_meta(meta) || zero ||
                  (select_2_4(quad).comp == atom.comp[q] && select_2_4(quad).meta == meta));
        }
      }
    }
  }
  for (int p = 0; p < Layout::part_count; ++p) {
    const Part part = Layout::part(p, shape);
    std::vector<uint8_t> packed(static_cast<size_t>(part.bytes()));
    pack_part<Layout>(p, shape, atoms, packed);
    for (int64_t row = 0; row < part.rows; ++row) {
      for (int64_t col = 0; col < part.cols; ++col) {
        const size_t at = static_cast<size_t>(row * part.cols + col);
        const Source s = Layout::source(p, shape, {0, row, col});
        if (s.byte == kPadding) {
          promise(packed[at] == 0);
          continue;
        }
        const Stored first = Layout::place(shape, s);
        const bool is_first = first.part == p && first.at == Place{0, row, col};
        promise(!is_first || packed[at] == stored[static_cast<size_t>(p)][at]);
      }
    }
  }
}

}  // namespace

void twofour::fuzz_layouts(const uint8_t* data, size_t size) {
  if (size < 4) return;
  int layout = data[0] % 3;
  Shape shape{1, data[1] % 160 + 1, kGroup * (data[2] % 6 + 1), data[3] % 2 == 1};
  if (shape.gated) shape.n = 16 * (data[1] % 10 + 1);
  for_each_layout([&]<class Layout>() {
    if (layout-- == 0) unpack_and_pack<Layout>(shape, data + 4, size - 4);
  });
}
