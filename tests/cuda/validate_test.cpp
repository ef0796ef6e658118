#include "lib/prove/validate/validate.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <random>
#include <type_traits>

#include "formats/error.h"
#include "formats/layouts/layout_ops.h"
#include "formats/layouts/layouts.h"
#include "lib/prove/validate/check_on_device.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/synth/synth.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/device/device.h"
#include "tests/support/one_rule.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/layout_reference.h"

namespace validate_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kBlock = "model.layers.0.mlp.experts";

ValidateOptions on_device(int64_t tokens = 5) {
  ValidateOptions options;
  options.tokens = tokens;
  options.device = Device::cuda;
  return options;
}

ValidateReport alone(const fs::path& artifact, int64_t tokens = 5) {
  Progress progress;
  return validate(artifact, on_device(tokens), progress);
}

ValidateReport from_source(const fs::path& source, const fs::path& artifact, int64_t tokens = 5) {
  Progress progress;
  return validate(artifact, source, on_device(tokens), progress);
}

/// Converts to every layout and validates: no differences, every layer run within its tolerance.
void check_sound(const fs::path& source, size_t layers, bool gated = true) {
  for_each_layout([&]<class L>() {
    if (!gated && L::pairs_gate_and_up) return;
    CAPTURE(std::string(L::name));
    const Scratch scratch;
    OneRule recipe;
    recipe.to = L::name;
    convert(source, scratch / "out", recipe);
    for (const ValidateReport& r : {alone(scratch / "out"), from_source(source, scratch / "out")}) {
      CHECK_MESSAGE(r.differences.empty(), text_of(r.differences));
      REQUIRE(r.device_layers.size() == layers);
      for (const DeviceLayerReport& l : r.device_layers) {
        CHECK(l.layout == L::name);
        CHECK(l.beyond == 0);
        CHECK(l.worst.share > 0);
        CHECK(l.worst.share <= 1);
        CHECK(l.cosine > 0.9999);
        CHECK(l.relative_error > 0);
      }
    }
  });
}

bool finds(const std::function<ValidateReport()>& run) {
  try {
    return !run().differences.empty();
  } catch (const Error&) {
    return true;
  }
}

/// Converts to every layout, then changes one byte of each part in turn: what the device packs differs from
/// it in that byte, and in none before.
void check_finds_wrong_bytes(const Tensors& tensors, bool gated) {
  for_each_layout([&]<class L>() {
    if (!gated && L::pairs_gate_and_up) return;
    CAPTURE(std::string(L::name));
    const Scratch scratch;
    write_checkpoint(scratch / "src", {tensors});
    const fs::path out = scratch / "out";
    OneRule recipe;
    recipe.to = L::name;
    convert(scratch / "src", out, recipe);
    const auto differences = [&] { return from_source(scratch / "src", out, 0).differences; };
    CHECK_MESSAGE(differences().empty(), text_of(differences()));
    const Checkpoint c = Checkpoint::open(out);
    int parts = 0;
    for (size_t t = 0; t < c.tensors().size(); ++t) {
      const TensorInfo& info = c.tensors()[t];
      const bool part = info.name.starts_with(kBlock + ".w") && info.dtype != DType::kF32;
      if (!part || info.name.find("bias") != info.name.npos) continue;
      ++parts;
      CAPTURE(info.name);
      const uint64_t at = c.shard_of(t).data_begin + info.begin + 2 * info.bytes() / 3;
      flip_bit(out / c.shard_of(t).name, at, 3);
      const auto found = findings_of(differences(), "device-bytes");
      REQUIRE(found.size() == 1);
      CHECK(info.name.starts_with(found[0].where));
      CHECK(found[0].message.starts_with("1 bytes differ from what the device packs, the first at expert "));
      flip_bit(out / c.shard_of(t).name, at, 3);
    }
    CHECK(parts == 2 * L::part_count);
  });
}

/// Weights of a matrix with every code and with scales of all sizes.
std::vector<DenseGroup> random_groups(Shape shape) {
  std::mt19937 random(static_cast<unsigned>(shape.n + shape.k));
  std::vector<DenseGroup> groups(static_cast<size_t>(shape.n * shape.groups()));
  for (DenseGroup& group : groups) {
    for (uint8_t& byte : group.codes) byte = static_cast<uint8_t>(random());
    group.scale = static_cast<uint8_t>(random() % 0x7F);
  }
  return groups;
}

}  // namespace

