#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <limits>

#include "formats/error.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/message.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"

namespace refusal_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kBlock = "model.layers.0.mlp.experts";

Tensors sound() {
  Tensors tensors;
  add_experts(tensors, kBlock, random_experts(3, 16, 32));
  add_bf16(tensors, "model.norm.weight", {32});
  return tensors;
}

TensorData& tensor_of(Tensors& tensors, const std::string& name) {
  for (TensorData& t : tensors) {
    if (t.name == name) return t;
  }
  throw Error("no tensor " + name);
}

void set_float(TensorData& tensor, float value) { std::memcpy(tensor.bytes.data(), &value, sizeof(value)); }

/// The refusal to convert `tensors`, by one worker and by several. Nothing may be left behind.
std::string refusal(const Tensors& tensors, const std::optional<std::string>& config = std::nullopt,
                    const OneRule& recipe = {}) {
  std::string message;
  for (const int jobs : {1, 4}) {
    const Scratch scratch;
    write_checkpoint(scratch / "src", {tensors}, config);
    ConvertOptions options;
    options.jobs = jobs;
    message = message_of([&] { convert(scratch / "src", scratch / "out", recipe, options); });
    CHECK_MESSAGE(!message.empty(), "not refused");
    CHECK(!fs::exists(scratch / "out"));
  }
  return message;
}

/// Refusal of the sound checkpoint after a change, which must say all of `parts`.
void refuses(const std::function<void(Tensors&)>& change, const std::vector<std::string>& parts,
             const std::string& config = "{}", const OneRule& recipe = {}) {
  Tensors tensors = sound();
  change(tensors);
  const std::string message = refusal(tensors, config, recipe);
  for (const std::string& part : parts) CHECK(contains(message, part));
}

}  // namespace

TEST_CASE("block scales that are NaN or negative are refused with tensor, row and block") {
  for (const int byte : {0x7F, 0x80, 0xC1, 0xFF}) {
    CAPTURE(byte);
    refuses(
        [&](Tensors& t) {
          tensor_of(t, kBlock + ".1.up_proj.weight_scale").bytes[2 * 15 + 1] = static_cast<uint8_t>(byte);
        },
        {fmt::format("model.safetensors: {}.1.up_proj.weight_scale: expected block scales that are not "
                     "negative and not NaN, found byte 0x{:02X} at row 15, block 1",
                     kBlock, byte)});
  }
}

TEST_CASE("block scales that are NaN or negative are refused in what passes through, too") {
  Tensors tensors = sound();
  const std::string name = "model.layers.0.self_attn.o_proj";
  add_modelopt(tensors, name, random_matrix(16, 64, 7));
  tensor_of(tensors, name + ".weight_scale").bytes[13] = 0x80;
  CHECK(contains(refusal(tensors),
                 name + ".weight_scale: expected block scales that are not negative and not NaN, "
                        "found byte 0x80 at 13"));
}

TEST_CASE("bad block scales of a tensor that is copied in pieces are reported once, by the first") {
  Tensors tensors = sound();
  const std::string name = "model.layers.0.self_attn.o_proj";
  add_modelopt(tensors, name, random_matrix(16, 64, 7));
  const auto resize = [&](const std::string& tensor, int64_t rows, int64_t columns) {
    TensorData& t = tensor_of(tensors, tensor);
    t.shape = {rows, columns};
    t.bytes.assign(static_cast<size_t>(rows * columns), 0x10);
  };
  resize(name + ".weight", 8256, 8192);
  resize(name + ".weight_scale", 8256, 1024);  // three pieces of up to 4 MiB
  auto& scales = tensor_of(tensors, name + ".weight_scale").bytes;
  scales[17] = 0x7F;
  scales[5'000'000] = scales.back() = 0x80;
  const std::string message = refusal(tensors);
  CHECK(contains(message, "found byte 0x7F at 17"));
  CHECK(message.find("0x80") == std::string::npos);
}

TEST_CASE("all tensors with bad block scales are listed at once, each with its first") {
  const std::vector<std::string> bad = {"0.gate_proj", "0.down_proj", "1.up_proj", "2.down_proj",
                                        "2.gate_proj"};
  Tensors tensors = sound();
  for (const std::string& m : bad) {
    auto& bytes = tensor_of(tensors, fmt::format("{}.{}.weight_scale", kBlock, m)).bytes;
    bytes[3] = 0x7F;
    bytes[9] = 0x80;
  }
  const std::string message = refusal(tensors);
  for (const std::string& m : bad) {
    CHECK(contains(message, fmt::format("{}.{}.weight_scale: expected", kBlock, m)));
  }
  CHECK(std::count(message.begin(), message.end(), '\n') == 4);
  CHECK(message.find("0x80") == std::string::npos);
}

