#include "lib/jobs/choose/format_losses.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "formats/dtype.h"
#include "formats/error.h"
#include "formats/naming.h"
#include "kernels/solve/hessian.h"
#include "lib/base/names/natural.h"
#include "lib/recipe/statistics/solving.h"
#include "lib/source/dialects/loader_lookup.h"
#include "lib/source/linears/linears.h"
#include "lib/write/budget/token_counts.h"
#include "lib/write/encode/quantized_group.h"
#include "lib/write/methods/layout_matrix.h"

namespace twofour {
namespace format_losses {
namespace {

/// A matrix in a format: the group that makes it, and the checkpoint that has its weights.
struct Place {
  const Checkpoint* checkpoint;
  const QuantizedGroup* group;
  const EncodedMatrix* matrix;
};
using Places = std::map<std::string, Place, decltype(&natural_less)>;

Places places_of(const SolvedLinears& linears) {
  Places places(&natural_less);
  linears.for_each_group([&](const Checkpoint& checkpoint, const QuantizedGroup& group) {
    for (const EncodedMatrix& m : group.matrices()) places[m.name] = {&checkpoint, &group, &m};
  });
  return places;
}

uint64_t weights_of(const EncodedMatrix& m) {
  return static_cast<uint64_t>(m.rows) * static_cast<uint64_t>(m.k);
}

uint64_t bytes_of_part(const Place& place, EncodedPart part) {
  const int index = place.matrix->part(part);
  return index < 0 ? 0 : place.group->part_info(index).bytes();
}

/// The layouts of a plan, by block.
std::map<std::string, std::vector<const LayoutMatrix*>> layouts_of(const SolvedLinears& linears) {
  std::map<std::string, std::vector<const LayoutMatrix*>> layouts;
  for (const auto* m : linears.plan().transformations.of<LayoutMatrix>())
    layouts[m->target.block].push_back(m);
  return layouts;
}

std::string block_of(const std::string& name) {
  const auto parsed = parse_module_name(name);
  return parsed ? parsed->block : name;
}

/// The size of a unit whose linears a format encodes one by one.
SizedUnit::Option encoded_size(const SizedUnit& unit, const Places& places) {
  SizedUnit::Option size{};
  for (const std::string& name : unit.modules) {
    const Place& place = places.at(name);
    const EncodeRule& rule = place.group->encode_rule();
    const bool has_blocks = !rule.is_tiled() || rule.scheme.granularity == Granularity::kBlock;
    size.bits += 8 * bytes_of_part(place, EncodedPart::kValues);
    if (has_blocks) size.bits += 8 * bytes_of_part(place, EncodedPart::kScales);
    for (size_t part = 0; part < kEncodedParts; ++part)
      size.bytes += bytes_of_part(place, static_cast<EncodedPart>(part));
  }
  return size;
}

/// The size of a unit in a layout. Its last tensor has the scales of whole matrices.
SizedUnit::Option layout_size(const std::vector<const LayoutMatrix*>& matrices, const Checkpoint& source) {
  SizedUnit::Option size{};
  for (const LayoutMatrix* m : matrices) {
    const std::vector<TensorInfo> tensors = m->outputs(source);
    for (size_t i = 0; i < tensors.size(); ++i) {
      size.bytes += tensors[i].bytes();
      if (std::cmp_less(i, m->part_count())) size.bits += 8 * tensors[i].bytes();
    }
  }
  return size;
}

/// The size of a unit that stays as it is.
SizedUnit::Option own_size(const SizedUnit& unit, const Places& places) {
  SizedUnit::Option size{};
  for (const std::string& name : unit.modules) {
    const Place& place = places.at(name);
    const DType type = place.checkpoint->tensors()[place.matrix->source->weight].dtype;
    const uint64_t bytes = weights_of(*place.matrix) * static_cast<uint64_t>(dtype_bits(type)) / 8;
    size.bits += 8 * bytes;
    size.bytes += bytes + bytes_of_part(place, EncodedPart::kBias);
  }
  return size;
}

/// The format whose linears form the units: the format with the most linears, and among equal ones the first
/// that is not a layout.
const MenuFormat& reference_format(const std::vector<MenuFormat>& menu) {
  const MenuFormat* found = nullptr;
  const auto rank = [](const MenuFormat& f) {
    return std::pair(f.linears->all().size(), layouts_of(*f.linears).empty());
  };
  for (const MenuFormat& f : menu) {
    if (f.linears && (found == nullptr || rank(f) > rank(*found))) found = &f;
  }
  if (found == nullptr) throw Error(fmt::format("expected a format beside {}, found none", menu.at(0).word));
  return *found;
}

/// Units without sizes.
std::vector<SizedUnit> form_units(const Places& places, const std::set<std::string>& blocks) {
  std::vector<LoadedModule> modules;
  for (const auto& [name, place] : places) {
    const Linear& source = *place.matrix->source;
    if (source.format->coded) {
      throw Error(fmt::format("{}: expected floats in {}, found {}; convert them to bf16 first",
                              place.checkpoint->path().string(), source.name, source.format->name));
    }
    modules.push_back({name});
  }
  std::vector<SizedUnit> units;
  std::map<std::string, size_t> by_block;
  for (const EngineLayer& layer : engine_layers(modules)) {
    const std::string block = block_of(layer.modules[0]->name);
    const bool is_whole = blocks.contains(block);
    const auto [at, fresh] = by_block.emplace(is_whole ? block : layer.name, units.size());
    if (fresh) units.push_back({at->first});
    for (const LoadedModule* m : layer.modules) {
      const EncodedMatrix& matrix = *places.at(m->name).matrix;
      units[at->second].modules.push_back(m->name);
      units[at->second].sources.insert(matrix.source->name);
      units[at->second].weights += weights_of(matrix);
    }
  }
  return units;
}

/// Sums over matrices. The forms are d H d' of changes and w H w' of weights.
struct Sums {
  double loss = 0, energy = 0;
};

/// Reads matrices in two formats and adds up the loss between them.
class LossMeter {
 public:
  LossMeter(const Statistics& statistics, LossBy by, const Compute& compute)
      : statistics_(statistics), by_(by), compute_(compute), tokens_(tokens_of_model(statistics)) {}

