#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"
#include "lib/jobs/convert/conversion.h"

namespace twofour {
namespace {

/// Written tensors are read back in pieces of this many bytes, which stay in the L2 cache. Those that are
/// counted are read in larger ones.
constexpr uint64_t kVerifyBytes = 512u << 10, kReadAhead = 2u << 20;

/// Reads a tensor of a flushed file in large pieces, as disks need it, and passes on smaller ones.
struct ReadAhead {
  std::string_view tensor = {};
  uint64_t begin = 0;  ///< offset of `bytes` in the tensor
  std::vector<uint8_t> bytes = {};

  /// The tensor's data begins at `data` in the file.
  void read(const AtomicFile& file, uint64_t data, const TensorInfo& info, uint64_t offset,
            std::span<uint8_t> out) {
    tensor = info.name;
    if (offset < begin || offset + out.size() > begin + bytes.size()) {
      begin = offset;
      bytes.resize(std::min(std::max<uint64_t>(kReadAhead, out.size()), info.bytes() - offset));
      file.read(data + begin, bytes);
    }
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset - begin), out.size(), out.begin());
  }
};

}  // namespace

void Conversion::check_hash(size_t tensor, const Hash128& found) {
  const OutputTensor& t = plan_.tensors[tensor];
  bytes_verified_ += t.info.bytes();
  if (found == outputs_[tensor]) return;
  throw Error(fmt::format("{}: {}: expected hash {} as written, found {} when read back",
                          open(t.file).path().string(), t.info.name, outputs_[tensor].hex(), found.hex()));
}

/// Reads a tensor back and counts its weights. False: it has to be read otherwise.
bool Conversion::count_written(size_t tensor) {
  if (options_.written == nullptr) return false;
  const uint32_t f = plan_.tensors[tensor].file;
  const AtomicFile& file = open(f);
  const auto is_here = [&](std::string_view name) {
    const auto at = tensors_.find(name);
    return at != tensors_.end() && plan_.tensors[at->second].file == f;
  };
  ReadAhead ahead[2];  // codes and block scales are read in turn
  const auto read = [&](std::string_view name, uint64_t offset, std::span<uint8_t> out) {
    const OutputTensor& t = plan_.tensors[tensors_.at(name)];
    if (file.io() == Io::kCached) return file.read(offset_of(t) + offset, out);
    const bool is_first = ahead[0].tensor.empty() || ahead[0].tensor == name;
    ahead[is_first ? 0 : 1].read(file, offset_of(t), t.info, offset, out);
  };
  const WrittenWeights::Hashes counted =
      options_.written->count(plan_.tensors[tensor].info.name, is_here, read, progress_);
  for (const auto& [name, hash] : counted.hashes) check_hash(tensors_.at(name), hash);
  return !counted.is_left;
}

void Conversion::verify(const Job& job, std::vector<uint8_t>& buffer) {
  const uint32_t f = plan_.tensors[job.first].file;
  const AtomicFile& file = open(f);
  if (buffer.size() < kVerifyBytes) buffer.resize(kVerifyBytes);
  for (size_t i = job.first; i < job.first + job.count; ++i) {
    if (count_written(i)) continue;
    const OutputTensor& t = plan_.tensors[i];
    Hasher hasher;
    for (uint64_t at = 0; at < t.info.bytes(); at += kVerifyBytes) {
      const std::span<uint8_t> piece(buffer.data(), std::min(kVerifyBytes, t.info.bytes() - at));
      file.read(offset_of(t) + at, piece);
      hasher.update(piece);
      progress_.done += piece.size();
    }
    check_hash(i, hasher.digest());
  }
  if (--files_[f].checks_left == 0) commit(f);
}

}  // namespace twofour
