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

/// The division of the promised memory. Tests use other figures.
struct MemoryLimits {
  /// The bytes for the buffers of all workers together. The rest of the promised 512 MiB is for names,
  /// headers and the program.
  uint64_t buffers = 320u << 20;
  /// The largest piece of an expert that a worker packs at once, in bytes. Source and result count together.
  uint64_t piece = 64u << 20;
  /// Replaces `buffers` if weights are chosen by statistics. The promise is then 2 GiB, and the statistics of
  /// a group come on top of it.
  uint64_t solving_buffers = 1536u << 20;
  /// The number of weights, in whole rows, that a solver takes at once.
  int64_t solved_weights = 1 << 20;
};

/// The processor and threads that compute.
struct Compute {
  Isa isa = Isa::portable;
  Device device = Device::cpu;  ///< the device of solvers, if weights are chosen by statistics
  int threads = 1;              ///< threads of one worker's solver, or of all solvers of a view
};

/// The limits of a run whose solvers run on `compute`. A CUDA device takes more rows at once, since 32 rows
/// occupy one multiprocessor. All tasks of one plan have the same limits on any machine.
inline MemoryLimits limits_for(const Compute& compute) {
  MemoryLimits limits;
  if (compute.device == Device::cuda) limits.solved_weights = 5 << 19;
  return limits;
}

/// A piece of a transformation's work, which one thread does in one go.
struct Unit {
  static constexpr int kAllParts = -1;  ///< the unit writes some bytes of each part
  static constexpr int kNoPart = -2;    ///< the unit writes no part, but only adds to the result
  uint64_t index = 0;                   ///< the transformation defines its meaning
  int part = kAllParts;                 ///< the only part that the unit writes, or kAllParts or kNoPart
  uint64_t begin = 0, end = 0;          ///< range of bytes of that part that the unit writes
  uint64_t read = 0;                    ///< number of bytes that the unit reads from the source
};

/// A block scale byte that is NaN or negative.
struct BadScale {
  uint64_t at;  ///< position of the byte in the source's tensor
  uint8_t byte;
};

/// Takes the output of one unit.
class Sink {
 public:
  virtual ~Sink() = default;
  /// Writes bytes of a part, which begin at `offset`. Each unit writes a part from front to back.
  virtual void write(int part, uint64_t offset, std::span<const uint8_t> bytes) = 0;
  /// Counts bytes that were read from the source.
  virtual void add_read(uint64_t bytes) = 0;
  /// True if the source was refused. Units then only look for further errors and write nothing.
  virtual bool only_checks() const = 0;
  /// Refuses a block scale of a tensor of the source. `where` is its place, for messages: " row 3, block 7".
  /// Only the first bad block scale of each tensor and expert is reported.
  virtual void refuse_scale(size_t tensor, int64_t expert, const BadScale& bad, const std::string& where) = 0;
  /// Refuses the source.
  virtual void refuse(const std::string& problem) = 0;
};

/// The state of a thread. All units that the thread runs share it.
class Worker {
 public:
  Worker(const Checkpoint& from, const Compute& with, const ReferenceCheckpoint* against = nullptr)
      : source(from), isa(with.isa), compute(with), kept(against) {}
  const Checkpoint& source;
  const Isa isa;
  const Compute compute;
  const ReferenceCheckpoint* const kept;  ///< the checkpoint that results are compared with; may be null

  /// A buffer of the thread, valid until the next call.
  std::span<uint8_t> buffer(size_t bytes) {
    if (buffer_.size() < bytes) buffer_.resize(bytes);
    return {buffer_.data(), bytes};
  }
  /// The thread's only object of type T. The first call makes it by T(*this).
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

/// One run of a transformation. It does the units and gathers their results.
class Work {
 public:
  virtual ~Work() = default;
  /// Does a unit. Several threads call this at once. Units begin in their order.
  virtual void run(const Unit& unit, Worker& worker, Sink& sink) = 0;
  /// The result for twofour.json and for messages, without the hashes of the parts. It is called after all
  /// units that write part 0 or no part have run. It may refuse the source. Numbers do not change when they
  /// are written as text and read back.
  virtual Json result(Sink&) { return nullptr; }
  /// Wakes threads that wait for others in run(). Then their run() ends, either with Interrupted or because
  /// the source was refused.
  virtual void stop() {}
  virtual void release() {}
};

/// The result of converting one matrix or module, for the report.
struct ModuleReport {
  std::string name;
  Shape shape;
  std::optional<Quality> quality = {};        ///< the result of pruning and folding
  std::optional<EncodedResult> encoded = {};  ///< the result of quantizing
  bool prunes_first = false;                  ///< the module is pruned before it is quantized; `encoded` then
                                              ///< has the gain
};

/// The conversion of one module of a checkpoint, or of several modules that are written together. It knows
/// the tensors that it writes, its units of work, the bytes of a unit, their proof and its entry in
/// twofour.json. Each kind of transformation is one class. The class is declared and planned in
/// lib/write/methods or lib/write/encode. Its bytes are made in lib/write/transform, its proof in
/// lib/prove/validate.
class Transformation {
 public:
  virtual ~Transformation() = default;

