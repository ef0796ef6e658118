#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "lib/plan_rewrite_parts.h"
#include "lib/quantization_config.h"

namespace twofour {
namespace {

constexpr std::string_view kModelOpt = "modelopt", kCompressedTensors = "compressed-tensors";

}  // namespace

const Nvfp4Dialect& dialect_named(std::string_view name) {
  const auto all = nvfp4_dialects();
  const auto at = std::find_if(all.begin(), all.end(), [&](auto& d) { return d.name == name && !d.stacked; });
  if (at == all.end()) {
    throw Error(fmt::format("--dialect: expected modelopt or compressed-tensors, found '{}'", name));
  }
  return *at;
}

std::vector<int64_t> scalar_shape(std::string_view dialect) {
  return dialect == kModelOpt ? std::vector<int64_t>{} : std::vector<int64_t>{1};
}

namespace {

/// Gives a scalar its name, type and shape in the new dialect.
void rename_scalar(OutputTensor& t, std::string name, DType dtype, std::string_view to) {
  t.info.name = std::move(name);
  t.info.dtype = dtype;
  t.info.shape = scalar_shape(to);
  t.info.begin = 0;
  t.info.end = static_cast<uint64_t>(dtype_bits(dtype)) / 8;
}

bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16; }

/// The stored bits of an input scale, which must be a number that has a reciprocal.
uint32_t read_input_scale(const Checkpoint& c, size_t tensor, Problems& problems) {
  const TensorInfo& t = c.tensors()[tensor];
  if (t.dtype != DType::kF32 || t.bytes() != sizeof(float)) {
    problems.add(
        fmt::format("{}: expected F32 [] or [1], found {}", c.where(tensor), describe(t.dtype, t.shape)));
    return 0;
  }
  uint8_t bytes[sizeof(float)];
  c.read(tensor, 0, bytes);
  float value = 0;
  std::memcpy(&value, bytes, sizeof(value));
  const float reciprocal = 1.0f / value;  // which is to have one, too
  if (!std::isfinite(value) || value <= 0 || !std::isfinite(reciprocal) || reciprocal <= 0 ||
      !std::isfinite(1.0f / reciprocal)) {
    problems.add(
        fmt::format("{}: expected a positive finite input scale whose reciprocal is one too, found {}",
                    c.where(tensor), value));
  }
  return std::bit_cast<uint32_t>(value);
}

/// A reciprocal's reciprocal may be another number: what is the reciprocal of `remembered` goes back to that.
/// 0 where nothing is remembered or somebody changed what is stored.
uint32_t remembered_bits(uint32_t remembered, uint32_t stored) {
  if (remembered == 0) return 0;
  return std::bit_cast<uint32_t>(1.0f / std::bit_cast<float>(remembered)) == stored ? remembered : 0;
}

/// What a module of a source that twofour wrote was before, if it was of that dialect.
Manifest::Original original_of(const Manifest* written, const std::string& name, const Nvfp4Dialect& to) {
  if (written == nullptr) return {};
  const auto at = written->originals.find(name);
  return at != written->originals.end() && at->second.dialect == to.name ? at->second : Manifest::Original{};
}

/// Readers of `to` must get a number from the reciprocal. One that is no scale at all has been told.
void check_reciprocal(const Checkpoint& c, const ModulePlan& plan, const Nvfp4Dialect& to,
                      Problems& problems) {
  const Nvfp4Module& m = c.nvfp4_modules()[plan.module];
  const float stored = std::bit_cast<float>(plan.stored_bits[0]), written = 1.0f / stored;
  if (!std::isfinite(stored) || stored <= 0 || !std::isfinite(plan.multipliers[0])) return;
  if (std::isfinite(written) && std::isfinite(global_scale_multiplier(to, written))) return;
  problems.add(fmt::format("{}: expected a positive finite global scale that has a reciprocal, found {}",
                           c.where(m.global_scale), stored));
}

/// Everything as it was, block scales looked at.
void plan_same_dialect(const Checkpoint& c, const Plan& plan, std::vector<OutputTensor>& outputs) {
  for (size_t i = 0; i < plan.modules.size(); ++i) {
    const Nvfp4Module& m = c.nvfp4_modules()[plan.modules[i].module];
    derive_by(outputs[m.block_scale], Op::kBlockScales);
    for (const size_t tensor : {m.codes, m.block_scale, m.global_scale}) outputs[tensor].module = i;
  }
}

}  // namespace

