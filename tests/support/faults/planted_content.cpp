#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/support/faults/planted.h"
#include "tests/support/faults/spoil.h"

// Weights that are somebody else's, or no weights: clauses 4.1 to 4.8.

namespace twofour {
namespace {

using namespace spoil;
using enum Base;
constexpr Expect kFault = Expect::kFault, kHarmless = Expect::kHarmless;

/// Both codes of every byte.
Change map_codes(std::string pattern, std::function<unsigned(unsigned)> f) {
  return map_bytes(std::move(pattern), [=](uint8_t byte, size_t, auto&) {
    return static_cast<uint8_t>(f(byte & 15u) | f(byte >> 4) << 4);
  });
}

/// The whole number of -7 to 7 that INT4 has in place of an E2M1 code, if both reach equally far.
int as_int4(unsigned code) {
  constexpr double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const auto q = static_cast<int>(std::lround(magnitudes[code & 7u] * 7 / 6));
  return (code & 8u) != 0 ? -q : q;
}
unsigned twos_complement(unsigned code) { return static_cast<unsigned>(as_int4(code)) & 15u; }
unsigned offset_by_eight(unsigned code) { return static_cast<unsigned>(as_int4(code) + 8); }
unsigned sign_and_magnitude(unsigned code) {
  const int q = as_int4(code);
  return q < 0 ? 8u | static_cast<unsigned>(-q) : static_cast<unsigned>(q);
}
/// E4M3 to the E5M2 of the same number, rounded down; the smallest become zero or subnormal there, too.
uint8_t as_e5m2(uint8_t byte) {
  const unsigned sign = byte & 0x80u, exponent = byte >> 3 & 15u, fraction = byte & 7u;
  if (exponent == 0) return static_cast<uint8_t>(sign);
  return static_cast<uint8_t>(sign | (exponent + 8) << 2 | fraction >> 1);
}
uint8_t swap_nibbles(uint8_t byte, size_t, std::mt19937&) {
  return static_cast<uint8_t>(byte << 4 | byte >> 4);
}
uint8_t any_byte(uint8_t, size_t, std::mt19937& random) { return static_cast<uint8_t>(random()); }

/// A matrix [rows, columns] of bytes stored [columns, rows] under its old shape.
Change transpose_bytes(std::string pattern) {
  return edit_tensors(std::move(pattern), [](TensorData& t) {
    const auto rows = static_cast<size_t>(t.shape[0]), columns = static_cast<size_t>(t.shape[1]);
    const std::vector<uint8_t> old = t.bytes;
    for (size_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < columns; ++c) t.bytes[c * rows + r] = old[r * columns + c];
    }
  });
}

/// Block scales in the order that tensor cores take: tiles of 128 rows and 4 columns.
Change tile_scales(std::string pattern) {
  return edit_tensors(std::move(pattern), [](TensorData& t) {
    const auto rows = static_cast<size_t>(t.shape[0]), columns = static_cast<size_t>(t.shape[1]);
    const std::vector<uint8_t> old = t.bytes;
    for (size_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < columns; ++c) {
        const size_t tile = r / 128 * (columns / 4) + c / 4;
        t.bytes.at(tile * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4) = old[r * columns + c];
      }
    }
  });
}

/// Zeros in the rows that `f` picks.
Change zero_rows(std::string pattern, std::function<bool(int64_t)> f) {
  return map_rows(std::move(pattern), [=](int64_t row, uint8_t* bytes, size_t count) {
    if (f(row)) std::memset(bytes, 0, count);
  });
}
Change zero_columns(std::string pattern, size_t from, size_t to) {
  return map_rows(std::move(pattern), [=](int64_t, uint8_t* bytes, size_t count) {
    std::memset(bytes + from, 0, std::min(to, count) - from);
  });
}

/// Row r becomes row f(r).
Change pick_rows(std::string pattern, std::function<int64_t(int64_t)> f) {
  return edit_tensors(std::move(pattern), [=](TensorData& t) {
    const size_t row = row_bytes(t);
    const std::vector<uint8_t> old = t.bytes;
    for (int64_t r = 0; r < t.shape[0]; ++r)
      std::memcpy(t.bytes.data() + static_cast<size_t>(r) * row, old.data() + static_cast<size_t>(f(r)) * row,
                  row);
  });
}

