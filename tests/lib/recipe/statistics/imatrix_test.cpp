#include "lib/recipe/statistics/imatrix.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstring>
#include <filesystem>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/recipe/statistics/statistics.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/float_weights.h"

namespace imatrix_test {

using namespace twofour;

namespace {

/// GGUF, version 3, as tools/imatrix writes it.
struct Gguf {
  struct Tensor {
    std::string name;
    std::vector<uint64_t> extents;
    std::vector<float> numbers;
    uint32_t type = 0;
    uint64_t shift = 0;  ///< of the offset that the file says
  };
  std::string kind = "imatrix";
  std::vector<Tensor> tensors;

  template <class T>
  static void put(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static void put_text(std::string& to, const std::string& text) {
    put<uint64_t>(to, text.size());
    to += text;
  }
  std::string bytes() const {
    std::string out = "GGUF";
    put<uint32_t>(out, 3);
    put<uint64_t>(out, tensors.size());
    put<uint64_t>(out, 4);
    put_text(out, "general.type");
    put<uint32_t>(out, 8);
    put_text(out, kind);
    put_text(out, "imatrix.datasets");
    put<uint32_t>(out, 9);
    put<uint32_t>(out, 8);
    put<uint64_t>(out, 2);
    put_text(out, "wiki");
    put_text(out, "code");
    for (const char* key : {"imatrix.chunk_count", "imatrix.chunk_size"}) {
      put_text(out, key);
      put<uint32_t>(out, 4);
      put<uint32_t>(out, 512);
    }
    std::string data;
    for (const Tensor& t : tensors) {
      put_text(out, t.name);
      put<uint32_t>(out, static_cast<uint32_t>(t.extents.size()));
      for (const uint64_t extent : t.extents) put(out, extent);
      put<uint32_t>(out, t.type);
      put<uint64_t>(out, data.size() + t.shift);
      for (const float x : t.numbers) put(data, x);
      data.resize((data.size() + 31) / 32 * 32);
    }
    out.resize((out.size() + 31) / 32 * 32);
    return out + data;
  }
  void add(const std::string& name, uint64_t k, const std::vector<float>& sums,
           const std::vector<float>& counts) {
    const uint64_t experts = counts.size();
    tensors.push_back({name + ".in_sum2",
                       experts == 1 ? std::vector<uint64_t>{k} : std::vector<uint64_t>{k, experts}, sums});
    tensors.push_back({name + ".counts", {1, experts}, counts});
  }
};

std::vector<float> ramp(size_t count, float first) {
  std::vector<float> numbers;
  for (size_t i = 0; i < count; ++i) numbers.push_back(first + static_cast<float>(i));
  return numbers;
}

void write_model(const std::filesystem::path& folder) {
  Tensors t;
  add_floats(t, "model.layers.0.self_attn.q_proj", random_floats(32, 16, 1));
  add_floats(t, "model.layers.0.mlp.gate", random_floats(2, 16, 2));
  for (int e = 0; e < 2; ++e) {
    for (const char* leaf : {"gate_proj", "up_proj"})
      add_floats(t, fmt::format("model.layers.0.mlp.experts.{}.{}", e, leaf), random_floats(32, 16, 3));
    add_floats(t, fmt::format("model.layers.0.mlp.experts.{}.down_proj", e), random_floats(16, 32, 4));
  }
  add_bf16(t, "model.norm.weight", {16}, 5);
  write_checkpoint(folder, {t});
}

Gguf matrix() {
  Gguf g;
  g.add("blk.0.attn_q.weight", 16, ramp(16, 1), {7});
  g.add("blk.0.ffn_gate_exps.weight", 16, ramp(32, 100), {5, 0});
  g.add("blk.0.ffn_down_exps.weight", 32, ramp(64, 200), {5, 4});
  g.add("blk.0.ffn_gate_inp.weight", 16, ramp(16, 0), {7});
  return g;
}

}  // namespace

TEST_CASE("an importance matrix of llama.cpp becomes diagonals, expert by expert") {
  const Scratch scratch;
  write_model(scratch / "model");
  write_text(scratch / "i.gguf", matrix().bytes());
  const Checkpoint model = Checkpoint::open(scratch / "model");
  const ImportedMatrix found = import_imatrix(scratch / "i.gguf", model, scratch / "stats");
  CHECK(found.entries == 5);
  CHECK(found.empty == 1);
  CHECK(found.unknown == 1);
  const Statistics s = Statistics::open(scratch / "stats");
  CHECK(s.metadata("weights").empty());
  CHECK(s.entries().size() == 5);
  const auto mean = [&](const std::string& name) {
    return s.read_diagonal(*s.find("model.layers.0." + name));
  };
  CHECK(mean("self_attn.q_proj")[3] == 4.0f / 7);
  CHECK(mean("mlp.experts.0.gate_proj")[0] == 20);
  CHECK(mean("mlp.experts.0.down_proj")[31] == 231.0f / 5);
  CHECK(mean("mlp.experts.1.down_proj")[0] == 58);
  CHECK(s.find("model.layers.0.mlp.experts.1.gate_proj")->count == 0);
  CHECK(s.find("model.layers.0.mlp.experts.0.up_proj") == nullptr);
}

TEST_CASE("other files, damaged ones and matrices of other models are refused, and leave nothing") {
  const Scratch scratch;
  write_model(scratch / "model");
  const Checkpoint model = Checkpoint::open(scratch / "model");
  const auto refused = [&](const std::string& bytes) {
    write_text(scratch / "i.gguf", bytes);
    const std::string message =
        message_of([&] { import_imatrix(scratch / "i.gguf", model, scratch / "stats"); });
    CHECK(!std::filesystem::exists(scratch / "stats"));
    return message;
  };
  contains(refused("{}"), "expected more than 2 bytes");
  contains(refused("GGML" + std::string(60, '\0')), "expected a GGUF file");
  Gguf g = matrix();
  g.kind = "model";
  contains(refused(g.bytes()), "general.type: expected imatrix");
  g = matrix();
  g.tensors[0].numbers[2] = -1;
  contains(refused(g.bytes()), "expected sums of squares, found -1 at input 2");
  g = matrix();
  g.tensors[1].numbers[0] = 0.5f;
  contains(refused(g.bytes()), "expected a count of tokens, found 0.5");
  g = matrix();
  g.tensors[0].extents = {8};
  g.tensors[0].numbers.resize(8);
  contains(refused(g.bytes()), "expected 16 inputs for each of the experts");
  g = matrix();
  g.tensors.erase(g.tensors.begin() + 1);
  contains(refused(g.bytes()), "blk.0.attn_q.weight.counts: expected it beside .in_sum2");
  g = matrix();
  g.tensors[0].type = 1;
  contains(refused(g.bytes()), "expected F32, found type 1");
  // Sums of another tensor, as a wrong offset would have it: ggml leaves neither gaps nor overlaps.
  for (const size_t tensor : {0, 2}) {
    CAPTURE(tensor);
    for (const uint64_t shift : {4, 32}) {
      g = matrix();
      g.tensors[tensor].shift = shift;
      contains(refused(g.bytes()), fmt::format("in_sum2: expected its data at {}", tensor == 0 ? 0 : 96));
    }
  }
  Gguf others;
  others.add("blk.9.attn_q.weight", 16, ramp(16, 1), {7});
  contains(refused(others.bytes()), "expected tensors of linears of");
  // Cut short anywhere.
  const std::string whole = matrix().bytes();
  for (size_t bytes = 0; bytes + 28 < whole.size(); bytes += bytes < 700 ? 1 : 37) {
    CAPTURE(bytes);
    // Of the last tensor, of no linear, nothing is read; its extents are.
    CHECK(refused(whole.substr(0, bytes)) != "");
  }
}

}  // namespace imatrix_test
