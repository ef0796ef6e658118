#include "lib/plan/plan.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "formats/layouts/layouts.h"
#include "lib/checkpoint/quantization_config.h"
#include "lib/global_scale.h"
#include "lib/artifact/manifest.h"
#include "lib/natural.h"
#include "lib/plan_rewrite.h"
#include "lib/findings/problems.h"
#include "lib/sidecars.h"
#include "lib/tiling.h"

namespace twofour {
namespace {

/// Longest header that a file of ours gets; readers stop at 100 MB.
constexpr uint64_t kMaxHeader = 64'000'000;

TargetScales read_scales(const Checkpoint& c, const Target& target, Problems& problems) {
  TargetScales scales;
  for (const SourceRows& s : target.sources) {
    const Nvfp4Module& m = c.nvfp4_modules()[s.module];
    const SourceScale scale = read_global_scale(c, m, s.expert, problems);
    scales.stored_bits.push_back(scale.stored_bits);
    scales.own.push_back(scale.multiplier);
  }
  for (size_t i = 0; i < scales.own.size(); i += target.sources_per_expert) {
    scales.folded.push_back(*std::max_element(&scales.own[i], &scales.own[i] + target.sources_per_expert));
  }
  return scales;
}

void check_fold(const Target& target, const TargetScales& scales, Fold fold, Problems& problems,
                Findings& findings) {
  if (target.sources_per_expert < 2) return;
  size_t unequal = 0;
  double largest = 1;
  for (size_t e = 0; e < scales.folded.size(); ++e) {
    const float gate = scales.own[2 * e], up = scales.own[2 * e + 1];
    if (gate == up) continue;
    ++unequal;
    largest =
        std::max(largest, static_cast<double>(std::max(gate, up)) / static_cast<double>(std::min(gate, up)));
    if (fold == Fold::kStrict) {
      problems.add(fmt::format(
          "{}: expert {}: expected equal global scales of gate and up (--fold strict), found {} and {}",
          target.name, e, gate, up));
    }
  }
  if (unequal == 0) return;
  findings.push_back(
      {Severity::kWarning, "unequal-global-scales", target.name,
       fmt::format(
           "gate and up differ in {} of {} experts, by a factor of up to {:.6g}: folded to the larger",
           unequal, scales.folded.size(), largest)});
}

/// Whether the layout can hold the target; g8 pairs rows of gate and up, eight by eight.
void check_layout(const Target& target, const std::string& layout, Problems& problems) {
  with_layout(layout, [&]<class L>() {
    if constexpr (L::pairs_gate_and_up) {
      if (target.name.ends_with(".w13") && !target.shape.gated) {
        problems.add(fmt::format("{}: expected gate and up, which {} interleaves, found up alone",
                                 target.name, layout));
      } else if (target.shape.gated && target.shape.n % 16 != 0) {
        problems.add(fmt::format("{}: expected a multiple of 8 rows of gate, found {}", target.name,
                                 target.shape.n / 2));
      }
    }
  });
}

TensorInfo tensor_of_part(const Target& target, const Part& part) {
  std::vector<int64_t> shape{target.shape.e, part.rows, part.cols};
  const auto bytes = static_cast<uint64_t>(target.shape.e * part.bytes());
  return {target.tensor_name(part.suffix), part.dtype, std::move(shape), 0, bytes};
}

/// All tensors of the artifact, not yet in files.
std::vector<OutputTensor> list_outputs(const Checkpoint& c, const Plan& plan) {
  std::vector<bool> consumed(c.tensors().size());
  std::vector<OutputTensor> outputs;
  for (size_t t = 0; t < plan.targets.size(); ++t) {
    const Target& target = plan.targets[t];
    for (const SourceRows& s : target.sources) {
      const Nvfp4Module& m = c.nvfp4_modules()[s.module];
      for (const size_t i : {m.codes, m.block_scale, m.global_scale}) consumed[i] = true;
    }
    with_layout(plan.recipe.layout, [&]<class L>() {
      for (int p = 0; p < L::part_count; ++p) {
        outputs.push_back(
            {tensor_of_part(target, L::part(p, target.shape)), OutputTensor::Kind::kPart, t, p, 0});
      }
    });
    const auto scale_bytes = static_cast<uint64_t>(target.shape.e) * sizeof(float);
    outputs.push_back({{target.tensor_name("global_scale"), DType::kF32, {target.shape.e}, 0, scale_bytes},
                       OutputTensor::Kind::kGlobalScale,
                       t,
                       -1,
                       0});
  }
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    if (!consumed[i]) outputs.push_back({c.tensors()[i], OutputTensor::Kind::kCopy, i, -1, 0});
  }
  return outputs;
}

/// Fills files in natural order, so that a layer stays together, and fixes each file's header.
void lay_out_files(Plan& plan, std::vector<OutputTensor> outputs) {
  std::sort(outputs.begin(), outputs.end(), [](const OutputTensor& a, const OutputTensor& b) {
    return natural_less(a.info.name, b.info.name);
  });
  for (size_t i = 1; i < outputs.size(); ++i) {
    if (outputs[i].info.name == outputs[i - 1].info.name) {
      throw Error(
          fmt::format("{}: expected the name free for the converted weights, found a tensor of that name",
                      outputs[i].info.name));
    }
  }
  uint64_t data = 0, header = 0;
  uint32_t file = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const uint64_t bytes = outputs[i].info.bytes(), entry = outputs[i].info.name.size() + 160;
    const bool full = data + bytes > plan.recipe.max_shard_size || header + entry > kMaxHeader;
    if (i > 0 && full) {
      ++file;
      data = header = 0;
    }
    outputs[i].file = file;
    data += bytes;
    header += entry;
  }
  // Within a file the order is the format's: by type, then by name.
  std::sort(outputs.begin(), outputs.end(), [](const OutputTensor& a, const OutputTensor& b) {
    return std::tie(a.file, a.info.dtype, a.info.name) < std::tie(b.file, b.info.dtype, b.info.name);
  });
  // A pruned checkpoint is NVFP4 as before, a quantized one from now on.
  const Rewrite rewrite = rewrite_of(plan.recipe.layout);
  const bool nvfp4 = rewrite == Rewrite::kPrune || rewrite == Rewrite::kQuantize;
  const std::string layout = nvfp4 ? "nvfp4" : plan.recipe.layout;
  plan.files.resize(outputs.empty() ? 0 : file + 1);
  for (size_t i = 0; i < outputs.size();) {
    OutputFile& f = plan.files[outputs[i].file];
    f.name = fmt::format("model-{:05}-of-{:05}.safetensors", outputs[i].file + 1, file + 1);
    f.first_tensor = i;
    std::vector<TensorInfo> infos;
    for (; i < outputs.size() && &plan.files[outputs[i].file] == &f; ++i)
      infos.push_back(std::move(outputs[i].info));
    f.tensor_count = infos.size();
    f.data_bytes = assign_offsets(infos);
    f.header = format_safetensors_header(infos, {{"format", "pt"}, {"twofour.layout", layout}});
    for (size_t j = 0; j < infos.size(); ++j) outputs[f.first_tensor + j].info = std::move(infos[j]);
    plan.data_bytes += f.data_bytes;
  }
  plan.tensors = std::move(outputs);
  plan.parts_.resize(plan.targets.size());
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const OutputTensor& t = plan.tensors[i];
    if (t.kind == OutputTensor::Kind::kPart) plan.parts_[t.source].push_back(i);
    if (t.kind == OutputTensor::Kind::kEncoded) {
      plan.matrices[t.source].parts[static_cast<size_t>(t.part)] = i;
    }
  }
}

