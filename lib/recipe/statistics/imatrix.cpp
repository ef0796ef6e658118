#include "lib/recipe/statistics/imatrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/error.h"
#include "formats/naming.h"
#include "formats/safetensors.h"
#include "lib/base/findings/problems.h"
#include "lib/base/io/file.h"
#include "lib/recipe/statistics/statistics.h"
#include "lib/source/linears/linears.h"

namespace twofour {
namespace {

constexpr uint64_t kMostItems = 1u << 20, kMostText = 1u << 20;
constexpr uint32_t kGgufVersion = 3, kGgufF32 = 0, kGgufString = 8, kGgufArray = 9, kGgufU32 = 4;
constexpr uint64_t kGgufAlignment = 32;

/// A tensor of a GGUF file. Extents are in the file's order, the innermost first.
struct GgufTensor {
  std::vector<uint64_t> extents;
  uint64_t begin = 0, count = 0;  ///< offset in the file, elements
};

/// Reads the part of a little-endian GGUF file before its data, item by item.
class GgufReader {
 public:
  explicit GgufReader(const std::filesystem::path& path) : file_(path) {}

  std::map<std::string, GgufTensor> read_tensors() {
    if (number<uint32_t>() != 0x46554747) fail("expected a GGUF file, found another");
    const auto version = number<uint32_t>();
    if (version != kGgufVersion) fail(fmt::format("expected version {}, found {}", kGgufVersion, version));
    const uint64_t count = items(), keys = items();
    for (uint64_t i = 0; i < keys; ++i) read_key();
    if (type_ != "imatrix")
      fail(fmt::format("general.type: expected imatrix (as llama.cpp's tools/imatrix writes it), found '{}'",
                       type_));
    std::map<std::string, GgufTensor> tensors;
    for (uint64_t i = 0; i < count; ++i) read_tensor(tensors);
    const uint64_t data = (at_ + alignment_ - 1) / alignment_ * alignment_;
    for (auto& [name, t] : tensors) {
      t.begin += data;
      if (t.begin > file_.size() || t.count > (file_.size() - t.begin) / sizeof(float))
        fail(fmt::format("{}: expected its data within the file, found a file that is too short", name));
    }
    return tensors;
  }

  std::vector<float> values(const GgufTensor& t) const {
    std::vector<float> all(t.count);
    file_.read(t.begin, {reinterpret_cast<uint8_t*>(all.data()), all.size() * sizeof(float)});
    return all;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("{}: {}", file_.path().string(), what));
  }

 private:
  void take(uint64_t bytes) {
    if (bytes > file_.size() - at_)
      fail(fmt::format("expected more than {} bytes, found no more", file_.size()));
  }
  template <class T>
  T number() {
    take(sizeof(T));
    T value{};
    file_.read(at_, {reinterpret_cast<uint8_t*>(&value), sizeof(value)});
    at_ += sizeof(value);
    return value;
  }
  uint64_t items() {
    const auto count = number<uint64_t>();
    if (count > kMostItems) fail(fmt::format("expected at most {} items, found {}", kMostItems, count));
    return count;
  }
  std::string text() {
    const auto length = number<uint64_t>();
    if (length > kMostText)
      fail(fmt::format("expected a text of at most {} bytes, found {}", kMostText, length));
    take(length);
    std::string value(length, '\0');
    file_.read(at_, {reinterpret_cast<uint8_t*>(value.data()), value.size()});
    at_ += length;
    return value;
  }
  /// The size in bytes of a value of a GGUF type that has a fixed size.
  uint64_t width_of(uint32_t type) const {
    constexpr uint64_t kWidths[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type >= std::size(kWidths) || kWidths[type] == 0)
      fail(fmt::format("expected a known type of value, found {}", type));
    return kWidths[type];
  }
  void read_key() {
    const std::string key = text();
    const auto type = number<uint32_t>();
    if (type == kGgufString) {
      std::string value = text();
      if (key == "general.type") type_ = std::move(value);
    } else if (type == kGgufArray) {
      const auto of = number<uint32_t>();
      const uint64_t count = items();
      if (of != kGgufString) {
        const uint64_t bytes = count * width_of(of);
        take(bytes);
        at_ += bytes;
      } else {
        for (uint64_t i = 0; i < count; ++i) text();
      }
    } else if (key == "general.alignment" && type == kGgufU32) {
      alignment_ = number<uint32_t>();
      if (alignment_ == 0 || alignment_ > kMostText)
        fail(fmt::format("{}: expected 1 or more, found {}", key, alignment_));
    } else {
      const uint64_t bytes = width_of(type);
      take(bytes);
      at_ += bytes;
    }
  }
  void read_tensor(std::map<std::string, GgufTensor>& tensors) {
    const std::string name = text();
    const auto rank = number<uint32_t>();
    if (rank > 4) fail(fmt::format("{}: expected at most 4 extents, found {}", name, rank));
    GgufTensor t;
    t.count = 1;
    for (uint32_t i = 0; i < rank; ++i) {
      t.extents.push_back(number<uint64_t>());
      const bool fits = t.extents[i] > 0 && t.extents[i] <= file_.size() / sizeof(float) / t.count;
      if (!fits) fail(fmt::format("{}: expected extents that fit the file, found {}", name, t.extents[i]));
      t.count *= t.extents[i];
    }
    const auto type = number<uint32_t>();
    t.begin = number<uint64_t>();
    if (type != kGgufF32) fail(fmt::format("{}: expected F32, found type {}", name, type));
    if (t.begin != next_) fail(fmt::format("{}: expected its data at {}, found {}", name, next_, t.begin));
    next_ += (t.count * sizeof(float) + alignment_ - 1) / alignment_ * alignment_;
    if (!tensors.emplace(name, std::move(t)).second)
      fail(fmt::format("{}: expected it once, found it again", name));
  }

