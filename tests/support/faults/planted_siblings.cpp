#include <cstring>

#include "tests/support/faults/planted.h"
#include "tests/support/faults/spoil.h"

// Scales that are not what the siblings' are: clauses 3.1 to 3.8.

namespace twofour {
namespace {

using namespace spoil;
using enum Base;
constexpr Expect kFault = Expect::kFault, kHarmless = Expect::kHarmless;

std::function<float(float)> times(float factor) {
  return [=](float x) { return x * factor; };
}
float reciprocal(float x) { return 1 / x; }

/// Scales twice as large above block scales half as large; E4M3 halves exactly above its subnormal numbers.
Change move_factor_of_two(const std::string& module) {
  return [=](Save& s, std::mt19937& random) {
    TensorData& scales = s.at(module + ".weight_scale");
    for (const uint8_t scale : scales.bytes) {
      if (scale < 0x10) throw std::runtime_error(module + " has scales that cannot be halved");
    }
    for (uint8_t& scale : scales.bytes) scale = static_cast<uint8_t>(scale - 8);
    map_floats(module + ".weight_scale_2", times(2))(s, random);
  };
}

std::vector<Planted> outliers() {
  return {
      {"3.1", kMoe, kFault, "an expert of sixteen times the weights", "its output drowns the other experts'",
       "layers.2.mlp.experts 5", map_floats("model.layers.2.mlp.experts.5.*weight_scale_2", times(16))},
      {"3.1", kMoe, kFault, "down_proj of an expert forty times too small", "the expert adds next to nothing",
       "layers.1.mlp.experts 9",
       map_floats("model.layers.1.mlp.experts.9.down_proj.weight_scale_2", times(0.025f))},
      {"3.1", kLlama, kFault, "the output of one layer's attention thirty times too large",
       "it drowns the residual", "layers.1.self_attn.o_proj",
       map_floats("model.layers.1.self_attn.o_proj.weight_scale_2", times(30))},
      {"3.1", kDeepSeek, kFault, "FP8 scales of an expert a hundred times too large",
       "its output drowns the others'", "layers.3.mlp.experts 2",
       map_floats("model.layers.3.mlp.experts.2.*.weight_scale_inv", times(100))},
      {"3.1", kMixtral, kFault, "a divisor twenty times too large", "the expert adds next to nothing",
       "layers.1.block_sparse_moe.experts 2",
       map_floats("model.layers.1.block_sparse_moe.experts.2.*.weight_global_scale", times(20))},
      {"3.1", kLlama, kFault, "BF16 keys of one layer fifty times too large",
       "attention looks at one token alone", "layers.2.self_attn.k_proj",
       map_floats("model.layers.2.self_attn.k_proj.weight", times(50))},
      {"3.1", kQwenMixed, kFault, "a norm a hundred times too large",
       "the layer's attention drowns the residual", "layers.4.input_layernorm",
       map_floats("model.language_model.layers.4.input_layernorm.weight", times(100))},
      {"3.1", kGptOss, kFault, "a stack's exponents five higher in one expert",
       "its output drowns the others'", "layers.1.mlp.experts",
       edit_tensors("model.layers.1.mlp.experts.down_proj_scales",
                    [](TensorData& t) {
                      for (size_t i = row_bytes(t); i < 2 * row_bytes(t); ++i)
                        t.bytes[i] = static_cast<uint8_t>(t.bytes[i] + 5);
                    })},
      {"3.1", kMoe, kHarmless, "a factor of two moved from block scales to the global one",
       "the products are equal", "", all_of({move_factor_of_two("model.layers.2.mlp.experts.3.down_proj")})},
      {"3.2", kMixtral, kFault, "of one expert", "weights are 1/G^2 of what they should be",
       "layers.1 experts 3",
       map_floats("model.layers.1.block_sparse_moe.experts.3.*.weight_global_scale", reciprocal)},
      {"3.2", kLlamaCt, kFault, "of all modules", "all weights are too large by G^2", "weight_global_scale",
       map_floats("model.layers.*.weight_global_scale", reciprocal)},
      {"3.2", kMoe, kFault, "of all modules", "all weights are too large by G^2", "weight_scale_2",
       map_floats("model.layers.*.weight_scale_2", reciprocal)},
      {"3.2", kLlama, kFault, "of one module", "its weights are too large by G^2", "layers.1.mlp.down_proj",
       map_floats("model.layers.1.mlp.down_proj.weight_scale_2", reciprocal)},
      {"3.2", kDeepSeek, kFault, "of one FP8 module, as its name says", "its weights are too large",
       "layers.1.self_attn.q_b_proj",
       map_floats("model.layers.1.self_attn.q_b_proj.weight_scale_inv", reciprocal)},
      {"3.2", kQwenRow, kFault, "of rows of one module", "its weights are too large",
       "layers.3.self_attn.o_proj",
       map_floats("model.language_model.layers.3.self_attn.o_proj.weight_scale", reciprocal)},
      {"3.3", kMoe, kFault, "all global scales", "weights are too large by 1/g", "weight_scale_2",
       set_floats("model.layers.*.weight_scale_2", 1)},
      {"3.3", kLlamaCt, kFault, "all global scales", "weights are too large by G", "weight_global_scale",
       set_floats("model.layers.*.weight_global_scale", 1)},
      {"3.3", kLlama, kFault, "block scales of one module", "blocks lose their sizes", "layers.1.mlp.up_proj",
       map_bytes("model.layers.1.mlp.up_proj.weight_scale",
                 [](uint8_t, size_t, auto&) { return uint8_t{0x38}; })},
      {"3.3", kDeepSeek, kFault, "of one FP8 module", "weights are too large by 1/s",
       "layers.2.self_attn.o_proj", set_floats("model.layers.2.self_attn.o_proj.weight_scale_inv", 1)},
      {"3.3", kQwenMixed, kFault, "of one FP8 module", "weights are too large by 1/s",
       "layers.3.self_attn.q_proj",
       set_floats("model.language_model.layers.3.self_attn.q_proj.weight_scale", 1)},
  };
}

std::vector<Planted> constants() {
  return {
      {"3.4", kLlama, kFault, "6 as the global scale of one module", "its weights are too large",
       "layers.1.mlp.down_proj", set_floats("model.layers.1.mlp.down_proj.weight_scale_2", 6)},
      {"3.4", kMoe, kFault, "448 as the global scale of one expert", "its weights are too large",
       "layers.2.mlp.experts 4", set_floats("model.layers.2.mlp.experts.4.*weight_scale_2", 448)},
      {"3.4", kLlamaCt, kFault, "2688 as every global scale", "each matrix is off by its amax",
       "weight_global_scale", set_floats("model.layers.*.weight_global_scale", 2688)},
      {"3.4", kMoe, kFault, "amax as the global scale of one matrix", "its weights are 2688 times too large",
       "layers.0.mlp.experts.2.down_proj",
       map_floats("model.layers.0.mlp.experts.2.down_proj.weight_scale_2", times(2688))},
      {"3.4", kMixtral, kFault, "amax as the divisor of one matrix", "its weights are off by 2688 amax^-2",
       "layers.2.self_attn.o_proj",
       map_floats("model.layers.2.self_attn.o_proj.weight_global_scale", [](float g) { return 2688 / g; })},
      {"3.4", kDeepSeek, kFault, "amax as the scale of one FP8 module", "its weights are 448 times too large",
       "layers.4.self_attn.o_proj",
       map_floats("model.layers.4.self_attn.o_proj.weight_scale_inv", times(448))},
      {"3.5", kMoe, kFault, "one global scale in all modules", "each matrix is off by its own amax",
       "weight_scale_2",
       [](Save& s, auto&) {
         const std::vector<uint8_t> one = s.at("model.layers.0.self_attn.o_proj.weight_scale_2").bytes;
         for (TensorData* t : tensors(s, "model.layers.*.weight_scale_2")) t->bytes = one;
       }},
      {"3.5", kMixtral, kFault, "one global scale in all experts of a layer", "each is off by its own amax",
       "layers.1 weight_global_scale | layers.1 experts",
       [](Save& s, auto&) {
         const std::string experts = "model.layers.1.block_sparse_moe.experts.";
         const std::vector<uint8_t> one = s.at(experts + "0.w1.weight_global_scale").bytes;
         for (TensorData* t : tensors(s, experts + "*.weight_global_scale")) t->bytes = one;
       }},
      {"3.5", kMoe, kFault, "block scales of expert 0 in all of its layer",
       "blocks have the sizes of another expert's", "layers.3 experts",
       [](Save& s, auto&) {
         for (const char* m : {"gate_proj", "up_proj", "down_proj"}) {
           const auto name = [&](int e) {
             return "model.layers.3.mlp.experts." + std::to_string(e) + "." + m + ".weight_scale";
           };
           for (int e = 1; e < 16; ++e) s.at(name(e)).bytes = s.at(name(0)).bytes;
         }
       }},
      {"3.5", kLlama, kFault, "one block scale over a matrix", "blocks lose their sizes",
       "layers.2.mlp.gate_proj",
       map_bytes("model.layers.2.mlp.gate_proj.weight_scale",
                 [](uint8_t, size_t, auto&) { return uint8_t{0x70}; })},
      {"3.5", kQwenRow, kFault, "one scale over all rows", "rows lose their sizes",
       "layers.0.linear_attn.in_proj_z",
       edit_tensors("model.language_model.layers.0.linear_attn.in_proj_z.weight_scale",
                    [](TensorData& t) {
                      for (size_t i = 2; i < t.bytes.size(); ++i) t.bytes[i] = t.bytes[i % 2];
                    })},
      {"3.5", kQwenMixed, kFault, "one scale in all FP8 modules", "each matrix is off by its own amax",
       "weight_scale",
       [](Save& s, auto&) {
         const std::string model = "model.language_model.layers.";
         const std::vector<uint8_t> one = s.at(model + "3.self_attn.o_proj.weight_scale").bytes;
         for (TensorData* t : tensors(s, model + "*_proj.weight_scale")) {
           if (t->dtype == DType::kF32) t->bytes = one;
         }
         for (TensorData* t : tensors(s, model + "*.linear_attn.in_proj_qkv.weight_scale")) t->bytes = one;
         for (TensorData* t : tensors(s, model + "*.linear_attn.in_proj_z.weight_scale")) t->bytes = one;
       }},
  };
}

std::vector<Planted> inputs() {
  return {
      {"3.6", kMoe, kFault, "of one expert a thousand times too large", "its inputs all round to zero",
       "layers.1.mlp.experts 6", map_floats("model.layers.1.mlp.experts.6.*.input_scale", times(1000))},
      {"3.6", kMixtral, kFault, "reciprocals in one layer", "inputs saturate or vanish",
       "layers.2 input_global_scale", map_floats("model.layers.2.*.input_global_scale", reciprocal)},
      {"3.6", kQwenMixed, kFault, "448 in one FP8 module", "inputs all round to zero",
       "layers.3.self_attn.v_proj",
       set_floats("model.language_model.layers.3.self_attn.v_proj.input_scale", 448)},
      {"3.6", kLlama, kFault, "amax in one module", "inputs all round to zero", "layers.2.mlp.down_proj",
       map_floats("model.layers.2.mlp.down_proj.input_scale", times(2688))},
      {"3.6", kLlamaCt, kFault, "2688 in all modules", "each module's inputs are off by their amax",
       "input_global_scale", set_floats("model.layers.*.input_global_scale", 2688)},
      {"3.7", kMoe, kFault, "one layer", "its inputs are scaled at random", "layers.2 input_scale",
       drop("model.layers.2.*input_scale")},
      {"3.7", kMixtral, kFault, "one layer's experts", "its inputs are scaled at random",
       "layers.1 input_global_scale", drop("model.layers.1.block_sparse_moe.*input_global_scale")},
      {"3.7", kLlama, kFault, "down_proj of all layers", "its inputs are scaled at random",
       "missing-input-scale down_proj", drop("model.layers.*.mlp.down_proj.input_scale")},
      {"3.7", kQwenRow, kFault, "one layer", "its inputs are scaled at random",
       "missing-input-scale layers.1.mlp | layers.1.mlp input_global_scale",
       drop("model.language_model.layers.1.*input_global_scale")},
      {"3.7", kNemotron, kFault, "one layer's experts", "its inputs are scaled at random",
       "layers.3 input_scale", drop("backbone.layers.3.mixer.experts.*input_scale")},
      {"3.8", kLlamaKv, kFault, "of keys alone", "values are stored with a scale of 1 and saturate",
       "v_scale | v_proj | self_attn k_scale", drop("model.layers.*.v_scale")},
      {"3.8", kLlamaKv, kFault, "of one layer lost", "its cache is stored with a scale of 1",
       "layers.1.self_attn",
       all_of({drop("model.layers.1.self_attn.k_proj.k_scale"),
               drop("model.layers.1.self_attn.v_proj.v_scale")})},
      {"3.8", kLlamaKvCt, kFault, "of values in one layer lost", "values are stored with a scale of 1",
       "layers.2.self_attn", drop("model.layers.2.self_attn.v_scale")},
      {"3.8", kLlamaKv, kFault, "reciprocals", "the cache saturates or vanishes", "k_scale",
       map_floats("model.layers.*.k_scale", reciprocal)},
      {"3.8", kQwenMixed, kFault, "of values lost", "values are stored with a scale of 1",
       "layers.3.self_attn", drop("model.language_model.layers.3.self_attn.v_proj.v_scale")},
      {"3.8", kLlamaKv, kHarmless, "in the shape [1]", "a scalar and one element are one number", "",
       edit_tensors("model.layers.*.k_scale", [](TensorData& t) { t.shape = {1}; })},
  };
}

}  // namespace

std::vector<Planted> planted_siblings() {
  std::vector<Planted> all;
  for (const auto& part : {outliers(), constants(), inputs()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace twofour
