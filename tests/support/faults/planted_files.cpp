#include <algorithm>

#include "lib/base/io/file.h"
#include "tests/support/faults/planted.h"
#include "tests/support/faults/spoil.h"
#include "tests/support/scratch.h"

// Files that are missing, unfinished or of another kind: clauses 5.1 to 5.4. Of these a finding must name the
// cause, and only the cause.

namespace twofour {
namespace {

namespace fs = std::filesystem;
using namespace spoil;
using enum Base;
using Random = std::mt19937;
constexpr Expect kFault = Expect::kFault, kHarmless = Expect::kHarmless;

constexpr const char* kPointer =
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 4976698672\n";
constexpr const char* kPage =
    "<!DOCTYPE html>\n<html><head><title>Access to this repository is restricted</title></head></html>\n";

void replace(const fs::path& file, const std::string& text) {
  fs::remove(file);
  write_text(file, text);
}

/// Weight files in the order of their names.
std::vector<fs::path> shards(const fs::path& directory) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::function<void(const fs::path&, Random&)> rename_shard(std::string suffix) {
  return [=](const fs::path& d, Random&) {
    const fs::path shard = shards(d).at(1);
    fs::resize_file(shard, fs::file_size(shard) / 2);
    fs::rename(shard, shard.string() + suffix);
  };
}

}  // namespace

std::vector<Planted> planted_files() {
  return {
      {"5.1",
       kTiny,
       kFault,
       "one shard",
       "its weights stay uninitialized",
       "model-00002",
       {},
       [](const fs::path& d, Random&) { fs::remove(shards(d).at(1)); }},
      {"5.1",
       kMoe,
       kFault,
       "the last shard",
       "its weights stay uninitialized",
       "model-0",
       {},
       [](const fs::path& d, Random&) { fs::remove(shards(d).back()); }},
      {"5.1",
       kDeepSeek,
       kFault,
       "all shards but one",
       "nearly all weights stay uninitialized",
       "model-0",
       {},
       [](const fs::path& d, Random&) {
         const auto all = shards(d);
         for (size_t i = 1; i < all.size(); ++i) fs::remove(all[i]);
       }},
      {"5.1",
       kLlama,
       kFault,
       "a shard under another number",
       "the index names a file that there is not",
       "model-0",
       {},
       [](const fs::path& d, Random&) {
         const fs::path shard = shards(d).at(1);
         fs::rename(shard, d / "model-2.safetensors");
       }},
      {"5.1", kTiny, kHarmless, "a readme lost", "no loader reads it", "",
       [](Save& s, auto&) { s.files["README.md"] = "# Tiny\n"; },
       [](const fs::path& d, Random&) { fs::remove(d / "README.md"); }},
      {"5.2",
       kLlama,
       kFault,
       "Git LFS pointers for all weights",
       "there are no weights",
       "LFS",
       {},
       [](const fs::path& d, Random&) {
         for (const fs::path& shard : shards(d)) replace(shard, kPointer);
       }},
      {"5.2",
       kMoe,
       kFault,
       "a Git LFS pointer for one shard",
       "its weights are missing",
       "LFS model-00001",
       {},
       [](const fs::path& d, Random&) { replace(shards(d).front(), kPointer); }},
      {"5.2",
       kTiny,
       kFault,
       "a Git LFS pointer for the tokenizer",
       "no text can be read",
       "tokenizer.json LFS",
       {},
       [](const fs::path& d, Random&) { replace(d / "tokenizer.json", kPointer); }},
      {"5.2",
       kMixtral,
       kFault,
       "an HTML page for the config",
       "no engine knows the model",
       "config.json HTML",
       {},
       [](const fs::path& d, Random&) { replace(d / "config.json", kPage); }},
      {"5.2",
       kLlama,
       kFault,
       "an HTML page for the index",
       "no loader finds the shards",
       "index.json HTML",
       {},
       [](const fs::path& d, Random&) { replace(d / "model.safetensors.index.json", kPage); }},
      {"5.2",
       kLlama,
       kFault,
       "an empty shard",
       "its weights are missing",
       "model-00002",
       {},
       [](const fs::path& d, Random&) { fs::resize_file(shards(d).at(1), 0); }},
      {"5.2",
       kLlama,
       kHarmless,
       "a Git LFS pointer for a picture of the model card",
       "no loader reads it",
       "",
       {},
       [](const fs::path& d, Random&) { write_text(d / "figure.png", kPointer); }},
      {"5.2",
       kLlama,
       kHarmless,
       "a link to another file of the checkpoint",
       "who opens it reads that file",
       "",
       {},
       [](const fs::path& d, Random&) { fs::create_symlink("config.json", d / "params.json"); }},
      {"5.3",
       kLlama,
       kFault,
       "of a browser or hub",
       "the shard is half there",
       ".incomplete",
       {},
       rename_shard(".incomplete")},
      {"5.3", kLlama, kFault, "of curl", "the shard is half there", ".part", {}, rename_shard(".part")},
      {"5.3",
       kMoe,
       kFault,
       "of aria2, at full length with holes",
       "holes are read as zeros",
       ".aria2",
       {},
       [](const fs::path& d, Random&) {
         const fs::path shard = shards(d).at(1);
         const auto size = fs::file_size(shard);
         fs::resize_file(shard, size / 2);
         fs::resize_file(shard, size);
         write_text(shard.string() + ".aria2", std::string("\0\1\0\0\0\0\0\0", 8));
       }},
      {"5.3",
       kMixtral,
       kFault,
       "at full length, with zeros in place of what had not arrived",
       "zeros are read as weights",
       "unfinished-download model-00001",
       {},
       [](const fs::path& d, Random&) {
         const auto size = fs::file_size(shards(d).front());
         fs::resize_file(shards(d).front(), size / 3);
         fs::resize_file(shards(d).front(), size);
       }},
      {"5.3",
       kMoe,
       kFault,
       "a shard cut in the middle",
       "its last tensors are missing",
       "model-00002",
       {},
       [](const fs::path& d, Random&) {
         fs::resize_file(shards(d).at(1), fs::file_size(shards(d).at(1)) / 2);
       }},
      {"5.3",
       kTiny,
       kFault,
       "in the hub's cache beside a missing shard",
       "the shard is half there",
       "incomplete",
       {},
       [](const fs::path& d, Random&) {
         fs::remove(shards(d).at(1));
         fs::create_directories(d / ".cache/huggingface/download");
         write_text(d / ".cache/huggingface/download/model-00002.safetensors.4d7a21.incomplete", "half");
       }},
      {"5.3",
       kTiny,
       kHarmless,
       "what a finished download leaves",
       "the hub's cache keeps records of what it fetched",
       "",
       {},
       [](const fs::path& d, Random&) {
         fs::create_directories(d / ".cache/huggingface/download");
         write_text(d / ".cache/huggingface/download/config.json.metadata", "8f1d\n4d7a\n1764000000.0\n");
         write_text(d / ".cache/huggingface/download/config.json.lock", "");
       }},
      {"5.4",
       kMoe,
       kFault,
       "the config of another model",
       "every parameter has another shape",
       "config.json",
       {},
       [](const fs::path& d, Random&) {
         const Scratch other;
         write_planted(base_checkpoint(kLlama), other / "other");
         fs::copy_file(other / "other/config.json", d / "config.json", fs::copy_options::overwrite_existing);
       }},
      {"5.4", kLlama, kFault, "the config of a larger model of the family",
       "every parameter has another shape", "hidden_size | num_hidden_layers | layers-missing",
       all_of({set_key("hidden_size", 4096), set_key("intermediate_size", 14336),
               set_key("num_attention_heads", 32), set_key("num_key_value_heads", 8),
               set_key("head_dim", 128), set_key("num_hidden_layers", 32), set_key("vocab_size", 128256)})},
      {"5.4", kTiny, kFault, "a whole layer lost", "it stays uninitialized", "layers.1 | layers-missing",
       drop_below("model.layers.1.")},
      {"5.4", kMoe, kFault, "all scales lost", "codes have no scales", "weight_scale",
       all_of({drop("model.layers.*.weight_scale"), drop("model.layers.*.weight_scale_2")})},
      {"5.4", kDeepSeek, kFault, "scales cut off by a filter of names", "FP8 numbers have no scales",
       "weight_scale_inv", drop("model.layers.*.weight_scale_inv")},
  };
}

}  // namespace twofour
