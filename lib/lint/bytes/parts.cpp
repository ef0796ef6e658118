#include <fmt/format.h>

#include <map>
#include <set>

#include "formats/json/access.h"
#include "formats/module_names.h"
#include "formats/module_parts.h"
#include "formats/weight_dialect.h"
#include "lib/lint/bytes/checks.h"

namespace twofour {
namespace {

using Sizes = std::vector<int64_t>;

bool is_exponents(DType dtype) { return dtype == DType::kU8 || dtype == DType::kF8E8M0; }
int64_t parts_of(int64_t size, int64_t block) { return size / block + (size % block != 0); }

/// The values or codes of a module in a format other than NVFP4. `module` is the name without the suffixes of
/// parts.
struct Coded {
  std::string module, suffix;  ///< "model.layers.0.mlp.up_proj" and ".weight"
  int64_t weights = 1;         ///< number of weights in a byte
  bool is_int8 = false;        ///< INT8 of compressed-tensors or bitsandbytes, whose scales have one name
                               ///< each
};

class Parts {
 public:
  Parts(const LintInput& s, LintReporter& reporter)
      : s_(s), sink_(reporter), reported_(reporter.reported_names()), is_nvfp4_(s.tensors.size()) {
    for (const Nvfp4Linear& m : s.modules)
      is_nvfp4_[m.codes] = is_nvfp4_[m.block_scale] = is_nvfp4_[m.global_scale] = true;
    for (const char* key : {"weight_block_size", "block_structure"}) read_blocks(key);
  }

  void run() {
    for (size_t i = 0; i < s_.tensors.size(); ++i) {
      if (is_nvfp4_[i]) continue;
      if (const auto coded = coded_at(i)) {
        check_shape(i, *coded);
        note_parts(i, *coded);
      }
    }
    for (const auto& [part, without] : lack_) {
      const size_t with = have_[part];
      // If a quantization config states scales, a lack is reported even if most modules lack them.
      const bool is_groups = s_.quantization.is_object() && s_.quantization.contains("config_groups");
      const bool is_promised =
          s_.quantization.is_object() &&
          (part.second.find("scale") != part.second.npos || (is_groups && part.second == ".weight_shape"));
      if (with <= without.size() && !is_promised) continue;
      const std::string reason = with > without.size()
                                     ? fmt::format("{} of {} like it have", with, with + without.size())
                                     : std::string("the config declares");
      for (const size_t t : without) report_lack(t, part.second, reason);
    }
  }

 private:
  void read_blocks(const char* key) {
    const auto add = [&](const Json& holder) {
      const auto block = pair_of(member(holder, key));
      if (block && block->first > 0 && block->second > 0) blocks_.insert(*block);
    };
    add(s_.quantization);
    for (const auto& [name, group] : members_of(s_.quantization, "config_groups"))
      add(member(group, "weights"));
  }

  std::optional<Coded> coded_at(size_t i) const {
    const TensorInfo& t = s_.tensors[i];
    const std::string_view name = t.name;
    const auto without = [&](std::string_view suffix, int64_t weights) {
      return Coded{std::string(name.substr(0, name.size() - suffix.size())), std::string(suffix), weights};
    };
    if (t.shape.size() < 2) return std::nullopt;
    const bool fp8 = t.dtype == DType::kF8E4M3, bytes = t.dtype == DType::kU8;
    if (name.ends_with(".weight_packed") && (bytes || t.dtype == DType::kI32))
      return without(".weight_packed", bytes ? 2 : 8);
    if (name.ends_with(".weight") && (fp8 || bytes)) return without(".weight", fp8 ? 1 : 2);
    if (name.ends_with(".weight") && t.dtype == DType::kI8 &&
        !s_.find(fmt::format("{}.scale", name.substr(0, name.size() - 7)))) {
      Coded coded = without(".weight", 1);
      coded.is_int8 = true;
      return coded;
    }
    if (name.ends_with("_blocks") && bytes && t.shape.size() == 4) return without("_blocks", 2);
    if (name.ends_with("_proj") && (fp8 || bytes) && t.shape.size() == 3) return without("", fp8 ? 1 : 2);
    return std::nullopt;
  }

  /// Returns the tensor with a module's scales; nullopt: there is none.
  std::optional<size_t> scale_of(const Coded& c) const {
    if (c.suffix == "_blocks") return s_.find(c.module + "_scales");
    const std::string_view dot = c.suffix.empty() ? "_" : ".";
    for (const char* part : {"weight_scale", "SCB", "weight_scale_inv", "scale", "scale_inv"}) {
      if (c.is_int8 && part[0] != 'S' && std::string_view(part) != "weight_scale") continue;
      if (const auto at = s_.find(fmt::format("{}{}{}", c.module, dot, part))) return at;
    }
    return std::nullopt;
  }

