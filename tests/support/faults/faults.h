#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "formats/json.h"
#include "tests/support/checkpoint_builder.h"

namespace twofour {

/// A checkpoint held in memory, to be spoiled and written again.
struct Save {
  std::map<std::string, Tensors> shards;     ///< by file
  std::map<std::string, std::string> files;  ///< the rest but the index, which follows from the shards

  TensorData& at(const std::string& name);
  void erase(const std::string& name);
  /// Erases every tensor whose name begins so.
  void erase_below(const std::string& prefix);
  void add(const TensorData& tensor);
  /// Changes a JSON file.
  void edit(const std::string& file, const std::function<void(Json&)>& change);
  /// Changes the lists of unquantized modules, in both config files.
  void edit_ignored(const std::function<void(Json&)>& change);
};

Save load_save(const std::filesystem::path& directory);
void write_save(const Save& save, const std::filesystem::path& directory);

/// One way to spoil a sound checkpoint, and the rule that must find it.
struct Fault {
  const char* rule;
  const char* what;
  /// Before it is written; may be empty.
  std::function<void(Save&, std::mt19937&)> spoil;
  /// Afterwards, in the directory; may be empty.
  std::function<void(const std::filesystem::path&, std::mt19937&)> spoil_files = {};
};

/// A sound checkpoint: `synth`'s tiny model in ModelOpt's dialect, in several files, of which the last holds
/// a vector alone (kExtraFile, kExtraTensor).
Save sound_checkpoint();
inline constexpr const char* kExtraFile = "model-extra.safetensors";
inline constexpr const char* kExtraTensor = "model.rotary_emb.inv_freq";

/// Faults of files, headers and the index.
std::vector<Fault> file_faults();
/// Faults of names, configs and bytes. Those of artifacts need a conversion: see lint_artifact_test.cpp.
std::vector<Fault> content_faults();
/// Faults of config.json against the tensors of its family.
std::vector<Fault> model_faults();

}  // namespace twofour
