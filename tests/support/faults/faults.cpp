#include "tests/support/faults/faults.h"

#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <stdexcept>

#include "formats/safetensors.h"
#include "lib/base/io/file.h"
#include "lib/synth/synth.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;
using Random = std::mt19937;

constexpr const char* kIndex = "model.safetensors.index.json";

void write_file(const fs::path& path, const std::string& text) {
  fs::remove(path);
  std::ofstream(path, std::ios::binary) << text;
}

void edit_file_json(const fs::path& path, const std::function<void(Json&)>& change) {
  Json json = parse_json(path.string(), read_text(path));
  change(json);
  write_file(path, format_json(json));
}

/// The extra file with another header; the data are eight bytes.
std::string extra_file(const std::string& metadata, int begin) {
  return safetensors_file(fmt::format(R"({{{}"{}":{{"dtype":"BF16","shape":[4],"data_offsets":[{},{}]}}}})",
                                      metadata, kExtraTensor, begin, begin + 8),
                          std::string(static_cast<size_t>(begin + 8), '\1'));
}

std::string any_entry(const Json& map, Random& random) {
  auto it = map.begin();
  std::advance(it, static_cast<long>(random() % map.size()));
  return it.key();
}

}  // namespace

std::vector<Fault> file_faults() {
  const auto extra = [](const fs::path& d) { return d / kExtraFile; };
  const auto rewrite_extra = [=](const std::string& text) {
    return [=](const fs::path& d, Random&) { write_file(extra(d), text); };
  };
  return {
      {"unfinished-output",
       "marker",
       {},
       [](const fs::path& d, Random&) { write_file(d / ".twofour-unfinished", ""); }},
      {"unreadable-file",
       "link to nowhere",
       {},
       [=](const fs::path& d, Random&) {
         fs::remove(extra(d));
         fs::create_symlink("nowhere", extra(d));
       }},
      {"unreadable-file",
       "a directory in place of a vocabulary",
       {},
       [](const fs::path& d, Random&) { fs::create_directory(d / "added_tokens.json"); }},
      {"dangling-link",
       "a tokenizer's link to nowhere",
       {},
       [](const fs::path& d, Random&) { fs::create_symlink("nowhere", d / "special_tokens_map.json"); }},
      {"link-outside",
       "a link to a secret beside the weights",
       {},
       [](const fs::path& d, Random&) {
         const fs::path secret = d.parent_path() / (d.filename().string() + "-token");
         write_file(secret, "hf_secret");
         fs::create_symlink(secret, d / "notes.txt");
       }},
      {"link-outside",
       "a relative link to a folder of somebody else",
       {},
       [](const fs::path& d, Random&) {
         const fs::path folder = d.parent_path() / (d.filename().string() + "-home");
         fs::create_directory(folder);
         write_file(folder / "id_rsa", "secret");
         fs::create_directory_symlink("../" + folder.filename().string(), d / "assets");
       }},
      {"duplicate-key",
       "a tensor twice in a header",
       {},
       rewrite_extra(
           safetensors_file(fmt::format(R"({{"{0}":{{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}},)"
                                        R"("{0}":{{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}}}})",
                                        kExtraTensor),
                            "12345678"))},
      {"duplicate-key",
       "a tensor twice in the index",
       {},
       [](const fs::path& d, Random&) {
         std::string text = read_text(d / kIndex);
         text.insert(text.find('{', text.find("weight_map")) + 1,
                     fmt::format("\"{}\": \"{}\", ", kExtraTensor, kExtraFile));
         write_file(d / kIndex, text);
       }},
      {"duplicate-key",
       "a setting twice",
       {},
       [](const fs::path& d, Random&) {
         std::string text = read_text(d / "config.json");
         write_file(d / "config.json", text.insert(text.find('{') + 1, "\"model_type\": \"other\","));
       }},
      {"bad-header",
       "not JSON",
       {},
       [=](const fs::path& d, Random& r) {
         std::string text = read_text(extra(d));
         text[8 + r() % 20] = '\x01';
         write_file(extra(d), text);
       }},
      {"bad-header",
       "shorter than its header",
       {},
       [=](const fs::path& d, Random& r) { fs::resize_file(extra(d), 1 + r() % 39); }},
      {"not-downloaded",
       "Git LFS pointers in place of all weights but one",
       {},
       [=](const fs::path& d, Random&) {
         for (const auto& file : fs::directory_iterator(d)) {
           const std::string name = file.path().filename().string();
           if (!name.ends_with(".safetensors") || name == kExtraFile) continue;
           write_file(file.path(), "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n");
         }
       }},
      {"file-size",
       "too short",
       {},
       [=](const fs::path& d, Random& r) {
         fs::resize_file(extra(d), fs::file_size(extra(d)) - 1 - r() % 7);
       }},
      {"file-size",
       "too long",
       {},
       [=](const fs::path& d, Random& r) {
         fs::resize_file(extra(d), fs::file_size(extra(d)) + 1 + r() % 99);
       }},
      {"data-holes", "hole", {}, rewrite_extra(extra_file("", 8))},
      {"data-holes",
       "offsets that fit no shape",
       {},
       rewrite_extra(safetensors_file(
           fmt::format(R"({{"{}":{{"dtype":"BF16","shape":[3],"data_offsets":[0,8]}}}})", kExtraTensor),
           "12345678"))},
      {"no-format", "no format", {}, rewrite_extra(extra_file(R"("__metadata__":{"made":"somehow"},)", 0))},
      {"duplicate-tensor", "twice",
       [](Save& s, Random&) {
         TensorData twin = s.at(kExtraTensor);
         twin.name = "model.norm.weight";
         twin.bytes.assign(128, 1);
         twin.shape = {64};
         s.shards[kExtraFile].push_back(twin);
       }},
      {"leftover-file",
       "another save",
       {},
       [](const fs::path& d, Random&) {
         write_file(d / "model-00001-of-00099.safetensors", extra_file("", 0));
       }},
      {"missing-shard", "deleted", {}, [=](const fs::path& d, Random&) { fs::remove(extra(d)); }},
      {"bad-index", "no map", {}, [](const fs::path& d, Random&) { write_file(d / kIndex, "{}"); }},
      {"bad-index",
       "behind a byte order mark",
       {},
       [](const fs::path& d, Random&) { write_file(d / kIndex, "\xEF\xBB\xBF" + read_text(d / kIndex)); }},
      {"bad-index",
       "leaves the directory",
       {},
       [](const fs::path& d, Random&) {
         edit_file_json(d / kIndex, [](Json& j) { j["weight_map"]["x"] = "../x.safetensors"; });
       }},
      {"no-index", "deleted", {}, [](const fs::path& d, Random&) { fs::remove(d / kIndex); }},
      {"index-stale-tensor",
       "of another save",
       {},
       [](const fs::path& d, Random&) {
         edit_file_json(d / kIndex, [](Json& j) { j["weight_map"]["model.gone.weight"] = kExtraFile; });
       }},
      {"index-wrong-file",
       "another",
       {},
       [](const fs::path& d, Random& r) {
         edit_file_json(d / kIndex, [&](Json& j) {
           Json& map = j["weight_map"];
           std::string name;
           do name = any_entry(map, r);
           while (map[name] == kExtraFile);
           map[name] = kExtraFile;
         });
       }},
      {"index-incomplete",
       "dropped",
       {},
       [](const fs::path& d, Random& r) {
         edit_file_json(d / kIndex, [&](Json& j) {
           std::string name;
           do name = any_entry(j["weight_map"], r);
           while (name == kExtraTensor);
           j["weight_map"].erase(name);
         });
       }},
      {"index-total-size",
       "zero",
       {},
       [](const fs::path& d, Random&) {
         edit_file_json(d / kIndex, [](Json& j) { j["metadata"]["total_size"] = 0; });
       }},
      {"index-total-size",
       "of another type",
       {},
       [](const fs::path& d, Random& r) {
         const Json odd[] = {"12", -1, 0.5, 1e300, true, nullptr, Json::array({1}), Json::object({{"a", 1}})};
         edit_file_json(d / kIndex,
                        [&](Json& j) { j["metadata"]["total_size"] = odd[r() % std::size(odd)]; });
       }},
  };
}

