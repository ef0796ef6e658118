#include "lib/jobs/compress/compress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "formats/error.h"
#include "kernels/device/isa.h"
#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"
#include "lib/jobs/compress/encoded_linears.h"
#include "lib/jobs/compress/guided_weights.h"
#include "lib/jobs/compress/machine_memory.h"
#include "lib/jobs/compress/work_folder.h"
#include "lib/jobs/convert/resume.h"
#include "lib/jobs/recover/recover.h"
#include "lib/recipe/statistics/check_statistics.h"
#include "lib/run/collect/backward_pass.h"
#include "lib/run/eval/windows.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStatistics = "statistics.safetensors";
constexpr const char* kSolved = "solved-";
constexpr const char* kUnrecovered = "unrecovered";

/// Stands for the hash of statistics that are not complete yet.
const std::string kNoHash(32, '0');

/// Residual streams and kept inputs stay in memory if they need at most one part in this number of it.
constexpr uint64_t kMemoryShare = 4;

/// A folder that the destructor removes.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (temporary_folder() / "twofour-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw_io_error(name, "create", errno);
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Removes the solved linears of layer `first` and later layers, which are solved again.
void remove_solved(const fs::path& work, int64_t first) {
  std::vector<fs::path> gone;
  for (const auto& entry : fs::directory_iterator(work)) {
    const std::string name = entry.path().filename().string();
    int64_t layer = first;
    if (!name.starts_with(kSolved)) continue;
    std::from_chars(&name[std::string_view(kSolved).size()], name.data() + name.size(), layer);
    if (layer >= first) gone.push_back(entry.path());
  }
  for (const fs::path& path : gone) fs::remove_all(path);
}

const char* sequential_word(Sequential s) {
  return s == Sequential::kNone ? "none" : s == Sequential::kLayers ? "layer" : "group";
}

Hash128 hash_tokens(const std::vector<std::vector<int32_t>>& windows) {
  Hasher hasher;
  for (const auto& w : windows) {
    const uint64_t size = w.size();
    hasher.update({reinterpret_cast<const uint8_t*>(&size), sizeof size});
    hasher.update({reinterpret_cast<const uint8_t*>(w.data()), w.size() * sizeof(int32_t)});
  }
  return hasher.digest();
}

}  // namespace

void CompressInput::cut(const std::vector<std::vector<int32_t>>& texts, int64_t context, int64_t most,
                        const fs::path& file) {
  text = file.filename().string();
  for (const std::vector<int32_t>& one : texts) {
    const int64_t left = most - static_cast<int64_t>(windows.size());
    for (EvalWindow& w : cut_windows(one, context, context, left)) windows.push_back(std::move(w.tokens));
  }
  if (windows.empty())
    throw Error(fmt::format("{}: expected two tokens or more, found fewer", file.string()));
}

Compression::Compression(const fs::path& model, const Recipe& recipe, CompressInput input,
                         const Compute& compute, int jobs)
    : path_(model),
      recipe_(recipe),
      input_(std::move(input)),
      inputs_({model, input_.token_weights}),
      compute_(compute),
      jobs_(jobs),
      dense_(Decoder::open(model, recipe.zero_points)),
      compressed_(Decoder::open(model, recipe.zero_points)) {
  check_windows(dense_, input_.windows);
  if (input_.is_guided) check_gradients(dense_);
  if (input_.recover_passes > 0) check_recovery(dense_, input_.windows);
  for (const auto& w : input_.windows) tokens_ += static_cast<int64_t>(w.size());
  std::set<std::string> all;
  if (auto head = dense_.head_group()) head_.push_back(std::move(*head));
  for (int64_t layer = 0; layer <= layers(); ++layer) {
    for (const InputGroup& g : groups_of(layer)) all.insert(g.linears.begin(), g.linears.end());
  }
  // Entries are first planned for all linears, to find out which of them the recipe takes.
  const auto plan_entries = [&](const std::set<std::string>& linears, bool apart) {
    entries_.clear();
    for (int64_t layer = 0; layer <= layers(); ++layer)
      entries_.push_back(layer_entries(dense_, groups_of(layer), linears, apart, is_sequential()));
  };
  plan_entries(all, false);
  batches_ = batches_of(input_.windows, 0, bytes_per_token());
  planned_ = std::make_unique<SolvedLinears>(model, with_statistics(recipe_, planning_statistics(), kNoHash),
                                             compute_);
  std::set_intersection(all.begin(), all.end(), planned_->by_statistics().begin(),
                        planned_->by_statistics().end(), std::inserter(wanted_, wanted_.end()));
  if (wanted_.empty())
    throw Error(fmt::format("{}: expected linears that the options choose, found none", model.string()));
  if (!input_.token_weights.empty()) weights_ = TokenWeights::open(input_.token_weights, tokens_, wanted_);
  plan_entries(wanted_, has_weights());
  plan_file();
  plan_memory(0);
  check_unchanged();
}

