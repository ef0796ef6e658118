#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>

#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "kernels/device/device.h"
#include "lib/base/findings/and_more.h"
#include "lib/base/findings/suggest.h"
#include "lib/base/io/file_states.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/run/runtime/artifact.h"
#include "lib/run/runtime/tokens.h"
#include "lib/write/output/destination.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"
#include "tools/cli/option_values.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

struct RunArguments {
  std::string artifact, layer, input, output;
  bool check = false;  ///< compare the layer with the hashes of twofour.json
  std::optional<int64_t> random, topk;
  uint64_t seed = 0;
  LayerOptions layer_options;
  std::optional<float> limit;
};

/// The tokens of a run, and the source of their routing.
struct RoutedTokens {
  ActivationFile tokens;
  const char* routing;  ///< "given", "router" or "random"
};

std::string names_of(const RuntimeArtifact& artifact) {
  constexpr size_t kShown = 8;
  std::vector<std::string> names;
  for (const LayerInfo& layer : artifact.layers()) names.push_back(layer.name);
  const size_t all = names.size();
  names.resize(std::min(all, kShown));
  return fmt::format("{}{}", fmt::join(names, ", "), and_more(all, " and {} more", kShown));
}

size_t find_layer(const RuntimeArtifact& artifact, const std::string& name) {
  const std::vector<size_t> found = artifact.find(name);
  if (found.size() == 1) return found[0];
  std::vector<std::string> names;
  for (const LayerInfo& layer : artifact.layers()) names.push_back(layer.name);
  if (found.empty()) {
    throw Error(fmt::format("--layer {}: expected one of {}, found none of that name{}", name,
                            names_of(artifact), did_you_mean(name, names)));
  }
  std::vector<std::string> meant;
  for (const size_t layer : found) meant.push_back(names[layer]);
  throw Error(fmt::format("--layer {}: expected one layer, found {}", name, fmt::join(meant, ", ")));
}

/// Throws Error if the output would replace the input, or a file that is not the output of a run.
void check_output(const RunArguments& o) {
  check_output_file(o.output, "output of run", is_output_file);
  std::error_code ignored;
  if (!o.input.empty() && fs::equivalent(o.output, o.input, ignored))
    throw Error(fmt::format("{}: expected an output other than the input, found the same file", o.output));
}

RoutedTokens tokens_of(const RunArguments& o, const RuntimeArtifact& artifact, size_t layer) {
  const LayerInfo& info = artifact.layers()[layer];
  if (o.topk.value_or(0) > info.e) {
    throw Error(
        fmt::format("--top-k: expected at most the {} experts of {}, found {}", info.e, info.name, *o.topk));
  }
  const int64_t stated = o.topk ? *o.topk : artifact.experts_per_token(layer);
  if (o.random) {
    // Random tokens need no config. Each goes to two experts if no number is stated.
    const int64_t topk = stated > 0 ? stated : std::min<int64_t>(2, info.e);
    Tokens drawn = draw_tokens(*o.random, info.h, info.e, topk, o.seed);
    return {{cuda::Float::f32, *o.random, topk, std::move(drawn.hidden), std::move(drawn.ids),
             std::move(drawn.weights)},
            "random"};
  }
  ActivationFile tokens = read_activation_file(o.input, info);
  if (tokens.topk > 0) {
    if (o.topk && *o.topk != tokens.topk)
      throw Error(fmt::format("--top-k: expected the {} of topk_ids, found {}", tokens.topk, *o.topk));
    return {std::move(tokens), "given"};
  }
  if (stated == 0) {
    throw Error(
        fmt::format("{}: expected num_experts_per_tok in config.json, found none; give --top-k", o.artifact));
  }
  ExpertChoice chosen = artifact.route(layer, tokens.hidden, tokens.m, stated);
  tokens.topk = stated;
  tokens.ids = std::move(chosen.ids);
  tokens.weights = std::move(chosen.weights);
  return {std::move(tokens), "router"};
}

/// Handles SIGBUS, which reading a truncated mapped file raises. It can print a message, but not clean up.
void on_bus_error(int) {
  constexpr std::string_view kMessage =
      "twofour: a file of the artifact was cut while its weights were read\n";
  if (::write(STDERR_FILENO, kMessage.data(), kMessage.size()) < 0) ::_exit(kTrouble);
  ::_exit(kTrouble);
}

std::string time_text(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.1f} us", 1e6 * seconds) : fmt::format("{:.2f} ms", 1e3 * seconds);
}

