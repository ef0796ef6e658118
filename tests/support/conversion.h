#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "lib/jobs/convert/convert.h"
#include "lib/prove/validate/validate.h"
#include "tests/support/one_rule.h"

namespace twofour {

/// A tensor read from a checkpoint.
struct ReadTensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
  bool operator==(const ReadTensor&) const = default;
  template <class T>
  std::vector<T> as() const {
    std::vector<T> values(bytes.size() / sizeof(T));
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<uint8_t*>(values.data()));
    return values;
  }
};
using ReadTensors = std::map<std::string, ReadTensor>;

/// All tensors of a checkpoint directory or file.
ReadTensors read_tensors(const std::filesystem::path& path);

/// Contents of every file below a directory, by relative name, hidden ones too.
std::map<std::string, std::string> read_tree(const std::filesystem::path& directory);

/// Opens, plans and converts.
ConvertResult convert(const std::filesystem::path& source, const std::filesystem::path& destination,
                      const OneRule& recipe = {}, const ConvertOptions& options = {},
                      const MemoryLimits& limits = {});

/// By one thread unless told: teams of threads would take most of the time that tiny artifacts need.
ValidateReport validate(const std::filesystem::path& artifact, int64_t tokens = 2, int threads = 1);
ValidateReport validate_from(const std::filesystem::path& source, const std::filesystem::path& artifact,
                             int64_t tokens = 2, int threads = 1);

/// Findings of that id.
std::vector<Finding> findings_of(const Findings& findings, const std::string& id);

/// "id: where: message" of each, for messages of tests.
std::string text_of(const Findings& findings);

/// Writes a changed manifest with the hash that belongs to it now.
void write_sealed(const std::filesystem::path& file, const std::string& manifest);

/// Flips bit `bit` of byte `offset` of a file.
void flip_bit(const std::filesystem::path& file, uint64_t offset, int bit);

}  // namespace twofour
