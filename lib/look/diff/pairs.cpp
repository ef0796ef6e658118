#include "lib/look/diff/pairs.h"

#include <algorithm>
#include <map>

#include "lib/source/linears/tensor_values.h"

namespace twofour {
namespace {

/// The content of one checkpoint under a name.
struct Item {
  std::string name;  ///< as in the files; the key if the files lack it
  bool is_stored;    ///< true if the files have the name
  DiffSide side;
  const StoredMatrix* matrix = nullptr;
  std::optional<TensorPart> part{};
};

struct Key {
  std::string name;
  DiffKind kind;
  bool operator<(const Key& other) const {
    return name == other.name ? kind < other.kind : natural_less(name, other.name);
  }
};
using Items = std::map<Key, Item>;

int64_t element_count(const TensorInfo& t) {
  return static_cast<int64_t>(t.bytes()) / element_bytes(t.dtype);
}

/// Lists the contents of a checkpoint. Weights come first, by matrix, with their biases and input scales. The
/// other tensors follow.
class Lister {
 public:
  Lister(const Matrices& ours, const Matrices& theirs)
      : ours_(ours), theirs_(theirs), c_(ours.checkpoint()), taken_(c_.tensors().size()) {}

  Items list() {
    for (const auto& [name, matrix] : ours_.all()) {
      if (!is_tensor_there(name, matrix)) add_matrix(name, matrix);
    }
    for (size_t i = 0; i < taken_.size(); ++i) {
      const TensorInfo& t = c_.tensors()[i];
      if (taken_[i]) continue;
      items_[{t.name, DiffKind::kTensor}] = {t.name,
                                             true,
                                             {t.name, std::string(dtype_name(t.dtype)), t.shape},
                                             nullptr,
                                             TensorPart{i, 0, 1, element_count(t)}};
    }
    return std::move(items_);
  }

 private:
  const TensorInfo& tensor(size_t i) const { return c_.tensors()[i]; }

  /// True if the other checkpoint does not have the matrix `name`, but has something else under the name of
  /// its tensor.
  bool is_tensor_there(const std::string& name, const StoredMatrix& matrix) const {
    const Linear& m = ours_.module_of(matrix);
    return !m.stacked && !theirs_.all().contains(name) &&
           theirs_.checkpoint().find(tensor(m.weight).name).has_value();
  }

  void add_matrix(const std::string& name, const StoredMatrix& matrix) {
    const Linear& m = ours_.module_of(matrix);
    const TensorInfo& t = tensor(m.weight);
    const std::string& stored = ours_.name_in_files(name, matrix);
    items_[{name, DiffKind::kWeights}] = {
        stored, &stored == &m.name, {t.name, ours_.format_of(m), {matrix.count, m.k}}, &matrix, std::nullopt};
    for (const size_t part : m.tensors()) {
      if (part != m.input_scale) taken_[part] = true;
    }
    add_bias(name, m, matrix);
    add_input_scale(name, m, matrix);
  }

  void add_bias(const std::string& linear, const Linear& m, const StoredMatrix& matrix) {
    if (!m.bias || element_count(tensor(*m.bias)) != m.e * m.n) return;
    const TensorInfo& t = tensor(*m.bias);
    const std::string& stored = ours_.name_in_files(linear, matrix);
    items_[{linear + ".bias", DiffKind::kBias}] = {
        stored + ".bias",
        &stored == &m.name,
        {t.name, std::string(dtype_name(t.dtype)), {matrix.count}},
        nullptr,
        TensorPart{*m.bias, matrix.e * m.n + matrix.first, matrix.step, matrix.count}};
    taken_[*m.bias] = true;
  }

  void add_input_scale(const std::string& linear, const Linear& m, const StoredMatrix& matrix) {
    if (!m.input_scale) return;
    const TensorInfo& t = tensor(*m.input_scale);
    const int64_t count = element_count(t);
    if (!has_float_values(t.dtype) || (count != 1 && count != m.e)) return;
    TensorPart part{*m.input_scale, count == 1 ? 0 : matrix.e, 1, 1};
    part.nvfp4 = m.nvfp4.has_value();
    part.divides = part.nvfp4 && c_.nvfp4_modules()[*m.nvfp4].dialect->divides;
    const std::string& stored = ours_.name_in_files(linear, matrix);
    items_[{linear + ".input_scale", DiffKind::kInputScale}] = {
        stored + ".input_scale",
        &stored == &m.name,
        {t.name, std::string(dtype_name(t.dtype)), {}},
        nullptr,
        part};
    taken_[*m.input_scale] = true;
  }

  const Matrices &ours_, &theirs_;
  const Checkpoint& c_;
  std::vector<bool> taken_;
  Items items_;
};

void set_a(DiffPair& pair, Item item) {
  pair.entry.a = std::move(item.side);
  pair.matrices.a = item.matrix;
  pair.a = item.part;
}

void set_b(DiffPair& pair, Item item) {
  pair.entry.b = std::move(item.side);
  pair.matrices.b = item.matrix;
  pair.b = item.part;
}

}  // namespace

std::vector<DiffPair> pair_up(const Matrices& a, const Matrices& b) {
  Items ours = Lister(a, b).list(), theirs = Lister(b, a).list();
  std::vector<DiffPair> pairs;
  for (auto x = ours.begin(), y = theirs.begin(); x != ours.end() || y != theirs.end();) {
    const bool take_a = y == theirs.end() || (x != ours.end() && !(y->first < x->first));
    const bool take_b = x == ours.end() || (y != theirs.end() && !(x->first < y->first));
    const Key& key = take_a ? x->first : y->first;
    DiffPair& pair = pairs.emplace_back();
    const Item& named = take_a && (x->second.is_stored || !take_b) ? x->second
                        : take_b                                   ? y->second
                                                                   : x->second;
    pair.entry.name = named.is_stored ? named.name : key.name;
    pair.entry.kind = key.kind;
    if (take_a) set_a(pair, std::move((x++)->second));
    if (take_b) set_b(pair, std::move((y++)->second));
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const DiffPair& x, const DiffPair& y) {
    return Key{x.entry.name, x.entry.kind} < Key{y.entry.name, y.entry.kind};
  });
  return pairs;
}

}  // namespace twofour