  void add(const Place& from, const Checkpoint& made, const Linear& stored, Sums& sums) {
    const EncodedMatrix& m = *from.matrix;
    const StatisticsEntry* entry = statistics_.find(m.name);
    if (entry == nullptr && m.source->stacked) entry = statistics_.find(m.source->name);
    if (entry == nullptr)
      throw Error(fmt::format("{}: expected statistics for every linear that may change, found none for {}",
                              statistics_.path().string(), m.name));
    if (entry->count == 0) return;  // an expert that no token reached
    take_entry(*entry);
    const double share = tokens_of(statistics_, *entry, m) / tokens_;
    WeightReader weights(*from.checkpoint), values(made);
    const int64_t strip = std::max<int64_t>(1, kQuantizeStripWeights / m.k);
    Sums own;
    for (int64_t row = 0; row < m.rows; row += strip) {
      const int64_t rows = std::min(strip, m.rows - row);
      const auto count = static_cast<size_t>(rows * m.k);
      before_.resize(count), after_.resize(count);
      read_source(weights, m, row, rows);
      values.read_rows(stored, 0, row, row + rows, after_);
      if (by_ == LossBy::kHessian) own.energy += forms(before_, m.k);
      for (size_t i = 0; i < count; ++i) before_[i] -= after_[i];
      own.loss += forms(before_, m.k);
    }
    sums.loss += share * own.loss, sums.energy += share * own.energy;
  }

 private:
  void take_entry(const StatisticsEntry& entry) {
    if (entry_ == &entry) return;
    entry_ = &entry;
    mean_ = by_ == LossBy::kFisher                    ? statistics_.read_fisher(entry)
            : entry.kind != StatisticsKind::kDiagonal ? statistics_.read_hessian(entry)
                                                      : statistics_.read_diagonal(entry);
    unit_ = take_unit(mean_, entry.k);
  }

  void read_source(WeightReader& reader, const EncodedMatrix& m, int64_t row, int64_t rows) {
    const int64_t first = m.first + row * m.step, end = first + (rows - 1) * m.step + 1;
    if (m.step == 1) return reader.read_rows(*m.source, m.expert, first, end, before_);
    wide_.resize(static_cast<size_t>((end - first) * m.k));
    reader.read_rows(*m.source, m.expert, first, end, wide_);
    for (int64_t i = 0; i < rows; ++i)
      std::copy_n(wide_.begin() + i * m.step * m.k, m.k, before_.begin() + i * m.k);
  }

  double forms(std::span<const float> rows, int64_t k) const {
    double sum = 0;
    if (mean_.size() > static_cast<size_t>(k)) {
      for (const double form : quadratic_forms(mean_, k, rows, compute_.threads, compute_.isa)) sum += form;
    } else {
      for (size_t i = 0; i < rows.size(); ++i)
        sum += double{mean_[i % static_cast<size_t>(k)]} * double{rows[i]} * double{rows[i]};
    }
    return sum / unit_;
  }

