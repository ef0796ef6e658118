#include "tests/support/checkpoint_builder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xtensor/xadapt.hpp>
#include <xtensor/xbuilder.hpp>
#include <xtensor/xview.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <random>
#include <stdexcept>
#include <tuple>

#include "formats/e2m1.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

std::vector<uint8_t> float_bytes(const std::vector<float>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

using Array = xt::xarray<uint8_t>;

void append(std::vector<uint8_t>& to, const Array& bytes) { to.insert(to.end(), bytes.begin(), bytes.end()); }

/// [rows, columns] as they are or, turned, [columns, rows].
Array matrix_of(const std::vector<uint8_t>& bytes, int64_t rows, bool turned = false) {
  const Array all = xt::adapt(bytes.data(), {rows, static_cast<int64_t>(bytes.size()) / rows});
  return turned ? Array(xt::transpose(all)) : all;
}

/// Rows of two matrices of n rows each: [2, n, K] with axis 0, in turn, [n, 2, K], with axis 1.
Nvfp4Matrix both_rows(const Nvfp4Matrix& a, const Nvfp4Matrix& b, size_t axis) {
  Nvfp4Matrix out{a.n + b.n, a.k, {}, {}, a.global};
  append(out.codes, xt::stack(xt::xtuple(matrix_of(a.codes, a.n), matrix_of(b.codes, b.n)), axis));
  append(out.scales, xt::stack(xt::xtuple(matrix_of(a.scales, a.n), matrix_of(b.scales, b.n)), axis));
  return out;
}

/// The kept codes of a quad and their places, by sorting: larger magnitudes first, on a tie the lower k.
std::pair<unsigned, unsigned> sparse_quad(const std::array<unsigned, 4>& codes) {
  std::array<unsigned, 4> order = {0, 1, 2, 3};
  std::stable_sort(order.begin(), order.end(),
                   [&](unsigned a, unsigned b) { return (codes[a] & 7) > (codes[b] & 7); });
  std::sort(order.begin(), order.begin() + 2);
  return {codes[order[0]] | codes[order[1]] << 4, order[0] | order[1] << 2};
}

}  // namespace

void write_safetensors(const fs::path& file, const Tensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::string header = R"({"__metadata__":{)", data;
  for (const auto& [key, value] : metadata) {
    std::string text;
    for (const char c : value) text += (c == '"' || c == '\\' ? "\\" : "") + std::string(1, c);
    header += fmt::format(R"({}"{}":"{}")", header.back() == '{' ? "" : ",", key, text);
  }
  header += "}";
  for (const TensorData& t : tensors) {
    header +=
        fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", t.name,
                    dtype_name(t.dtype), fmt::join(t.shape, ","), data.size(), data.size() + t.bytes.size());
    data.append(t.bytes.begin(), t.bytes.end());
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string prefix(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(prefix.data(), &length, sizeof(length));
  write_file(file, prefix + header + data);
}

namespace {

bool has_halves(const std::vector<Tensors>& shards) {
  bool stack = false, bias = false;
  for (const Tensors& tensors : shards) {
    for (const TensorData& t : tensors) {
      stack = stack || t.name.find(".gate_up_proj") != std::string::npos;
      bias = bias || t.name.ends_with(".gate_up_proj_bias");
    }
  }
  return stack && !bias;
}

}  // namespace

void write_checkpoint(const fs::path& directory, const std::vector<Tensors>& shards,
                      const std::optional<std::string>& config) {
  fs::create_directories(directory);
  const std::string text = config ? *config : has_halves(shards) ? R"({"model_type": "qwen3_5_moe"})" : "{}";
  if (!text.empty()) write_file(directory / "config.json", text);
  if (shards.size() == 1) return write_safetensors(directory / "model.safetensors", shards[0]);
  std::string map;
  uint64_t bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors(directory / name, shards[i]);
    for (const TensorData& t : shards[i]) {
      map += fmt::format("{}\"{}\":\"{}\"", map.empty() ? "" : ",", t.name, name);
      bytes += t.bytes.size();
    }
  }
  write_file(directory / "model.safetensors.index.json",
             fmt::format(R"({{"metadata":{{"total_size":{}}},"weight_map":{{{}}}}})", bytes, map));
}