TEST_CASE("layers of every layout run on the device within their tolerance, whatever the source") {
  if (no_gpu()) return;
  for (const char* name : {"modelopt-qwen3", "compressed-tensors-qwen3", "modelopt-mixtral-uneven"}) {
    CAPTURE(name);
    check_sound(fs::path(TWOFOUR_GOLDEN_DIR) / name / "src", 1);
  }
  for (const std::string how : {"modelopt", "not gated", "stack", "stack, interleaved, k outer"}) {
    CAPTURE(how);
    const Scratch scratch;
    write_checkpoint(scratch / "src", {experts_stored_as(how, kBlock, 5, 80, 336)});
    // Interleaved ones have a bias, which neither kernels nor reference apply.
    check_sound(scratch / "src", how.find("interleaved") == how.npos ? 1 : 0, how != "not gated");
  }
}

TEST_CASE("folded experts, dense MLPs and several layers run on the device within their tolerance") {
  if (no_gpu()) return;
  Tensors tensors;
  ExpertSet experts = random_experts(3, 48, 80);
  experts.gate[1].global = 0.3f, experts.up[1].global = 0.7f;
  add_experts(tensors, kBlock, experts);
  add_experts(tensors, "model.layers.1.mlp.experts", random_experts(2, 1104, 2096, 200));
  const Scratch scratch;
  write_checkpoint(scratch / "src", {tensors}, R"({"num_experts_per_tok": 2})");
  check_sound(scratch / "src", 2);

  Tensors dense;
  add_modelopt(dense, "model.layers.0.mlp.gate_proj", random_matrix(112, 80, 1));
  add_modelopt(dense, "model.layers.0.mlp.up_proj", random_matrix(112, 80, 2));
  add_modelopt(dense, "model.layers.0.mlp.down_proj", random_matrix(80, 112, 3));
  write_checkpoint(scratch / "dense", {dense});
  check_sound(scratch / "dense", 1);
}

TEST_CASE("the device finds a wrong byte in each part of experts of odd shapes, however they are stored") {
  if (no_gpu()) return;
  for (const std::string how : {"modelopt", "compressed-tensors", "not gated", "stack", "stack, k outer",
                                "stack, interleaved", "stack, interleaved, k outer"}) {
    CAPTURE(how);
    check_finds_wrong_bytes(experts_stored_as(how, kBlock, 3, 16, 32), how != "not gated");
    check_finds_wrong_bytes(experts_stored_as(how, kBlock, 2, 48, 16), how != "not gated");
    check_finds_wrong_bytes(experts_stored_as(how, kBlock, 2, 80, 336), how != "not gated");
  }
}

TEST_CASE("the device finds a wrong byte where global scales are folded, and takes a fold for what it is") {
  if (no_gpu()) return;
  ExpertSet experts = random_experts(4, 48, 80);
  const float gate[] = {0.5f, 0.3f, 0.4f, 0.7f}, up[] = {0.5f, 0.7f, 0.8f, 0.69f};
  for (size_t e = 0; e < 4; ++e) experts.gate[e].global = gate[e], experts.up[e].global = up[e];
  Tensors tensors;
  add_experts(tensors, kBlock, experts);
  check_finds_wrong_bytes(tensors, true);
}

TEST_CASE("a piece that the device packs is compared byte for byte, whatever its shape") {
  if (no_gpu()) return;
  for_each_layout([&]<class L>() {
    CAPTURE(std::string(L::name));
    // Pieces of giants are cut at 128 rows or 1024 inputs and end anywhere.
    for (const Shape shape : {Shape{1, 16, 16}, Shape{1, 48, 80}, Shape{1, 130, 1040}, Shape{1, 256, 1024},
                              Shape{1, 32, 272, true}, Shape{1, 144, 48, true}}) {
      CAPTURE(shape.n);
      CAPTURE(shape.k);
      const std::vector<DenseGroup> groups = random_groups(shape);
      std::vector<typename L::Atom> atoms;
      for (const DenseGroup& group : groups) {
        if constexpr (std::is_same_v<typename L::Atom, SparseGroup>) {
          atoms.push_back(prune(group));
        } else {
          atoms.push_back(group);
        }
      }
      std::vector<std::vector<uint8_t>> stored(L::part_count);
      std::vector<std::span<const uint8_t>> parts;
      for (int p = 0; p < L::part_count; ++p) {
        std::vector<uint8_t>& bytes = stored[static_cast<size_t>(p)];
        bytes.resize(static_cast<size_t>(L::part(p, shape).bytes()));
        pack_part<L>(p, shape, atoms, bytes);
        parts.push_back(bytes);
      }
      DeviceDerivation device(L::name);
      device.compare(0, shape, groups, parts);
      CHECK(!device.finish());
      // A wrong byte in every part, of the second piece.
      for (std::vector<uint8_t>& bytes : stored) bytes[bytes.size() / 2] ^= 0x10;
      device.compare(3, shape, groups, parts);
      CHECK(device.finish() ==
            fmt::format("{} bytes differ from what the device packs, the first at expert 3", L::part_count));
    }
  });
}

