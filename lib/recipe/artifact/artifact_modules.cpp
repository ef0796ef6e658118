#include "lib/recipe/artifact/artifact_modules.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>

#include "formats/error.h"
#include "formats/json.h"
#include "formats/layouts/layouts.h"
#include "lib/recipe/artifact/layout_names.h"
#include "lib/recipe/artifact/manifest.h"

namespace twofour {
namespace {

/// The largest dimension of a matrix. Up to this, no product of dimensions overflows.
constexpr int64_t kMaxDimension = int64_t{1} << 40;

/// A source of one expert of a matrix, as twofour.json records it.
struct SourceEntry {
  std::string module, dialect;
  int64_t expert = -1;  ///< -1 if it is not in a stack
  bool k_outer = false;
  int64_t first = 0, step = 0, count = 0;
  std::vector<int64_t> global_scale_shape;
  uint32_t global_scale_bits = 0;
};

/// A matrix, as twofour.json records it.
struct MatrixEntry {
  std::string name, layout;
  Shape shape;
  std::vector<std::string> tensors;
  std::vector<SourceEntry> sources;
};

struct Parsed {
  std::vector<MatrixEntry> matrices;
  std::set<std::string> copied;
  Json hf_quant_config;
  std::optional<Recovery> recovery;
  std::string integrity_error;  ///< see integrity_error
};

std::vector<int64_t> whole_numbers(const Json& json) {
  std::vector<int64_t> numbers;
  for (const Json& n : json) numbers.push_back(whole_number<int64_t>(n));
  return numbers;
}

SourceEntry parse_source(const Json& json) {
  SourceEntry s;
  s.module = json.at("module").get<std::string>();
  s.dialect = json.at("dialect").get<std::string>();
  if (json.contains("expert")) {
    s.expert = whole_number<int64_t>(json.at("expert"));
    s.k_outer = json.at("k_outer").get<bool>();
  }
  const auto rows = whole_numbers(json.at("rows"));
  if (rows.size() != 3) throw Error("expected three numbers");
  s.first = rows[0], s.step = rows[1], s.count = rows[2];
  s.global_scale_shape = whole_numbers(json.at("global_scale_shape"));
  s.global_scale_bits = parse_bits(s.module, json.at("global_scale_bits"));
  return s;
}

/// Parses twofour.json. It takes each source and tensor and drops it during parsing, so that the whole
/// document is never in memory. Modules without a layout are as in the artifact's source.
Parsed parse_manifest(const std::string& where, size_t tensors_of_artifact) {
  Parsed parsed;
  std::vector<Json> sources;  // of the module that is being read
  std::vector<std::string> tensors;
  std::map<std::string, std::string> layouts;
  const auto keep = [&](Json& json) {
    if (json.contains("codes_xxh3_128") || json.contains("weights_xxh3_128")) {
      sources.push_back(std::move(json));
      return false;
    }
    if (json.contains("xxh3_128")) {
      tensors.push_back(json.at("name").get<std::string>());
      return false;
    }
    if (json.contains("module") && json.contains("dtype")) return false;
    if (!json.contains("sources")) {
      if (json.contains("gated"))
        throw Error(fmt::format("no sources of {}", json_quote_short(json.value("name", ""))));
      return true;
    }
    const auto name = json.at("name").get<std::string>();
    const std::string& layout = layouts[name] = json.at("layout").get<std::string>();
    if (is_layout(layout)) {
      const Json& shape = json.at("shape");
      parsed.matrices.push_back({name,
                                 layout,
                                 {whole_number<int64_t>(shape.at(0)), whole_number<int64_t>(shape.at(1)),
                                  whole_number<int64_t>(shape.at(2)), json.at("gated").get<bool>()},
                                 std::move(tensors),
                                 {}});
      for (const Json& source : sources) parsed.matrices.back().sources.push_back(parse_source(source));
    } else {
      parsed.copied.insert(tensors.begin(), tensors.end());
    }
    tensors.clear();
    sources.clear();
    return false;
  };
  const auto refuse = [&](std::string_view found) {
    throw Error(fmt::format(
        "{}: expected a manifest that describes how the artifact's source stored its weights, found {}",
        where, found));
  };
  try {
    const ManifestText text = parse_manifest_text(where, tensors_of_artifact, keep);
    parsed.integrity_error = text.integrity_error;
    parsed.recovery = text.recipe.recovery;
    check_layout_names(where, text.json, layouts);
    parsed.copied.insert(tensors.begin(), tensors.end());
    parsed.hf_quant_config = text.json.at("source").value("hf_quant_config", Json());
  } catch (const Json::exception&) {
    refuse("something else");
  } catch (const Error& e) {
    if (std::string_view(e.what()).starts_with(where)) throw;  // the error is about the file itself
    refuse(fmt::format("none ({})", e.what()));
  }
  return parsed;
}

/// Converts the parsed entries to matrices and modules, and checks all of them.
class Builder {
 public:
  explicit Builder(const Checkpoint& artifact)
      : artifact_(artifact), where_((artifact.path() / kManifestName).string()) {}