  const Statistics& statistics_;
  LossBy by_;
  const Compute& compute_;
  double tokens_, unit_ = 1;
  const StatisticsEntry* entry_ = nullptr;
  std::vector<float> mean_, before_, after_, wide_;
};

/// Units are written and read back in portions of so many weights.
constexpr uint64_t kPortion = 1 << 28;

}  // namespace
}  // namespace format_losses

std::vector<SizedUnit> sized_units(const Checkpoint& source, const std::vector<MenuFormat>& menu) {
  using namespace format_losses;
  std::set<std::string> blocks;
  for (const MenuFormat& f : menu) {
    if (!f.linears) continue;
    for (const auto& [block, matrices] : layouts_of(*f.linears)) blocks.insert(block);
  }
  const MenuFormat& reference = reference_format(menu);
  const Places all = places_of(*reference.linears);
  std::vector<SizedUnit> units = form_units(all, blocks);
  for (SizedUnit& unit : units) unit.own_bytes = own_size(unit, all).bytes;
  for (size_t format = 0; format < menu.size(); ++format) {
    const MenuFormat& f = menu[format];
    const auto add = [&](SizedUnit& unit, SizedUnit::Option size) {
      size.format = format;
      unit.options.push_back(size);
    };
    if (!f.linears) {
      for (SizedUnit& unit : units) add(unit, own_size(unit, all));
      continue;
    }
    const auto layouts = layouts_of(*f.linears);
    const Places places = places_of(*f.linears);
    for (SizedUnit& unit : units) {
      const bool has_all = std::all_of(unit.modules.begin(), unit.modules.end(),
                                       [&](const std::string& name) { return places.contains(name); });
      if (!layouts.empty()) {
        const auto at = layouts.find(unit.name);
        if (has_all && at != layouts.end()) add(unit, layout_size(at->second, source));
      } else if (has_all) {
        add(unit, encoded_size(unit, places));
      }
    }
  }
  // A layout may take fewer linears than others.
  std::erase_if(units, [](const SizedUnit& unit) { return unit.options.empty(); });
  return units;
}

LossBy loss_by(const Statistics& statistics) {
  const auto& entries = statistics.entries();
  const bool all = std::all_of(entries.begin(), entries.end(),
                               [](const StatisticsEntry& e) { return e.fisher.has_value() || e.count == 0; });
  return all ? LossBy::kFisher : LossBy::kHessian;
}

void measure_losses(const std::vector<MenuFormat>& menu, const Statistics& statistics,
                    const std::filesystem::path& folder, const Compute& compute,
                    std::vector<SizedUnit>& units, Progress& progress) {
  using namespace format_losses;
  const LossBy by = loss_by(statistics);
  LossMeter meter(statistics, by, compute);
  progress.phase = "measuring formats";
  progress.done = 0, progress.total = 0, progress.layers = 0;
  for (const MenuFormat& f : menu) {
    if (!f.linears) continue;
    f.linears->for_each_group([&](const Checkpoint& checkpoint, const QuantizedGroup& group) {
      for (const Unit& unit : group.units(checkpoint)) progress.total += unit.read;
    });
  }
  for (size_t format = 0; format < menu.size(); ++format) {
    if (!menu[format].linears) continue;
    const SolvedLinears& linears = *menu[format].linears;
    const Places places = places_of(linears);
    std::vector<std::pair<SizedUnit*, SizedUnit::Option*>> asked;
    for (SizedUnit& unit : units) {
      for (SizedUnit::Option& o : unit.options) {
        if (o.format == format) asked.emplace_back(&unit, &o);
      }
    }
    for (size_t begin = 0, end = 0; begin < asked.size(); begin = end) {
      std::set<std::string> names;
      for (uint64_t weights = 0; end < asked.size() && weights < kPortion; ++end) {
        weights += asked[end].first->weights;
        names.insert(asked[end].first->modules.begin(), asked[end].first->modules.end());
      }
      const Checkpoint made = linears.solve(names, folder, compute.threads, progress);
      std::map<std::string, Linear> stored;
      for (Linear& m : find_weight_modules(made)) stored.emplace(m.name, std::move(m));
      for (size_t i = begin; i < end; ++i) {
        Sums sums;
        for (const std::string& name : asked[i].first->modules)
          meter.add(places.at(name), made, stored.at(name), sums);
        asked[i].second->loss = by == LossBy::kFisher ? sums.loss / 2
                                : sums.energy > 0     ? sums.loss / sums.energy
                                                      : 0;
      }
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace twofour
