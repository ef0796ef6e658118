#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <typeindex>
#include <vector>

#include "formats/error.h"
#include "formats/json.h"
#include "formats/layouts/layout.h"
#include "formats/safetensors.h"
#include "kernels/device/device.h"
#include "kernels/device/isa.h"
#include "lib/base/findings/finding.h"
#include "lib/base/io/hash.h"
#include "lib/look/metrics/quality.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

class ReferenceCheckpoint;
class Proof;

/// The parts of the promised memory. Tests use other figures.
struct MemoryLimits {
  /// Buffers of all workers together. The rest of the promised 512 MiB is for names, headers and the program.
  uint64_t buffers = 320u << 20;
  /// Largest piece of an expert that a worker packs at once, source and result together.
  uint64_t piece = 64u << 20;
  /// `buffers` if statistics choose weights: 2 GiB are promised then, beside the statistics of a group.
  uint64_t solving_buffers = 1536u << 20;
  /// Weights of whole rows that a solver takes at once.
  int64_t solved_weights = 1 << 20;
};

/// The processor and threads that compute.
struct Compute {
  Isa isa = Isa::portable;
  Device device = Device::cpu;  ///< of solvers, if statistics choose weights
  int threads = 1;              ///< of a worker's solver, or of all solvers of a view
};

/// The limits of a run that solves on `compute`: a device takes more rows at once, since 32 of them occupy
/// one multiprocessor. Tasks of one plan have the same limits wherever they run.
inline MemoryLimits limits_for(const Compute& compute) {
  MemoryLimits limits;
  if (compute.device == Device::cuda) limits.solved_weights = 5 << 19;
  return limits;
}

/// A piece of a transformation's work, which one thread does at once.
struct Unit {
  static constexpr int kAllParts = -1;  ///< it writes some of each part
  static constexpr int kNoPart = -2;    ///< it writes nothing and only adds to the result
  uint64_t index = 0;                   ///< the transformation's own
  int part = kAllParts;                 ///< the one part that it writes
  uint64_t begin = 0, end = 0;          ///< bytes of that part
  uint64_t read = 0;                    ///< bytes of the source that it reads
};

/// A block scale byte that is NaN or negative.
struct BadScale {
  uint64_t at;  ///< in the source's tensor
  uint8_t byte;
};

/// Takes the output of one unit.
class Sink {
 public:
  virtual ~Sink() = default;
  /// Bytes of a part from `offset` on. Each unit writes a part from front to back.
  virtual void write(int part, uint64_t offset, std::span<const uint8_t> bytes) = 0;
  /// Counts bytes that were read from the source.
  virtual void add_read(uint64_t bytes) = 0;
  /// True if the source was refused: units then look for further errors and write nothing.
  virtual bool only_checks() const = 0;
  /// Refuses a block scale of a tensor; `where` (" row 3, block 7") is its place, for people. Only the first
  /// place of each tensor and expert is reported.
  virtual void refuse_scale(size_t tensor, int64_t expert, const BadScale& bad, const std::string& where) = 0;
  /// Refuses the source.
  virtual void refuse(const std::string& problem) = 0;
};

/// The state of a thread, reused for each unit.
class Worker {
 public:
  Worker(const Checkpoint& from, const Compute& with, const ReferenceCheckpoint* against = nullptr)
      : source(from), isa(with.isa), compute(with), kept(against) {}
  const Checkpoint& source;
  const Isa isa;
  const Compute compute;
  const ReferenceCheckpoint* const kept;  ///< the reference checkpoint, to compare with, or nullptr

  /// A buffer of the thread, valid until the next call.
  std::span<uint8_t> buffer(size_t bytes) {
    if (buffer_.size() < bytes) buffer_.resize(bytes);
    return {buffer_.data(), bytes};
  }
  /// The thread's one T, made by T(*this) when it is first asked for.
  template <class T>
  T& own() {
    std::shared_ptr<void>& mine = owned_[typeid(T)];
    if (!mine) mine = std::make_shared<T>(*this);
    return *static_cast<T*>(mine.get());
  }

 private:
  std::vector<uint8_t> buffer_;
  std::map<std::type_index, std::shared_ptr<void>> owned_;
};

/// One run of a transformation: does its units and gathers their results.
class Work {
 public:
  virtual ~Work() = default;
  /// Called by several threads at once. Units begin in their order.
  virtual void run(const Unit& unit, Worker& worker, Sink& sink) = 0;
  /// The result for twofour.json and people, beside the hashes of the parts, once every unit that writes part
  /// 0 or none ran; may refuse the source. Numbers read back from their text equal themselves.
  virtual Json result(Sink&) { return nullptr; }
  /// Wakes threads that wait in run() for others, to end with Interrupted or because the source is refused.
  virtual void stop() {}
  virtual void release() {}
};