TEST_CASE("without tokens no layer runs") {
  if (no_gpu()) return;
  const fs::path source = fs::path(TWOFOUR_GOLDEN_DIR) / "modelopt-qwen3/src";
  const Scratch scratch;
  convert(source, scratch / "v7");
  const ValidateReport report = from_source(source, scratch / "v7", 0);
  CHECK_MESSAGE(report.differences.empty(), text_of(report.differences));
  CHECK(report.device_layers.empty());
}

TEST_CASE("weights in BF16 are what the device dequantizes, and a flipped bit is not") {
  if (no_gpu()) return;
  OneRule recipe;
  recipe.to = "bf16";
  for (const char* how : {"modelopt", "stack", "stack, interleaved", "stack, k outer"}) {
    CAPTURE(how);
    const Scratch scratch;
    write_checkpoint(scratch / "src", {experts_stored_as(how, kBlock, 3, 80, 112)});
    convert(scratch / "src", scratch / "out", recipe);
    const ValidateReport sound = from_source(scratch / "src", scratch / "out");
    CHECK_MESSAGE(sound.differences.empty(), text_of(sound.differences));
    CHECK(sound.device_layers.empty());
    const bool k_outer = std::string(how) == "stack, k outer";
    CHECK(findings_of(sound.notes, "not-on-device").size() == (k_outer ? 2 : 0));
    if (k_outer) continue;
    const Checkpoint c = Checkpoint::open(scratch / "out");
    for (size_t i = 0; i < c.tensors().size(); ++i) {
      if (c.tensors()[i].name.find("down_proj") == std::string::npos) continue;
      const uint64_t at = c.shard_of(i).data_begin + c.tensors()[i].begin + c.tensors()[i].bytes() / 2 + 3;
      flip_bit(scratch / "out" / c.shard_of(i).name, at, 4);
      const auto found =
          findings_of(from_source(scratch / "src", scratch / "out").differences, "device-bytes");
      REQUIRE(found.size() == 1);
      CHECK(found[0].where == c.tensors()[i].name);
      CHECK(found[0].message ==
            fmt::format("1 bytes differ from what the device dequantizes, the first at {}",
                        c.tensors()[i].bytes() / 2 + 3));
      flip_bit(scratch / "out" / c.shard_of(i).name, at, 4);
    }
  }
}

TEST_CASE("one flipped bit in any part or file is found with --device cuda, with the source and without") {
  if (no_gpu()) return;
  for_each_layout([&]<class L>() {
    CAPTURE(std::string(L::name));
    const Scratch scratch;
    Tensors tensors;
    add_experts(tensors, kBlock, random_experts(2, 16, 32));
    add_bf16(tensors, "model.norm.weight", {32});
    write_checkpoint(scratch / "src", {tensors});
    const fs::path out = scratch / "out";
    OneRule recipe;
    recipe.to = L::name;
    convert(scratch / "src", out, recipe);
    const auto is_found = [&] {
      return finds([&] { return alone(out, 1); }) &&
             finds([&] { return from_source(scratch / "src", out, 1); });
    };
    REQUIRE(!finds([&] { return alone(out, 1); }));
    REQUIRE(!finds([&] { return from_source(scratch / "src", out, 1); }));

    // Every tensor: codes, metadata, scales, padding and global scales.
    for (const auto& [name, tensor] : read_tensors(out)) {
      const Checkpoint c = Checkpoint::open(out);
      const size_t at = *c.find(name);
      const uint64_t begin = c.shard_of(at).data_begin + c.tensors()[at].begin;
      const bool part = name.starts_with(kBlock) && !name.ends_with("global_scale");
      for (const size_t byte : {size_t{0}, tensor.bytes.size() / 3, tensor.bytes.size() - 1}) {
        CAPTURE(name);
        CAPTURE(byte);
        const fs::path file = out / c.shard_of(at).name;
        flip_bit(file, begin + byte, static_cast<int>(byte % 7));
        CHECK(is_found());
        if (part) {
          const auto found = findings_of(from_source(scratch / "src", out, 0).differences, "device-bytes");
          REQUIRE(found.size() == 1);
          CHECK(name.starts_with(found[0].where));
          CHECK(found[0].message.starts_with("1 bytes differ from what the device packs"));
        }
        flip_bit(file, begin + byte, static_cast<int>(byte % 7));
      }
    }
    // Every file: headers, index, config and twofour.json.
    for (const auto& [name, text] : read_tree(out)) {
      for (size_t i = 0; i < text.size(); i += std::max<size_t>(1, text.size() / 23)) {
        CAPTURE(name);
        CAPTURE(i);
        flip_bit(out / name, i, static_cast<int>(i % 8));
        CHECK(is_found());
        flip_bit(out / name, i, static_cast<int>(i % 8));
      }
    }
    CHECK(!finds([&] { return alone(out, 1); }));
    CHECK(!finds([&] { return from_source(scratch / "src", out, 1); }));
  });
}

}  // namespace validate_test