TEST_CASE("bad block scales of a stack are placed by expert, row and block, whichever dimension K is") {
  for (const bool k_outer : {false, true}) {
    CAPTURE(k_outer);
    std::vector<Nvfp4Matrix> gate_up, down;
    for (unsigned e = 0; e < 3; ++e) {
      gate_up.push_back(random_matrix(64, 48, e));
      down.push_back(random_matrix(48, 32, 10 + e));
    }
    gate_up[0].scales[0] = 0x7F;
    gate_up[2].scales[3 * 61 + 2] = 0x80;  // up, in the second half
    Tensors tensors;
    add_stack(tensors, kBlock + ".gate_up_proj", gate_up, k_outer, {3});
    add_stack(tensors, kBlock + ".down_proj", down, k_outer, {3});
    const std::string message = refusal(tensors);
    CHECK(contains(message, "found byte 0x7F at expert 0, row 0, block 0"));
    CHECK(contains(message, "found byte 0x80 at expert 2, row 61, block 2"));
  }
}

TEST_CASE("a bad block scale is refused in experts cut along K, too") {
  Tensors tensors;
  ExpertSet experts = random_experts(2, 16, 2064);
  experts.up[1].scales[129 * 5 + 100] = 0x7F;
  add_experts(tensors, kBlock, experts);
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors});
  MemoryLimits limits;
  limits.piece = 1;
  CHECK_THROWS_WITH_AS(convert(scratch / "src", scratch / "out", {}, {}, limits),
                       doctest::Contains("found byte 0x7F at row 5, block 100"), Error);
  CHECK(!fs::exists(scratch / "out"));
}

TEST_CASE("global scales that are NaN, infinite, zero or negative are refused, all at once") {
  using Limits = std::numeric_limits<float>;
  for (const auto& [value, text] : {std::pair{Limits::quiet_NaN(), "nan"},
                                    {Limits::infinity(), "inf"},
                                    {-Limits::infinity(), "-inf"},
                                    {0.0f, "0"},
                                    {-0.0f, "-0"},
                                    {-0.5f, "-0.5"}}) {
    refuses(
        [&, v = value](Tensors& t) {
          set_float(tensor_of(t, kBlock + ".0.gate_proj.weight_scale_2"), v);
          set_float(tensor_of(t, kBlock + ".2.down_proj.weight_scale_2"), v);
        },
        {fmt::format("{}.0.gate_proj.weight_scale_2: expected a positive finite global scale, found {}",
                     kBlock, text),
         kBlock + ".2.down_proj.weight_scale_2: expected"});
  }
}

TEST_CASE("global scales that are no number are refused in what passes through, too") {
  using Limits = std::numeric_limits<float>;
  Tensors tensors = sound();
  const std::string name = "model.layers.0.self_attn.o_proj";
  add_modelopt(tensors, name, random_matrix(16, 64, 7));
  OneRule prune;
  prune.to = "prune";
  prune.pattern = "2:4";
  for (const auto& [value, text] :
       {std::pair{0.0f, "0"}, {Limits::infinity(), "inf"}, {Limits::quiet_NaN(), "nan"}, {-1.0f, "-1"}}) {
    set_float(tensor_of(tensors, name + ".weight_scale_2"), value);
    for (const OneRule& recipe : {OneRule{}, prune}) {
      const std::string message = refusal(tensors, "{}", recipe);
      CHECK(contains(
          message,
          fmt::format("{}.weight_scale_2: expected a positive finite global scale, found {}", name, text)));
    }
  }
}

TEST_CASE("a compressed-tensors global scale whose reciprocal is no number is refused") {
  for (const float stored : {0.0f, -1.0f, 1e-40f, std::numeric_limits<float>::infinity()}) {
    CAPTURE(stored);
    Tensors tensors;
    const ExpertSet experts = random_experts(1, 16, 16);
    add_compressed_tensors(tensors, kBlock + ".0.gate_proj", experts.gate[0]);
    add_compressed_tensors(tensors, kBlock + ".0.up_proj", experts.up[0]);
    add_compressed_tensors(tensors, kBlock + ".0.down_proj", experts.down[0]);
    set_float(tensor_of(tensors, kBlock + ".0.up_proj.weight_global_scale"), stored);
    CHECK(
        contains(refusal(tensors), "0.up_proj.weight_global_scale: expected a positive finite global scale"));
  }
}

