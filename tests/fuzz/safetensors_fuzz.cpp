#include "formats/safetensors.h"
#include "tests/fuzz/fuzz.h"

using namespace twofour;

void twofour::fuzz_safetensors(const uint8_t* data, size_t size) {
  expect_error_at_most([&] {
    const uint64_t length = parse_safetensors_prefix("file", {data, size < 8 ? size : 8}, size);
    promise(length <= size - kSafetensorsPrefix);
    const uint64_t data_bytes = size - kSafetensorsPrefix - length;
    const SafetensorsHeader header =
        parse_safetensors_header("file", text_of(data + kSafetensorsPrefix, length), data_bytes);
    uint64_t position = 0;
    for (const TensorInfo& t : header.tensors) {
      promise(t.begin == position && t.end >= t.begin && t.bytes() == tensor_bytes("file", t.dtype, t.shape));
      position = t.end;
    }
    promise(position == data_bytes);
    // The tensors that were read are written and read again.
    const std::string written = format_safetensors_header(header.tensors, header.metadata);
    const SafetensorsHeader again =
        parse_safetensors_header("again", std::string_view(written).substr(kSafetensorsPrefix), data_bytes);
    promise(again.metadata == header.metadata && again.tensors.size() == header.tensors.size());
    for (size_t i = 0; i < header.tensors.size(); ++i) {
      const TensorInfo &a = header.tensors[i], &b = again.tensors[i];
      promise(a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.begin == b.begin);
    }
  });
}
