#include "lib/synth_headers.h"

#include <array>
#include <bit>

#include "lib/io/file.h"
#include "lib/threads/interrupt.h"

namespace twofour {

void write_headers(const std::filesystem::path& directory, const SynthPlan& plan, const SynthModel& model,
                   const Nvfp4Dialect& dialect) {
  std::vector<AtomicFile> files;
  files.reserve(plan.shards().size());
  for (const SynthShard& shard : plan.shards()) {
    files.emplace_back(directory / shard.name);
    files.back().write(0, shard.header);
    // Not resize(), which would reserve the space.
    if (shard.data_bytes > 0) files.back().write(shard.header.size() + shard.data_bytes - 1, {"\0", 1});
  }
  constexpr auto kOne = std::bit_cast<std::array<uint8_t, sizeof(float)>>(1.0f);
  for_each_module(model, [&](std::span<const SynthModule> modules) {
    check_interrupt();
    for (const SynthModule& m : modules) {
      if (!m.is_nvfp4()) continue;
      for (const char* scale : {dialect.global_scale, dialect.input_scale}) {
        const SynthPlace place = plan.find(m.name + scale);
        files[place.shard].write(place.offset, kOne);
      }
    }
  });
  for (AtomicFile& file : files) file.commit();
}

}  // namespace twofour
