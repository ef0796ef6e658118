#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/artifact/recipe.h"
#include "lib/collect/batches.h"
#include "lib/compress/layer_entries.h"
#include "lib/compress/solved_linears.h"
#include "lib/compress/streams.h"
#include "lib/compress/work_folder.h"
#include "lib/io/file_states.h"
#include "lib/threads/progress.h"

namespace twofour {

/// Which model the inputs of a linear are of: the dense one; one whose layers before are compressed, and what
/// it lacks by then goes into the targets; one whose groups of linears before are.
enum class Sequential { kNone, kLayers, kGroups };

/// What a model is compressed by.
struct CompressInput {
  /// Cuts texts into windows of `context` tokens, `most` at the most. Throws Error, which names the file of
  /// the texts, where there is none.
  void cut(const std::vector<std::vector<int32_t>>& texts, int64_t context, int64_t most,
           const std::filesystem::path& file);

  std::vector<std::vector<int32_t>> windows;  ///< of tokens, each a text of its own
  std::string text;                           ///< what they are, for the file
  std::filesystem::path token_weights{};      ///< see TokenWeights; empty: all tokens count 1
  Sequential sequential = Sequential::kNone;
};

/// What collecting takes, known before it begins.
struct CompressNeeds {
  uint64_t peak_memory = 0;  ///< bytes, beside the program itself and mapped files
  uint64_t statistics_bytes = 0;
  uint64_t work_bytes = 0;  ///< of the work folder, the statistics among them
  int64_t tokens = 0;
  size_t entries = 0;
};

/// Statistics for the linears that a recipe chooses by them, collected layer by layer while those before are
/// compressed. Results are kept in a work folder at the end of each layer, for a run that resumes.
class Compression {
 public:
  /// Opens the model and plans the recipe. Throws Error where the model cannot be run or the recipe solves
  /// none of its linears.
  Compression(const std::filesystem::path& model, const Recipe& recipe, CompressInput input,
              const Compute& compute, int jobs);

  const SolvedLinears& linears() const { return *planned_; }
  CompressNeeds needs() const;
  /// XXH3-128, 32 digits, of what decides the statistics beside the recipe: the norm before the head, which
  /// stands for the model, the tokens, their weights and the order of collecting.
  std::string input_hash() const;
  int64_t layers() const { return dense_.shape().layers; }
  /// Runs both models, and adds up their inputs, on the current CUDA device from now on.
  void use_cuda();
  /// Collects into `work`, which is made or, where a run of the same model, tokens and recipe left it, taken
  /// up behind its last whole layer. Ends before layer `end`, a head that the recipe takes being one more
  /// layer. Throws Error where the folder is of another run or damaged, as check_unchanged(), which it asks
  /// before it opens files again and before it keeps a layer, and Interrupted.
  void collect(const std::filesystem::path& work, Progress& progress, int64_t end = INT64_MAX);
  /// Throws Error where a file of the model, or of token weights, is not as it was before the first was
  /// opened.
  void check_unchanged() const { inputs_.check_unchanged(); }
  /// The statistics in a work folder, once they are collected.
  static std::filesystem::path statistics_of(const std::filesystem::path& work);
  /// What a work folder has of the linears that were solved while it was made.
  static std::shared_ptr<const EncodedBefore> encoded(const std::filesystem::path& work);
  /// The number of whole layers in a work folder, the head being one. Nothing if it has no state.
  static std::optional<int64_t> layers_done(const std::filesystem::path& work);
  /// Whether a folder holds nothing but what collect() writes.
  static bool is_work_folder(const std::filesystem::path& work);

 private:
  /// Stages whose linears see the same compressed model.
  using Round = std::vector<LayerStage>;

  /// The linears of a layer by their inputs. The layer behind the last is the head, if that is a linear of
  /// its own.
  const std::vector<InputGroup>& groups_of(int64_t layer) const;
  /// Layers that are collected, the head among them where the recipe takes it.
  int64_t steps() const { return layers() + (entries_.back().empty() ? 0 : 1); }
  void plan_file();
  int64_t expected_count(const LayerEntry& entry, int64_t layer) const;
  std::shared_ptr<const Statistics> planning_statistics() const;
  Json describe_input() const;
  Json find_identity() const;
  std::string hash_statistics(int64_t layer) const;
  uint64_t bytes_of_streams() const;
  std::vector<Round> rounds(int64_t layer) const;
  bool is_sequential() const { return input_.sequential != Sequential::kNone; }
  int models() const { return is_sequential() ? 2 : 1; }
  uint64_t bytes_per_token() const;

  void start(const std::filesystem::path& work);
  void check_left(const WorkState& left, uint64_t statistics_bytes) const;
  /// One more layer is whole.
  void keep_layer();
  void collect_layer(int64_t layer);
  void collect_head();
  void collect_round(int64_t layer, const Round& round);
  /// Both models' inputs of a batch in one half of a layer, and the dense stream behind it.
  void see_half(int64_t layer, LayerHalf half, const Round& round, const TokenBatch& batch,
                std::vector<float>& dense, std::vector<float>& compressed,
                const std::vector<const LayerEntry*>& entries, std::vector<EntrySums>& sums);
  /// Adds a batch to the sums of an entry, its tokens by their weights.
  void add_seen(const TokenBatch& batch, SeenBatch seen, const LayerEntry& entry, EntrySums& sums) const;
  void write_round(int64_t layer, const std::vector<const LayerEntry*>& entries,
                   std::vector<EntrySums>& sums);
  void solve_round(int64_t layer, const Round& round);
  void advance_compressed(int64_t layer, const Round& round);

  std::filesystem::path path_;
  Recipe recipe_;
  CompressInput input_;
  const FileStates inputs_;
  Compute compute_;
  int jobs_;
  Decoder dense_, compressed_;
  std::unique_ptr<DeviceSums> device_sums_;  ///< where they run on a CUDA device
  std::unique_ptr<SolvedLinears> planned_;
  std::vector<InputGroup> head_;                  ///< the head's group, or none
  std::vector<std::vector<LayerEntry>> entries_;  ///< by layer, those of the head last
  std::vector<TokenBatch> batches_;
  StatisticsWriter writer_;
  int64_t tokens_ = 0;
  Json identity_;
  Json run_;  ///< what a run that goes on must have in common
  std::optional<TokenWeights> weights_;

  std::filesystem::path work_;
  WorkState state_;
  std::unique_ptr<WorkFile> file_;
  std::unique_ptr<Streams> streams_;
  int solved_ = 0;  ///< rounds of the layer that were solved
};

}  // namespace twofour
