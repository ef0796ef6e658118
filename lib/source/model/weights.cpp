#include "lib/source/model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "formats/error.h"
#include "formats/module_parts.h"
#include "formats/module_roles.h"
#include "formats/naming.h"
#include "kernels/device/check.h"
#include "kernels/device/isa.h"
#include "kernels/floats/float_multiply.h"
#include "kernels/floats/float_ops.h"
#include "kernels/numbers/casts.h"
#include "lib/base/threads/parallel.h"

namespace twofour {
namespace {

/// The number of rows that a thread decodes at once, a multiple of 16. They take about 256 KB.
int64_t strip_rows(const Linear& module, const ModelMatrix& w) {
  if (module.reads_across()) return w.n;
  return std::clamp<int64_t>((int64_t{64} << 10) / w.k / 16 * 16, 16, 1024);
}

/// Returns the number after `layers`, as in "model.layers.3". -1 if there is none.
int64_t layer_of(std::string_view name, std::string_view layers) {
  if (!name.starts_with(layers)) return -1;
  int64_t layer = -1;
  std::from_chars(name.data() + layers.size(), name.data() + name.size(), layer);
  return layer;
}

/// Throws Error if layers beyond the first `layers` are stored that are not drafts. Names of layers begin
/// with `below`.
void refuse_more_layers(const Checkpoint& checkpoint, std::string_view below, int64_t layers) {
  std::set<int64_t> beyond, drafts;
  for (const TensorInfo& t : checkpoint.tensors()) {
    const int64_t layer = layer_of(t.name, below);
    if (layer < layers) continue;
    beyond.insert(layer);
    for (const char* part : {".eh_proj.", ".hnorm.", ".enorm."}) {
      if (t.name.find(part) != t.name.npos) drafts.insert(layer);
    }
  }
  for (const int64_t draft : drafts) beyond.erase(draft);
  if (beyond.empty()) return;
  throw Error(fmt::format("{}: num_hidden_layers: expected {} (tensors of {}{}), found {}",
                          (checkpoint.path() / "config.json").string(), *beyond.rbegin() + 1, below,
                          *beyond.rbegin(), layers));
}

/// True if a tensor cannot change what a model computes without being read: scales and state beside codes,
/// scales of a KV cache, and buffers that follow from config.json.
bool is_derived(std::string_view name) {
  if (leaf_of(name) == "inv_freq" || leaf_of(name) == "original_inv_freq") return true;
  const auto name_of_part = parse_part_name(name);
  if (!name_of_part) return false;
  const ModulePart& part = *name_of_part->part;
  if (part.kind == PartKind::kTerm) return part.needs_codes;  // others change an embedding, too
  return part.name != "weight" && !part.name.ends_with("bias");
}

}  // namespace

ModelWeights::ModelWeights(const Checkpoint& checkpoint)
    : checkpoint_(checkpoint), matrices_(checkpoint, findings_) {
  if (!findings_.empty())
    throw Error(fmt::format("{}: {}", findings_.front().where, findings_.front().message));
  for (const char* wrapped : {"model.language_model.", "language_model.model."}) {
    if (has_table("model.embed_tokens") || !has_table(std::string(wrapped) + "embed_tokens")) continue;
    prefix_ = wrapped;
    if (!has_table(head_name_) && has_table("language_model.lm_head")) head_name_ = "language_model.lm_head";
  }
  // DeepSeek-V4's own names, and those that transformers writes for it; Nemotron-H's, and those of its
  // modules
  for (const auto& [prefix, name] :
       {std::pair("", "embed"), std::pair("", "embed_tokens"), std::pair("backbone.", "embeddings"),
        std::pair("model.", "embeddings")}) {
    if (has_table(embedding_name()) || !has_table(std::string(prefix) + name)) continue;
    prefix_ = prefix, embedding_name_ = name;
  }
  if (!has_table(head_name_) && has_table("head")) head_name_ = "head";
  if (checkpoint.is_view()) return;
  for (const Shard& shard : checkpoint.shards()) {
    shard.file.check_unchanged();
    files_.emplace_back(shard.file, 0, shard.file.size());
  }
}

ModelMatrix ModelWeights::matrix_without_bias(const std::string& name, int64_t n, int64_t k) {
  const auto at = matrices_.all().find(name);
  if (at == matrices_.all().end()) {
    throw Error(fmt::format("{}: expected {} [{}, {}], found none", checkpoint_.path().string(), name, n, k));
  }
  const StoredMatrix& place = at->second;
  const Linear& module = matrices_.module_of(place);
  if (place.count != n || module.k != k) {
    throw Error(fmt::format("{}: expected {} [{}, {}] (config.json), found [{}, {}]",
                            checkpoint_.where(module.weight), name, n, k, place.count, module.k));
  }
  used_modules_.insert(&module);
  return {&module, place, n, k, false, matrices_.name_in_files(name, place)};
}

ModelMatrix ModelWeights::matrix(const std::string& name, int64_t n, int64_t k, bool has_bias) {
  ModelMatrix found = matrix_without_bias(name, n, k);
  const Linear& module = *found.module;
  const std::string bias = module.bias ? checkpoint_.where(*module.bias) : std::string("none");
  if (has_bias != module.bias.has_value()) {
    throw Error(fmt::format("{}: expected {}, found {}", name, has_bias ? "a bias" : "no bias", bias));
  }
  if (module.bias) {
    const TensorInfo& t = checkpoint_.tensors()[*module.bias];
    const std::vector<int64_t> of_stack{module.e, module.n}, of_one{module.n};
    if (!is_float(t.dtype) || (t.shape != of_stack && (module.e > 1 || t.shape != of_one))) {
      const std::string shape =
          module.e > 1 ? fmt::format("{}, {}", module.e, module.n) : fmt::format("{}", module.n);
      throw Error(fmt::format("{}: expected floats [{}], found {}", bias, shape, describe(t.dtype, t.shape)));
    }
    used_.insert(*module.bias);
  }
  found.has_bias = has_bias;
  return found;
}

ModelMatrix ModelWeights::table(const std::string& name, int64_t n, int64_t k) {
  const auto refuse = [&](const std::string& where, const std::string& found) {
    throw Error(fmt::format("{}: expected {} [{}, {}] (vocab_size and hidden_size of config.json), found {}",
                            where, name, n, k, found));
  };
  const Linear* module = nullptr;
  for (const Linear& m : matrices_.modules()) {
    if (m.name == name) module = &m;
  }
  const auto weight = checkpoint_.find(name + ".weight");
  if (module == nullptr) {
    if (!weight) refuse(checkpoint_.path().string(), "none");
    const TensorInfo& t = checkpoint_.tensors()[*weight];
    if (!is_float(t.dtype) || t.shape.size() != 2)
      refuse(checkpoint_.where(*weight), describe(t.dtype, t.shape));
    auto made =
        std::make_unique<Linear>(Linear{.name = name, .format = WeightFormat::kFloat, .weight = *weight});
    made->n = t.shape[0];
    made->k = t.shape[1];
    module = made.get();
    tables_.push_back(std::move(made));
  }
  if (module->n < n || module->k != k)
    refuse(checkpoint_.where(module->weight), fmt::format("[{}, {}]", module->n, module->k));
  used_modules_.insert(module);
  return {module, {0, 0, 0, 1, module->n}, n, k, false, name};
}

ModelVector ModelWeights::vector(const std::string& name, int64_t count) { return tensor(name, {count}); }

ModelVector ModelWeights::tensor(const std::string& name, const std::vector<int64_t>& shape) {
  const auto found = checkpoint_.find(name);
  const std::string expected = fmt::format("[{}]", fmt::join(shape, ", "));
  if (!found)
    throw Error(fmt::format("{}: expected {} {}, found none", checkpoint_.path().string(), name, expected));
  const TensorInfo& t = checkpoint_.tensors()[*found];
  if (!is_float(t.dtype) || t.shape != shape) {
    throw Error(fmt::format("{}: expected floats {}, found {}", checkpoint_.where(*found), expected,
                            describe(t.dtype, t.shape)));
  }
  used_.insert(*found);
  int64_t count = 1;
  for (const int64_t n : shape) count *= n;
  return {*found, 0, 1, count};
}

size_t ModelWeights::numbers(const std::string& name, const std::vector<int64_t>& shape) {
  const auto found = checkpoint_.find(name);
  const std::string expected = fmt::format("[{}]", fmt::join(shape, ", "));
  if (!found)
    throw Error(fmt::format("{}: expected {} {}, found none", checkpoint_.path().string(), name, expected));
  const TensorInfo& t = checkpoint_.tensors()[*found];
  if ((t.dtype != DType::kI32 && t.dtype != DType::kI64) || t.shape != shape) {
    throw Error(fmt::format("{}: expected I32 or I64 {}, found {}", checkpoint_.where(*found), expected,
                            describe(t.dtype, t.shape)));
  }
  used_.insert(*found);
  return *found;
}

std::vector<int64_t> ModelWeights::read_numbers(size_t tensor, int64_t first, int64_t count) const {
  const bool is_wide = checkpoint_.tensors()[tensor].dtype == DType::kI64;
  const int64_t size = is_wide ? 8 : 4;
  std::vector<uint8_t> bytes(static_cast<size_t>(count * size));
  checkpoint_.read(tensor, static_cast<uint64_t>(first * size), bytes);
  std::vector<int64_t> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) {
    int32_t narrow = 0;
    if (is_wide) {
      std::memcpy(&out[i], bytes.data() + i * 8, 8);
    } else {
      std::memcpy(&narrow, bytes.data() + i * 4, 4);
      out[i] = narrow;
    }
  }
  return out;
}