  ArtifactModules build() {
    Parsed parsed = parse_manifest(where_, artifact_.tensors().size());
    result_.hf_quant_config = std::make_shared<Json>(std::move(parsed.hf_quant_config));
    result_.copied = std::move(parsed.copied);
    if (parsed.recovery) tuned_ = std::move(parsed.recovery->tuned);
    for (const MatrixEntry& entry : parsed.matrices) add_matrix(entry);
    if (result_.matrices.empty()) fail("", "at least one matrix in a layout", "none");
    if (!parsed.integrity_error.empty()) throw Error(fmt::format("{}: {}", where_, parsed.integrity_error));
    return std::move(result_);
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& expected, const std::string& found) {
    throw Error(fmt::format("{}: {}{}expected {}, found {}", where_, what, what.empty() ? "" : ": ", expected,
                            found));
  }

  void add_matrix(const MatrixEntry& entry) {
    const Shape s = entry.shape;
    ArtifactMatrix matrix{entry.name, entry.layout, s, {}, 0};
    const bool possible = s.e > 0 && s.n > 0 && s.k > 0 && s.k % kGroup == 0 && s.e < kMaxDimension &&
                          s.n < kMaxDimension && s.k < kMaxDimension;
    if (!possible) {
      fail(entry.name, fmt::format("a shape [E, N, K] with K a multiple of {}", kGroup),
           fmt::format("[{}, {}, {}]", s.e, s.n, s.k));
    }
    const bool known = with_layout(entry.layout, [&]<class L>() {
      for (int p = 0; p < L::part_count; ++p) {
        const Part part = L::part(p, s);
        matrix.parts.push_back(find_part(entry, part.suffix, part.dtype, {s.e, part.rows, part.cols}));
      }
    });
    if (!known) fail(entry.name, "a layout", entry.layout);
    matrix.global_scale = find_part(entry, "global_scale", DType::kF32, {s.e});
    result_.matrices.push_back(std::move(matrix));
    add_modules(entry);
  }

  /// Finds the tensor of a matrix that has this suffix. It must have this type and shape.
  size_t find_part(const MatrixEntry& entry, const char* suffix, DType dtype,
                   const std::vector<int64_t>& shape) {
    for (const std::string& name : entry.tensors) {
      if (name != entry.name + "_" + suffix && name != entry.name + "." + suffix) continue;
      const auto at = artifact_.find(name);
      if (!at) fail(name, "in the artifact", "it in no file");
      const TensorInfo& t = artifact_.tensors()[*at];
      if (t.dtype == dtype && t.shape == shape) return *at;
      fail(name, describe(dtype, shape), describe(t));
    }
    fail(entry.name, fmt::format("a tensor {}", suffix), "none");
  }

