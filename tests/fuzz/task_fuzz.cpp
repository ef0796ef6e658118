#include <algorithm>

#include "lib/jobs/tasks/task_plan.h"
#include "lib/synth/synth.h"
#include "lib/write/output/shard_record.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

using namespace twofour;

namespace {

/// The reference for records and plans.
struct Conversion {
  Conversion() {
    SynthOptions options;
    options.layers = 1;
    options.experts = 2;
    options.vocab = 16;
    Progress progress;
    synth(scratch / "source", options, progress);
    source.emplace(Checkpoint::open(scratch / "source"));
    OneRule recipe;
    recipe.max_shard_size = 10'000;
    plan = make_plan(*source, recipe);
    tasks = make_task_plan(*source, plan, "/artifact");
  }
  Scratch scratch;
  std::optional<Checkpoint> source;
  Plan plan;
  TaskFile tasks;
};

}  // namespace

void twofour::fuzz_task(const uint8_t* data, size_t size) {
  static const Conversion conversion;
  const std::string_view text = text_of(data, size);
  const size_t end = std::min(text.find('\0'), text.size());
  expect_error_at_most([&] {
    // Sealed again, so that what is read behind the seal is tried, too.
    const std::string_view whole = text.substr(0, end), open = whole.substr(0, whole.rfind("\n}"));
    const std::string before = std::string(open) + ",\n ";
    const TaskFile plan = parse_task_plan("plan.json", before + plan_seal(before));
    const std::string again = format_task_plan(plan);
    promise(format_task_plan(parse_task_plan("plan.json", again)) == again);
    check_same_plan("plan.json", plan, conversion.tasks);
    promise(plan.outputs == conversion.tasks.outputs);
  });
  expect_error_at_most([&] {
    const ShardRecord record =
        parse_shard_record("record", conversion.plan, text.substr(std::min(end + 1, text.size())));
    promise(record.file < conversion.plan.files.size());
    promise(record.outputs.size() == conversion.plan.files[record.file].tensor_count);
    promise(parse_shard_record("record", conversion.plan, format_shard_record(conversion.plan, record)) ==
            record);
  });
}
