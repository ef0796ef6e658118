#include "lib/graft/mixed_entries.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "formats/error.h"
#include "lib/base/findings/problems.h"
#include "lib/base/names/lookup_parts.h"
#include "lib/source/config/configured_quantization.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/dialects/dialect_rows.h"
#include "lib/source/dialects/loader_lookup.h"
#include "lib/source/dialects/scheme.h"
#include "lib/source/linears/linears.h"

namespace twofour {
namespace {

class MixedWriter {
 public:
  MixedWriter(const Checkpoint& base, const Checkpoint& donor, const Checkpoint& result,
              const std::set<std::string>& came)
      : result_(result), came_(came), dialect_(source_dialect(base)) {
    const bool from_base = dialect_ != nullptr;
    if (!from_base && !quantization_entry(base.config())) dialect_ = source_dialect(donor);
    if (dialect_ == nullptr || dialect_->mixed_config == nullptr) {
      throw Error(
          fmt::format("{}: expected a quantization_config in a dialect that describes several formats, "
                      "modelopt or compressed-tensors, found another",
                      base.path().string()));
    }
    if (dialect_ == &compressed_tensors_dialect()) {
      for (const Checkpoint* c : {&base, &donor}) {
        const bool same = source_dialect(*c) == dialect_;
        groups_.push_back(same ? std::make_unique<SourceGroups>(source_quantization(*c)) : nullptr);
      }
    }
    model_.source = &base;
    model_.fp8_kv_cache = from_base && dialect_->kv_scale_type && has_fp8_kv_cache(base);
  }

  ConfigEntries write() {
    for (const Linear& m : find_weight_modules(result_, problems_)) add(m);
    problems_.refuse();
    model_.unquantized = unquantized_linears(model_, *dialect_);
    for (const std::string& split : find_split_layers(model_)) problems_.add(split);
    problems_.refuse();
    ConfigEntries entries = dialect_->mixed_config(model_);
    for (const std::string& conflict : find_lookup_conflicts(model_, entries)) problems_.add(conflict);
    problems_.refuse();
    return entries;
  }

 private:
  void add(const Linear& m) {
    if (!m.format->coded) return model_.add(m.name);
    const Scheme scheme = scheme_of(result_, m);
    Json entry = entry_of(m, scheme);
    if (entry.is_null() || !is_spelled(m, scheme)) {
      problems_.add(
          "{}: expected a format and names of the {} dialect, which the result is "
          "written in, found {}; convert it by twofour convert first",
          result_.tensors()[m.weight].name, dialect_->name, describe(scheme));
      return;
    }
    model_.add(m.name, scheme, std::move(entry));
  }

  /// The entry for a module. Groups of compressed-tensors also describe activations, which the tensors do not
  /// show.
  Json entry_of(const Linear& m, const Scheme& scheme) const {
    const size_t source = came_.contains(result_.tensors()[m.weight].name);
    if (source >= groups_.size() || !groups_[source]) return dialect_->entry(scheme);
    Json entry = groups_[source]->find(m.name);
    return entry.is_object() ? entry : dialect_->entry(scheme);
  }

  /// True if the tensors have the names and types that loaders of the dialect read.
  bool is_spelled(const Linear& m, const Scheme& scheme) const {
    if (m.nvfp4)
      return dialect_->nvfp4 != nullptr &&
             std::string_view(result_.nvfp4_modules()[*m.nvfp4].dialect->name) == dialect_->nvfp4->name;
    const auto spelling = dialect_->spelling(scheme, m.n, m.k);
    if (!spelling || m.stacked) return spelling.has_value();
    const TensorInfo& weight = result_.tensors()[m.weight];
    if (weight.name != m.name + spelling->weight || weight.dtype != spelling->weight_type) return false;
    if (!m.scale) return false;
    const TensorInfo& scale = result_.tensors()[*m.scale];
    return scale.name == m.name + spelling->scale &&
           (!spelling->scale_type || *spelling->scale_type == scale.dtype) &&
           scale.shape == (spelling->scale_shape.empty() ? dialect_->scalar_shape() : spelling->scale_shape);
  }

  const Checkpoint& result_;
  const std::set<std::string>& came_;
  const OutputDialect* dialect_;
  std::vector<std::unique_ptr<SourceGroups>> groups_;  ///< groups of the base and of the donor
  WrittenModel model_;
  Problems problems_;
};

}  // namespace

ConfigEntries write_mixed_words(const Checkpoint& base, const Checkpoint& donor, const Checkpoint& result,
                                const std::set<std::string>& came) {
  return MixedWriter(base, donor, result, came).write();
}

}  // namespace twofour
