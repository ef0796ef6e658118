#include <doctest/doctest.h>

#include <algorithm>

#include "lib/base/io/file.h"
#include "lib/base/names/pattern.h"
#include "lib/jobs/convert/conversion.h"
#include "lib/jobs/convert/convert.h"
#include "lib/jobs/convert/resume.h"
#include "lib/prove/validate/proof.h"
#include "lib/recipe/artifact/layout_names.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/write/plan/method.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

/// A transformation that no room of the project knows: planned, executed, resumed and validated from this
/// file alone.

namespace made_up_transformation_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPiece = 100;  // bytes of a unit

/// Writes a tensor with every bit turned over, and a second one with the sum of its bytes.
class Inverted : public Transformation {
 public:
  explicit Inverted(size_t tensor) : tensor_(tensor) { set_rule("made up"); }

  std::string name(const Checkpoint& source) const override { return source.tensors()[tensor_].name; }
  std::vector<TensorInfo> outputs(const Checkpoint& source) const override {
    TensorInfo bits = source.tensors()[tensor_];
    bits.name += ".inverted";
    return {bits, {name(source) + ".sum", DType::kI64, {1}, 0, sizeof(uint64_t)}};
  }
  std::vector<size_t> sources() const override { return {tensor_}; }
  std::vector<Unit> units(const Checkpoint& source) const override {
    const uint64_t bytes = source.tensors()[tensor_].bytes();
    std::vector<Unit> all;
    for (uint64_t at = 0; at < bytes; at += kPiece) {
      const uint64_t end = std::min(bytes, at + kPiece);
      all.push_back({.index = at / kPiece, .part = 0, .begin = at, .end = end, .read = end - at});
    }
    all.push_back({.part = 1, .begin = 0, .end = sizeof(uint64_t), .read = bytes});
    return all;
  }
  std::string decision(int) const override { return "invert"; }
  std::string origin(const Checkpoint& source, int) const override { return source.where(tensor_); }

  std::unique_ptr<Work> begin() const override {
    struct Inverting : Work {
      explicit Inverting(size_t from) : tensor(from) {}
      void run(const Unit& unit, Worker& worker, Sink& sink) override {
        if (unit.part == 1) {
          const uint64_t sum = sum_of(worker.source, tensor);
          sink.write(1, 0, {reinterpret_cast<const uint8_t*>(&sum), sizeof(sum)});
          return;
        }
        const auto bytes = worker.buffer(unit.end - unit.begin);
        worker.source.read(tensor, unit.begin, bytes);
        sink.add_read(bytes.size());
        for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(~byte);
        sink.write(0, unit.begin, bytes);
        ones += static_cast<uint64_t>(
            std::count_if(bytes.begin(), bytes.end(), [](uint8_t b) { return b >= 0x80; }));
      }
      Json result(Sink&) override { return {{"high", ones.load()}}; }
      size_t tensor;
      std::atomic<uint64_t> ones{0};
    };
    return std::make_unique<Inverting>(tensor_);
  }

  Json prove(Proof& proof) const override {
    std::vector<uint8_t> bytes(proof.info(0).bytes());
    proof.source.read(tensor_, 0, bytes);
    uint64_t sum = 0, high = 0;
    for (uint8_t& byte : bytes) {
      sum += byte;
      byte ^= 0xFF;
      high += byte >> 7;
    }
    proof.hold(0, 0, bytes);
    proof.hold(1, 0, {reinterpret_cast<const uint8_t*>(&sum), sizeof(sum)});
    proof.finish();
    return {{"high", high}};
  }
  Json empty_result() const override { return {{"high", 0}}; }
  void check_result(const Json& result) const override { whole_number<uint64_t>(result.at("high")); }
  Json entries(const Checkpoint& source, const Json& result,
               const std::vector<Json>& tensors) const override {
    Json parts = Json::array();
    for (const Json& t : tensors) parts.push_back(t);
    return Json::array({Json{{"name", name(source)},
                             {"layout", "inverted"},
                             {"shape", {1, 1, 1}},
                             {"gated", false},
                             {"high", result.at("high")},
                             {"tensors", std::move(parts)}}});
  }
  std::string content(const Json&, std::span<const Hash128> outputs) const override {
    return outputs[0].hex();
  }

 private:
  static uint64_t sum_of(const Checkpoint& source, size_t tensor) {
    std::vector<uint8_t> bytes(source.tensors()[tensor].bytes());
    source.read(tensor, 0, bytes);
    uint64_t sum = 0;
    for (const uint8_t byte : bytes) sum += byte;
    return sum;
  }
  size_t tensor_;
};