// They keep their names and change their type, as compressed-tensors' own converter does it: F32 in
// ModelOpt, BF16 in compressed-tensors. Loaders know them by either dialect's names.
void plan_kv_scales(const Checkpoint& c, std::string_view to, std::vector<OutputTensor>& outputs) {
  const bool bf16 = to == kCompressedTensors;
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    const TensorInfo& t = c.tensors()[i];
    const bool is_scale = t.name.ends_with(".k_scale") || t.name.ends_with(".v_scale");
    if (!is_scale || !is_float(t.dtype) || t.bytes() != static_cast<uint64_t>(dtype_bits(t.dtype)) / 8)
      continue;
    const DType dtype = bf16 ? DType::kBF16 : DType::kF32;
    if (t.dtype == dtype) continue;
    outputs[i].info.dtype = dtype;
    outputs[i].info.begin = 0;
    outputs[i].info.end = static_cast<uint64_t>(dtype_bits(dtype)) / 8;
    derive_by(outputs[i], bf16 ? Op::kToBf16 : Op::kToF32);
  }
}

std::vector<size_t> modules_for_dialect(const Checkpoint& c, Plan& plan) {
  Recipe& recipe = plan.recipe;
  std::vector<size_t> modules = all_modules(c, recipe);
  if (recipe.dialect.empty()) {
    // The other one of a checkpoint, its own of an artifact.
    const bool modelopt = c.nvfp4_modules()[modules[0]].dialect->name == kModelOpt;
    recipe.dialect = modelopt != c.is_view() ? kCompressedTensors : kModelOpt;
  }
  dialect_named(recipe.dialect);
  const auto is_kept = [&](size_t m) { return c.nvfp4_modules()[m].dialect->name == recipe.dialect; };
  plan.keeps_dialect = c.is_view() && std::all_of(modules.begin(), modules.end(), is_kept);
  if (plan.keeps_dialect) return modules;
  std::erase_if(modules, is_kept);
  if (modules.empty()) {
    throw Error(
        fmt::format("--dialect: expected another dialect than the source's, found {}", recipe.dialect));
  }
  return modules;
}

void plan_dialect(const Checkpoint& c, const Manifest* written, Plan& plan,
                  std::vector<OutputTensor>& outputs, Problems& problems) {
  if (plan.keeps_dialect) return plan_same_dialect(c, plan, outputs);
  const Nvfp4Dialect& to = dialect_named(plan.recipe.dialect);
  for (size_t i = 0; i < plan.modules.size(); ++i) {
    ModulePlan& module = plan.modules[i];
    const Nvfp4Module& m = c.nvfp4_modules()[module.module];
    if (m.dialect->stacked) {
      problems.add(fmt::format(
          "{}: expected every expert in tensors of its own, which {} needs, found a stack", m.name, to.name));
      continue;
    }
    check_reciprocal(c, module, to, problems);
    const Manifest::Original was = original_of(written, m.name, to);
    outputs[m.codes].info.name = m.name + to.codes;
    outputs[m.block_scale].info.name = m.name + to.block_scale;
    derive_by(outputs[m.block_scale], Op::kBlockScales);
    rename_scalar(outputs[m.global_scale], m.name + to.global_scale, DType::kF32, to.name);
    derive_by(outputs[m.global_scale], Op::kReciprocal);
    outputs[m.global_scale].remembered_bits = remembered_bits(was.global_scale, module.stored_bits[0]);
    for (const size_t tensor : {m.codes, m.block_scale, m.global_scale}) outputs[tensor].module = i;
    if (!m.input_scale) continue;
    module.input_scale_bits = read_input_scale(c, *m.input_scale, problems);
    rename_scalar(outputs[*m.input_scale], m.name + to.input_scale, DType::kF32, to.name);
    derive_by(outputs[*m.input_scale], Op::kReciprocal);
    outputs[*m.input_scale].remembered_bits = remembered_bits(was.input_scale, module.input_scale_bits);
    outputs[*m.input_scale].module = i;
  }
  plan_kv_scales(c, to.name, outputs);
  translate_config(c, to.name == kModelOpt);  // refuses now what it could not write later
}

}  // namespace twofour
