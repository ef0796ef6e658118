#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "formats/e4m3.h"
#include "tests/support/faults/planted.h"
#include "tests/support/faults/spoil.h"

// Faults that no other table has, by the rule that repair mends.

namespace mended_rules_test {

using namespace twofour;
using namespace twofour::spoil;
namespace fs = std::filesystem;

using FileChange = std::function<void(const fs::path&)>;

/// A fault of a rule.
struct MendedCase {
  const char* rule;
  Base base;
  const char* what;
  Change change = {};
  FileChange change_files = {};
  std::string unlike = {};
  Change of_both = {};  ///< of the original, too
};

inline void write_file(const fs::path& path, const std::string& text) {
  fs::remove(path);
  std::ofstream(path, std::ios::binary) << text;
}

/// Changes the second weight file.
inline FileChange of_shard(std::function<void(const fs::path&)> change) {
  return [=](const fs::path& d) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(d)) {
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    }
    std::ranges::sort(files);
    change(files.at(1));
  };
}
inline FileChange text_for_shard(const std::string& text) {
  return of_shard([=](const fs::path& file) { write_file(file, text); });
}

/// Gives the head the codes of a linear, over and over.
inline void quantize_head(Save& s, std::mt19937&) {
  const std::string from = "model.layers.0.mlp.experts.0.up_proj";
  const int64_t rows = s.at("lm_head.weight").shape[0];
  s.erase("lm_head.weight");
  for (const char* part : {".weight", ".weight_scale", ".weight_scale_2", ".input_scale"}) {
    TensorData t = s.at(from + part);
    t.name = std::string("lm_head") + part;
    if (t.shape.size() == 2) {
      const size_t row = row_bytes(t);
      std::vector<uint8_t> bytes(row * static_cast<size_t>(rows));
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = t.bytes[i % t.bytes.size()];
      t.bytes = bytes;
      t.shape[0] = rows;
    }
    s.add(t);
  }
  ignore_no_more("lm_head")(s, *std::make_unique<std::mt19937>());
}

/// The same weights with twice the global scale and half the block scales.
inline void double_global(Save& s, std::mt19937& random) {
  const std::string up = "model.layers.1.mlp.up_proj.";
  map_floats(up + "weight_scale_2", [](float x) { return 2 * x; })(s, random);
  for (uint8_t& byte : s.at(up + "weight_scale").bytes) byte = e4m3_from_float(e4m3_to_float(byte) / 2);
}

inline void copy_to_other_file(Save& s, std::mt19937&) {
  const TensorData copy = s.at("model.norm.weight");
  for (auto& [file, tensors] : s.shards) {
    const bool has_it =
        std::any_of(tensors.begin(), tensors.end(), [&](auto& t) { return t.name == copy.name; });
    if (!has_it) return tensors.push_back(copy);
  }
}

inline std::vector<MendedCase> mended_cases() {
  using enum Base;
  const std::string up = "model.layers.1.mlp.up_proj.", gate = "model.layers.1.mlp.gate_proj.";
  return {
      {"duplicate-tensor", kMoe, "a norm in two files", copy_to_other_file},
      {"leftover-file", kMoe, "a copy of a file", {}, of_shard([](const fs::path& file) {
         fs::copy_file(file, file.parent_path() / "old.safetensors");
       })},
      {"not-downloaded",
       kMoe,
       "a Git LFS pointer",
       {},
       text_for_shard("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")},
      {"not-downloaded", kUnknown, "nothing in a file", {}, text_for_shard("")},
      {"not-downloaded", kLlama, "a page", {}, text_for_shard("<!DOCTYPE html><html>404</html>")},
      {"file-size", kMoe, "the first half of a file", {}, of_shard([](const fs::path& file) {
         fs::resize_file(file, fs::file_size(file) / 2);
       })},
      {"file-size", kUnknown, "a file without its last byte", {}, of_shard([](const fs::path& file) {
         fs::resize_file(file, fs::file_size(file) - 1);
       })},
      {"bad-header", kMoe, "a header that ends early", {}, of_shard([](const fs::path& file) {
         fs::resize_file(file, 100);
       })},
      {"name-prefix", kLlama, "a compiled module's names", spoil::rename("", "_orig_mod.")},
      {"quantized-head", kMoe, "in NVFP4", quantize_head},
      {"bad-tokenizer", kLlama, "no model",
       [](Save& s, auto&) { s.edit("tokenizer.json", [](Json& j) { j.erase("model"); }); }},
      {"tokenizer-size", kMoe, "words that the embedding lacks",
       [](Save& s, auto&) {
         s.edit("tokenizer.json", [](Json& j) {
           for (int i = 0; i < 5000; ++i) j["model"]["vocab"][fmt::format("word{}", i)] = 100000 + i;
         });
       }},
      {"missing-sidecar",
       kLlama,
       "code that the config names",
       [](Save& s, auto&) { s.files.erase("modeling_mine.py"); },
       {},
       {},
       [](Save& s, auto&) {
         s.files["modeling_mine.py"] = "class Model: pass\n";
         s.edit("config.json", [](Json& j) { j["auto_map"] = {{"AutoModel", "modeling_mine.Model"}}; });
       }},
      {"unequal-global-scales",
       kLlama,
       "of the same weights",
       double_global,
       {},
       gate + "weight_scale\n" + gate + "weight_scale_2\n" + up + "weight_scale\n" + up + "weight_scale_2\n"},
      {"mxfp4-nan-scale", kGptOss, "one of a stack",
       [](Save& s, auto&) { s.at("model.layers.1.mlp.experts.down_proj_scales").bytes[7] = 0xFF; }},
  };
}

}  // namespace mended_rules_test
