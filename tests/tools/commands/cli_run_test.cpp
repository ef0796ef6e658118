#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/half.h"
#include "formats/json.h"
#include "kernels/device/device.h"
#include "lib/run/runtime/tokens.h"
#include "tests/support/device/device_experts.h"
#include "tests/support/models/runtime_layer.h"
#include "tests/support/outcome.h"

namespace cli_run_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const std::string kLayer = ConvertedLayer::kName;

/// Runs a layer on the CPU; `more` behind the usual words.
Outcome run_layer(const ConvertedLayer& made, const std::vector<std::string>& more,
                  const std::string& output) {
  std::vector<std::string> words{"run", made.path().string(), "-o", output, "--device", "cpu"};
  words.insert(words.end(), more.begin(), more.end());
  return run_program(words);
}

/// Nothing but one line on stderr, and no output file.
void check_refused(const Outcome& o, const std::string& output, const std::string& part) {
  check_one_line(o, part);
  CHECK(!fs::exists(output));
}

template <class T>
std::vector<uint8_t> bytes_of(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// hidden, ids and weights as a file brings them.
Tensors tensors_of(const Tokens& tokens) {
  return {{"hidden", DType::kF32, {tokens.m, tokens.h}, bytes_of(tokens.hidden)},
          {"topk_ids", DType::kI32, {tokens.m, tokens.topk}, bytes_of(tokens.ids)},
          {"topk_weights", DType::kF32, {tokens.m, tokens.topk}, bytes_of(tokens.weights)}};
}

}  // namespace

TEST_CASE("run gives the reference's output for given tokens, in the type of hidden") {
  for (const char* layout : {"v7", "v7-packed", "g8"}) {
    CAPTURE(layout);
    const ConvertedLayer made(layout, 5, 32, 48);
    const std::string input = (made.scratch / "x.safetensors").string(),
                      output = (made.scratch / "y.safetensors").string();
    Tokens tokens = draw_tokens(4, 48, 5, 2, 1);
    write_safetensors(input, tensors_of(tokens));
    const Outcome o = run_layer(made, {"--layer", kLayer, "--input", input}, output);
    CHECK_MESSAGE(o.code == 0, o.err);
    CHECK(o.err.empty());
    CHECK(o.out.starts_with(fmt::format("{}: {}, 5 experts, H 48, I 32, ", kLayer, layout)));
    CHECK(o.out.find("4 tokens, 2 experts each (given), on cpu: ") != std::string::npos);
    CHECK(o.out.ends_with(fmt::format("{}: output F32 [4, 48]\n", output)));
    const auto want = moe_reference(tokens.input(), made.w13(), made.w2());
    const ReadTensor got = read_tensors(output).at("output");
    CHECK(got.shape == std::vector<int64_t>{4, 48});
    CHECK(relative_error(got.as<float>(), want) < 2e-6);

    // The same in BF16, with options, over the file that is there.
    std::vector<uint16_t> halves;
    for (float& x : tokens.hidden) {
      halves.push_back(bf16_from_float(x));
      x = bf16_to_float(halves.back());
    }
    Tensors bf16 = tensors_of(tokens);
    bf16[0] = {"hidden", DType::kBF16, {4, 48}, bytes_of(halves)};
    write_safetensors(input, bf16);
    const Outcome again = run_layer(
        made, {"--layer", "3", "--input", input, "--limit", "0.5", "--router-weight-on-input", "-q"}, output);
    CHECK_MESSAGE(again.code == 0, again.err);
    CHECK(again.out.empty());
    MoeInput in = tokens.input();
    in.limit = 0.5, in.weight_on_input = true;
    std::vector<float> values;
    for (const uint16_t x : read_tensors(output).at("output").as<uint16_t>())
      values.push_back(bf16_to_float(x));
    CHECK(relative_error(values, moe_reference(in, made.w13(), made.w2())) < 0x1p-8);
  }
}

TEST_CASE("run --random draws the same tokens for a seed, and --json tells what ran where") {
  const ConvertedLayer made("v7", 6, 16, 32);
  const auto output = [&](int i) { return (made.scratch / fmt::format("y{}", i)).string(); };
  const std::vector<std::string> words{"--layer", "3", "--random", "3", "--top-k", "4", "--json"};
  const Outcome o = run_layer(made, words, output(0));
  CHECK_MESSAGE(o.code == 0, o.err);
  const Json json = parse_json("stdout", o.out);
  CHECK(json["layer"] == kLayer);
  CHECK(json["layout"] == "v7");
  CHECK(json["device"] == "cpu");
  CHECK(json["tokens"] == 3);
  CHECK(json["top_k"] == 4);
  CHECK(json["routing"] == "random");
  CHECK(json["device_bytes"] == 0);
  CHECK(json["weight_bytes"].get<int64_t>() > 0);
  CHECK(json["seconds"].get<double>() > 0);
  auto more = words;
  more.insert(more.end(), {"-j", "2"});
  REQUIRE(run_layer(made, more, output(1)).code == 0);
  more.insert(more.end(), {"--seed", "1"});
  REQUIRE(run_layer(made, more, output(2)).code == 0);
  CHECK(read_text(output(0)) == read_text(output(1)));
  CHECK(read_text(output(0)) != read_text(output(2)));
  const Tokens tokens = draw_tokens(3, 32, 6, 4, 0);
  CHECK(relative_error(read_tensors(output(0)).at("output").as<float>(),
                       moe_reference(tokens.input(), made.w13(), made.w2())) < 2e-6);
}