void note_passed_through(const Checkpoint& c, Plan& plan, Problems& problems) {
  std::set<size_t> converted;
  for (const Target& t : plan.targets) {
    for (const SourceRows& s : t.sources) converted.insert(s.module);
  }
  for (const ModulePlan& m : plan.modules) converted.insert(m.module);
  for (const WeightModule& m : plan.weights) {
    if (m.nvfp4) converted.insert(*m.nvfp4);
  }
  size_t passed = 0;
  std::string example;
  for (size_t i = 0; i < c.nvfp4_modules().size(); ++i) {
    if (converted.count(i)) continue;
    const Nvfp4Module& m = c.nvfp4_modules()[i];
    if (passed++ == 0) example = m.name;
    // Refused as in what is converted; their block scales are looked at as they pass.
    const auto stored = static_cast<int64_t>(c.tensors()[m.global_scale].bytes() / sizeof(float));
    for (int64_t e = 0; e < stored; ++e) read_global_scale(c, m, e, problems);
  }
  if (passed > 0) {
    plan.findings.push_back(
        {Severity::kNote, "passed-through", c.path().string(),
         fmt::format(
             "{} NVFP4 modules are not among those to convert and pass through as they are, the first {}",
             passed, example)});
  }
}

/// Refuses input scales that pass as they are and are none. Those that are rewritten were looked at, those
/// that are left out reach nobody. Zero, or infinite where activations are multiplied by it, is what
/// calibration leaves where no token came by.
void check_input_scales(const Checkpoint& c, const std::vector<bool>& passes, Problems& problems,
                        Findings& findings) {
  constexpr uint64_t kMost = 1u << 20;  // bytes; a scale an expert is far less
  size_t zeros = 0;
  std::string first;
  for (const Nvfp4Module& m : c.nvfp4_modules()) {
    if (!m.input_scale || !passes[*m.input_scale]) continue;
    const TensorInfo& t = c.tensors()[*m.input_scale];
    if (t.dtype != DType::kF32 || t.bytes() > kMost) continue;
    std::vector<float> stored(static_cast<size_t>(t.bytes() / sizeof(float)));
    c.read(*m.input_scale, 0, {reinterpret_cast<uint8_t*>(stored.data()), stored.size() * sizeof(float)});
    const auto multiplier = [&](float x) { return global_scale_multiplier(*m.dialect, x); };
    const auto bad = std::find_if(stored.begin(), stored.end(),
                                  [&](float x) { return !std::isfinite(multiplier(x)) || x < 0; });
    if (bad != stored.end()) {
      problems.add(
          fmt::format("{}: expected a positive finite input scale, found {}", c.where(*m.input_scale), *bad));
    } else if (std::any_of(stored.begin(), stored.end(), [&](float x) { return multiplier(x) == 0; }) &&
               zeros++ == 0) {
      first = t.name;
    }
  }
  if (zeros > 0) {
    findings.push_back({Severity::kWarning, "zero-input-scales", c.path().string(),
                        fmt::format("{} input scales are 0 (infinite as divisors), as of experts that "
                                    "calibration never reached, and pass through as they are, the first {}",
                                    zeros, first)});
  }
}