  void add_modules(const MatrixEntry& entry) {
    const Shape s = entry.shape;
    const size_t each = s.gated ? 2 : 1;
    if (static_cast<uint64_t>(s.e) != entry.sources.size() / each || entry.sources.size() % each != 0) {
      fail(entry.name, fmt::format("{} sources", static_cast<uint64_t>(s.e) * each),
           fmt::format("{}", entry.sources.size()));
    }
    const std::vector<uint32_t> bits = shown_bits(entry);
    const size_t first = result_.modules.size();
    std::map<std::string, size_t> stacks;
    for (size_t i = 0; i < entry.sources.size(); ++i) {
      const SourceEntry& source = entry.sources[i];
      const auto e = static_cast<int64_t>(i / each);
      const Nvfp4Dialect* dialect = find_dialect(source);
      if (!dialect->stacked || !stacks.count(source.module)) {
        if (dialect->stacked) stacks[source.module] = result_.modules.size();
        result_.modules.push_back({source.module,
                                   dialect,
                                   result_.matrices.size() - 1,
                                   dialect->stacked ? s.e : 1,
                                   0,
                                   s.k,
                                   dialect->stacked ? 0 : e,
                                   source.k_outer,
                                   {},
                                   source.global_scale_shape,
                                   {}});
      }
      SourceLinear& m = dialect->stacked ? result_.modules[stacks[source.module]] : result_.modules.back();
      add_source(entry, source, e, static_cast<int64_t>(i % each), bits[i], m);
    }
    for (size_t i = first; i < result_.modules.size(); ++i) check_module(result_.modules[i]);
  }

  const Nvfp4Dialect* find_dialect(const SourceEntry& source) {
    for (const Nvfp4Dialect& d : nvfp4_dialects()) {
      if (d.name == source.dialect && d.stacked == (source.expert >= 0)) return &d;
    }
    fail(source.module, "an NVFP4 dialect", source.dialect);
  }

  void add_source(const MatrixEntry& entry, const SourceEntry& source, int64_t e, int64_t index,
                  uint32_t bits, SourceLinear& m) {
    const int64_t share = entry.shape.n / (entry.shape.gated ? 2 : 1);
    const bool fits = source.count == share && source.first >= 0 && source.first <= entry.shape.n &&
                      (source.step == 1 || source.step == 2) && (source.expert < 0 || source.expert == e);
    if (!fits) {
      fail(source.module, fmt::format("{} rows of expert {}", share, e),
           fmt::format("{} rows from {} in steps of {} of expert {}", source.count, source.first, source.step,
                       source.expert));
    }
    const RowRun run{source.first, source.step, source.count, index * share};
    if (e == m.first_expert) {
      m.rows.push_back(run);
      m.n += run.count;
    } else {
      const bool same = std::any_of(m.rows.begin(), m.rows.end(), [&](const RowRun& r) {
        return r.first == run.first && r.step == run.step && r.n0 == run.n0;
      });
      if (!same) fail(source.module, "the same rows of every expert", "others");
    }
    if (source.k_outer != m.k_outer || source.global_scale_shape != m.global_scale_shape) {
      fail(source.module, "one way to store all experts", "several");
    }
    const bool one_for_all = scale_count(m) == 1;
    const size_t at = one_for_all ? 0 : static_cast<size_t>(e - m.first_expert);
    if (at == m.global_scale_bits.size()) m.global_scale_bits.push_back(bits);
    if (at >= m.global_scale_bits.size() || m.global_scale_bits[at] != bits) {
      fail(source.module, "one global scale", "several");
    }
  }

  int64_t scale_count(const SourceLinear& m) {
    int64_t count = 1;
    for (const int64_t d : m.global_scale_shape)
      count = d == 1 || d == m.e ? std::min(count * d, m.e + 1) : 0;
    if (count != 1 && count != m.e) {
      fail(m.name, fmt::format("one global scale or {}", m.e), fmt::format("{}", count));
    }
    return count;
  }