TEST_CASE("run warns of numbers that are NaN or infinite, with how many and the first") {
  const std::vector<float> output{1, 65519, 65520, -1e9f, NAN, 0};
  const auto warning = [&](cuda::Float type) {
    const Findings found = find_not_finite("y", output, 3, type);
    REQUIRE(found.size() == 1);
    CHECK(found[0].severity == Severity::kWarning);
    return found[0].where + ": " + found[0].message;
  };
  CHECK(warning(cuda::Float::f16) ==
        "y: output[0, 2]: expected finite numbers, found inf, the first of 3 among 6 in F16");
  CHECK(warning(cuda::Float::bf16) ==
        "y: output[1, 1]: expected finite numbers, found nan, the first of 1 among 6 in BF16");
  CHECK(find_not_finite("y", std::span(output).first(3), 3, cuda::Float::f32).empty());

  const ConvertedLayer made("v7", 5, 32, 48);
  const std::string input = (made.scratch / "x.safetensors").string(), y = (made.scratch / "y").string();
  Tokens tokens = draw_tokens(4, 48, 5, 2, 1);
  std::fill_n(tokens.hidden.begin() + 48, 48, INFINITY);
  write_safetensors(input, tensors_of(tokens));
  const Outcome o = run_layer(made, {"--layer", "3", "--input", input}, y);
  CHECK(o.code == 0);
  size_t count = 0;
  for (const float x : read_tensors(y).at("output").as<float>()) count += !std::isfinite(x);
  REQUIRE(count > 0);
  CHECK_MESSAGE(o.err.starts_with(fmt::format("warning: {}: output[1, ", y)), o.err);
  CHECK_MESSAGE(o.err.ends_with(fmt::format(", the first of {} among 192 in F32 [not-finite]\n", count)),
                o.err);
  const Outcome json = run_layer(made, {"--layer", "3", "--input", input, "--json"}, y);
  CHECK(json.err.empty());
  CHECK(parse_json("stdout", json.out)["findings"][0]["rule"] == "not-finite");
}

TEST_CASE("run without ids lets the layer's router choose") {
  const ConvertedLayer made("g8", 5, 16, 32);
  const std::string input = (made.scratch / "x.safetensors").string(), output = (made.scratch / "y").string();
  const Tokens tokens = draw_tokens(3, 32, 5, 2, 1);
  write_safetensors(input, {tensors_of(tokens)[0]});
  const Outcome o = run_layer(made, {"--layer", "3", "--input", input}, output);
  CHECK_MESSAGE(o.code == 0, o.err);
  CHECK(o.out.find("3 tokens, 2 experts each (router), on cpu") != std::string::npos);
}

TEST_CASE("run --check and convert --check refuse an artifact whose bytes are not those of its hashes") {
  const ConvertedLayer made("v7", 5, 32, 48);
  const std::string output = (made.scratch / "y.safetensors").string(), v7 = made.path().string(),
                    back = (made.scratch / "back").string();
  const std::vector<std::string> checked{"--layer", kLayer, "--random", "2", "--check"},
      unchecked{"--layer", kLayer, "--random", "2"};
  CHECK(run_layer(made, checked, output).code == 0);
  const std::vector<std::string> convert{"convert", v7, back, "--to", "nvfp4", "--check", "-q"};
  CHECK(run_program(convert).code == 0);
  fs::remove(output);
  fs::remove_all(back);
  const Checkpoint c = Checkpoint::open(made.path());
  const size_t comp = *c.find(kLayer + ".w2_comp");
  flip_bit(made.path() / c.shard_of(comp).name, c.shard_of(comp).data_begin + c.tensors()[comp].begin, 0);
  check_refused(run_layer(made, checked, output), output, "w2_comp: expected hash ");
  check_refused(run_program(convert), back, "w2_comp: expected hash ");
  CHECK(run_layer(made, unchecked, output).code == 0);
}

