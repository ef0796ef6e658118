#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "formats/json/access.h"
#include "lib/base/findings/and_more.h"
#include "lib/lint/bytes/checks.h"
#include "lib/source/config/quantization_config.h"

namespace twofour {
namespace {

constexpr uint64_t kMostBytes = 1u << 20;  ///< largest number of bytes that are read from one tensor

class PromisedValues {
 public:
  PromisedValues(const LintInput& s, LintReporter& reporter) : s_(s), reporter_(reporter) {}

  void run() {
    const std::string method = quantization_method(s_.quantization);
    if (method == "gptq") {
      check_zero_points();
      check_groups(".g_idx", flag_of(s_.quantization, "desc_act"), "desc_act");
    }
    if (method == "gptq" || method == "awq") check_lost_zero_points();
    if (method == "compressed-tensors") check_groups(".weight_g_idx", std::nullopt, "");
    if (text_of(s_.quantization, "scale_fmt") == "ue8m0") check_powers();
  }

  /// Checks the tables that state the experts of each token. The experts must exist and differ from each
  /// other.
  void check_tables() {
    std::vector<size_t> unset;
    size_t set = 0;
    for_each(".tid2eid", DType::kI64, [&](size_t i) {
      const TensorInfo& t = s_.tensors[i];
      const auto router = s_.find(t.name.substr(0, t.name.size() - 8) + ".weight");
      if (!router || t.shape.size() != 2 || t.shape[1] <= 0 || s_.tensors[*router].shape.size() != 2) return;
      const int64_t experts = s_.tensors[*router].shape[0], chosen = t.shape[1];
      const std::vector<int64_t> ids = read<int64_t>(i);
      const bool is_unset = std::all_of(ids.begin(), ids.end(), [](int64_t id) { return id == 0; });
      if (is_unset && !ids.empty()) {
        unset.push_back(i);
        return;
      }
      ++set;
      for (int64_t at = 0; at + chosen <= std::ssize(ids); at += chosen) {
        std::vector<int64_t> row(ids.begin() + at, ids.begin() + at + chosen);
        std::sort(row.begin(), row.end());
        const bool twice = std::adjacent_find(row.begin(), row.end()) != row.end();
        if (!twice && row.front() >= 0 && row.back() < experts) continue;
        reporter_.add("odd-codes", s_.at(i),
                      "expected {} different experts of {} for each token, found {} for token {}", chosen,
                      experts, twice ? "one twice" : fmt::format("{}", row.back()), at / chosen);
        return;
      }
    });
    // Where no table is set, the model was never trained.
    for (const size_t i : unset) {
      if (set == 0) break;
      reporter_.add("odd-codes", s_.at(i),
                    "expected experts for each token (as in {} of {} tables), found 0 throughout", set,
                    set + unset.size());
    }
  }

 private:
  std::string key(const char* name) const {
    return s_.quantization_key.empty() ? name : s_.quantization_key + "." + name;
  }

  template <class T>
  std::vector<T> read(size_t tensor) const {
    const TensorInfo& t = s_.tensors[tensor];
    if (!s_.whole[tensor]) return {};
    std::vector<T> values(std::min(t.bytes(), kMostBytes) / sizeof(T));
    s_.read(tensor, 0, {reinterpret_cast<uint8_t*>(values.data()), values.size() * sizeof(T)});
    return values;
  }
  /// Calls f(tensor) for the tensors of a type whose names end in `end`.
  template <class F>
  void for_each(std::string_view end, DType dtype, F&& f) const {
    for (size_t i = 0; i < s_.tensors.size(); ++i) {
      if (s_.tensors[i].dtype == dtype && s_.tensors[i].name.ends_with(end)) f(i);
    }
  }

  /// Checks that all zero points of symmetric codes are the middle of their range. Four-bit codes are left
  /// out, since their reader checks them.
  void check_zero_points() {
    const auto bits = integer_of(s_.quantization, "bits");
    if (flag_of(s_.quantization, "sym") != true || !bits || (*bits != 2 && *bits != 8)) return;
    const auto width = static_cast<int>(*bits);
    const uint32_t mask = (1u << width) - 1, middle = 1u << (width - 1);
    // The first version of GPTQ's format stores zero points minus 1.
    const uint32_t wanted = text_of(s_.quantization, "checkpoint_format") == "gptq_v2" ? middle : middle - 1;
    std::optional<size_t> first;
    size_t count = 0;
    for_each(".qzeros", DType::kI32, [&](size_t i) {
      const std::vector<uint32_t> words = read<uint32_t>(i);
      const bool odd = std::any_of(words.begin(), words.end(), [&](uint32_t word) {
        for (int at = 0; at < 32; at += width) {
          const uint32_t zero = word >> at & mask;
          if (zero != wanted) return true;
        }
        return false;
      });
      if (!odd) return;
      if (count++ == 0) first = i;
    });
    if (!first) return;
    reporter_.add(
        "config-format", s_.setting(key("sym")),
        "expected false or another checkpoint_format, because {}{} has zero points other than {}, found true",
        s_.tensors[*first].name, and_more(count, " and {} more"), wanted);
  }