  /// Checks that the row runs cover each row of the module once.
  void check_module(const SourceLinear& m) {
    std::vector<bool> covered(static_cast<size_t>(m.n));
    for (const RowRun& run : m.rows) {
      for (int64_t i = 0; i < run.count; ++i) {
        const auto row = static_cast<size_t>(run.first + i * run.step);
        if (row >= covered.size() || covered[row]) fail(m.name, "every row once", fmt::format("row {}", row));
        covered[row] = true;
      }
    }
  }

  /// The stored bits of each source's global scale. They are the source's own bits or, if the scale was
  /// folded into the larger scale of gate and up, the other's bits. If recovery tuned the artifact's scales,
  /// they are these in the source's spelling. Throws Error if the artifact's global scales, as they were
  /// before, disagree with the source's.
  std::vector<uint32_t> shown_bits(const MatrixEntry& entry) {
    const size_t each = entry.shape.gated ? 2 : 1, experts = entry.sources.size() / each;
    const ArtifactMatrix& matrix = result_.matrices.back();
    std::vector<float> held(experts);
    artifact_.read(matrix.global_scale, 0,
                   {reinterpret_cast<uint8_t*>(held.data()), experts * sizeof(float)});
    std::vector<float> derived = held;
    const auto tuned = tuned_.find(artifact_.tensors()[matrix.global_scale].name);
    // A proof reads the artifact as it was before.
    const bool is_tuned = tuned != tuned_.end() && tuned->second.bits.size() == experts &&
                          !std::equal(held.begin(), held.end(), tuned->second.bits.begin(),
                                      [](float a, uint32_t b) { return std::bit_cast<uint32_t>(a) == b; });
    for (size_t e = 0; is_tuned && e < experts; ++e) derived[e] = std::bit_cast<float>(tuned->second.bits[e]);
    std::vector<uint32_t> bits;
    size_t folded = 0;
    for (size_t e = 0; e < experts; ++e) {
      const SourceEntry* sources = &entry.sources[e * each];
      float own[2];
      for (size_t i = 0; i < each; ++i) {
        own[i] = global_scale_multiplier(*find_dialect(sources[i]),
                                         std::bit_cast<float>(sources[i].global_scale_bits));
        bits.push_back(sources[i].global_scale_bits);
      }
      const size_t larger = each == 2 && own[1] > own[0] ? 1 : 0;
      if (std::bit_cast<uint32_t>(derived[e]) != std::bit_cast<uint32_t>(own[larger])) {
        fail(fmt::format("{}: expert {}", artifact_.where(matrix.global_scale), e),
             fmt::format("{} (the stored bits of its source)", own[larger]), fmt::format("{}", derived[e]));
      }
      for (size_t i = 0; is_tuned && i < each; ++i)
        bits[e * each + i] =
            std::bit_cast<uint32_t>(find_dialect(sources[i])->divides ? 1.0f / held[e] : held[e]);
      if (each == 1 || own[0] == own[1]) continue;
      ++folded;
      if (sources[0].dialect != sources[1].dialect) {
        fail(fmt::format("{}: expert {}", entry.name, e), "one dialect of gate and up that were folded",
             "two");
      }
      if (!is_tuned) bits[e * each + 1 - larger] = sources[larger].global_scale_bits;
    }
    if (folded > 0) {
      result_.findings.push_back(
          {Severity::kWarning, "folded-source", entry.name,
           fmt::format("gate and up of {} of {} experts were folded to one global scale: the original block "
                       "scales and global scales are lost, and the folded ones are returned",
                       folded, experts)});
    }
    return bits;
  }

  const Checkpoint& artifact_;
  std::string where_;
  std::map<std::string, Recovery::Tuned> tuned_;  ///< tensors that recovery tuned, by name
  ArtifactModules result_;
};

}  // namespace

ArtifactModules read_artifact_modules(const Checkpoint& artifact) {
  const auto manifest = artifact.path() / kManifestName;
  std::error_code error;
  if (!std::filesystem::exists(manifest, error)) {
    throw Error(fmt::format("{}: expected {}, which records the source of the layout, found none",
                            artifact.path().string(), kManifestName));
  }
  return Builder(artifact).build();
}

}  // namespace twofour
