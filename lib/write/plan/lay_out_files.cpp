#include "lib/write/plan/lay_out_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "formats/error.h"
#include "formats/safetensors.h"
#include "lib/base/names/natural.h"

namespace twofour {
namespace {

/// The largest header of a written file, in bytes. Readers accept at most 100 MB.
constexpr uint64_t kMaxHeader = 64'000'000;

}  // namespace

void lay_out_files(Plan& plan, const std::string& format, std::vector<OutputTensor> outputs) {
  std::sort(outputs.begin(), outputs.end(), [](const OutputTensor& a, const OutputTensor& b) {
    return natural_less(a.info.name, b.info.name);
  });
  for (size_t i = 1; i < outputs.size(); ++i) {
    if (outputs[i].info.name == outputs[i - 1].info.name) {
      throw Error(
          fmt::format("{}: expected no tensor of this name, which the converted weights need, found one",
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
  std::sort(outputs.begin(), outputs.end(), [](const OutputTensor& a, const OutputTensor& b) {
    return a.file != b.file ? a.file < b.file : is_stored_before(a.info, b.info);
  });
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
    std::map<std::string, std::string> metadata{{"format", "pt"}};
    if (!format.empty()) metadata["twofour.layout"] = format;
    f.header = format_safetensors_header(infos, metadata);
    for (size_t j = 0; j < infos.size(); ++j) outputs[f.first_tensor + j].info = std::move(infos[j]);
    plan.data_bytes += f.data_bytes;
  }
  plan.tensors = std::move(outputs);
}

}  // namespace twofour
