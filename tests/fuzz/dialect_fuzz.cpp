#include "formats/dialect.h"

#include <algorithm>
#include <sstream>

#include "formats/atom.h"
#include "formats/naming.h"
#include "tests/fuzz/fuzz.h"

using namespace twofour;

namespace {

std::vector<TensorInfo> tensors_of(std::string_view text) {
  std::vector<TensorInfo> tensors;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line) && tensors.size() < 1000;) {
    std::istringstream words(line);
    TensorInfo t;
    std::string dtype;
    words >> t.name >> dtype;
    t.dtype = dtype_from_name(dtype).value_or(DType::kU8);
    for (int64_t d = 0; words >> d && t.shape.size() < kSafetensorsMaxRank;)
      t.shape.push_back(d < 0 ? -(d + 1) : d);
    tensors.push_back(std::move(t));
  }
  std::sort(tensors.begin(), tensors.end(), [](auto& a, auto& b) { return a.name < b.name; });
  tensors.erase(
      std::unique(tensors.begin(), tensors.end(), [](auto& a, auto& b) { return a.name == b.name; }),
      tensors.end());
  return tensors;
}

}  // namespace

void twofour::fuzz_dialect(const uint8_t* data, size_t size) {
  expect_error_at_most([&] {
    std::vector<TensorInfo> tensors = tensors_of(text_of(data, size));
    for (const TensorInfo& t : tensors) tensor_bytes(t.name, t.dtype, t.shape);  // as a header's must be
    for (const Nvfp4Linear& m : find_nvfp4_modules(tensors, [](size_t) { return "file"; })) {
      promise(m.codes < tensors.size() && m.block_scale < tensors.size() && m.global_scale < tensors.size());
      promise(m.e > 0 && m.n > 0 && m.k > 0 && m.k % kGroup == 0);
      const auto bytes = [&](size_t i) { return tensor_bytes("file", tensors[i].dtype, tensors[i].shape); };
      promise(bytes(m.codes) / static_cast<uint64_t>(m.e) / static_cast<uint64_t>(m.n) ==
              static_cast<uint64_t>(m.k) / 2);
      promise(bytes(m.block_scale) == bytes(m.codes) / 8);
      if (const auto name = parse_module_name(m.name)) {
        promise(m.name.starts_with(name->block) && name->expert >= -1);
      }
    }
  });
}