  /// The name of the output, such as "model.layers.0.mlp.experts.w13".
  virtual std::string name(const Checkpoint& source) const = 0;
  /// The tensors that it writes. Part p is tensor p of this list. Their offsets are not known yet.
  virtual std::vector<TensorInfo> outputs(const Checkpoint& source) const = 0;
  /// The tensors of the source that it is made from. No other transformation is made from them.
  virtual std::vector<size_t> sources() const = 0;
  /// Takes one more tensor of the source, which is then left out of the output. Returns false if the
  /// transformation cannot leave it out.
  virtual bool drop(size_t) { return false; }
  /// Its units of work, in the order of the bytes that they write.
  virtual std::vector<Unit> units(const Checkpoint& source) const = 0;
  /// The size of the buffers of a thread that does a unit, in bytes.
  virtual uint64_t worker_bytes() const { return 0; }
  /// True if weights stay as they are. Then its tensors are listed as copied.
  virtual bool keeps() const { return false; }

  /// The decision on a part in one word ("v7", "copy"), for --dry-run. origin() names the source of the part.
  virtual std::string decision(int part) const = 0;
  virtual std::string origin(const Checkpoint& source, int part) const = 0;
  /// The option or default that chose this transformation.
  const std::string& rule() const { return rule_; }
  void set_rule(std::string rule) { rule_ = std::move(rule); }

  /// Begins a run, which makes the bytes by the fast code. The definitions are in lib/write/transform.
  virtual std::unique_ptr<Work> begin() const = 0;
  /// Derives every byte again, by slow and separate code, and compares the artifact with it. Returns the
  /// result that Work::result() must have given. The definitions are in lib/prove/validate.
  virtual Json prove(Proof& proof) const = 0;

  /// A result of the same form as the result of Work::result(), but without figures. It serves to compute the
  /// size of twofour.json. Null if there is no result.
  virtual Json empty_result() const { return nullptr; }
  /// Throws Error or Json::exception if `result` is not a value that Work::result() can return.
  virtual void check_result(const Json& result) const {
    if (!result.is_null()) throw Error("expected no result of an unchanged tensor, found one");
  }
  /// Its entries under "modules" of twofour.json, or under "copied" if keeps(). `tensors` has an entry for
  /// each part. `result` is the return value of Work::result().
  virtual Json entries(const Checkpoint& source, const Json& result,
                       const std::vector<Json>& tensors) const = 0;
  /// A text that identifies the bytes that it read, by hashes and scales.
  virtual std::string content(const Json& result, std::span<const Hash128> outputs) const = 0;
  /// A scale of the source that decides the output. It has its tensor, and the float32 bits that planning
  /// read. The bits are absent if the work finds the scale. stored_scales() has the order of its entries.
  struct StoredScale {
    size_t tensor;
    std::optional<uint32_t> bits;
  };
  virtual std::vector<StoredScale> stored_scales() const { return {}; }
  /// A report as text. It is empty if weights stay as they are.
  virtual std::vector<ModuleReport> report(const Checkpoint&, const Json&) const { return {}; }

  /// The comparison of its tensors, as any loader reads them, with the source's. Layers are run from both.
  /// Weights may differ by a relative `tolerance`. Lossy conversions have none, which stands for infinity.
  /// value_comparison() is empty if the tensors are not compared, since the conversion has figures of its
  /// own.
  struct ValueComparison {
    std::optional<double> tolerance;
  };
  virtual std::optional<ValueComparison> value_comparison() const { return std::nullopt; }

 private:
  std::string rule_;
};

/// The conversions of the modules of a checkpoint, in the order of planning. of() finds them by the type
/// under which they were added.
class Transformations {
 public:
  template <class T>
  void add(std::unique_ptr<T> one) {
    by_type_[typeid(T)].push_back(one.get());
    all_.push_back(std::move(one));
  }
  /// The transformations that were added as type T, in the order of planning.
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
