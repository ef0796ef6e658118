#include "lib/recipe/statistics/merge_statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <utility>

#include "formats/error.h"
#include "lib/base/io/hash.h"
#include "lib/recipe/statistics/statistics.h"

namespace twofour {
namespace {

constexpr size_t kAtOnce = 1 << 18;  // numbers that are added together

/// Adds the number `more` of one file to `sum`, or, with `takes_larger`, sets `sum` to the larger of both.
/// Returns false if the sum overflows its type.
bool combine(double& sum, double more, bool takes_larger) {
  sum = takes_larger ? std::max(sum, more) : sum + more;
  return true;
}

bool combine(int64_t& sum, int64_t more, bool) { return !__builtin_add_overflow(sum, more, &sum); }

bool is_number(double x) { return std::isfinite(x); }
bool is_number(int64_t) { return true; }

[[noreturn]] void refuse_sum(const std::string& tensor, uint64_t element) {
  throw Error(fmt::format("{}: element {}: expected a sum over all files that its type holds, found more",
                          tensor, element));
}

/// Throws Error on a file that is given twice, and on a copy of a file, because its tokens would count twice.
void refuse_repeated(const std::vector<Statistics>& files) {
  std::map<uint64_t, std::vector<std::pair<std::string, const Statistics*>>> by_size;
  for (const Statistics& s : files) {
    auto& alike = by_size[s.file().size()];
    std::string hash;
    for (auto& [known, other] : alike) {
      if (known.empty()) known = other->hash().hex();
      if (hash.empty()) hash = s.hash().hex();
      if (known == hash)
        throw Error(fmt::format("{}: expected statistics of other tokens than {}, found the same file",
                                s.path().string(), other->path().string()));
    }
    alike.emplace_back(hash, &s);
  }
}

/// Throws Error on diagonals that are not sums of squares.
void check_diagonals(const Statistics& s) {
  for (const auto* entries : {&s.entries(), &s.heldout_entries()}) {
    for (const StatisticsEntry& e : *entries) {
      s.read_diagonal(e);
      if (e.fisher) s.read_fisher(e);
    }
  }
}

/// Merges one tensor of all files, in pieces. Float32 sums are added in double, in the order of the files.
template <class Stored, class Sum>
void merge_tensor(const std::vector<Statistics>& files, const std::vector<size_t>& at, AtomicFile& out,
                  uint64_t offset) {
  const TensorInfo& first = files[0].tensors()[at[0]];
  const bool takes_larger = first.name.ends_with(".amax");
  const uint64_t count = first.bytes() / sizeof(Stored);
  std::vector<Stored> read(std::min<uint64_t>(count, kAtOnce));
  std::vector<Sum> sums(read.size());
  for (uint64_t begin = 0; begin < count; begin += read.size()) {
    const auto here = static_cast<size_t>(std::min<uint64_t>(read.size(), count - begin));
    for (size_t f = 0; f < files.size(); ++f) {
      const TensorInfo& t = files[f].tensors()[at[f]];
      const std::span own = std::span(read).first(here);
      files[f].file().read(files[f].data_begin() + t.begin + begin * sizeof(Stored),
                           {reinterpret_cast<uint8_t*>(own.data()), own.size_bytes()});
      for (size_t i = 0; i < here; ++i) {
        const auto more = static_cast<Sum>(own[i]);
        if (!is_number(more))
          throw Error(fmt::format("{}: {}: element {}: expected a finite number, found {}",
                                  files[f].path().string(), t.name, begin + i, more));
        if (f == 0) {
          sums[i] = more;
        } else if (!combine(sums[i], more, takes_larger)) {
          refuse_sum(first.name, begin + i);
        }
      }
    }
    for (size_t i = 0; i < here; ++i) {
      read[i] = static_cast<Stored>(sums[i]);
      if (!is_number(read[i])) refuse_sum(first.name, begin + i);
    }
    out.write(offset + begin * sizeof(Stored),
              {reinterpret_cast<const uint8_t*>(read.data()), here * sizeof(Stored)});
  }
}

int64_t tokens_of(const Statistics& s) {
  const std::string text = s.metadata("tokens");
  int64_t tokens = 0;
  std::from_chars(text.data(), text.data() + text.size(), tokens);
  return tokens;
}

void demand_equal(const Statistics& a, const Statistics& b, const char* key) {
  if (a.metadata(key) == b.metadata(key)) return;
  throw Error(fmt::format("{}: metadata {}: expected {} as in {}, found {}", b.path().string(), key,
                          a.metadata(key), a.path().string(), b.metadata(key)));
}

}  // namespace

void merge_statistics(const std::vector<std::filesystem::path>& paths,
                      const std::filesystem::path& out_path) {
  if (paths.size() < 2)
    throw Error(fmt::format("stats merge: expected two files or more, found {}", paths.size()));
  std::vector<Statistics> files;
  for (const auto& path : paths) {
    files.push_back(Statistics::open(path));
    std::error_code error;
    if (std::filesystem::equivalent(path, out_path, error))
      throw Error(fmt::format("{}: expected an output that is no input, found one", out_path.string()));
  }
  refuse_repeated(files);
  for (const Statistics& s : files) check_diagonals(s);
  const Statistics& first = files[0];
  std::vector<TensorInfo> tensors = first.tensors();
  std::vector<std::vector<size_t>> places(tensors.size());
  const bool is_sequential = std::any_of(
      tensors.begin(), tensors.end(), [](const TensorInfo& t) { return t.name.ends_with(".target_offset"); });
  int64_t tokens = 0;
  std::string texts, inputs;
  for (const Statistics& s : files) {
    for (const char* key : {"structure", "weights", "weighting", "groups"}) demand_equal(first, s, key);
    if (is_sequential) demand_equal(first, s, "predecessor");
    if (s.tensors().size() != tensors.size()) {
      throw Error(fmt::format("{}: expected the {} tensors that {} has, found {}", s.path().string(),
                              tensors.size(), first.path().string(), s.tensors().size()));
    }
    std::map<std::string_view, size_t> by_name;
    for (size_t i = 0; i < s.tensors().size(); ++i) by_name[s.tensors()[i].name] = i;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto at = by_name.find(tensors[i].name);
      const TensorInfo* t = at == by_name.end() ? nullptr : &s.tensors()[at->second];
      if (t == nullptr || t->dtype != tensors[i].dtype || t->shape != tensors[i].shape) {
        throw Error(fmt::format("{}: {}: expected {} as in {}, found {}", s.path().string(), tensors[i].name,
                                describe(tensors[i]), first.path().string(),
                                t == nullptr ? "none" : describe(*t)));
      }
      places[i].push_back(at->second);
    }
    if (__builtin_add_overflow(tokens, tokens_of(s), &tokens)) refuse_sum("metadata tokens", 0);
    texts += (texts.empty() ? "" : ", ") + s.metadata("text");
    inputs += s.metadata("input") + "\n";
  }
  auto metadata = first.metadata();
  metadata["tokens"] = std::to_string(tokens);
  metadata["text"] = texts;
  metadata["input"] = hash_text(inputs).hex();  // differs from the hash of any single run
  const std::string header = format_safetensors_header(tensors, metadata);
  AtomicFile out(out_path);
  out.resize(header.size() + (tensors.empty() ? 0 : tensors.back().end));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t offset = header.size() + tensors[i].begin;
    switch (tensors[i].dtype) {
      case DType::kF32:
        merge_tensor<float, double>(files, places[i], out, offset);
        break;
      case DType::kF64:
        merge_tensor<double, double>(files, places[i], out, offset);
        break;
      default:
        merge_tensor<int64_t, int64_t>(files, places[i], out, offset);
    }
  }
  // The header is written last, so that no file of a killed run looks complete.
  out.write(0, header);
  out.flush();
  out.commit();
}

}  // namespace twofour