Nvfp4Matrix random_matrix(int64_t n, int64_t k, unsigned seed, float global) {
  std::mt19937 random(seed);
  Nvfp4Matrix m{n, k, std::vector<uint8_t>(static_cast<size_t>(n * k / 2)),
                std::vector<uint8_t>(static_cast<size_t>(n * k / 16)), global};
  for (uint8_t& byte : m.codes) byte = static_cast<uint8_t>(random());
  for (uint8_t& byte : m.scales) byte = static_cast<uint8_t>(random() % 0x7F);
  return m;
}

Nvfp4Matrix stack_rows(const Nvfp4Matrix& a, const Nvfp4Matrix& b) { return both_rows(a, b, 0); }

Nvfp4Matrix interleave_rows(const Nvfp4Matrix& a, const Nvfp4Matrix& b) { return both_rows(a, b, 1); }

void add_modelopt(Tensors& to, const std::string& module, const Nvfp4Matrix& m,
                  const std::vector<int64_t>& scale_shape) {
  to.push_back({module + ".weight", DType::kU8, {m.n, m.k / 2}, m.codes});
  to.push_back({module + ".weight_scale", DType::kF8E4M3, {m.n, m.k / 16}, m.scales});
  to.push_back({module + ".weight_scale_2", DType::kF32, scale_shape, float_bytes({m.global})});
}

void add_compressed_tensors(Tensors& to, const std::string& module, const Nvfp4Matrix& m) {
  if (1.0f / (1.0f / m.global) != m.global) throw std::runtime_error("no exact reciprocal");
  to.push_back({module + ".weight_packed", DType::kU8, {m.n, m.k / 2}, m.codes});
  to.push_back({module + ".weight_scale", DType::kF8E4M3, {m.n, m.k / 16}, m.scales});
  to.push_back({module + ".weight_global_scale", DType::kF32, {1}, float_bytes({1.0f / m.global})});
}

void add_stack(Tensors& to, const std::string& name, const std::vector<Nvfp4Matrix>& experts, bool k_outer,
               const std::vector<int64_t>& scale_shape) {
  const auto e = static_cast<int64_t>(experts.size());
  const int64_t n = experts[0].n, k = experts[0].k;
  std::vector<uint8_t> codes, scales;
  std::vector<float> globals;
  for (const Nvfp4Matrix& m : experts) {
    append(codes, matrix_of(m.codes, n, k_outer));
    append(scales, matrix_of(m.scales, n, k_outer));
    globals.push_back(m.global);
  }
  int64_t count = 1;
  for (const int64_t d : scale_shape) count *= d;
  globals.resize(static_cast<size_t>(count));
  const auto shape = [&](int64_t width) {
    return k_outer ? std::vector<int64_t>{e, width, n} : std::vector<int64_t>{e, n, width};
  };
  to.push_back({name, DType::kU8, shape(k / 2), codes});
  to.push_back({name + "_weight_scale", DType::kF8E4M3, shape(k / 16), scales});
  to.push_back({name + "_weight_scale_2", DType::kF32, scale_shape, float_bytes(globals)});
}

void add_bf16(Tensors& to, const std::string& name, const std::vector<int64_t>& shape, unsigned seed) {
  int64_t count = 1;
  for (const int64_t d : shape) count *= d;
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(2 * count));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  to.push_back({name, DType::kBF16, shape, bytes});
}

ExpertSet random_experts(int64_t e, int64_t i, int64_t h, unsigned seed) {
  ExpertSet set;
  for (int64_t x = 0; x < e; ++x) {
    set.gate.push_back(random_matrix(i, h, ++seed * 977));
    set.up.push_back(random_matrix(i, h, ++seed * 977));
    set.down.push_back(random_matrix(h, i, ++seed * 977));
  }
  return set;
}