std::string expert(int layer, int number) {
  return "model.layers." + std::to_string(layer) + ".mlp.experts." + std::to_string(number) + ".";
}

std::vector<Planted> copies() {
  return {
      {"4.1", kMoe, kFault, "two experts", "one expert is lost and another runs twice",
       "layers.2 experts 5 6", copy_bytes(expert(2, 5), expert(2, 6))},
      {"4.1", kMoe, kFault, "all experts of a layer", "routing chooses between equal experts",
       "layers.1 experts",
       [](Save& s, std::mt19937& random) {
         for (int e = 1; e < 16; ++e) copy_bytes(expert(1, 0), expert(1, e))(s, random);
       }},
      {"4.1", kLlama, kFault, "two layers", "one layer is lost and another runs twice", "layers.1 layers.2",
       copy_bytes("model.layers.1.", "model.layers.2.")},
      {"4.1", kMixtral, kFault, "two routers", "tokens go to the experts of another layer",
       "layers.0 layers.2 gate",
       copy_bytes("model.layers.0.block_sparse_moe.gate.", "model.layers.2.block_sparse_moe.gate.")},
      {"4.1", kLlama, kFault, "gate and up", "the MLP squares its gate", "layers.1.mlp gate up",
       copy_bytes("model.layers.1.mlp.gate_proj.", "model.layers.1.mlp.up_proj.")},
      {"4.1", kGptOss, kFault, "two experts of a stack", "one expert is lost and another runs twice",
       "layers.1.mlp.experts",
       [](Save& s, auto&) {
         for (const char* part :
              {"gate_up_proj_blocks", "gate_up_proj_scales", "down_proj_blocks", "down_proj_scales"}) {
           TensorData& t = s.at(std::string("model.layers.1.mlp.experts.") + part);
           std::memcpy(t.bytes.data() + row_bytes(t), t.bytes.data(), row_bytes(t));
         }
       }},
      {"4.1", kDeepSeek, kFault, "two experts in FP8", "one expert is lost and another runs twice",
       "layers.4 experts 1 3", copy_bytes(expert(4, 1), expert(4, 3))},
      {"4.1", kLlama, kHarmless, "a tensor in another shard", "loaders look names up in the index", "",
       [](Save& s, auto&) {
         const TensorData moved = s.at("model.norm.weight");
         s.erase(moved.name);
         s.add(moved);
       }},
  };
}

