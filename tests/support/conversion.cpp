#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"

#include <omp.h>

#include <fstream>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"
#include "lib/write/transform/open_to_convert.h"

namespace twofour {

namespace fs = std::filesystem;

ReadTensors read_tensors(const fs::path& path) {
  const Checkpoint c = Checkpoint::open(path);
  ReadTensors tensors;
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    const TensorInfo& t = c.tensors()[i];
    ReadTensor& to = tensors[t.name];
    to = {t.dtype, t.shape, std::vector<uint8_t>(t.bytes())};
    c.read(i, 0, to.bytes);
  }
  return tensors;
}

std::map<std::string, std::string> read_tree(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file())
      files[entry.path().lexically_relative(directory).string()] = read_text(entry.path(), 1u << 30);
  }
  return files;
}

ConvertResult convert(const fs::path& source, const fs::path& destination, const OneRule& recipe,
                      const ConvertOptions& options, const MemoryLimits& limits) {
  const Checkpoint checkpoint = open_to_convert(source, recipe, Io::kCached, limits);
  const Plan plan = make_plan(checkpoint, recipe, limits);
  Progress progress;
  return convert(checkpoint, plan, destination, options, progress);
}

namespace {

/// Runs `f` with that many OpenMP threads.
template <class F>
auto with_threads(int threads, F&& f) {
  struct Restore {
    int before = omp_get_max_threads();
    ~Restore() { omp_set_num_threads(before); }
  } restore;
  omp_set_num_threads(threads);
  return f();
}

}  // namespace

ValidateReport validate(const fs::path& artifact, int64_t tokens, int threads) {
  Progress progress;
  ValidateOptions options;
  options.jobs = threads;
  options.tokens = tokens;
  return with_threads(threads, [&] { return validate(artifact, options, progress); });
}

ValidateReport validate_from(const fs::path& source, const fs::path& artifact, int64_t tokens, int threads) {
  Progress progress;
  ValidateOptions options;
  options.jobs = threads;
  options.tokens = tokens;
  return with_threads(threads, [&] { return validate(artifact, source, options, progress); });
}

std::vector<Finding> findings_of(const Findings& findings, const std::string& id) {
  std::vector<Finding> found;
  for (const Finding& f : findings) {
    if (f.id == id) found.push_back(f);
  }
  return found;
}

std::string text_of(const Findings& findings) {
  std::string text;
  for (const Finding& f : findings) text += f.id + ": " + f.where + ": " + f.message + "\n";
  return text;
}

void write_sealed(const fs::path& file, const std::string& manifest) {
  const std::string text = manifest.substr(0, manifest.rfind("\"manifest_xxh3_128\""));
  write_text(file, text + "\"manifest_xxh3_128\": \"" + hash_text(text).hex() + "\"\n}\n");
}

void flip_bit(const fs::path& file, uint64_t offset, int bit) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(offset);
  stream.seekg(at);
  const int byte = stream.get();
  stream.seekp(at);
  stream.put(static_cast<char>(byte ^ (1 << bit)));
  if (!stream.flush()) throw Error("cannot flip a bit of " + file.string());
}

}  // namespace twofour