int run_layer(const RunArguments& o, const Common& common) {
  const Device device = choose_device(common);
  check_output(o);
  const FileStates states({o.artifact});
  const RuntimeArtifact artifact = RuntimeArtifact::open(o.artifact);
  const size_t index = find_layer(artifact, o.layer);
  artifact.check_layer(index);
  if (o.check) {
    Progress progress;
    check_tensor_hashes(o.artifact, artifact.layers()[index].name + ".", progress);
  }
  const RoutedTokens routed = tokens_of(o, artifact, index);
  const ActivationFile& tokens = routed.tokens;
  if (device == Device::cpu) std::signal(SIGBUS, on_bus_error);
  LayerOptions options = o.layer_options;
  options.limit = o.limit ? *o.limit : artifact.swiglu_limit();
  const RuntimeLayer layer = artifact.load(index, device, options);
  const LayerInfo& info = layer.info();
  const MoeInput input{.m = tokens.m,
                       .h = info.h,
                       .topk = tokens.topk,
                       .hidden = tokens.hidden,
                       .topk_ids = tokens.ids,
                       .topk_weights = tokens.weights,
                       .expert_map = o.layer_options.expert_map,
                       .weight_on_input = o.layer_options.weight_on_input,
                       .limit = static_cast<double>(options.limit)};
  const LayerRun result = layer.run(input, tokens.type, true);
  states.check_unchanged();
  write_output_file(o.output, result.out, info.h, tokens.type);
  const Findings findings = find_not_finite(o.output, result.out, info.h, tokens.type);
  print_findings(common, findings);
  const std::string type(dtype_name(cuda::dtype_of(tokens.type)));
  if (common.json) {
    print_json({{"layer", info.name},
                {"layout", info.layout},
                {"experts", info.e},
                {"hidden_size", info.h},
                {"intermediate_size", info.i},
                {"gated", info.gated},
                {"weight_bytes", info.bytes},
                {"device", device_name(device)},
                {"device_text", device_text(common, device)},
                {"device_bytes", layer.device_bytes()},
                {"run_bytes", layer.run_bytes(tokens.m, tokens.topk)},
                {"tokens", tokens.m},
                {"top_k", tokens.topk},
                {"routing", routed.routing},
                {"limit", options.limit},
                {"seconds", result.seconds},
                {"output", o.output},
                {"dtype", type},
                {"findings", findings_to_json(findings)}});
  } else if (!common.quiet) {
    print_stdout("{}: {}, {}, H {}, I {}{}, {} of weights\n", info.name, info.layout,
                 counted(static_cast<uint64_t>(info.e), "expert"), info.h, info.i,
                 info.gated ? "" : ", no gate", format_bytes(info.bytes));
    print_stdout("{}, {} each ({}), on {}: {}\n", counted(static_cast<uint64_t>(tokens.m), "token"),
                 counted(static_cast<uint64_t>(tokens.topk), "expert"), routed.routing,
                 device_text(common, device), time_text(result.seconds));
    print_stdout("{}: output {} [{}, {}]\n", o.output, type, tokens.m, info.h);
  }
  return kDone;
}

}  // namespace

std::function<int()> setup_run(Arguments& args, const Common& common) {
  auto o = std::make_shared<RunArguments>();
  args.option("DST", o->artifact, "Artifact in " + layout_names()).required().as_checkpoint();
  args.option("--layer", o->layer, "Prefix of the layer's tensors, or its number")
      .required()
      .value_name("NAME");
  args.option("--input", o->input,
              "Safetensors file with hidden [M, H] and, unless the layer's router chooses, topk_ids I32 and "
              "topk_weights F32 [M, T]")
      .value_name("FILE");
  args.option("--random", o->random, "Run this many random tokens through random experts").range(1, 1 << 20);
  args.exactly_one_of({"--input", "--random"});
  add_seed_option(args, o->seed, "Seed of the random tokens");
  args.option("-o,--output", o->output, "Safetensors file to write: output [M, H], in the type of hidden")
      .required()
      .value_name("FILE");
  args.option("--top-k", o->topk, "Experts per token")
      .range(1, 1 << 20)
      .default_text("num_experts_per_tok of config.json");
  check_finite_not_negative(args.option("--limit", o->limit, "Clamp gate and up at N; 0 does not clamp")
                                .default_text("swiglu_limit of config.json"));
  args.flag("--check", o->check, "First compare the layer's tensors with the hashes in twofour.json");
  args.flag("--router-weight-on-input", o->layer_options.weight_on_input,
            "Multiply hidden by the router's weight instead of the result");
  return [o, &common] { return run_layer(*o, common); };
}

}  // namespace twofour