bool ModelWeights::has_table(const std::string& name) const {
  if (checkpoint_.find(name + ".weight")) return true;
  return std::any_of(matrices_.modules().begin(), matrices_.modules().end(),
                     [&](const Linear& m) { return m.name == name; });
}

std::string ModelWeights::expert_block(const std::string& layer) const {
  const auto at = matrices_.blocks().lower_bound(layer);
  for (auto i = at; i != matrices_.blocks().end() && i->first.starts_with(layer); ++i) {
    if (i->first.ends_with(".experts")) return i->first;
  }
  return {};
}

void ModelWeights::refuse_unused(int64_t layers) const {
  refuse_more_layers(checkpoint_, prefix_ + "layers.", layers);
  const auto refuse = [&](const std::string& where) {
    throw Error(fmt::format("{}: expected no such weight in a model of this family, found one", where));
  };
  const std::string below = prefix_ + "layers.";
  for (const Linear& m : matrices_.modules()) {
    const int64_t layer = layer_of(m.name, below);
    if (layer >= 0 && layer < layers && !used_modules_.contains(&m)) refuse(checkpoint_.where(m.weight));
  }
  std::set<size_t> used = used_;
  for (const Linear* m : used_modules_) used.insert(m->weight);
  for (size_t i = 0; i < checkpoint_.tensors().size(); ++i) {
    const TensorInfo& t = checkpoint_.tensors()[i];
    const bool is_of_model = t.name.starts_with(prefix_) || t.name.starts_with(head_name_ + ".") ||
                             t.name.find('.') == t.name.npos;
    const bool is_of_other = is_in_tower(t.name) || names_draft(t.name) || layer_of(t.name, below) >= layers;
    if (is_float(t.dtype) && is_of_model && !is_of_other && !used.contains(i) && !is_derived(t.name))
      refuse(checkpoint_.where(i));
  }
}