/// The result of converting one matrix or module, for the report.
struct ModuleReport {
  std::string name;
  Shape shape;
  std::optional<Quality> quality = {};        ///< of pruning and folding
  std::optional<EncodedResult> encoded = {};  ///< of quantizing
  bool prunes_first = false;                  ///< prunes before quantizing: then `encoded` has the gain
};

/// The conversion of one module of a checkpoint, or of several that are written together: the tensors that it
/// writes, its units of work, the bytes of a unit, their proof, its entry in twofour.json. Each kind of
/// transformation is one class: declared and planned in lib/write/methods or lib/write/encode, its bytes in
/// lib/write/transform, its proof in lib/prove/validate.
class Transformation {
 public:
  virtual ~Transformation() = default;

  /// The name of the output: "model.layers.0.mlp.experts.w13".
  virtual std::string name(const Checkpoint& source) const = 0;
  /// The tensors that it writes; part p is the p-th. Their offsets are not known yet.
  virtual std::vector<TensorInfo> outputs(const Checkpoint& source) const = 0;
  /// Tensors of the source that go into it, and into nothing else.
  virtual std::vector<size_t> sources() const = 0;
  /// Takes a tensor of the source as well, to leave it out of the output; false: it cannot.
  virtual bool drop(size_t) { return false; }
  /// Its work, in the order of the parts' bytes.
  virtual std::vector<Unit> units(const Checkpoint& source) const = 0;
  /// Buffers of a thread that does a unit, in bytes.
  virtual uint64_t worker_bytes() const { return 0; }
  /// True if weights stay as they are: then its tensors are listed as copied.
  virtual bool keeps() const { return false; }

  /// The decision on a part, in a word ("v7", "copy"), and the part's source; for --dry-run.
  virtual std::string decision(int part) const = 0;
  virtual std::string origin(const Checkpoint& source, int part) const = 0;
  /// The reason: the option or default that chose it.
  const std::string& rule() const { return rule_; }
  void set_rule(std::string rule) { rule_ = std::move(rule); }

  /// Makes the bytes, fast; in lib/write/transform.
  virtual std::unique_ptr<Work> begin() const = 0;
  /// Derives every byte again, slowly and by other code, compares the artifact with it, and returns the
  /// result that Work::result() must have given; in lib/prove/validate.
  virtual Json prove(Proof& proof) const = 0;

  /// A result like that of Work::result(), without figures, to compute the size of twofour.json; null if
  /// there is no result.
  virtual Json empty_result() const { return nullptr; }
  /// Throws Error or Json::exception on a value that Work::result() never returns.
  virtual void check_result(const Json& result) const {
    if (!result.is_null()) throw Error("expected no result of a tensor that is kept, found one");
  }
  /// Its entries under "modules" of twofour.json, or under "copied" if keeps(): `tensors` has an entry for
  /// each part, `result` is that of Work::result().
  virtual Json entries(const Checkpoint& source, const Json& result,
                       const std::vector<Json>& tensors) const = 0;
  /// The identity of the bytes that it read, as text: hashes and scales.
  virtual std::string content(const Json& result, std::span<const Hash128> outputs) const = 0;
  /// Scales that decide the output, in the order of its entries: the source's tensor and the float32 bits
  /// that planning read; nothing if the work finds them.
  struct StoredScale {
    size_t tensor;
    std::optional<uint32_t> bits;
  };
  virtual std::vector<StoredScale> stored_scales() const { return {}; }
  /// A report for people; empty if weights stay as they are.
  virtual std::vector<ModuleReport> report(const Checkpoint&, const Json&) const { return {}; }

  /// How its tensors, as any loader reads them, are compared with the source's: layers are run from both, and
  /// weights may differ by a relative `tolerance`, which is infinite for lossy conversions. Nothing: they are
  /// not compared, since the conversion has figures of its own.
  struct ValueComparison {
    std::optional<double> tolerance;
  };
  virtual std::optional<ValueComparison> value_comparison() const { return std::nullopt; }

 private:
  std::string rule_;
};

/// The conversions of the modules of a checkpoint, in the order of planning. It finds each by the type under
/// which it was added.
class Transformations {
 public:
  template <class T>
  void add(std::unique_ptr<T> one) {
    by_type_[typeid(T)].push_back(one.get());
    all_.push_back(std::move(one));
  }
  /// The transformations that were added as a T, in order.
  template <class T>
  std::vector<const T*> of() const {
    std::vector<const T*> found;
    const auto at = by_type_.find(typeid(T));
    if (at == by_type_.end()) return found;
    for (const Transformation* one : at->second) found.push_back(static_cast<const T*>(one));
    return found;
  }

  size_t size() const { return all_.size(); }
  const std::unique_ptr<Transformation>& operator[](size_t i) const { return all_[i]; }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

 private:
  std::vector<std::unique_ptr<Transformation>> all_;
  std::map<std::type_index, std::vector<const Transformation*>> by_type_;
};

}  // namespace twofour