/// What twofour.json says of a source that has one. One that is damaged or somebody else's tells that what it
/// stands beside may be, too. That of an artifact in a layout was read when it was opened.
std::optional<Manifest> read_sound_manifest(const Checkpoint& source) {
  const auto path = source.path() / kManifestName;
  std::error_code error;
  if (!source.is_directory() || source.is_view() || !std::filesystem::exists(path, error)) return {};
  Manifest manifest = read_manifest(path, source.tensors().size());
  if (!manifest.damage.empty()) throw Error(fmt::format("{}: {}", path.string(), manifest.damage));
  return manifest;
}

/// twofour.json names every file of the source, in UTF-8.
void check_name(const std::filesystem::path& directory, const std::string& name, Problems& problems) {
  if (Json::parse(json_quote(name)) == Json(name)) return;
  problems.add(fmt::format("{}: expected a name in UTF-8, which twofour.json can hold, found another",
                           (directory / name).string()));
}

/// A copy has a longer name until it is whole.
void check_length(const std::filesystem::path& directory, const std::string& name, Problems& problems) {
  const std::string last = std::filesystem::path(name).filename().string();
  const size_t added = temporary_name("").size();
  if (last.size() + added <= NAME_MAX) return;
  problems.add(
      fmt::format("{}: expected a name of at most {} bytes, for {} more while it is written, found {}",
                  (directory / name).string(), NAME_MAX - added, added, last.size()));
}

