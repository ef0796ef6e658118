// Groups that statistics choose weights of, for a layout to pack: how many are solved at a time.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "formats/error.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/recipe/statistics/statistics.h"
#include "lib/write/transform/open_to_convert.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"
#include "tests/support/weights/statistics_builder.h"

namespace solved_layout_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kMlp = "model.layers.0.mlp.";

/// An MLP of two groups: gate and up, and down.
void write_model(const fs::path& folder) {
  Tensors t;
  add_floats(t, kMlp + "gate_proj", random_floats(80, 64, 1));
  add_floats(t, kMlp + "up_proj", random_floats(80, 64, 2));
  add_floats(t, kMlp + "down_proj", random_floats(64, 80, 3));
  write_checkpoint(folder, {t});
}

OneRule rule_for(const fs::path& file) {
  StatisticsBuilder b;
  b.add({kMlp + "gate_proj", kMlp + "up_proj"}, 64, 500, "hessian", 1);
  b.add({kMlp + "down_proj"}, 80, 500, "hessian", 2);
  b.write(file);
  OneRule rule;
  rule.to = "g8";
  rule.statistics = std::make_shared<const Statistics>(Statistics::open(file));
  rule.statistics_hash = std::string(32, '0');
  return rule;
}

/// The MLP and its rule.
struct Model {
  Scratch scratch;
  fs::path path = scratch / "src";
  OneRule rule = rule_for(scratch / "stats");
  Model() { write_model(path); }
};

/// Where solvers meet: each waits for another one for a while.
struct Meeting {
  std::mutex mutex;
  std::condition_variable changed;
  int solvers = 0, at_once = 0, most = 0, calls = 0, threads = 0;
  bool waits = false, fails = false;

  void enter() {
    std::unique_lock lock(mutex);
    ++calls;
    most = std::max(most, ++at_once);
    changed.notify_all();
    if (waits) changed.wait_for(lock, std::chrono::seconds(20), [this] { return most > 1; });
    --at_once;
    if (fails) throw Error("group: expected a solution, found none");
  }
};

class MeetingQuantizer : public RowQuantizer {
 public:
  MeetingQuantizer(std::unique_ptr<RowQuantizer> own, Meeting& meeting)
      : own_(std::move(own)), meeting_(meeting) {}
  QuantizedRows quantize(const QuantizedGroup& group) override {
    meeting_.enter();
    return own_->quantize(group);
  }
  GroupScale survey(const QuantizedGroup& group) override { return own_->survey(group); }
  void quantize(const QuantizedGroup& group, const GroupScale& scale, size_t matrix, const RowRange& rows,
                std::span<uint8_t> codes, std::span<uint8_t> scales) override {
    own_->quantize(group, scale, matrix, rows, codes, scales);
  }
  void rewrite(const TensorRewrite& tensor, uint64_t begin, std::span<uint8_t> out) override {
    own_->rewrite(tensor, begin, out);
  }

 private:
  std::unique_ptr<RowQuantizer> own_;
  Meeting& meeting_;
};

Checkpoint open_view(const Model& model, Meeting& meeting, int threads, const MemoryLimits& limits = {}) {
  const auto make = [&meeting](const Checkpoint& from, int each) {
    const std::lock_guard lock(meeting.mutex);
    ++meeting.solvers;
    meeting.threads = each;
    return std::make_unique<MeetingQuantizer>(row_encoders()(from, each), meeting);
  };
  return open_quantized(open_source(model.path), model.rule, make, limits, threads).shown;
}

std::vector<uint8_t> read(const Checkpoint& c, const std::string& name) {
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    if (c.tensors()[i].name != name) continue;
    std::vector<uint8_t> bytes(c.tensors()[i].bytes());
    c.read(i, 0, bytes);
    return bytes;
  }
  FAIL("no tensor " << name);
  return {};
}

/// Each on a thread of its own; -> what they throw, or nothing.
std::vector<std::string> read_at_once(const Checkpoint& c, const std::vector<std::string>& names) {
  std::vector<std::string> messages(names.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < names.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        read(c, names[i]);
      } catch (const Error& e) {
        messages[i] = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return messages;
}

const std::vector<std::string> kOfTwoGroups = {kMlp + "gate_proj.weight", kMlp + "down_proj.weight"};

}  // namespace

TEST_CASE("groups for a layout are solved as many at a time as there are threads and memory") {
  const Model model;
  Meeting two, one, small;
  two.waits = true;
  const Checkpoint parallel = open_view(model, two, 3);
  read_at_once(parallel, kOfTwoGroups);
  CHECK(two.most == 2);
  CHECK(two.solvers == 2);
  CHECK(two.threads == 1);

  const Checkpoint serial = open_view(model, one, 1);
  read_at_once(serial, kOfTwoGroups);
  CHECK(one.most == 1);
  CHECK(one.solvers == 1);
  for (const std::string& name : kOfTwoGroups) CHECK(read(parallel, name) == read(serial, name));

  // Where memory has room for one, it has all threads.
  MemoryLimits limits;
  limits.solving_buffers = 1;
  read_at_once(open_view(model, small, 3, limits), kOfTwoGroups);
  CHECK(small.most == 1);
  CHECK(small.threads == 3);
}

TEST_CASE("a group that many ask for is solved once") {
  const Model model;
  Meeting meeting;
  const Checkpoint view = open_view(model, meeting, 4);
  const std::string gate = kMlp + "gate_proj.weight";
  read_at_once(view, {gate, gate, kMlp + "up_proj.weight", gate});
  CHECK(meeting.calls == 1);
}

TEST_CASE("a group that cannot be solved is said to all who ask, and others go on") {
  const Model model;
  Meeting meeting;
  meeting.fails = true;
  const Checkpoint view = open_view(model, meeting, 1);
  const std::string gate = kMlp + "gate_proj.weight";
  for (const std::string& message : read_at_once(view, {gate, gate, gate}))
    CHECK(message == "group: expected a solution, found none");
  meeting.fails = false;
  CHECK(message_of([&] { read(view, kMlp + "down_proj.weight"); }).empty());
  CHECK(message_of([&] { read(view, gate); }).empty());
}

}  // namespace solved_layout_test
