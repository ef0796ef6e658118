#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/base/io/file_states.h"
#include "lib/base/threads/progress.h"
#include "lib/jobs/compress/background_work.h"
#include "lib/jobs/compress/layer_entries.h"
#include "lib/jobs/compress/residual_streams.h"
#include "lib/jobs/compress/solved_linears.h"
#include "lib/jobs/compress/work_folder.h"
#include "lib/recipe/artifact/recipe.h"
#include "lib/run/collect/batches.h"

namespace twofour {

/// The model that gives the inputs of a linear. With kNone, it is the dense model. With kLayers, it is a
/// model whose earlier layers are compressed, and targets include its error up to the linear. With kGroups,
/// it is a model whose earlier groups of linears are compressed.
enum class Sequential { kNone, kLayers, kGroups };

/// The input by which a model is compressed.
struct CompressInput {
  /// Cuts texts into at most `most` windows of `context` tokens. Throws Error if there are no windows. The
  /// Error names `file`, the file of the texts.
  void cut(const std::vector<std::vector<int32_t>>& texts, int64_t context, int64_t most,
           const std::filesystem::path& file);

  std::vector<std::vector<int32_t>> windows;  ///< tokens of each window; windows are independent texts
  std::string text;                           ///< description of the windows, which is stored in the file
  std::filesystem::path token_weights{};      ///< see TokenWeights; if empty, every token has weight 1
  bool is_guided =
      false;  ///< weights of tokens come from a backward pass instead, see write_guided_weights()
  Sequential sequential = Sequential::kNone;
  /// Bytes of memory that residual streams, and inputs that are used twice, may take. If empty, a quarter of
  /// the memory of the machine, or of what is free on the device.
  std::optional<uint64_t> memory{};
  int64_t recover_passes = 0;  ///< passes of recover() over the windows; 0: none
};

/// The memory and disk space that collecting needs. They are known before collecting begins.
struct CompressNeeds {
  uint64_t peak_memory = 0;  ///< bytes, without the program itself and mapped files
  uint64_t statistics_bytes = 0;
  uint64_t work_bytes = 0;  ///< bytes of the work folder, statistics included
  int64_t tokens = 0;
  size_t entries = 0;
};

/// Collects statistics for the linears whose weights a recipe chooses by them. It works layer by layer, and
/// compresses each layer before the next. It stores the results of layers in a work folder, so that another
/// run can resume.
class Compression {
 public:
  /// Opens the model and plans the recipe. Throws Error if the model cannot be run, or if the recipe solves
  /// none of its linears.
  Compression(const std::filesystem::path& model, const Recipe& recipe, CompressInput input,
              const Compute& compute, int jobs);

  const SolvedLinears& linears() const { return *planned_; }
  CompressNeeds needs() const;
  /// A hash (XXH3-128, 32 digits) of the input that decides the statistics, without the recipe. The input is
  /// the norm before the head, which identifies the model, the tokens, their weights, and the order of
  /// collecting.
  std::string input_hash() const;
  int64_t layers() const { return dense_.shape().layers; }
  const CompressInput& input() const { return input_; }
  /// From now on both models run on the current CUDA device, and their inputs are summed there.
  void use_cuda();
  /// Collects into `work`. Creates the folder, or resumes after its last complete layer if a run of the same
  /// model, tokens and recipe left it. Stops before layer `end`; the head counts as a layer if the recipe
  /// takes it. Throws Error if the folder is damaged or belongs to another run. Throws Error like
  /// check_unchanged(), which is called before files are opened again and before a layer is stored. Throws
  /// Interrupted.
  void collect(const std::filesystem::path& work, Progress& progress, int64_t end = INT64_MAX);
  /// Throws Error if a file of the model, or the file of token weights, has changed since before the first
  /// file was opened.
  void check_unchanged() const { inputs_.check_unchanged(); }
  /// The path of the statistics in a work folder, after they are collected.
  static std::filesystem::path statistics_of(const std::filesystem::path& work);
  /// The path in a work folder of the artifact before recovery.
  static std::filesystem::path unrecovered_of(const std::filesystem::path& work);
  /// The linears in a work folder that were solved while statistics were collected.
  static std::shared_ptr<const EncodedBefore> encoded(const std::filesystem::path& work);
  /// The number of complete layers in a work folder. The head counts as a layer. Empty if the folder has no
  /// state.
  static std::optional<int64_t> layers_done(const std::filesystem::path& work);
  /// True if a folder has only files that collect() makes.
  static bool is_work_folder(const std::filesystem::path& work);

 private:
  /// Stages whose linears have inputs from the same compressed model.
  using Round = std::vector<LayerStage>;