TEST_CASE("input scales that are NaN, infinite or negative are refused where they pass through") {
  using Limits = std::numeric_limits<float>;
  OneRule g8, prune;
  g8.to = "g8";
  prune.to = "prune";
  prune.pattern = "2:4";
  for (const auto& [value, text] : {std::pair{Limits::quiet_NaN(), "nan"},
                                    {Limits::infinity(), "inf"},
                                    {-Limits::infinity(), "-inf"},
                                    {-0.5f, "-0.5"}}) {
    for (const OneRule& recipe : {OneRule{}, g8, prune}) {
      refuses(
          [&, v = value](Tensors& t) {
            t.push_back({kBlock + ".1.up_proj.input_scale", DType::kF32, {}, std::vector<uint8_t>(4)});
            set_float(t.back(), v);
          },
          {fmt::format("{}.1.up_proj.input_scale: expected a positive finite input scale, found {}", kBlock,
                       text)},
          "{}", recipe);
    }
  }
}

TEST_CASE("an expert that lacks a projection is refused, with what it has") {
  const auto drop = [](const std::string& module) {
    return [module](Tensors& t) {
      std::erase_if(t, [&](const TensorData& d) { return d.name.starts_with(kBlock + "." + module); });
    };
  };
  refuses(drop("1.gate_proj"), {kBlock + ".1: expected gate, up and down as NVFP4, found up down"});
  refuses(drop("1.up_proj"), {kBlock + ".1: expected gate, up and down as NVFP4, found gate down"});
  refuses(drop("2.down_proj"), {kBlock + ".2: expected gate, up and down as NVFP4, found gate up"});
}

TEST_CASE("a gate that is there but not NVFP4 is refused, never left out") {
  refuses(
      [](Tensors& t) {
        for (const int e : {0, 1, 2}) {
          const std::string gate = fmt::format("{}.{}.gate_proj", kBlock, e);
          std::erase_if(t, [&](const TensorData& d) { return d.name.starts_with(gate); });
          add_bf16(t, gate + ".weight", {16, 32});
        }
      },
      {kBlock + ".0: expected gate, up and down as NVFP4, found up down"});
}

TEST_CASE("experts missing from the sequence are refused") {
  refuses([](Tensors& t) { std::erase_if(t, [](auto& d) { return d.name.starts_with(kBlock + ".1."); }); },
          {kBlock + ": expected experts 0 to 2, found 1 missing, the first 1"});
  refuses([](Tensors& t) { std::erase_if(t, [](auto& d) { return d.name.starts_with(kBlock + ".0."); }); },
          {kBlock + ": expected experts 0 to 2, found 1 missing, the first 0"});
}

TEST_CASE("fewer experts than config.json promises are refused") {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    refuses([](Tensors&) {}, {kBlock + ": expected 4 NVFP4 experts (config.json), found 3"},
            fmt::format(R"({{"{}": 4}})", key));
    refuses([](Tensors&) {}, {kBlock + ": expected 4 NVFP4 experts (config.json), found 3"},
            fmt::format(R"({{"text_config": {{"{}": 4}}}})", key));
  }
}

TEST_CASE("experts whose shapes disagree are refused") {
  const auto replace = [](const std::string& module, int64_t n, int64_t k) {
    return [=](Tensors& t) {
      std::erase_if(t, [&](const TensorData& d) { return d.name.starts_with(kBlock + "." + module); });
      add_modelopt(t, kBlock + "." + module, random_matrix(n, k, 9));
    };
  };
  refuses(replace("1.up_proj", 16, 48),
          {kBlock + ".1.up_proj: expected weights of [16, 32], found [16, 48]"});
  refuses(replace("1.gate_proj", 32, 32),
          {kBlock + ".1.gate_proj: expected weights of [16, 32], found [32, 32]"});
  refuses(replace("2.down_proj", 16, 32),
          {kBlock + ".2.down_proj: expected weights of [32, 16], found [16, 32]"});
}

TEST_CASE("stacks that do not fit each other are refused") {
  Tensors tensors;
  add_stack(tensors, kBlock + ".gate_up_proj", {random_matrix(32, 48, 1), random_matrix(32, 48, 2)}, true,
            {2});
  Tensors alone = tensors;
  CHECK(contains(refusal(alone), kBlock + ": expected stacks of down_proj as NVFP4, found none"));
  add_stack(tensors, kBlock + ".down_proj", {random_matrix(48, 32, 3), random_matrix(48, 32, 4)}, true, {2});
  CHECK(
      contains(refusal(tensors), kBlock + ".down_proj: expected 2 experts of [48, 16], found 2 of [48, 32]"));
}

