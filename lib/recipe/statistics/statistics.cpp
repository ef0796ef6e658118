#include "lib/recipe/statistics/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>

#include "formats/error.h"
#include "formats/json.h"

namespace twofour {
namespace {

constexpr std::string_view kHeldout = "heldout.";
constexpr std::string_view kSaliency = ".saliency";
constexpr std::string_view kTargetOffset = ".target_offset";
constexpr std::string_view kFisherRows = ".fisher_rows";

struct Leaf {
  std::string_view name;
  DType dtype;
};
constexpr Leaf kLeaves[] = {{".hessian", DType::kF32},     {".hessian_blocks", DType::kF32},
                            {".sum_squares", DType::kF32}, {".count", DType::kI64},
                            {kTargetOffset, DType::kF32},  {".fisher_hessian", DType::kF32},
                            {kFisherRows, DType::kF32},    {".sum_squared_weights", DType::kF64},
                            {".amax", DType::kF32},        {kSaliency, DType::kF32}};

/// The order of a symmetric matrix, from the shape of its tensor. 0 if a symmetric matrix cannot have that
/// shape.
int64_t order_of(std::span<const int64_t> shape) {
  if (shape.size() == 2) return shape[0] == shape[1] ? shape[0] : 0;
  if (shape.size() != 1) return 0;
  const auto k = static_cast<int64_t>((std::sqrt(8.0 * static_cast<double>(shape[0]) + 1) - 1) / 2);
  for (const int64_t order : {k - 1, k, k + 1}) {
    if (order > 0 && order * (order + 1) / 2 == shape[0]) return order;
  }
  return 0;
}

/// The order k of a matrix that is stored as diagonal blocks [k / b, b, b]. 0 if diagonal blocks cannot have
/// that shape.
int64_t order_of_blocks(std::span<const int64_t> shape) {
  return shape.size() == 3 && shape[1] == shape[2] ? shape[0] * shape[1] : 0;
}

SafetensorsHeader read_header(const InputFile& file, uint64_t& data_begin) {
  const std::string where = file.path().string();
  std::vector<uint8_t> first(std::min(file.size(), kSafetensorsHead));
  file.read(0, first);
  if (std::string_view(reinterpret_cast<const char*>(first.data()), first.size()).starts_with("GGUF")) {
    throw Error(fmt::format(
        "{}: expected a statistics file, found a GGUF file: twofour stats import makes one of an importance "
        "matrix",
        where));
  }
  const uint64_t length = parse_safetensors_prefix(where, first, file.size());
  data_begin = kSafetensorsPrefix + length;
  std::string json(length, '\0');
  file.read(kSafetensorsPrefix, {reinterpret_cast<uint8_t*>(json.data()), json.size()});
  return parse_safetensors_header(where, json, file.size() - data_begin);
}

}  // namespace

std::string_view statistics_kind_name(StatisticsKind kind) {
  switch (kind) {
    case StatisticsKind::kFull:
      return "hessian";
    case StatisticsKind::kBlocks:
      return "hessian_blocks";
    case StatisticsKind::kDiagonal:
      break;
  }
  return "sum_squares";
}

std::string structure_of(const std::map<std::string, int64_t>& linears) {
  Hasher hasher;
  for (const auto& [name, k] : linears) hasher.update(fmt::format("{} {}\n", name, k));
  return hasher.digest().hex();
}

bool is_statistics_file(const std::filesystem::path& path) {
  try {
    uint64_t data_begin = 0;
    const SafetensorsHeader header = read_header(InputFile(path), data_begin);
    const auto format = header.metadata.find("format");
    return format != header.metadata.end() && format->second == kStatisticsFormat;
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) {
    return false;
  }
}

Statistics Statistics::open(const std::filesystem::path& path, bool takes_unfinished) {
  Statistics s;
  s.file_ = std::make_shared<InputFile>(path);
  s.header_ = read_header(*s.file_, s.data_begin_);
  const bool is_unfinished = s.metadata("format") == kUnfinishedStatistics;
  if (is_unfinished && !takes_unfinished)
    throw Error(fmt::format("{}: expected statistics of a finished run, found those of an unfinished one",
                            path.string()));
  if (!is_unfinished && s.metadata("format") != kStatisticsFormat) {
    throw Error(fmt::format(
        "{}: expected metadata with format \"{}\", found \"{}\"; see lib/recipe/statistics/README.md",
        path.string(), kStatisticsFormat, s.metadata("format")));
  }
  s.read_groups();
  s.entries_ = s.read_entries("");
  s.heldout_ = s.read_entries(kHeldout);
  s.served_ = s.serve(s.entries_);
  s.heldout_served_ = s.serve(s.heldout_);
  s.check_target_offsets();
  s.check_structure();
  return s;
}

std::string Statistics::metadata(const std::string& key) const {
  const auto at = header_.metadata.find(key);
  return at == header_.metadata.end() ? "" : at->second;
}

std::string Statistics::collected_on() const {
  const std::string device = metadata("device"), isa = metadata("isa");
  return device.empty() || isa.empty() ? device : fmt::format("{}, {}", device, isa);
}

Hash128 Statistics::hash() const {
  return hash_range(*file_, 0, file_->size(), [](uint64_t) {});
}

std::string Statistics::where(size_t tensor) const {
  return fmt::format("{}: {}", path().string(), tensors()[tensor].name);
}

void Statistics::refuse(size_t tensor, std::string_view expected) const {
  throw Error(fmt::format("{}: expected {}, found {}", where(tensor), expected, describe(tensors()[tensor])));
}

template <class T>
T Statistics::read_number(const TensorInfo& t) const {
  std::array<uint8_t, sizeof(T)> bytes{};
  file_->read(data_begin_ + t.begin, bytes);
  T number{};
  std::memcpy(&number, bytes.data(), bytes.size());
  return number;
}

void Statistics::read_groups() {
  const std::string text = metadata("groups");
  if (text.empty()) return;
  const std::string place = path().string() + ": metadata groups";
  const Json json = parse_json(place, text);
  if (!json.is_object())
    throw Error(fmt::format("{}: expected an object, found a value of another type", place));
  for (const auto& [name, members] : json.items()) {
    std::set<std::string> seen;
    if (!members.is_array() || members.empty())
      throw Error(fmt::format("{}: {}: expected a list of linears, found none", place, name));
    for (const Json& m : members) {
      if (!m.is_string() || !seen.insert(m.get<std::string>()).second)
        throw Error(
            fmt::format("{}: {}: expected names of linears, each once, found something else", place, name));
      groups_[name].push_back(m.get<std::string>());
    }
  }
}

/// An entry as its tensors are read.
struct Statistics::EntryTensors {
  StatisticsEntry entry;
  int kinds = 0, counts = 0;  ///< tensors of sums, and of counts
};

bool Statistics::read_apart(size_t tensor, std::string_view linear, std::string_view leaf, bool is_heldout) {
  const TensorInfo& t = tensors()[tensor];
  const auto wrong = [&](std::string_view expected) { refuse(tensor, expected); };
  if (leaf == kTargetOffset) {
    if (is_heldout) wrong("a target among the statistics that are solved by");
    if (t.shape.size() != 2) wrong("[N, K]");
    target_offsets_[std::string(linear)] = tensor;
  } else if (leaf == kFisherRows) {
    if (is_heldout) wrong("gradients among the statistics that are solved by");
    if (t.shape.size() != 1) wrong("[N]");
  }
  return leaf == kSaliency || leaf == kTargetOffset || leaf == kFisherRows;
}

void Statistics::read_tensor(size_t tensor, std::string_view leaf, EntryTensors& to) const {
  const TensorInfo& t = tensors()[tensor];
  StatisticsEntry& e = to.entry;
  const auto set_order = [&](int64_t k, std::string_view expected) {
    if (k <= 0) refuse(tensor, expected);
    if (e.k != 0 && e.k != k) refuse(tensor, fmt::format("K of {} as in its other tensors", e.k));
    e.k = k;
  };
  const auto set_kind = [&](StatisticsKind kind) {
    e.kind = kind;
    e.sums = tensor;
    ++to.kinds;
  };
  if (leaf == ".hessian") {
    set_order(order_of(t.shape), "[K, K] or [K (K + 1) / 2]");
    set_kind(StatisticsKind::kFull);
  } else if (leaf == ".hessian_blocks") {
    set_order(order_of_blocks(t.shape), "[K / B, B, B]");
    e.block = t.shape[1];
    set_kind(StatisticsKind::kBlocks);
  } else if (leaf == ".sum_squares") {
    set_order(t.shape.size() == 1 ? t.shape[0] : 0, "[K]");
    set_kind(StatisticsKind::kDiagonal);
  } else if (leaf == ".fisher_hessian") {
    set_order(std::max(order_of(t.shape), order_of_blocks(t.shape)),
              "[K, K], [K (K + 1) / 2] or [K / B, B, B]");
    e.fisher = tensor;
  } else if (t.bytes() != static_cast<uint64_t>(dtype_bits(t.dtype)) / 8) {
    refuse(tensor, "one number");
  } else if (leaf != ".count") {
    const double number = leaf == ".amax" ? double{read_number<float>(t)} : read_number<double>(t);
    if (!std::isfinite(number) || number < 0)
      throw Error(fmt::format("{}: expected a finite number from 0, found {}", where(tensor), number));
  } else {
    e.count = read_number<int64_t>(t);
    if (e.count < 0)
      throw Error(fmt::format("{}: expected a number of tokens, found {}", where(tensor), e.count));
    ++to.counts;
  }
}

std::vector<StatisticsEntry> Statistics::read_entries(std::string_view prefix) {
  std::map<std::string, EntryTensors> found;
  for (size_t i = 0; i < tensors().size(); ++i) {
    const TensorInfo& t = tensors()[i];
    const bool is_heldout = t.name.starts_with(kHeldout);
    if (is_heldout != (prefix == kHeldout)) continue;
    const std::string_view name = std::string_view(t.name).substr(prefix.size());
    const size_t dot = name.rfind('.');
    const std::string_view leaf = dot == name.npos ? "" : name.substr(dot);
    const auto* known = std::find_if(std::begin(kLeaves), std::end(kLeaves),
                                     [&](const Leaf& l) { return l.name == leaf && dot > 0; });
    if (known == std::end(kLeaves)) {
      throw Error(
          fmt::format("{}: expected M.hessian, M.count or another of the tensors that "
                      "lib/recipe/statistics/README.md lists",
                      where(i)));
    }
    if (t.dtype != known->dtype) refuse(i, dtype_name(known->dtype));
    const std::string_view linear = name.substr(0, dot);
    if (!read_apart(i, linear, leaf, is_heldout)) read_tensor(i, leaf, found[std::string(linear)]);
  }
  std::vector<StatisticsEntry> entries;
  for (auto& [name, read] : found) {
    read.entry.name = name;
    if (read.kinds != 1 || read.counts != 1) {
      throw Error(fmt::format(
          "{}: {}{}: expected one of hessian, hessian_blocks and sum_squares, and count, found {} and {}",
          path().string(), prefix, name, read.kinds, read.counts));
    }
    const auto group = groups_.find(name);
    read.entry.members = group == groups_.end() ? std::vector<std::string>{name} : group->second;
    entries.push_back(std::move(read.entry));
  }
  if (prefix.empty()) {
    for (const auto& [name, members] : groups_) {
      if (!found.contains(name))
        throw Error(
            fmt::format("{}: metadata groups: expected an entry {}, found none", path().string(), name));
    }
    if (entries.empty())
      throw Error(fmt::format("{}: expected statistics of linears, found none", path().string()));
  }
  return entries;
}

Statistics::Served Statistics::serve(const std::vector<StatisticsEntry>& entries) const {
  Served served;
  for (size_t i = 0; i < entries.size(); ++i) {
    for (const std::string& m : entries[i].members) {
      std::vector<size_t>& all = served[m];
      if (!all.empty() && entries[all[0]].k != entries[i].k) {
        throw Error(fmt::format("{}: {}: expected one K, found {} in {} and {} in {}", path().string(), m,
                                entries[all[0]].k, entries[all[0]].name, entries[i].k, entries[i].name));
      }
      // A linear's own entry comes first.
      all.insert(entries[i].name == m || entries[i].members.size() == 1 ? all.begin() : all.end(), i);
    }
  }
  return served;
}

void Statistics::check_target_offsets() const {
  for (size_t i = 0; i < tensors().size(); ++i) {
    const std::string_view name = tensors()[i].name;
    if (!name.ends_with(kFisherRows)) continue;
    const std::string_view linear = name.substr(0, name.size() - kFisherRows.size());
    if (!served_.contains(linear))
      throw Error(
          fmt::format("{}: expected an entry or a group that serves {}, found none", where(i), linear));
  }
  for (const auto& [linear, tensor] : target_offsets_) {
    const TensorInfo& t = tensors()[tensor];
    const auto at = served_.find(linear);
    if (at == served_.end())
      throw Error(
          fmt::format("{}: expected an entry or a group that serves {}, found none", where(tensor), linear));
    if (const int64_t k = entries_[at->second[0]].k; t.shape[1] != k) {
      throw Error(fmt::format("{}: expected K of {} (as in its other tensors), found {}", where(tensor), k,
                              describe(t)));
    }
  }
}

void Statistics::check_structure() const {
  std::map<std::string, int64_t> linears;
  for (const auto& [name, all] : served_) linears[name] = entries_[all[0]].k;
  if (const std::string found = structure_of(linears); metadata("structure") != found) {
    throw Error(fmt::format(
        "{}: metadata structure: expected {} of its linears and their K, found {}; collect it again",
        path().string(), found, metadata("structure")));
  }
}

const StatisticsEntry* Statistics::find_in(const Served& served, const std::vector<StatisticsEntry>& entries,
                                           std::string_view linear) {
  const auto at = served.find(linear);
  if (at == served.end()) return nullptr;
  for (const size_t i : at->second) {
    if (entries[i].count > 0) return &entries[i];
  }
  return &entries[at->second[0]];
}

}  // namespace twofour