  /// The linears of a layer, grouped by input. The index after the last layer is the head, if it is a
  /// separate linear.
  const std::vector<InputGroup>& groups_of(int64_t layer) const;
  /// Number of layers that are collected. The head counts as one if the recipe takes it.
  int64_t steps() const { return layers() + (entries_.back().empty() ? 0 : 1); }
  void plan_file();
  int64_t expected_count(const LayerEntry& entry, int64_t layer) const;
  std::shared_ptr<const Statistics> planning_statistics() const;
  std::string weighting() const;  ///< `weighting` in the metadata of the statistics
  Json describe_input() const;
  Json find_identity() const;
  std::string hash_statistics(int64_t layer) const;
  uint64_t bytes_of_streams() const;
  std::vector<Round> rounds(int64_t layer) const;
  bool is_sequential() const { return input_.sequential != Sequential::kNone; }
  int models() const { return is_sequential() ? 2 : 1; }
  uint64_t bytes_per_token() const;
  bool has_weights() const { return input_.is_guided || !input_.token_weights.empty(); }
  /// Computes the weights of tokens, unless the work folder has those of a run that resumes, and opens them.
  void guide();

  /// Decides what stays in memory, or on the device if it has `device_bytes` free bytes.
  void plan_memory(uint64_t device_bytes);
  /// Bytes of the inputs that are kept for advance_compressed().
  uint64_t bytes_of_kept() const;
  const cuda::DeviceStream* stream() const { return device_sums_ ? &device_sums_->stream() : nullptr; }

  void start(const std::filesystem::path& work);
  void check_left(const WorkState& left, uint64_t statistics_bytes) const;
  /// Stores a complete layer, or lets a later layer do that if storing takes long. `end` is the layer before
  /// which the run ends.
  void keep_layer(int64_t end);
  void store_state(int64_t layers);
  void collect_layers(int64_t end);
  void collect_layer(int64_t layer);
  void collect_head();
  /// Collects a round, whose share of the layer's work goes from `begin` to `end`, both from 0 to 1.
  void collect_round(int64_t layer, const Round& round, double begin, double end);
  void advance(double begin, double end, size_t tokens);
  /// The rows and inputs of a batch in both models, in memory that all batches of a round use.
  struct BatchRows {
    BatchRows(size_t groups, const cuda::DeviceStream* stream)
        : dense(stream),
          compressed(stream),
          residual(stream),
          of_dense(groups, stream),
          of_compressed(groups, stream) {}
    FloatArray dense, compressed, residual;
    SeenInputs of_dense, of_compressed;
  };
  /// Runs one half of a layer on a batch. Collects the inputs of both models, and the dense residual stream
  /// after the half.
  void see_half(int64_t layer, LayerHalf half, const Round& round, const TokenBatch& batch, BatchRows& rows,
                const std::vector<const LayerEntry*>& entries, std::vector<EntrySums>& sums);
  /// Runs half a layer on rows of the host or of the device.
  void run_half(const Decoder& model, int64_t layer, LayerHalf half, const TokenBatch& batch,
                FloatArray& rows, const HalfRun& run) const;
  /// The half of a layer whose last inputs are kept until advance_compressed(), if its last linears are all
  /// that changes. Nothing if there is no memory for them.
  std::optional<LayerHalf> half_to_keep(int64_t layer, const Round& round) const;
  /// Adds a batch to the sums of an entry, with the weights of its tokens.
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
  std::unique_ptr<DeviceSums> device_sums_;  ///< set if the models run on a CUDA device
  std::unique_ptr<DeviceScratch> device_scratch_;
  std::unique_ptr<SolvedLinears> planned_;
  std::vector<InputGroup> head_;                  ///< the group of the head; may be empty
  std::vector<std::vector<LayerEntry>> entries_;  ///< by layer; the head's entries are last
  std::vector<TokenBatch> batches_;
  StatisticsWriter writer_;
  int64_t tokens_ = 0;
  Json identity_;
  Json run_;                      ///< the data that must be equal in a run that resumes
  std::set<std::string> wanted_;  ///< linears whose weights are chosen by statistics
  std::optional<TokenWeights> weights_;

  bool streams_in_memory_ = false, streams_on_device_ = false, keeps_inputs_ = false;
  std::filesystem::path work_;
  int64_t layers_done_ = 0;
  WorkState state_;  ///< the state in the work folder
  std::unique_ptr<WorkFile> file_;
  std::unique_ptr<Streams> streams_;
  FloatArray kept_;               ///< see half_to_keep(), [tokens, K]
  Progress* progress_ = nullptr;  ///< set while collect() runs
  uint64_t layer_bytes_ = 0,
           layer_begin_ = 0;  ///< bytes that a layer counts as, and Progress::done before it
  int solved_ = 0;            ///< number of solved rounds of the layer
  BackgroundWork storing_;
  std::chrono::steady_clock::duration waited_{};  ///< time that the last wait for `storing_` took
  std::chrono::steady_clock::time_point stored_{};
};

}  // namespace twofour
