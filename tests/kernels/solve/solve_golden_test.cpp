#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "kernels/solve/solve.h"
#include "lib/base/io/file.h"
#include "tests/support/message.h"

namespace solve_golden_test {

// The solvers against a prototype that sums in other orders: see tests/golden/solve/README.md.

using namespace twofour;

namespace {

class Golden {
 public:
  Golden() {
    const std::string path = std::string(TWOFOUR_GOLDEN_DIR) + "/solve/values.safetensors";
    bytes_ = read_text(path);
    const std::span all(reinterpret_cast<const uint8_t*>(bytes_.data()), bytes_.size());
    const uint64_t json = parse_safetensors_prefix(path, all.first(kSafetensorsHead), bytes_.size());
    data_ = kSafetensorsPrefix + json;
    header_ = parse_safetensors_header(path, std::string_view(bytes_).substr(kSafetensorsPrefix, json),
                                       bytes_.size() - data_);
  }
  std::vector<float> read(const std::string& name) const {
    const auto at =
        std::find_if(header_.tensors.begin(), header_.tensors.end(), [&](auto& t) { return t.name == name; });
    REQUIRE_MESSAGE(at != header_.tensors.end(), name);
    std::vector<float> values(at->bytes() / sizeof(float));
    std::memcpy(values.data(), bytes_.data() + data_ + at->begin, at->bytes());
    return values;
  }

 private:
  std::string bytes_;
  uint64_t data_ = 0;
  SafetensorsHeader header_;
};

struct Way {
  std::string name;
  SolveMethod method;
  std::optional<PrunePattern> pattern;
};

const std::vector<Way> kWays = {{"2_4.joint", SolveMethod::joint, PrunePattern::k2of4},
                                {"4_8_paired.joint", SolveMethod::joint, PrunePattern::k4of8Paired},
                                {"dense.joint", SolveMethod::joint, std::nullopt}};

}  // namespace

TEST_CASE("values are those of a prototype that sums in other orders") {
  const Golden golden;
  constexpr int64_t kColumns = 48;
  for (const std::string name : {"diagonal", "full", "few", "rank_one"}) {
    const std::vector<float> weights = golden.read(name + ".weight"),
                             hessian = golden.read(name + ".hessian");
    const DampedHessian damped = damped_hessian(hessian, kColumns, 0.01, true);
    float amax = 0;
    for (const float w : weights) amax = std::max(amax, std::fabs(w));
    const float stored = global_scale_of(QuantizeRule(), amax).stored;
    for (const Way& way : kWays) {
      const GroupMaps maps(damped, way.pattern);
      for (const int sweeps : {0, 2}) {
        const std::string full = name + "." + way.name + "." + std::to_string(sweeps);
        CAPTURE(full);
        SolveRule rule;
        rule.method = way.method;
        rule.pattern = way.pattern;
        rule.sweeps = sweeps;
        rule.min_gain = 0;
        std::vector<uint8_t> codes(weights.size() / 2), scales(weights.size() / 16);
        solve_rows(rule, damped, &maps, stored, {weights}, {codes.data(), scales.data()});
        std::vector<float> ours(weights.size());
        dequantize_nvfp4(Arithmetic::modelopt, stored, codes.data(), scales.data(), ours);
        CHECK(ours == golden.read(full));
      }
    }
  }
}

}  // namespace solve_golden_test