std::vector<float> ModelWeights::read(const ModelVector& v) const {
  const TensorInfo& t = checkpoint_.tensors()[*v.tensor];
  const auto size = static_cast<int64_t>(dtype_bits(t.dtype) / 8);
  const int64_t span = (v.count - 1) * v.step + 1;
  std::vector<uint8_t> bytes(static_cast<size_t>(span * size));
  checkpoint_.read(*v.tensor, static_cast<uint64_t>(v.first * size), bytes);
  std::vector<float> all(static_cast<size_t>(span));
  widen(t.dtype, bytes.data(), all);
  for (int64_t i = 1; i < v.count; ++i) all[static_cast<size_t>(i)] = all[static_cast<size_t>(i * v.step)];
  all.resize(static_cast<size_t>(v.count));
  if (v.plus != 0) {
    for (float& value : all) value += v.plus;
  }
  return all;
}

void ModelWeights::replace(Checkpoint weights) {
  const auto made = std::make_shared<const Replacement>(std::move(weights));
  if (!made->findings.empty())
    throw Error(fmt::format("{}: {}", made->findings.front().where, made->findings.front().message));
  for (const auto& [name, place] : made->matrices.all())
    replaced_[made->matrices.name_in_files(name, place)] = {made, place};
}

ModelMatrix ModelMatrix::rows(int64_t n0, int64_t n1) const {
  check(!has_bias && n0 >= 0 && n0 <= n1 && n1 <= n, "rows of a matrix without bias");
  ModelMatrix part = *this;
  part.from = from.value_or(0) + n0, part.n = n1 - n0;
  part.place.first += n0 * place.step, part.place.count = part.n;
  return part;
}

ModelWeights::Stored ModelWeights::stored(const ModelMatrix& w) const {
  const auto at = replaced_.find(w.name);
  if (at == replaced_.end()) return {checkpoint_, *w.module, w.place};
  const auto& [by, whole] = at->second;
  const Linear& module = by->matrices.module_of(whole);
  const int64_t from = w.from.value_or(0);
  check((w.from ? from + w.n <= whole.count : whole.count == w.n) && module.k == w.k,
        "a matrix of the same size");
  StoredMatrix place = whole;
  place.first += from * place.step, place.count = w.n;
  return {by->checkpoint, module, place};
}

void ModelWeights::read_rows(const ModelMatrix& w, int64_t n0, int64_t n1, std::span<float> out) const {
  const Stored from = stored(w);
  WeightReader reader(from.checkpoint);
  read_stored_rows(reader, from.module, from.place, n0, n1, out);
}

