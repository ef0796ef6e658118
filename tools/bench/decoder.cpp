#include "lib/run/decoder/decoder.h"

#include <fmt/format.h>

#include <memory>
#include <random>

#include "kernels/device/device_memory.h"
#include "lib/base/threads/stopwatch.h"
#include "tools/bench/bench.h"
#include "tools/cli/arguments.h"

namespace twofour {
namespace {

struct DecoderArguments {
  std::string model;
  int64_t prompt = 1024, tokens = 128;
  int rounds = 5;
};

/// The speed of a copy on the device in GB/s, counting bytes read plus bytes written.
double copy_speed() {
  constexpr size_t kBytes = size_t{1} << 30;
  const cuda::DeviceStream stream;
  cuda::DeviceMemory from(kBytes), to(kBytes);
  from.fill(0x55);
  std::vector<double> seconds;
  for (int round = 0; round < 12; ++round) {
    const double s =
        cuda::device_seconds(stream, [&] { cuda::copy_device(to.as(), from.as(), kBytes, stream.get()); });
    if (round >= 2) seconds.push_back(s);
  }
  return 2e-9 * static_cast<double>(kBytes) / spread_of(seconds).median;
}

int run_decoder(const DecoderArguments& o, const Common& common) {
  const Device device = choose_device(common);
  Decoder model = Decoder::open(o.model);
  const double copy = device == Device::cuda ? copy_speed() : 0;
  Stopwatch watch;
  if (device == Device::cuda) model.use_cuda();
  std::mt19937 random(1);
  std::vector<int32_t> tokens(static_cast<size_t>(o.prompt));
  for (int32_t& t : tokens)
    t = static_cast<int32_t>(random() % static_cast<uint64_t>(model.shape().vocabulary));
  std::vector<double> prompt, token;
  for (int round = -1; round < o.rounds; ++round) {
    DecoderSequence sequence(model);
    sequence.reserve(o.prompt + o.tokens + 2);
    watch.lap();
    sequence.append(tokens);
    const double appended = watch.lap();
    sequence.choose(2);
    watch.lap();
    sequence.choose(o.tokens);
    const double chosen = watch.lap() / static_cast<double>(o.tokens);
    if (round < 0) continue;
    prompt.push_back(appended);
    token.push_back(chosen);
  }
  const Spread p = spread_of(prompt), t = spread_of(token);
  const double bytes = static_cast<double>(model.device_bytes_of_token());
  const double share = copy > 0 ? bytes * 1e-9 / copy / t.median : 0;
  if (common.json) {
    print_json({{"path", o.model},
                {"device", device_name(device)},
                {"prompt_tokens", o.prompt},
                {"prompt_seconds", spread_to_json(p)},
                {"token_seconds", spread_to_json(t)},
                {"bytes_of_token", bytes},
                {"copy_gb_s", copy},
                {"share_of_copy", share}});
    return kDone;
  }
  fmt::print(
      "{}, {}: prompt of {} tokens {:.2f} ms ({:.2f} to {:.2f}), a token behind it {:.1f} us, {:.0f} tokens "
      "a second\n",
      o.model, device_text(common, device), o.prompt, 1e3 * p.median, 1e3 * p.min, 1e3 * p.max,
      1e6 * t.median, 1 / t.median);
  if (copy > 0)
    fmt::print("  reads {:.1f} MB of weights a token: {:.3f} of the {:.0f} GB/s of a copy\n", bytes * 1e-6,
               share, copy);
  return kDone;
}

}  // namespace

std::function<int()> setup_bench_decoder(Arguments& args, const Common& common) {
  auto o = std::make_shared<DecoderArguments>();
  args.option("MODEL", o->model, "Checkpoint or artifact: a whole model").required();
  args.option("--prompt", o->prompt, "Tokens of the prompt, drawn").range(1, 1 << 24);
  args.option("--tokens", o->tokens, "Tokens chosen behind it").range(1, 1 << 24);
  args.option("--rounds", o->rounds, "Measured rounds, after a warm-up").range(1, 1000);
  return [o, &common] { return run_decoder(*o, common); };
}

}  // namespace twofour