std::vector<Planted> codes() {
  return {
      {"4.2", kMoe, kFault, "one code everywhere", "the matrix is constant in each block",
       "layers.1.mlp.experts.3.up_proj",
       map_bytes(expert(1, 3) + "up_proj.weight", [](uint8_t, size_t, auto&) { return uint8_t{0x77}; })},
      {"4.2", kLlama, kFault, "no signs", "half of all weights have the wrong sign", "layers.1.mlp.gate_proj",
       map_codes("model.layers.1.mlp.gate_proj.weight", [](unsigned c) { return c & 7u; })},
      {"4.2", kLlama, kFault, "two's complement", "INT4 codes are read as E2M1", "layers.2.mlp.down_proj",
       map_codes("model.layers.2.mlp.down_proj.weight", twos_complement)},
      {"4.2", kLlamaCt, kFault, "integers offset by 8", "INT4 codes are read as E2M1", "layers.0.mlp.up_proj",
       map_codes("model.layers.0.mlp.up_proj.weight_packed", offset_by_eight)},
      {"4.2", kLlamaCt, kFault, "integers with a sign bit", "3 is read as 1.5, 7 as 6",
       "layers.1.mlp.up_proj", map_codes("model.layers.1.mlp.up_proj.weight_packed", sign_and_magnitude)},
      {"4.2", kMoe, kFault, "two's complement in all experts of a layer", "INT4 codes are read as E2M1",
       "layers.2.mlp.experts",
       [](Save& s, std::mt19937& random) {
         for (int e = 0; e < 16; ++e) map_codes(expert(2, e) + "*_proj.weight", twos_complement)(s, random);
       }},
      {"4.2", kLlama, kFault, "BF16 in the other order of bytes", "exponents are read as fractions",
       "layers.1.self_attn.v_proj",
       edit_tensors("model.layers.1.self_attn.v_proj.weight",
                    [](TensorData& t) {
                      for (size_t i = 0; i < t.bytes.size(); i += 2) std::swap(t.bytes[i], t.bytes[i + 1]);
                    })},
      {"4.2", kDeepSeek, kFault, "E5M2 under the name of E4M3", "exponents are read at half their size",
       "layers.2.self_attn.kv_b_proj",
       map_bytes("model.layers.2.self_attn.kv_b_proj.weight",
                 [](uint8_t b, size_t, auto&) { return as_e5m2(b); })},
      {"4.2", kDeepSeek, kFault, "E5M2 in the header alone", "loaders cast numbers of another size to E4M3",
       "layers.3.self_attn.kv_b_proj",
       edit_tensors("model.layers.3.self_attn.kv_b_proj.weight",
                    [](TensorData& t) { t.dtype = DType::kF8E5M2; })},
      {"4.2", kQwenMixed, kFault, "scales of FP8 in integers", "loaders cast bits of a float as a number",
       "layers.3.self_attn.q_proj",
       edit_tensors("model.language_model.layers.3.self_attn.q_proj.weight_scale",
                    [](TensorData& t) { t.dtype = DType::kI32; })},
      {"4.2", kQwenRow, kFault, "magnitudes alone in FP8", "half of all weights have the wrong sign",
       "layers.3.self_attn.q_proj",
       map_bytes("model.language_model.layers.3.self_attn.q_proj.weight",
                 [](uint8_t b, size_t, auto&) { return static_cast<uint8_t>(b & 0x7Fu); })},
      {"4.2", kLlama, kHarmless, "no negative zeros", "-0 and 0 are one number", "",
       map_codes("model.layers.*.mlp.gate_proj.weight", [](unsigned c) { return c == 8 ? 0u : c; })},
      {"4.3", kMoe, kFault, "the second half of the rows", "half of the outputs are zero",
       "layers.1.mlp.experts.4.down_proj",
       zero_rows(expert(1, 4) + "down_proj.weight", [](int64_t r) { return r >= 128; })},
      {"4.3", kLlama, kFault, "the second half of the columns", "half of the inputs are dropped",
       "layers.1.mlp.up_proj", zero_columns("model.layers.1.mlp.up_proj.weight", 64, 128)},
      {"4.3", kLlama, kFault, "each second row", "half of the outputs are zero", "layers.2.self_attn.o_proj",
       zero_rows("model.layers.2.self_attn.o_proj.weight", [](int64_t r) { return r % 2 == 1; })},
      {"4.3", kDeepSeek, kFault, "a block of rows in FP8", "half of the outputs are zero",
       "layers.1.self_attn.o_proj",
       zero_rows("model.layers.1.self_attn.o_proj.weight", [](int64_t r) { return r >= 128; })},
      {"4.3", kLlama, kFault, "half of a BF16 matrix", "half of the queries are zero",
       "layers.1.self_attn.q_proj",
       zero_rows("model.layers.1.self_attn.q_proj.weight", [](int64_t r) { return r < 128; })},
      {"4.3", kLlama, kFault, "half of the embedding", "half of all tokens are no word", "embed_tokens",
       zero_rows("model.embed_tokens.weight", [](int64_t r) { return r >= 160; })},
      {"4.3", kGptOss, kFault, "an expert of a stack", "the expert adds its bias alone",
       "layers.2.mlp.experts",
       edit_tensors("model.layers.2.mlp.experts.down_proj_blocks",
                    [](TensorData& t) { std::memset(t.bytes.data() + 2 * row_bytes(t), 0, row_bytes(t)); })},
      {"4.4", kLlama, kFault, "the first half once more", "a shard of tensor parallelism was written twice",
       "layers.1.mlp.gate_proj",
       pick_rows("model.layers.1.mlp.gate_proj.weight", [](int64_t r) { return r % 256; })},
      {"4.4", kMoe, kFault, "one row everywhere", "all outputs are equal but for their scales",
       "layers.0.mlp.experts.7.down_proj",
       pick_rows(expert(0, 7) + "down_proj.weight", [](int64_t) { return 0; })},
      {"4.4", kDeepSeek, kFault, "the first half once more, in FP8", "a shard was written twice",
       "layers.0.mlp.up_proj",
       pick_rows("model.layers.0.mlp.up_proj.weight", [](int64_t r) { return r % 256; })},
      {"4.4", kLlama, kFault, "each row twice in BF16", "a projection was expanded by a wrong stride",
       "layers.2.self_attn.q_proj",
       pick_rows("model.layers.2.self_attn.q_proj.weight", [](int64_t r) { return r / 2; })},
      {"4.4", kGptOss, kFault, "the first half of a stack's rows once more", "a shard was written twice",
       "layers.0.mlp.experts",
       edit_tensors("model.layers.0.mlp.experts.down_proj_blocks",
                    [](TensorData& t) {
                      const size_t half = row_bytes(t) / 2;
                      for (int64_t e = 0; e < t.shape[0]; ++e) {
                        uint8_t* first = t.bytes.data() + static_cast<size_t>(e) * 2 * half;
                        std::memcpy(first + half, first, half);
                      }
                    })},
      {"4.5", kMoe, kFault, "codes of one expert", "the expert adds noise", "layers.3.mlp.experts.2",
       map_bytes(expert(3, 2) + "*_proj.weight", any_byte)},
      {"4.5", kLlama, kFault, "codes of one linear", "its outputs are noise", "layers.1.self_attn.o_proj",
       map_bytes("model.layers.1.self_attn.o_proj.weight", any_byte)},
      {"4.5", kLlamaCt, kFault, "block scales of one linear", "blocks have random sizes over eight octaves",
       "layers.1.mlp.down_proj",
       map_bytes("model.layers.1.mlp.down_proj.weight_scale",
                 [](uint8_t, size_t, auto& r) { return static_cast<uint8_t>(0x38 + r() % 0x47); })},
      {"4.5", kDeepSeek, kFault, "FP8 bytes of one linear", "its outputs are noise",
       "layers.3.self_attn.o_proj",
       map_bytes("model.layers.3.self_attn.o_proj.weight",
                 [](uint8_t, size_t, auto& r) { return static_cast<uint8_t>(r() % 0x7F | (r() % 2) << 7); })},
      {"4.5", kGptOss, kFault, "codes of a stack", "experts add noise", "layers.2.mlp.experts",
       map_bytes("model.layers.2.mlp.experts.gate_up_proj_blocks", any_byte)},
  };
}