  void report_shape(size_t i, const std::string& expected) {
    const TensorInfo& t = s_.tensors[i];
    if (reported_.contains(t.name)) return;
    sink_.add("module-shape", s_.at(i), "expected {}, found {}{}", expected, describe(t),
              text_of_fused_scales(t));
  }

  /// Checks the shapes of scales. An MX scale is for 32 weights. FP8 scales are for a matrix, rows or blocks.
  void check_shape(size_t i, const Coded& c) {
    const TensorInfo& t = s_.tensors[i];
    const auto scale = scale_of(c);
    if (!scale || is_nvfp4_[*scale]) return;
    const TensorInfo& x = s_.tensors[*scale];
    Sizes rows = t.shape;
    if (c.suffix == "_blocks") {
      rows.pop_back();
      if (x.shape != rows) report_shape(*scale, describe(x.dtype, rows));
      return;
    }
    const int64_t k = rows.back() * c.weights;
    Sizes groups = rows;
    groups.back() = parts_of(k, kMxGroup);
    if (is_exponents(x.dtype) && t.dtype == DType::kU8) {
      if (are_sixes(t.shape, x.shape)) return;
      if (x.shape != groups) report_shape(*scale, describe(x.dtype, groups) + " for groups of 32");
      return;
    }
    if (t.dtype != DType::kF8E4M3 || rows.size() != 2 || is_table_name(c.module)) return;
    std::set<Sizes> allowed = {{}, {1}, {rows[0]}, {rows[0], 1}, {1, rows[0]}};
    if (is_exponents(x.dtype)) allowed = {groups};
    if (groups.back() == 1) allowed.insert({rows[0]});
    if (blocks_.empty()) allowed.insert({1, 1});
    std::set<std::pair<int64_t, int64_t>> blocks = blocks_;
    blocks.insert({kFp8Block, kFp8Block});
    for (const auto& [n, columns] : blocks) {
      const int64_t a = parts_of(rows[0], n), b = parts_of(k, columns);
      allowed.insert({a, b});
      allowed.insert({a, 1, b, 1});
    }
    if (allowed.contains(x.shape)) return;
    const auto& [n, columns] = *blocks.begin();
    const Sizes blocked = {parts_of(rows[0], n), parts_of(k, columns)};
    report_shape(*scale, fmt::format("one scale, one a row or group, or {} for blocks of {}x{}",
                                     describe(x.dtype, blocked), n, columns));
  }

  /// Notes for each part that similar modules have whether this module has it.
  void note_parts(size_t i, const Coded& c) {
    const TensorInfo& t = s_.tensors[i];
    const bool is_int4 = t.dtype == DType::kI32, has_dot = c.suffix.starts_with('.');
    // Other programs use such tensors, too.
    const bool is_plain_byte = c.suffix == ".weight" && t.dtype == DType::kU8;
    if (is_plain_byte || is_table_name(c.module)) return;
    const char* scales = has_dot            ? ".weight_scale or .weight_scale_inv"
                         : c.suffix.empty() ? "_weight_scale or _weight_scale_inv"
                                            : "_scales";
    note(i, fmt::format("{} {}", dtype_name(t.dtype), c.suffix), scales, scale_of(c).has_value());
    if (is_int4) note(i, c.suffix, ".weight_shape", s_.find(c.module + ".weight_shape").has_value());
  }
  void note(size_t i, const std::string& kind, const std::string& part, bool has) {
    if (has) {
      ++have_[{kind, part}];
    } else {
      lack_[{kind, part}].push_back(i);
    }
  }
  void report_lack(size_t i, const std::string& part, const std::string& reason) {
    const std::string& name = s_.tensors[i].name;
    const bool is_stack = !part.starts_with('.');
    const std::string module = is_stack ? name : std::string(module_of(name));
    if (reported_.contains(module) || reported_.contains(name)) return;
    sink_.add("incomplete-module", s_.at(i, module), "expected {} as {}, found none", part, reason);
  }

  const LintInput& s_;
  LintReporter& sink_;
  const std::set<std::string> reported_;
  std::vector<bool> is_nvfp4_;                    ///< for each tensor: it is in an NVFP4 module
  std::set<std::pair<int64_t, int64_t>> blocks_;  ///< block sizes that the config states
  /// Number of modules that have a part, by the modules' kind and the part.
  std::map<std::pair<std::string, std::string>, size_t> have_;
  std::map<std::pair<std::string, std::string>, std::vector<size_t>> lack_;
};

}  // namespace

void lint_parts(const LintInput& s, LintReporter& reporter) {
  if (s.layout.empty()) Parts(s, reporter).run();
}

}  // namespace twofour