uint64_t Compression::bytes_of_kept() const {
  if (input_.sequential != Sequential::kGroups) return 0;
  int64_t widest = 0;
  for (int64_t layer = 0; layer < layers(); ++layer) {
    for (const LayerHalf half : {LayerHalf::kAttention, LayerHalf::kFeedForward}) {
      if (dense_.can_begin_late(layer, half))
        widest = std::max(widest, dense_.input_groups(layer)[dense_.late_group(layer, half)].k);
    }
  }
  return static_cast<uint64_t>(tokens_ * widest) * sizeof(float);
}

void Compression::plan_memory(uint64_t device_bytes) {
  const uint64_t kept = bytes_of_kept(), streams = bytes_of_streams();
  const uint64_t memory = input_.memory.value_or(machine_memory() / kMemoryShare);
  const bool on_device = device_bytes > 0;
  streams_on_device_ = on_device && streams + kept <= input_.memory.value_or(device_bytes / kMemoryShare);
  streams_in_memory_ = streams_on_device_ || streams <= memory;
  // The inputs are on the side where the models run.
  keeps_inputs_ = on_device ? streams_on_device_ : streams + kept <= memory;
}

void Compression::use_cuda() {
  const uint64_t free = cuda::available_device_bytes();
  plan_memory(free);
  const uint64_t taken = streams_on_device_ ? bytes_of_streams() + bytes_of_kept() : 0;
  const uint64_t each = (free - taken) / static_cast<uint64_t>(models()) / 8 * 7;
  dense_.use_cuda(each);
  if (is_sequential()) compressed_.use_cuda(each);
  device_sums_ = std::make_unique<DeviceSums>();
  device_scratch_ = std::make_unique<DeviceScratch>(stream());
}

const std::vector<InputGroup>& Compression::groups_of(int64_t layer) const {
  return layer < layers() ? dense_.input_groups(layer) : head_;
}

void Compression::plan_file() {
  writer_ = {};
  for (const auto& layer : entries_) {
    for (const LayerEntry& e : layer) writer_.plan(e.planned);
  }
}

int64_t Compression::expected_count(const LayerEntry& e, int64_t layer) const {
  const std::vector<InputGroup>& groups = groups_of(layer);
  const int64_t routed = tokens_ * dense_.shape().top_k;
  if (e.group == LayerEntry::kShared) return std::max<int64_t>(1, routed);
  if (groups[e.group].expert < 0) return std::max<int64_t>(1, tokens_ * e.planned.times);
  return std::max<int64_t>(1, routed / experts_of(groups));
}

/// Statistics with all entries but without sums. Their counts are estimates.
std::shared_ptr<const Statistics> Compression::planning_statistics() const {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / kStatistics;
  StatisticsWriter writer;
  for (const auto& layer : entries_) {
    for (const LayerEntry& e : layer) writer.plan(e.planned);
  }
  std::unique_ptr<WorkFile> file;
  const uint64_t bytes =
      writer.begin({{"weights", final_norm_hash(dense_.checkpoint())}, {"weighting", weighting()}},
                   [&](uint64_t offset, std::span<const uint8_t> some) { file->write(offset, some); });
  file = std::make_unique<WorkFile>(path, bytes);
  writer.write_unfinished_header();
  for (size_t layer = 0; layer < entries_.size(); ++layer) {
    for (const LayerEntry& e : entries_[layer])
      writer.write_count(e.planned, expected_count(e, static_cast<int64_t>(layer)));
  }
  return std::make_shared<const Statistics>(Statistics::open_unfinished(path));
}

std::string Compression::weighting() const { return has_weights() ? "guided" : "plain"; }

