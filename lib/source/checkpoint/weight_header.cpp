#include "lib/source/checkpoint/weight_header.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "formats/error.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/index_file.h"

namespace twofour {

std::pair<SafetensorsHeader, std::string> read_weight_header(const InputFile& file) {
  const std::string where = file.path().string();
  std::vector<uint8_t> prefix(std::min(file.size(), kSafetensorsHead));
  file.read(0, prefix);
  const uint64_t length = parse_safetensors_prefix(where, prefix, file.size());
  std::string head(kSafetensorsPrefix + length, '\0');
  file.read(0, {reinterpret_cast<uint8_t*>(head.data()), head.size()});
  return {parse_safetensors_header(where, std::string_view(head).substr(kSafetensorsPrefix),
                                   file.size() - head.size()),
          std::move(head)};
}

std::string fault_of_weight_file(const std::filesystem::path& file) {
  const InputFile opened(file, Io::kCached);
  try {
    read_weight_header(opened);
  } catch (const ReadError&) {
    throw;
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::set<std::string> lost_tensors(const Checkpoint& checkpoint, const std::string& index) {
  std::set<std::string> lost;
  if (index.empty()) return lost;
  for (const IndexFile::Entry& entry : read_index_file(checkpoint.path() / index).entries) {
    if (!checkpoint.find(entry.tensor)) lost.insert(entry.tensor);
  }
  return lost;
}

}  // namespace twofour
