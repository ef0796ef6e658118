#pragma once
#include <memory>
#include <random>
#include <vector>

#include "formats/layouts/layout_ops.h"
#include "formats/layouts/layouts.h"
#include "kernels/moe/moe.h"
#include "kernels/moe/moe_cpu.h"
#include "tests/support/weights/layout_reference.h"
#include "tests/support/weights/nvfp4_values.h"

namespace twofour {

/// Random experts in a layout, laid down byte by byte through its map, and what they stand for in double.
template <class Layout>
struct StoredExperts {
  Shape shape;
  std::vector<std::vector<typename Layout::Atom>> atoms;  ///< by expert, [N, K/16]
  std::vector<std::vector<uint8_t>> parts;
  std::vector<float> global_scale;

  StoredExperts(const Shape& all, unsigned seed) : shape(all) {
    std::mt19937 random(seed);
    const Shape one{1, shape.n, shape.k, shape.gated};
    parts.resize(Layout::part_count);
    for (int64_t e = 0; e < shape.e; ++e) {
      std::vector<typename Layout::Atom> expert(static_cast<size_t>(shape.n * shape.groups()));
      for (auto& atom : expert) {
        DenseGroup dense;
        for (uint8_t& byte : dense.codes) byte = static_cast<uint8_t>(random());
        dense.scale = random_block_scale(random);
        if constexpr (std::is_same_v<typename Layout::Atom, DenseGroup>) {
          atom = dense;
        } else {
          atom = prune(dense);
        }
      }
      for (int p = 0; p < Layout::part_count; ++p) {
        std::vector<uint8_t> bytes(static_cast<size_t>(Layout::part(p, one).bytes()));
        pack_part<Layout>(p, one, expert, bytes);
        auto& part = parts[static_cast<size_t>(p)];
        part.insert(part.end(), bytes.begin(), bytes.end());
      }
      atoms.push_back(std::move(expert));
      global_scale.push_back(random_global_scale(random));
    }
  }

  cpu::Experts experts() const {
    cpu::Experts w{Layout::name, shape, {}, global_scale.data()};
    for (size_t p = 0; p < parts.size(); ++p) w.parts[p] = parts[p].data();
    return w;
  }

  /// Holds a copy of nothing: keep this object.
  WeightRows rows() const {
    auto expert = std::make_shared<size_t>(0);
    return {shape.e, shape.n, shape.k, [expert](int64_t e) { *expert = static_cast<size_t>(e); },
            [this, expert](int64_t n, std::span<double> out) {
              for (size_t k = 0; k < out.size(); ++k) {
                const auto& atom = atoms[*expert][static_cast<size_t>(n * shape.groups()) + k / kGroup];
                out[k] = weight_of(dense_of(atom), static_cast<int64_t>(k % kGroup), global_scale[*expert]);
              }
            }};
  }

 private:
  static DenseGroup dense_of(const DenseGroup& atom) { return atom; }
  static DenseGroup dense_of(const SparseGroup& atom) { return expand(atom); }
};

}  // namespace twofour