uint64_t Compression::bytes_per_token() const {
  uint64_t widest = 0;
  for (int64_t layer = 0; layer < dense_.shape().layers; ++layer) {
    uint64_t seen = 0;
    for (const InputGroup& g : dense_.input_groups(layer))
      seen += g.expert < 0 ? static_cast<uint64_t>(g.k * g.inputs) : 0;
    const uint64_t routed =
        static_cast<uint64_t>(dense_.shape().top_k * std::max<int64_t>(0, dense_.shape().expert_width));
    widest = std::max(widest, seen + routed);
  }
  // Memory for the inputs of both models, a copy of these while they are added up, and the streams before and
  // after the layer.
  return dense_.bytes_per_token() +
         (4 * widest + 6 * static_cast<uint64_t>(dense_.shape().residual())) * sizeof(float);
}

CompressNeeds Compression::needs() const {
  CompressNeeds needs;
  StatisticsWriter writer = writer_;
  needs.statistics_bytes = writer.begin({}, {});
  needs.entries = writer.entries();
  needs.tokens = tokens_;
  uint64_t sums = 0;
  for (size_t layer = 0; layer < entries_.size(); ++layer) {
    for (const Round& round : rounds(static_cast<int64_t>(layer))) {
      uint64_t own = 0;
      for (const LayerEntry& e : entries_[layer]) {
        if (std::find(round.begin(), round.end(), e.stage) != round.end()) own += bytes_of_sums(e);
      }
      sums = std::max(sums, own);
    }
  }
  needs.work_bytes = needs.statistics_bytes + (is_sequential() ? planned_->bytes() : 0) + bytes_of_streams();
  // Streams and inputs that stay in memory are there while weights are chosen, too.
  needs.peak_memory = std::max(sums + largest_batch(batches_) * bytes_per_token() + dense_.fixed_bytes(),
                               planned_->peak_memory(jobs_)) +
                      (streams_in_memory_ ? bytes_of_streams() : 0) + (keeps_inputs_ ? bytes_of_kept() : 0);
  if (input_.is_guided) {
    const GuidedTokens tokens{input_.windows, wanted_};
    needs.work_bytes = std::max(needs.work_bytes, BackwardPass::bytes_of_file(dense_, tokens_)) +
                       guided_weights_bytes(tokens);
    needs.peak_memory = std::max(needs.peak_memory, guided_weights_memory(dense_, tokens));
  }
  if (input_.recover_passes > 0) {
    for (const OutputFile& f : planned_->plan().files) needs.work_bytes += f.size();
    needs.work_bytes += recovery_file_bytes(dense_, input_.windows);
    needs.peak_memory = std::max(needs.peak_memory, recovery_memory(dense_, input_.windows));
  }
  return needs;
}

/// Describes the model, its input and the order of collecting.
Json Compression::describe_input() const {
  return {{"weights", final_norm_hash(dense_.checkpoint())},
          {"tokens", hash_tokens(input_.windows).hex()},
          {"sequential", sequential_word(input_.sequential)},
          {"token_weights", input_.is_guided ? "guided"
                            : weights_       ? hash_file(input_.token_weights).hex()
                                             : ""}};
}

std::string Compression::input_hash() const { return hash_text(describe_input().dump()).hex(); }

/// The input that decides the statistics, without paths and times.
Json Compression::find_identity() const {
  Json identity = describe_input();
  identity.update({{"text", input_.text},
                   {"recipe", recipe_to_json(planned_->plan().recipe)},
                   {"device", device_name(dense_.device())},
                   {"isa", std::string(isa_name(best_isa()))}});
  if (input_.is_guided) identity["guided_weights"] = hash_file(work_ / kGuidedWeights).hex();
  return identity;
}

std::shared_ptr<const EncodedBefore> Compression::encoded(const fs::path& work) {
  return std::make_shared<const EncodedLinears>(work);
}

fs::path Compression::statistics_of(const fs::path& work) { return work / kStatistics; }

fs::path Compression::unrecovered_of(const fs::path& work) { return work / kUnrecovered; }

std::optional<int64_t> Compression::layers_done(const fs::path& work) {
  const auto state = WorkState::read(work);
  return state ? std::optional(state->layers) : std::nullopt;
}