std::vector<Planted> orders() {
  return {
      {"4.6", kLlama, kFault, "transposed in one linear", "blocks have the sizes of others",
       "layers.1.mlp.gate_proj", transpose_bytes("model.layers.1.mlp.gate_proj.weight_scale")},
      {"4.6", kMoe, kFault, "transposed in all experts", "blocks have the sizes of others", "experts",
       transpose_bytes("model.layers.*_proj.weight_scale")},
      {"4.6", kLlama, kFault, "tiled in one linear", "a kernel's order is read as rows",
       "layers.2.mlp.gate_proj", tile_scales("model.layers.2.mlp.gate_proj.weight_scale")},
      {"4.6", kLlamaCt, kFault, "tiled in all", "a kernel's order is read as rows", "scale-order",
       tile_scales("model.layers.*_proj.weight_scale")},
      // In the checkpoint alone these scales are as plausible as before.
      {"4.6",
       kLlamaCt,
       kFault,
       "turned upside down",
       "rows have the sizes of others",
       "layers.0.mlp.gate_proj",
       pick_rows("model.layers.0.mlp.gate_proj.weight_scale", [](int64_t r) { return 511 - r; }),
       {},
       true},
      {"4.7",
       kLlama,
       kFault,
       "of each byte exchanged",
       "even and odd inputs are exchanged",
       "layers.1.mlp.down_proj",
       map_bytes("model.layers.1.mlp.down_proj.weight", swap_nibbles),
       {},
       true},
      {"4.7",
       kLlama,
       kFault,
       "another rope_theta than the source's",
       "positions are turned by other angles",
       "rope_theta",
       set_key("rope_theta", 10000.5),
       {},
       true},
      {"4.7",
       kMoe,
       kFault,
       "of each byte exchanged in one expert",
       "even and odd inputs are exchanged",
       "layers.2.mlp.experts.11",
       map_bytes(expert(2, 11) + "*_proj.weight", swap_nibbles),
       {},
       true},
      {"4.7",
       kGptOss,
       kFault,
       "of each byte exchanged in a stack",
       "even and odd inputs are exchanged",
       "layers.0.mlp.experts",
       map_bytes("model.layers.0.mlp.experts.down_proj_blocks", swap_nibbles),
       {},
       true},
      {"4.7",
       kMixtral,
       kFault,
       "of each byte exchanged everywhere",
       "even and odd inputs are exchanged",
       "nibble",
       map_bytes("model.layers.*.weight_packed", swap_nibbles),
       {},
       true},
      {"4.8",
       kMoe,
       kFault,
       "two experts exchanged",
       "the router means others",
       "layers.1 experts 3 expert 8",
       swap_bytes(expert(1, 3), expert(1, 8)),
       {},
       true},
      {"4.8",
       kMixtral,
       kFault,
       "experts turned round",
       "the router means others",
       "layers.0 experts 0 expert 3",
       all_of({swap_bytes("model.layers.0.block_sparse_moe.experts.0.",
                          "model.layers.0.block_sparse_moe.experts.3."),
               swap_bytes("model.layers.0.block_sparse_moe.experts.1.",
                          "model.layers.0.block_sparse_moe.experts.2.")}),
       {},
       true},
      {"4.8",
       kLlama,
       kFault,
       "two layers exchanged",
       "layers run in another order",
       "layers.0 layers.2 | layers.0 layer 2",
       swap_bytes("model.layers.0.", "model.layers.2."),
       {},
       true},
      {"4.8",
       kLlama,
       kFault,
       "gate and up exchanged",
       "the activation is applied to the other half",
       "layers.1.mlp",
       swap_bytes("model.layers.1.mlp.gate_proj.", "model.layers.1.mlp.up_proj."),
       {},
       true},
      {"4.8",
       kLlama,
       kFault,
       "signs turned in one linear",
       "its output is subtracted",
       "layers.1.self_attn.o_proj sign",
       map_bytes("model.layers.1.self_attn.o_proj.weight",
                 [](uint8_t b, size_t, auto&) { return static_cast<uint8_t>(b ^ 0x88u); }),
       {},
       true},
      {"4.8",
       kLlama,
       kFault,
       "halves of rows exchanged",
       "outputs are another head's",
       "layers.2.mlp.up_proj",
       all_of(
           {pick_rows("model.layers.2.mlp.up_proj.weight", [](int64_t r) { return (r + 256) % 512; }),
            pick_rows("model.layers.2.mlp.up_proj.weight_scale", [](int64_t r) { return (r + 256) % 512; })}),
       {},
       true},
      {"4.8",
       kLlama,
       kFault,
       "numbers of one linear doubled",
       "its output is doubled",
       "layers.1.self_attn.o_proj 2 times",
       map_floats("model.layers.1.self_attn.o_proj.weight_scale_2", [](float x) { return 2 * x; }),
       {},
       true},
      {"4.8",
       kLlama,
       kFault,
       "rows of the embedding turned by one",
       "tokens mean their neighbours",
       "embed_tokens order",
       pick_rows("model.embed_tokens.weight", [](int64_t r) { return (r + 1) % 64; }),
       {},
       true},
      {"4.8", kLlama, kHarmless, "nothing", "a checkpoint equals itself", "", all_of({}), {}, true},
  };
}

}  // namespace

std::vector<Planted> planted_content() {
  std::vector<Planted> all;
  for (const auto& part : {copies(), codes(), orders()}) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace twofour