void add_experts(Tensors& to, const std::string& block, const ExpertSet& experts) {
  for (size_t e = 0; e < experts.down.size(); ++e) {
    const std::string expert = fmt::format("{}.{}.", block, e);
    if (!experts.gate.empty()) add_modelopt(to, expert + "gate_proj", experts.gate[e]);
    add_modelopt(to, expert + "up_proj", experts.up[e]);
    add_modelopt(to, expert + "down_proj", experts.down[e]);
  }
}

Tensors experts_stored_as(const std::string& how, const std::string& block, int64_t e, int64_t i, int64_t h) {
  ExpertSet set = random_experts(e, i, h, 7);
  Tensors tensors;
  add_bf16(tensors, "model.norm.weight", {h});
  if (how == "compressed-tensors") {
    for (size_t x = 0; x < set.up.size(); ++x) {
      const std::string expert = fmt::format("{}.{}.", block, x);
      add_compressed_tensors(tensors, expert + "gate_proj", set.gate[x]);
      add_compressed_tensors(tensors, expert + "up_proj", set.up[x]);
      add_compressed_tensors(tensors, expert + "down_proj", set.down[x]);
    }
  } else if (how.starts_with("stack")) {
    const bool turned = how.find("interleaved") != how.npos, k_outer = how.find("k outer") != how.npos;
    std::vector<Nvfp4Matrix> gate_up;
    for (size_t x = 0; x < set.up.size(); ++x) {
      set.gate[x].global = set.up[x].global = set.down[x].global = 0.5f + static_cast<float>(x);
      gate_up.push_back((turned ? interleave_rows : stack_rows)(set.gate[x], set.up[x]));
      gate_up.back().global = set.up[x].global;
    }
    add_stack(tensors, block + ".gate_up_proj", gate_up, k_outer, {e});
    add_stack(tensors, block + ".down_proj", set.down, k_outer,
              k_outer ? std::vector{e, int64_t{1}, int64_t{1}} : std::vector{e});
    if (turned) add_bf16(tensors, block + ".gate_up_proj_bias", {e, 2 * i});
  } else {
    if (how == "not gated") set.gate.clear();
    add_experts(tensors, block, set);
    add_modelopt(tensors, "model.layers.0.self_attn.o_proj", random_matrix(h, i, 3, 0.125f), {1});
    add_modelopt(tensors, "model.layers.0.self_attn.q_proj", random_matrix(i, h, 4, 0.75f));
  }
  return tensors;
}

void add_expected_v7(Bytes& to, const std::string& name, const std::vector<Nvfp4Matrix>& experts) {
  std::vector<uint8_t> comp, meta, scale;
  std::vector<float> globals;
  for (const Nvfp4Matrix& m : experts) {
    auto kept = xt::xtensor<uint8_t, 2>::from_shape({static_cast<size_t>(m.n), static_cast<size_t>(m.k / 4)}),
         places = kept;
    for (size_t q = 0; q < kept.size(); ++q) {
      std::array<unsigned, 4> codes;
      for (unsigned i = 0; i < 4; ++i) codes[i] = m.codes[2 * q + i / 2] >> i % 2 * 4 & 15u;
      std::tie(kept.flat(q), places.flat(q)) = sparse_quad(codes);
    }
    append(comp, xt::transpose(kept));
    const auto odd = xt::view(places, xt::all(), xt::range(1, xt::placeholders::_, 2)),
               even = xt::view(places, xt::all(), xt::range(0, xt::placeholders::_, 2));
    append(meta, xt::transpose(even + 16 * odd));
    append(scale, matrix_of(m.scales, m.n, true));
    globals.push_back(m.global);
  }
  to[name + "comp"] = comp;
  to[name + "meta"] = meta;
  to[name + "scale"] = scale;
  to[name + "global_scale"] = float_bytes(globals);
}

Bytes expected_v7(const std::string& block, const ExpertSet& experts) {
  Bytes bytes;
  std::vector<Nvfp4Matrix> w13;
  for (size_t e = 0; e < experts.up.size(); ++e) {
    w13.push_back(experts.gate.empty() ? experts.up[e] : stack_rows(experts.gate[e], experts.up[e]));
  }
  add_expected_v7(bytes, block + ".w13_", w13);
  add_expected_v7(bytes, block + ".w2_", experts.down);
  return bytes;
}

}  // namespace twofour