  InputFile file_;
  uint64_t at_ = 0, alignment_ = kGgufAlignment;
  uint64_t next_ = 0;  ///< offset of the next tensor, from the first on, since there are no gaps
  std::string type_;
};

/// The name of a linear of a layer, and ggml's name for it. Source: ggml-org/llama.cpp,
/// gguf-py/gguf/constants.py, tensor_mapping.py.
struct GgmlName {
  std::string_view leaf, ggml;
};
constexpr GgmlName kGgmlNames[] = {
    {"self_attn.q_proj", "attn_q"},       {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},       {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.o_proj", "attn_output"},  {"self_attn.q_a_proj", "attn_q_a"},
    {"self_attn.q_b_proj", "attn_q_b"},   {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.kv_b_proj", "attn_kv_b"}, {"linear_attn.in_proj_qkvz", "ssm_in"},
    {"linear_attn.in_proj_ba", "ssm_ba"}, {"linear_attn.out_proj", "ssm_out"}};

/// The name of a module in ggml, such as "blk.3.ffn_gate_exps", and its expert (-1 if it is not an expert).
/// The name is empty if ggml has no known name for the module.
std::pair<std::string, int64_t> ggml_name(const std::string& module) {
  if (module == "lm_head") return {"output", -1};
  const size_t layers = module.find("layers.");
  if (layers == module.npos) return {};
  const std::string rest = module.substr(layers + 7), layer = rest.substr(0, rest.find('.'));
  if (layer.empty() || layer.find_first_not_of("0123456789") != layer.npos || layer.size() == rest.size())
    return {};
  const auto named = [&](std::string_view ggml) { return fmt::format("blk.{}.{}", layer, ggml); };
  const std::string_view leaf = std::string_view(rest).substr(layer.size() + 1);
  for (const GgmlName& row : kGgmlNames) {
    if (leaf == row.leaf) return {named(row.ggml), -1};
  }
  const auto parsed = parse_module_name(module);
  if (!parsed) return {};
  const char* projection = parsed->projection == Projection::kGate   ? "gate"
                           : parsed->projection == Projection::kUp   ? "up"
                           : parsed->projection == Projection::kDown ? "down"
                                                                     : nullptr;
  if (projection == nullptr) return {};
  switch (parsed->kind) {
    case BlockKind::kRoutedExperts:
      return {named(fmt::format("ffn_{}_exps", projection)), parsed->expert};
    case BlockKind::kSharedExpert:
      return {named(fmt::format("ffn_{}_shexp", projection)), -1};
    case BlockKind::kDenseMlp:
      return {named(fmt::format("ffn_{}", projection)), -1};
  }
  return {};
}

/// A linear that the matrix serves. Its sums are row `row` of a tensor.
struct ServedLinear {
  std::string name;
  int64_t k, row;
};

/// The names of all linears, with stacks split into experts, and their K.
std::vector<std::pair<std::string, int64_t>> linears_of(const Checkpoint& c) {
  Problems ignored;
  std::vector<std::pair<std::string, int64_t>> all;
  for (const Linear& m : find_weight_modules(c, ignored)) {
    const auto parsed = parse_module_name(m.name);
    if (m.is_table) continue;
    if (!m.stacked || !parsed || parsed->expert >= 0) {
      all.emplace_back(m.name, m.k);
      continue;
    }
    const NamingRule& naming = *parsed->naming;
    for (int64_t e = 0; e < m.e; ++e) {
      const auto add = [&](const char* leaf) {
        if (leaf != nullptr) all.emplace_back(fmt::format("{}.{}.{}", parsed->block, e, leaf), m.k);
      };
      add(parsed->projection == Projection::kDown ? naming.down : naming.gate);
      if (parsed->projection != Projection::kDown) add(naming.up);
    }
  }
  return all;
}

/// The linears that each tensor of the matrix serves, by the tensor's name without its suffix.
using Served = std::map<std::string, std::vector<ServedLinear>>;

constexpr std::string_view kSumsSuffix = ".weight.in_sum2";

Served served_linears(const std::map<std::string, GgufTensor>& tensors, const Checkpoint& checkpoint) {
  Served served;
  for (const auto& [name, k] : linears_of(checkpoint)) {
    const auto [ggml, expert] = ggml_name(name);
    if (ggml.empty() || !tensors.contains(ggml + std::string(kSumsSuffix))) continue;
    served[ggml].push_back({name, k, std::max<int64_t>(expert, 0)});
  }
  return served;
}

/// The sums of one linear and the number of its tokens.
struct LinearSums {
  std::vector<float> squares;
  int64_t count;
};

/// Takes a linear's row of the sums `all` [E, K] and of the counts `tokens` [E] of the tensor `at`.
LinearSums take_sums(const GgufReader& reader, const std::string& at, const GgufTensor& sums,
                     const std::vector<float>& all, const std::vector<float>& tokens, const ServedLinear& m) {
  const auto k = static_cast<uint64_t>(m.k), row = static_cast<uint64_t>(m.row);
  if (sums.extents.empty() || sums.extents[0] != k || sums.count / k != tokens.size() ||
      row >= tokens.size()) {
    reader.fail(
        fmt::format("{}.in_sum2: expected {} inputs for each of the experts that .counts has (as in {}), "
                    "found {} of {}",
                    at, k, m.name, sums.extents.empty() ? 0 : sums.extents[0], sums.count));
  }
  std::vector<float> own(all.begin() + static_cast<ptrdiff_t>(row * k),
                         all.begin() + static_cast<ptrdiff_t>((row + 1) * k));
  const auto bad = std::find_if(own.begin(), own.end(), [](float x) { return !std::isfinite(x) || x < 0; });
  if (bad != own.end())
    reader.fail(fmt::format("{}.in_sum2: expected sums of squares, found {} at input {}", at, *bad,
                            bad - own.begin()));
  const double count = tokens[row];
  if (!(count >= 0) || count > 0x1p53 || count != std::floor(count))
    reader.fail(fmt::format("{}.counts: expected a count of tokens, found {}", at, count));
  return {std::move(own), static_cast<int64_t>(count)};
}

/// Writes the statistics file of the linears in `sums_of`. `text` is the name of the imported file.
void write_sums(const std::filesystem::path& path, const std::map<std::string, LinearSums>& sums_of,
                const std::string& text) {
  std::vector<TensorInfo> infos;
  std::map<std::string, int64_t> k_of;
  int64_t most = 0;
  for (const auto& [name, sums] : sums_of) {
    k_of[name] = static_cast<int64_t>(sums.squares.size());
    most = std::max(most, sums.count);
    infos.push_back({name + ".sum_squares", DType::kF32, {k_of[name]}, 0, 0});
    infos.push_back({name + ".count", DType::kI64, {}, 0, 0});
  }
  const uint64_t bytes = assign_offsets(infos);
  const std::string header = format_safetensors_header(infos, {{"format", std::string(kStatisticsFormat)},
                                                               {"structure", structure_of(k_of)},
                                                               {"weights", ""},
                                                               {"tokens", fmt::format("{}", most)},
                                                               {"text", text},
                                                               {"weighting", "plain"}});
  AtomicFile out(path);
  out.resize(header.size() + bytes);
  for (const TensorInfo& t : infos) {
    const LinearSums& sums = sums_of.at(std::string(module_of(t.name)));
    const void* from = t.dtype == DType::kF32 ? static_cast<const void*>(sums.squares.data()) : &sums.count;
    std::string stored(t.bytes(), '\0');
    std::memcpy(stored.data(), from, stored.size());
    out.write(header.size() + t.begin, stored);
  }
  // The header is written last, so that no file of a killed run looks complete.
  out.write(0, header);
  out.flush();
  out.commit();
}

}  // namespace

ImportedMatrix import_imatrix(const std::filesystem::path& path, const Checkpoint& checkpoint,
                              const std::filesystem::path& out_path) {
  GgufReader reader(path);
  const std::map<std::string, GgufTensor> tensors = reader.read_tensors();
  const Served by_tensor = served_linears(tensors, checkpoint);
  ImportedMatrix found;
  std::map<std::string, LinearSums> sums_of;
  for (const auto& [ggml, served] : by_tensor) {
    const std::string at = ggml + ".weight";
    const GgufTensor& sums = tensors.at(at + ".in_sum2");
    const auto counts = tensors.find(at + ".counts");
    if (counts == tensors.end())
      reader.fail(fmt::format("{}.counts: expected it beside .in_sum2, found none", at));
    const std::vector<float> all = reader.values(sums), tokens = reader.values(counts->second);
    for (const ServedLinear& m : served) {
      LinearSums own = take_sums(reader, at, sums, all, tokens, m);
      found.empty += own.count == 0;
      sums_of[m.name] = std::move(own);
    }
  }
  found.entries = sums_of.size();
  for (const auto& [name, t] : tensors) {
    found.unknown +=
        name.ends_with(kSumsSuffix) && !by_tensor.contains(name.substr(0, name.size() - kSumsSuffix.size()));
  }
  if (found.entries == 0)
    reader.fail(fmt::format("expected tensors of linears of {}, found none among {}",
                            checkpoint.path().string(), tensors.size()));
  write_sums(out_path, sums_of, path.filename().string());
  return found;
}

}  // namespace twofour