void plan_targets(const Checkpoint& source, Plan& plan, Problems& problems) {
  plan.targets = select_targets(source, plan.recipe.selection);
  warn_of_extra_experts(source, plan.targets, plan.findings);
  for (const Target& target : plan.targets) {
    plan.scales.push_back(read_scales(source, target, problems));
    check_layout(target, plan.recipe.layout, problems);
    check_fold(target, plan.scales.back(), plan.recipe.fold, problems, plan.findings);
    const bool k_outer = source.nvfp4_modules()[target.sources[0].module].k_outer;
    plan.tilings.push_back(make_tiling(target, plan.recipe.layout, k_outer, plan.limits));
  }
}

}  // namespace

Plan make_plan(const Checkpoint& source, const Recipe& recipe, const MemoryLimits& limits) {
  const bool rewrites = rewrite_of(recipe.layout) != Rewrite::kNone;
  if (!rewrites && !with_layout(recipe.layout, []<class L>() {})) {
    throw Error(fmt::format("--to: expected a layout, found '{}'", recipe.layout));
  }
  if (rewrite_of(recipe.layout) != Rewrite::kPrune) refuse_entries_that_cannot_be_kept(source);
  const std::optional<Manifest> written = read_sound_manifest(source);
  Plan plan;
  plan.recipe = recipe;
  plan.limits = limits;
  plan.findings = source.findings();
  plan.reader_bytes = source.reader_bytes();
  Problems problems;
  std::vector<OutputTensor> outputs;
  if (rewrites) {
    outputs = plan_rewrite(source, written ? &*written : nullptr, plan, problems);
  } else {
    plan_targets(source, plan, problems);
  }
  note_passed_through(source, plan, problems);
  std::vector<bool> passes(source.tensors().size(), !rewrites);
  for (const OutputTensor& t : outputs) {
    if (t.kind == OutputTensor::Kind::kCopy) passes[t.source] = true;
  }
  check_input_scales(source, passes, problems, plan.findings);
  problems.refuse();
  if (!rewrites) outputs = list_outputs(source, plan);
  lay_out_files(plan, std::move(outputs));
  if (source.is_directory()) plan.sidecars = find_sidecars(source.path(), plan.findings);
  for (const Shard& s : source.shards()) check_name(source.path(), s.name, problems);
  for (const auto& [name, bytes] : plan.sidecars) {
    check_name(source.path(), name, problems);
    check_length(source.path(), name, problems);
  }
  problems.refuse();
  for (const TensorInfo& t : source.tensors()) plan.read_bytes += t.bytes();
  return plan;
}

std::vector<size_t> Plan::tensors_of(const EncodeGroup& group) const {
  std::vector<size_t> all;
  for (size_t i = group.first; i < group.first + group.count; ++i) {
    for (const size_t part : matrices[i].parts) {
      if (part != EncodedMatrix::kNoPart) all.push_back(part);
    }
  }
  return all;
}

uint64_t parse_size(const std::string& text) {
  size_t digits = 0;
  while (digits < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[digits])) || text[digits] == '.'))
    ++digits;
  const std::string unit = text.substr(digits);
  double factor = 0;
  for (const auto& [name, value] :
       {std::pair{"", 1.0}, {"B", 1.0}, {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}}) {
    if (unit == name) factor = value;
  }
  const bool is_number = digits > 0 && digits < 16 && std::count(text.begin(), text.end(), '.') <= 1;
  const double number = is_number ? std::strtod(text.substr(0, digits).c_str(), nullptr) : 0;
  if (factor == 0 || number * factor < 1 || number * factor > 1e18) {
    throw Error(fmt::format("expected a size such as 5GB or 500MB, found '{}'", text));
  }
  return static_cast<uint64_t>(number * factor);
}

}  // namespace twofour
