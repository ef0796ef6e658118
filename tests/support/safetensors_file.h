#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dtype.h"

namespace twofour {

/// A safetensors file of any text and any data, right or wrong. Shares no code with the library's writer.
inline std::string safetensors_file(std::string_view header, std::string_view data) {
  std::string file;
  for (unsigned shift = 0; shift < 64; shift += 8) {
    file += static_cast<char>((uint64_t{header.size()} >> shift) & 0xFF);
  }
  return file.append(header).append(data);
}

/// Lays tensors down in the order in which they are added, without padding: legal, and unlike our writer.
class SafetensorsFile {
 public:
  SafetensorsFile& add(std::string_view name, DType dtype, const std::vector<int64_t>& shape,
                       std::string_view bytes) {
    std::string dims;
    for (const int64_t d : shape) dims += (dims.empty() ? "" : ",") + std::to_string(d);
    header_ += header_.empty() ? "" : ",";
    header_.append("\"").append(name).append("\":{\"dtype\":\"").append(dtype_name(dtype));
    header_ += "\",\"shape\":[" + dims + "],\"data_offsets\":[" + std::to_string(data_.size()) + "," +
               std::to_string(data_.size() + bytes.size()) + "]}";
    data_ += bytes;
    return *this;
  }
  /// A tensor of bytes 0, 1, 2, ...
  SafetensorsFile& add_u8(std::string_view name, int64_t count) {
    std::string bytes;
    for (int64_t i = 0; i < count; ++i) bytes += static_cast<char>(i);
    return add(name, DType::kU8, {count}, bytes);
  }
  std::string bytes() const { return safetensors_file("{" + header_ + "}", data_); }

 private:
  std::string header_, data_;
};

}  // namespace twofour