  /// Reports modules whose zero points are all 0 if no other module has a zero point of 0.
  void check_lost_zero_points() {
    std::vector<size_t> lost;
    size_t all = 0;
    for_each(".qzeros", DType::kI32, [&](size_t i) {
      const std::vector<uint32_t> words = read<uint32_t>(i);
      if (words.empty()) return;
      ++all;
      if (std::all_of(words.begin(), words.end(), [](uint32_t word) { return word == 0; })) lost.push_back(i);
    });
    // Codes are not negative, and with zero points of 0 no weight is either. Readers of symmetric codes do
    // not look at zero points.
    const bool is_every = lost.size() == all && flag_of(s_.quantization, "sym") != true;
    if (is_every && all > 0) {
      reporter_.add("odd-codes", s_.at(lost[0]),
                    "expected zero points other than 0, found 0 throughout in all {} modules: no weight is "
                    "negative",
                    all);
    }
    if (4 * lost.size() > all) return;
    for (const size_t i : lost) {
      reporter_.add("odd-codes", s_.at(i),
                    "expected zero points other than 0 (as in {} of {} modules), found 0 throughout",
                    all - lost.size(), all);
    }
  }

  /// Checks the list of each column's group. All groups must have one size. They must be in order if the
  /// config states that columns were not sorted.
  void check_groups(std::string_view end, std::optional<bool> sorted, const char* name) {
    std::optional<size_t> disordered;
    for_each(end, DType::kI32, [&](size_t i) {
      const std::vector<int32_t> groups = read<int32_t>(i);
      const std::string& tensor = s_.tensors[i].name;
      const std::string module = tensor.substr(0, tensor.size() - end.size());
      const int64_t count = groups_of(module), columns = std::ssize(groups);
      // If all numbers are -1, groups are in the order of the columns.
      const bool none = std::all_of(groups.begin(), groups.end(), [](int32_t g) { return g == -1; });
      if (count <= 0 || columns == 0 || columns % count != 0 || none) return;
      // The last group may be smaller.
      const int64_t whole = std::max<int64_t>(1, std::count(groups.begin(), groups.end(), 0));
      int64_t at = 0;
      const bool fits = (columns - 1) / whole + 1 == count;
      if (fits && std::all_of(groups.begin(), groups.end(), [&](int32_t g) { return g == at++ / whole; }))
        return;
      std::vector<int64_t> sizes(static_cast<size_t>(count));
      bool in_order = true;
      for (int64_t k = 0; k < columns; ++k) {
        const int32_t g = groups[static_cast<size_t>(k)];
        if (g < 0 || g >= count) {
          reporter_.add("odd-codes", s_.at(i, tensor),
                        "expected group numbers below {}, found {} for column {}", count, g, k);
          return;
        }
        ++sizes[static_cast<size_t>(g)];
        in_order = in_order && g == k / (columns / count);
      }
      const auto odd =
          std::find_if(sizes.begin(), sizes.end(), [&](int64_t n) { return n != columns / count; });
      if (odd != sizes.end()) {
        reporter_.add("odd-codes", s_.at(i, tensor),
                      "expected {} columns in each of {} groups, found {} in group {}", columns / count,
                      count, *odd, odd - sizes.begin());
        return;  // groups of other sizes do not show the order of columns
      }
      if (!in_order && !disordered) disordered = i;
    });
    if (disordered && sorted == false) {
      reporter_.add("config-format", s_.setting(key(name)),
                    "expected true, because {} assigns columns to groups out of order, found false",
                    s_.tensors[*disordered].name);
    }
  }
  /// Returns the number of groups. It is the number of rows of GPTQ's scales, or of columns of
  /// compressed-tensors' scales.
  int64_t groups_of(const std::string& module) const {
    if (const auto scales = s_.find(module + ".scales"); scales && s_.tensors[*scales].shape.size() == 2)
      return s_.tensors[*scales].shape[0];
    if (const auto scales = s_.find(module + ".weight_scale");
        scales && s_.tensors[*scales].shape.size() == 2)
      return s_.tensors[*scales].shape[1];
    return 0;
  }

  /// Checks that scales are powers of two. Readers that treat scales as exponents ignore their mantissas.
  void check_powers() {
    std::optional<size_t> first;
    size_t count = 0;
    float found = 0;
    for (const char* end : {".weight_scale_inv", ".scale", ".weight_scale"}) {
      for_each(end, DType::kF32, [&](size_t i) {
        const std::vector<float> values = read<float>(i);
        const auto odd = std::find_if(values.begin(), values.end(), [](float v) {
          uint32_t bits = 0;
          std::memcpy(&bits, &v, sizeof(bits));
          return (bits & 0x7FFFFFu) != 0;
        });
        if (odd == values.end()) return;
        if (count++ > 0) return;
        first = i;
        found = *odd;
      });
    }
    if (!first) return;
    reporter_.add("config-format", s_.setting(key("scale_fmt")),
                  "expected none, because {}{} has scales that are not powers of two ({}), found ue8m0",
                  s_.tensors[*first].name, and_more(count, " and {} more"), found);
  }

  const LintInput& s_;
  LintReporter& reporter_;
};

}  // namespace

void lint_promised_values(const LintInput& s, LintReporter& reporter) {
  PromisedValues values(s, reporter);
  values.check_tables();
  if (s.quantization.is_object() && s.layout.empty()) values.run();
}

}  // namespace twofour