class Invert : public Method {
 public:
  void plan(Rule& rule, Planner& planner) const override {
    for (size_t i = 0; i < planner.source.tensors().size(); ++i) {
      if (any_matches(rule.selection.include, planner.source.tensors()[i].name)) {
        planner.add(std::make_unique<Inverted>(i));
      }
    }
    planner.config.keep();
  }
};

/// Adds the row to the table of methods for a test.
struct WithInvert {
  WithInvert() {
    methods().push_back(
        {"inverted", 0, [](Rule&) -> std::unique_ptr<Method> { return std::make_unique<Invert>(); }});
    other_method_names().push_back("inverted");
  }
  ~WithInvert() {
    methods().pop_back();
    other_method_names().pop_back();
  }
};

OneRule inverted() {
  OneRule rule;
  rule.to = "inverted";
  rule.selection.include = parse_patterns({"*.bias"});
  rule.max_shard_size = 700;
  return rule;
}

void write_source(const fs::path& directory) {
  Tensors tensors;
  for (int i = 0; i < 4; ++i) {
    const std::string layer = "layers." + std::to_string(i);
    add_bf16(tensors, layer + ".bias", {int64_t{151} + i}, static_cast<unsigned>(i));
    add_bf16(tensors, layer + ".weight", {64}, static_cast<unsigned>(i));
  }
  write_checkpoint(directory, {tensors}, "{}");
}

}  // namespace

TEST_CASE("a made-up transformation is planned, executed and validated") {
  const WithInvert row;
  const Scratch scratch;
  write_source(scratch / "src");
  const ConvertResult result = convert(scratch / "src", scratch / "out", inverted());
  CHECK(result.bytes_verified > 0);
  const ReadTensors from = read_tensors(scratch / "src"), to = read_tensors(scratch / "out");
  CHECK(to.size() == 4 * 3);
  std::vector<uint8_t> expected = from.at("layers.2.bias").bytes;
  for (uint8_t& byte : expected) byte = static_cast<uint8_t>(~byte);
  CHECK((to.at("layers.2.bias.inverted").bytes == expected));
  CHECK((to.at("layers.2.weight").bytes == from.at("layers.2.weight").bytes));
  CHECK(validate(scratch / "out").differences.empty());
  CHECK(validate_from(scratch / "src", scratch / "out").differences.empty());
  CHECK_THROWS_AS(make_plan(open_source(scratch / "src"), OneRule{{.to = "inverted", .pattern = "2:4"}}),
                  Error);
}

TEST_CASE("a made-up transformation that wrote a wrong byte is found, and so is a wrong result") {
  const WithInvert row;
  const Scratch scratch;
  write_source(scratch / "src");
  convert(scratch / "src", scratch / "out", inverted());
  const Checkpoint c = Checkpoint::open(scratch / "out");
  const size_t tensor = *c.find("layers.1.bias.inverted");
  flip_bit(scratch / "out" / c.shard_of(tensor).name,
           c.shard_of(tensor).data_begin + c.tensors()[tensor].begin + 7, 2);
  const ValidateReport report = validate_from(scratch / "src", scratch / "out");
  const bool is_found =
      std::any_of(report.differences.begin(), report.differences.end(),
                  [](const Finding& f) { return f.id == "bytes" && f.where == "layers.1.bias.inverted"; });
  CHECK(is_found);
}

TEST_CASE("a made-up transformation goes on after every file that a run finished") {
  const WithInvert row;
  const Scratch scratch;
  write_source(scratch / "src");
  convert(scratch / "src", scratch / "whole", inverted());
  const Checkpoint source = open_source(scratch / "src");
  const Plan plan = make_plan(source, inverted());
  REQUIRE(plan.files.size() > 3);
  for (size_t finished = 0; finished < plan.files.size(); ++finished) {
    CAPTURE(finished);
    const fs::path out = scratch / "out";
    {
      OutputDirectory directory(out, scratch / "src", Existing::kRefuse);
      Progress progress;
      begin_or_resume(directory, source, plan, nullptr, progress);
      std::vector<bool> wanted(plan.files.size());
      std::fill_n(wanted.begin(), finished, true);
      Conversion conversion(source, plan, {}, out, progress, wanted,
                            [&](ShardRecord&& r) { directory.note(format_shard_record(plan, r)); });
      conversion.run();
      directory.keep();
    }
    ConvertOptions options;
    options.existing = Existing::kResume;
    CHECK(convert(scratch / "src", out, inverted(), options).files_kept == finished);
    CHECK((read_tree(out) == read_tree(scratch / "whole")));
    fs::remove_all(out);
  }
}

}  // namespace made_up_transformation_test