const uint8_t* ModelWeights::mapped(const Stored& from, int64_t n0) const {
  const Linear& m = from.module;
  const bool is_plain = !m.format->coded && !m.k_outer && from.place.step == 1;
  if (files_.empty() || &from.checkpoint != &checkpoint_ || !is_plain) return nullptr;
  const TensorInfo& t = checkpoint_.tensors()[m.weight];
  const auto row = static_cast<uint64_t>(from.place.e * m.n + from.place.first + n0);
  const uint64_t offset = checkpoint_.shard_of(m.weight).data_begin + t.begin +
                          row * static_cast<uint64_t>(m.k) * static_cast<uint64_t>(dtype_bits(t.dtype) / 8);
  return files_[checkpoint_.shard_index_of(m.weight)].bytes().data() + offset;
}

void ModelWeights::read_stored(WeightReader& reader, const Stored& from, int64_t n0, int64_t n1,
                               std::span<float> out) const {
  if (&from.checkpoint == &checkpoint_) return read_stored_rows(reader, from.module, from.place, n0, n1, out);
  WeightReader other(from.checkpoint);
  read_stored_rows(other, from.module, from.place, n0, n1, out);
}

void ModelWeights::multiply_strip(Worker& worker, const ModelMatrix& w, int64_t n0, int64_t n1,
                                  const float* x, int64_t m, float* out, int64_t stride) const {
  worker.rows.resize(static_cast<size_t>((n1 - n0) * w.k));
  const Stored from = stored(w);
  if (const uint8_t* bytes = mapped(from, n0)) {
    widen(checkpoint_.tensors()[from.module.weight].dtype, bytes, worker.rows);
  } else {
    read_stored(worker.reader, from, n0, n1, worker.rows);
  }
  float_ops(best_isa()).multiply_rows(m, n1 - n0, w.k, {x, w.k}, {worker.rows.data(), w.k}, out, stride);
}

std::vector<float> ModelWeights::read_bias(const ModelMatrix& w) const {
  if (!w.has_bias) return {};
  return read({*w.module->bias, w.place.e * w.module->n + w.place.first, w.place.step, w.n});
}

void ModelWeights::add_bias(const ModelMatrix& w, int64_t m, float* out) const {
  if (!w.has_bias) return;
  const std::vector<float> bias = read_bias(w);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < w.n; ++j) out[i * w.n + j] += bias[static_cast<size_t>(j)];
  }
}

void ModelWeights::multiply(Worker& worker, const ModelMatrix& w, const float* x, int64_t m,
                            float* out) const {
  const int64_t rows = strip_rows(stored(w).module, w);
  for (int64_t n = 0; n < w.n; n += rows)
    multiply_strip(worker, w, n, std::min(w.n, n + rows), x, m, out + n, w.n);
  add_bias(w, m, out);
}

void ModelWeights::multiply(const ModelMatrix& w, const float* x, int64_t m, float* out) const {
  if (m == 0) return;
  multiply_range(w, 0, w.n, x, m, out);
  add_bias(w, m, out);
}

void ModelWeights::multiply_rows(const ModelMatrix& w, int64_t n0, int64_t n1, const float* x, int64_t m,
                                 float* out) const {
  check(!w.has_bias, "a matrix without bias");
  if (m > 0) multiply_range(w, n0, n1, x, m, out);
}

void ModelWeights::multiply_range(const ModelMatrix& w, int64_t first, int64_t last, const float* x,
                                  int64_t m, float* out) const {
  const Stored from = stored(w);
  const int64_t rows = strip_rows(from.module, w), all = last - first;
  constexpr int64_t kFew = 16;  // rows of x that are too few to make a buffer of all weights worthwhile
  if (m <= kFew) {
    parallel_workers(static_cast<size_t>((all + rows - 1) / rows), [&] {
      return [&, worker = std::make_shared<Worker>(checkpoint_)](size_t strip) {
        const int64_t n = static_cast<int64_t>(strip) * rows;
        multiply_strip(*worker, w, first + n, first + std::min(all, n + rows), x, m, out + n, all);
      };
    });
    return;
  }
  const int64_t most = std::max(rows, kChunkBytes / int64_t{sizeof(float)} / w.k / rows * rows);
  std::vector<float> chunk;
  for (int64_t n0 = 0; n0 < all; n0 += most) {
    const int64_t count = std::min(most, all - n0);
    chunk.resize(static_cast<size_t>(count * w.k));
    parallel_workers(static_cast<size_t>((count + rows - 1) / rows), [&] {
      return [&, reader = std::make_shared<WeightReader>(checkpoint_)](size_t strip) {
        const int64_t begin = static_cast<int64_t>(strip) * rows, end = std::min(count, begin + rows);
        read_stored(*reader, from, first + n0 + begin, first + n0 + end,
                    std::span(chunk).subspan(static_cast<size_t>(begin * w.k),
                                             static_cast<size_t>((end - begin) * w.k)));
      };
    });
    cpu::multiply(x, m, chunk.data(), count, w.k, out + n0, all);
  }
}

}  // namespace twofour