TensorData& Save::at(const std::string& name) {
  for (auto& [file, tensors] : shards) {
    for (TensorData& t : tensors) {
      if (t.name == name) return t;
    }
  }
  throw std::runtime_error("no tensor " + name);
}

void Save::erase(const std::string& name) {
  at(name);
  for (auto& [file, tensors] : shards)
    std::erase_if(tensors, [&](const TensorData& t) { return t.name == name; });
}

void Save::erase_below(const std::string& prefix) {
  size_t erased = 0;
  for (auto& [file, tensors] : shards) {
    erased += std::erase_if(tensors, [&](const TensorData& t) { return t.name.starts_with(prefix); });
  }
  if (erased == 0) throw std::runtime_error("no tensor below " + prefix);
}

void Save::add(const TensorData& tensor) { shards.begin()->second.push_back(tensor); }

void Save::edit(const std::string& file, const std::function<void(Json&)>& change) {
  Json json = parse_json(file, files.at(file));
  change(json);
  files[file] = format_json(json);
}

void Save::edit_ignored(const std::function<void(Json&)>& change) {
  edit("config.json", [&](Json& j) { change(j["quantization_config"]["ignore"]); });
  edit("hf_quant_config.json", [&](Json& j) { change(j["quantization"]["exclude_modules"]); });
}

Save load_save(const fs::path& directory) {
  Save save;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string(), text = read_text(entry.path());
    if (!name.ends_with(".safetensors")) {
      if (name != kIndex) save.files[name] = text;
      continue;
    }
    uint64_t length = 0;
    std::memcpy(&length, text.data(), sizeof(length));
    const uint64_t data = 8 + length;
    const auto header =
        parse_safetensors_header(name, std::string_view(text).substr(8, length), text.size() - data);
    for (const TensorInfo& t : header.tensors) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(text.data() + data + t.begin);
      save.shards[name].push_back({t.name, t.dtype, t.shape, {bytes, bytes + t.bytes()}});
    }
  }
  return save;
}

void write_save(const Save& save, const fs::path& directory) {
  fs::create_directories(directory);
  Json map = Json::object();
  uint64_t bytes = 0;
  for (const auto& [file, tensors] : save.shards) {
    write_safetensors(directory / file, tensors);
    for (const TensorData& t : tensors) {
      if (map.contains(t.name)) continue;  // a double; the first counts
      map[t.name] = file;
      bytes += t.bytes.size();
    }
  }
  for (const auto& [file, text] : save.files) write_file(directory / file, text);
  write_file(directory / kIndex, format_json({{"metadata", {{"total_size", bytes}}}, {"weight_map", map}}));
}

Save sound_checkpoint() {
  const Scratch scratch;
  SynthOptions options;
  options.max_shard_size = 100'000;
  options.vocab = 64;
  Progress progress;
  synth(scratch / "checkpoint", options, progress);
  Save save = load_save(scratch / "checkpoint");
  save.shards[kExtraFile] = {{kExtraTensor, DType::kBF16, {4}, {0, 0x3F, 0x80, 0x3F, 1, 0x3F, 2, 0x3F}}};
  return save;
}

}  // namespace twofour