TEST_CASE("run refuses layers, tokens and places that it cannot use, in one line") {
  const ConvertedLayer made("v7", 5, 16, 32);
  const std::string input = (made.scratch / "x.safetensors").string(), output = (made.scratch / "y").string();
  const Tokens tokens = draw_tokens(3, 32, 5, 2, 1);
  const auto refuse = [&](Tensors tensors, const std::string& part) {
    write_safetensors(input, tensors);
    check_refused(run_layer(made, {"--layer", "3", "--input", input}, output), output, part);
  };
  const Tensors good = tensors_of(tokens);
  const auto with = [&](size_t i, TensorData tensor) {
    Tensors tensors = good;
    tensors[i] = std::move(tensor);
    return tensors;
  };
  refuse({good[1], good[2]}, "expected a tensor hidden, found none");
  refuse({good[0], good[1]}, "expected topk_ids and topk_weights or neither, found topk_ids alone");
  refuse(with(0, {"hidden", DType::kF32, {6, 16}, good[0].bytes}),
         "expected F32, BF16 or F16 [M, 32], found F32 [6, 16]");
  refuse(with(0, {"hidden", DType::kI32, {3, 32}, good[0].bytes}), "found I32 [3, 32]");
  refuse(with(1, {"topk_ids", DType::kI32, {2, 3}, good[1].bytes}), "expected I32 [3, T], found I32 [2, 3]");
  refuse(with(1, {"topk_ids", DType::kF32, {3, 2}, good[1].bytes}), "expected I32 [3, T], found F32 [3, 2]");
  refuse(with(2, {"topk_weights", DType::kF32, {6}, good[2].bytes}), "expected F32 [3, 2], found F32 [6]");
  Tensors extra = good;
  add_bf16(extra, "topk_weight", {2});
  refuse(extra, "topk_weight: expected no tensors but hidden, topk_ids and topk_weights");
  Tokens bad = tokens;
  bad.ids[4] = 5;
  refuse(tensors_of(bad), "topk_ids[2, 0]: expected an expert from 0 to 4, found 5");

  check_refused(run_layer(made, {"--layer", "model.layers.3.mlp.expert", "--random", "1"}, output), output,
                "did you mean model.layers.3.mlp.experts?");
  check_refused(run_layer(made, {"--layer", "7", "--random", "1"}, output), output,
                "--layer 7: expected one of model.layers.3.mlp.experts, found none of that name");
  check_refused(run_layer(made, {"--layer", "3", "--random", "1", "--top-k", "6"}, output), output,
                "--top-k: expected at most the 5 experts");
  const std::string inside = (made.path() / "y").string();
  check_refused(run_layer(made, {"--layer", "3", "--random", "1"}, inside), inside,
                "outside of the artifact");
  const std::string shard = made.shard().string(), before = read_text(shard);
  CHECK(run_layer(made, {"--layer", "3", "--random", "1"}, shard).code == 2);
  CHECK(read_text(shard) == before);
  CHECK(run_layer(made, {"--layer", "3"}, output).code == 2);
  CHECK(run_layer(made, {"--layer", "3", "--input", input, "--random", "1"}, output).code == 2);
}

TEST_CASE("run writes over an earlier output, and over nothing else") {
  const ConvertedLayer made("v7", 5, 32, 48);
  const std::string output = (made.scratch / "y.safetensors").string();
  const std::vector<std::string> tokens{"--layer", kLayer, "--random", "2"};
  CHECK(run_layer(made, tokens, output).code == 0);
  CHECK(run_layer(made, tokens, output).code == 0);
  write_safetensors(output, tensors_of(draw_tokens(4, 48, 5, 2, 1)));
  const std::string foreign = read_text(output);
  check_one_line(run_layer(made, tokens, output), "expected no file or an earlier output of run");
  CHECK(read_text(output) == foreign);
  fs::create_directory(made.path() / "sub");
  for (const fs::path& inside : {made.path() / "y.safetensors", made.path() / "sub/y.safetensors"}) {
    check_refused(run_layer(made, tokens, inside.string()), inside.string(), "outside of the artifact");
  }
  const fs::path link = made.scratch / "link.safetensors";
  fs::create_symlink("nowhere", link);
  check_one_line(run_layer(made, tokens, link.string()), "found something else");
  check_one_line(run_program({"validate", made.path().string(), "--source", ""}),
                 "--source: expected a value, found an empty one");
}

TEST_CASE("run --device cuda without a device is one line and exit code 2; auto says why it took the CPU") {
  if (cuda_device()) return;
  const ConvertedLayer made("v7", 3, 16, 32);
  const std::string output = (made.scratch / "y").string();
  const std::vector<std::string> words{"run", made.path().string(), "--layer", "3", "--random", "1", "-o",
                                       output};
  auto demanded = words;
  demanded.insert(demanded.end(), {"--device", "cuda"});
  check_refused(run_program(demanded), output,
                fmt::format("--device cuda: expected a CUDA device, found none ({})", no_cuda_reason()));
  const Outcome o = run_program(words);
  CHECK_MESSAGE(o.code == 0, o.err);
  CHECK(o.out.find(fmt::format("on cpu (no CUDA device: {}): ", no_cuda_reason())) != std::string::npos);
}

}  // namespace cli_run_test