bool Compression::is_work_folder(const fs::path& work) {
  if (!fs::is_directory(fs::symlink_status(work))) return false;
  for (const auto& entry : fs::directory_iterator(work)) {
    const std::string name = entry.path().filename().string();
    const bool is_ours = name == WorkState::kName || name == temporary_name(WorkState::kName) ||
                         name == kGuidedWeights || name == temporary_name(kGuidedWeights) ||
                         name == kStatistics || name == WorkFolder::kLock || name == kUnrecovered ||
                         name == kRecoveryState || name == temporary_name(kRecoveryState) ||
                         name.starts_with("streams-") || name.starts_with(kSolved);
    if (!is_ours) return false;
  }
  return true;
}

std::string Compression::hash_statistics(int64_t layer) const {
  const InputFile file(statistics_of(work_));
  Hasher hasher;
  for (const LayerEntry& e : entries_[static_cast<size_t>(layer)]) {
    for (const auto& [begin, bytes] : writer_.places(e.planned))
      hasher.update(hash_range(file, begin, bytes, [](uint64_t) {}).hex());
  }
  return hasher.digest().hex();
}

uint64_t Compression::bytes_of_streams() const {
  return Streams::bytes(models(), static_cast<uint64_t>(tokens_), dense_.shape().residual());
}

/// Throws Error unless a work folder belongs to this run and is unchanged.
void Compression::check_left(const WorkState& left, uint64_t statistics_bytes) const {
  check_fingerprint((work_ / WorkState::kName).string(), left.run, run_);
  if (left.layers < 1 || left.layers > steps() || std::cmp_not_equal(left.statistics.size(), left.layers))
    refuse_state(work_);
  check_left_size(statistics_of(work_), statistics_bytes);
  for (int64_t layer = 0; layer < left.layers; ++layer) {
    check_left_hash(statistics_of(work_), fmt::format("sums of layer {}", layer),
                    left.statistics[static_cast<size_t>(layer)], hash_statistics(layer));
  }
  if (left.layers == steps()) return;
  for (const int64_t layer : {0, 1})
    check_left_size(work_ / Streams::name_before(layer), bytes_of_streams() / 2);
  const fs::path streams = work_ / Streams::name_before(left.layers);
  check_left_hash(streams, "residual streams", left.streams, hash_file(streams).hex());
}

void Compression::start(const fs::path& work) {
  check_unchanged();
  work_ = work;
  if (input_.is_guided) guide();
  identity_ = find_identity();
  run_ = fingerprint(planned_->source(), planned_->plan(), nullptr);
  run_["compress"] = identity_;
  plan_file();
  StatisticsMetadata metadata = {{"weights", identity_.at("weights").get<std::string>()},
                                 {"text", input_.text},
                                 {"tokens", fmt::format("{}", tokens_)},
                                 {"input", input_hash()},
                                 {"device", device_name(dense_.device())},
                                 {"weighting", weighting()}};
  if (is_sequential()) metadata["predecessor"] = hash_text(identity_.dump()).hex();
  const uint64_t bytes =
      writer_.begin(std::move(metadata),
                    [this](uint64_t offset, std::span<const uint8_t> some) { file_->write(offset, some); });
  if (const auto left = WorkState::read(work)) {
    check_left(*left, bytes);
    state_ = *left;
  } else {
    fs::create_directories(work);
    state_ = {0, run_};
  }
  layers_done_ = state_.layers;
  remove_solved(work, state_.layers);
  file_ = std::make_unique<WorkFile>(statistics_of(work), bytes);
  streams_ =
      std::make_unique<Streams>(work, models(), static_cast<uint64_t>(tokens_), dense_.shape().residual(),
                                streams_in_memory_, streams_on_device_ ? stream() : nullptr);
  kept_ = FloatArray(stream());
  writer_.write_unfinished_header();
  for (int64_t layer = state_.layers; std::cmp_less(layer, entries_.size()); ++layer) {
    for (const LayerEntry& e : entries_[static_cast<size_t>(layer)])
      writer_.write_count(e.planned, expected_count(e, layer));
  }
  if (state_.layers > 0) return state_.layers < steps() ? streams_->load(state_.layers) : void();
  const std::vector<int32_t> ids = join_windows(input_.windows);
  std::vector<float> rows;
  for (const TokenBatch& b : batches_) {
    rows.resize(b.rows * static_cast<size_t>(dense_.shape().residual()));
    dense_.embed(std::span(ids).subspan(b.row, b.rows), rows);
    streams_->write_first(b.row, rows);
  }
}

}  // namespace twofour