TEST_CASE("strict folding refuses every expert whose gate and up differ") {
  OneRule strict;
  strict.fold = Fold::kStrict;
  refuses(
      [](Tensors& t) {
        set_float(tensor_of(t, kBlock + ".0.gate_proj.weight_scale_2"), 0.5f);
        set_float(tensor_of(t, kBlock + ".2.up_proj.weight_scale_2"), 0.125f);
      },
      {kBlock +
           ".w13: expert 0: expected equal global scales of gate and up (--fold strict), found 0.5 and 0.25",
       kBlock + ".w13: expert 2: expected equal global scales of gate and up (--fold strict), found 0.25 and "
                "0.125"},
      "{}", strict);
}

TEST_CASE("a pattern that matches nothing is refused, whichever list it is in") {
  const auto with = [](const char* list) {
    OneRule recipe;
    auto& patterns = std::string(list) == "--include"   ? recipe.selection.include
                     : std::string(list) == "--exclude" ? recipe.selection.exclude
                                                        : recipe.selection.also;
    patterns = parse_patterns({kBlock, "model.layers.7.*"});
    return recipe;
  };
  for (const char* list : {"--include", "--exclude", "--also"}) {
    refuses([](Tensors&) {},
            {fmt::format("{} 'model.layers.7.*': expected to match experts or an MLP as a whole "
                         "(model.layers.0.mlp.experts), found none",
                         list)},
            "{}", with(list));
  }
}

TEST_CASE("a checkpoint with nothing to convert is refused") {
  Tensors plain;
  add_bf16(plain, "model.norm.weight", {32});
  CHECK(contains(refusal(plain),
                 "expected NVFP4 modules, or experts or MLPs to quantize, found none among 1 tensor;"));
  add_modelopt(plain, "model.layers.0.self_attn.o_proj", random_matrix(16, 16, 1));
  CHECK(contains(refusal(plain), "expected NVFP4 experts or MLPs to convert, found none in 1 NVFP4 module"));
}

TEST_CASE("experts without gate are refused by the layout that interleaves gate and up, and by no other") {
  Tensors tensors;
  ExpertSet experts = random_experts(2, 16, 32);
  experts.gate.clear();
  add_experts(tensors, "backbone.layers.1.mixer.experts", experts);
  OneRule recipe;
  recipe.to = "g8";
  CHECK(contains(refusal(tensors, "{}", recipe),
                 "backbone.layers.1.mixer.experts.w13: expected gate and up, because g8 pairs their rows, "
                 "found only up"));
  for (const char* layout : {"v7", "v7-packed"}) {
    const Scratch scratch;
    write_checkpoint(scratch / "src", {tensors});
    recipe.to = layout;
    convert(scratch / "src", scratch / "out", recipe);
    CHECK(validate_from(scratch / "src", scratch / "out").differences.empty());
  }
}

TEST_CASE("an unknown layout is refused") {
  OneRule recipe;
  recipe.to = "v9";
  CHECK(
      contains(refusal(sound(), "{}", recipe),
               "--to: expected one of v7, v7-packed, g8, nvfp4, fp8, mxfp8, mxfp6, mxfp4, bf16, keep, prune, "
               "quantize, found 'v9'"));
}

TEST_CASE("a tensor that has the name of a converted one is refused") {
  refuses([](Tensors& t) { add_bf16(t, kBlock + ".w13_comp", {4}); },
          {kBlock + ".w13_comp: expected no tensor of this name, which the converted weights need"});
}

TEST_CASE("a shard cut after it was opened is an error that names it, never a crash") {
  for (const uint64_t keep : {uint64_t{0}, uint64_t{100}, uint64_t{4000}}) {
    for (const bool planned : {false, true}) {
      for (const int jobs : {1, 3}) {
        CAPTURE(keep);
        CAPTURE(planned);
        const Scratch scratch;
        write_checkpoint(scratch / "src", {sound()});
        const Checkpoint source = Checkpoint::open(scratch / "src");
        REQUIRE(fs::file_size(scratch / "src/model.safetensors") > 4000);
        Progress progress;
        ConvertOptions options;
        options.jobs = jobs;
        const auto run = [&] {
          if (!planned) fs::resize_file(scratch / "src/model.safetensors", keep);
          const Plan plan = make_plan(source, {});
          if (planned) fs::resize_file(scratch / "src/model.safetensors", keep);
          convert(source, plan, scratch / "out", options, progress);
        };
        CHECK_THROWS_WITH_AS(run(), doctest::Contains("model.safetensors: expected"), Error);
        CHECK(!fs::exists(scratch / "out"));
      }
    }
  }
}

}  // namespace refusal_test
