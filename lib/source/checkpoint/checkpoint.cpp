#include "lib/source/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "formats/error.h"
#include "kernels/device/check.h"
#include "lib/base/findings/options.h"
#include "lib/base/io/file.h"
#include "lib/base/io/links.h"
#include "lib/source/checkpoint/beside.h"

namespace twofour {
namespace {

constexpr std::string_view kZeroPointsWords[] = {"stored", "symmetric", "v2"};

namespace fs = std::filesystem;

}  // namespace

std::span<const std::string_view> zero_points_words() { return kZeroPointsWords; }

std::string_view zero_points_word(ZeroPoints zero_points) {
  return zero_points == ZeroPoints::kAsStated ? std::string_view()
                                              : kZeroPointsWords[static_cast<size_t>(zero_points) - 1];
}

ZeroPoints parse_zero_points(std::string_view word) {
  if (word.empty()) return ZeroPoints::kAsStated;
  const auto at = std::find(std::begin(kZeroPointsWords), std::end(kZeroPointsWords), word);
  if (at == std::end(kZeroPointsWords)) {
    throw Error(fmt::format("zero points: expected stored, symmetric or v2, found {}",
                            json_quote_short(std::string(word))));
  }
  return static_cast<ZeroPoints>(at - std::begin(kZeroPointsWords) + 1);
}

const char* find_unfinished(const fs::path& directory) {
  std::error_code error;
  for (const char* name : {kJournalName, kTasksFolder}) {
    if (fs::exists(fs::symlink_status(directory / name, error))) return name;
  }
  return nullptr;
}

void refuse_unfinished(const fs::path& directory) {
  const char* const mark = find_unfinished(directory);
  if (mark == nullptr) return;
  throw Error(fmt::format(
      "{}: expected a complete checkpoint, found one that an interrupted run of twofour left ({}); {}, "
      "or write it again",
      directory.string(), mark,
      std::string_view(mark) == kTasksFolder
          ? std::string("run the plan's other tasks and merge")
          : fmt::format("finish it by the same command with {}", options::kResume)));
}

void TensorSource::read_rows(size_t, const RowRange&, std::span<uint8_t>, std::span<uint8_t>) const {
  check(false, "rows of a module whose weights are computed");
}

namespace {

/// Reads a config file, which must be an object. Returns null if it is absent.
Json read_object(const fs::path& folder, const char* name, Links links) {
  const fs::path path = folder / name;
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return nullptr;
  Json json = parse_json(path.string(), read_text(open_below(folder, path, links)));
  if (!json.is_object())
    throw Error(fmt::format("{}: expected an object, found {}", path.string(), json.type_name()));
  return json;
}

}  // namespace

std::shared_ptr<Json> Checkpoint::read_config(const char* name) {
  const std::optional<LinkOutside> outside = link_outside(path_, path_ / name);
  if (outside) links_outside_.push_back(*outside);
  return std::make_shared<Json>(read_object(path_, name, outside ? Links::kFollowed : Links::kInside));
}

InputFile Checkpoint::open_again(const char* name) const {
  const fs::path path = path_ / name;
  const bool is_known = std::any_of(links_outside_.begin(), links_outside_.end(),
                                    [&](const LinkOutside& link) { return link.path == path; });
  return open_below(path_, path, is_known ? Links::kFollowed : Links::kInside);
}

Checkpoint Checkpoint::over(std::shared_ptr<const TensorSource> source, std::vector<TensorInfo> tensors,
                            std::vector<uint32_t> shards, Json config, Json hf_quant_config,
                            Findings findings) {
  Checkpoint c;
  c.path_ = source->stored().path();
  c.is_directory_ = source->stored().is_directory();
  c.zero_points_ = source->stored().zero_points();
  c.links_outside_ = source->links_outside();
  if (config.is_null()) c.beside_ = source->stored().beside_;
  c.source_ = std::move(source);
  c.tensors_ = std::move(tensors);
  c.shard_of_ = std::move(shards);
  c.config_ = std::make_shared<Json>(std::move(config));
  c.hf_quant_config_ = std::make_shared<Json>(std::move(hf_quant_config));
  c.findings_ = std::move(findings);
  c.find_modules();
  c.note_incomplete_modules();
  return c;
}

std::map<std::string, std::string> Checkpoint::config_texts() const {
  return source_ ? source_->config_texts() : std::map<std::string, std::string>{};
}

std::set<std::string> Checkpoint::dropped_files() const {
  return source_ ? source_->dropped_files() : std::set<std::string>{};
}

std::set<std::string> Checkpoint::kept_files() const {
  return source_ ? source_->kept_files() : std::set<std::string>{};
}

const std::vector<Shard>& Checkpoint::shards() const { return source_ ? source_->shards() : shards_; }
const std::vector<Shard>& TensorSource::shards() const { return stored().shards(); }
std::vector<LinkOutside> TensorSource::links_outside() const { return stored().links_outside(); }
void TensorSource::check_same_files() const { stored().check_same_files(); }
uint64_t Checkpoint::reader_bytes() const { return source_ ? source_->reader_bytes() : 0; }
const Json& Checkpoint::config() const { return *config_; }
const Json& Checkpoint::hf_quant_config() const { return *hf_quant_config_; }

const Checkpoint::Beside& Checkpoint::beside() const {
  std::call_once(beside_->once, [&] {
    beside_->config = read_object(path_, "config.json", Links::kFollowed);
    beside_->hf_quant_config = read_object(path_, "hf_quant_config.json", Links::kFollowed);
  });
  return *beside_;
}
const Json& Checkpoint::config_of_values() const { return beside_ ? beside().config : *config_; }
const Json& Checkpoint::hf_quant_config_of_values() const {
  return beside_ ? beside().hf_quant_config : *hf_quant_config_;
}

void Checkpoint::check_unchanged() const {
  for (const Shard& shard : shards()) shard.file.check_unchanged();
}

void Checkpoint::check_same_files() const {
  if (source_) return source_->check_same_files();
  if (states_) states_->check_unchanged();
}

std::string Checkpoint::where(size_t tensor) const {
  return fmt::format("{}: {}", shard_of(tensor).name, tensors_[tensor].name);
}

void Checkpoint::read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const {
  if (source_) return source_->read(tensor, offset, out);
  const Shard& shard = shard_of(tensor);
  shard.file.read(shard.data_begin + tensors_[tensor].begin + offset, out);
}

std::optional<uint64_t> Checkpoint::computed_from(const Nvfp4Linear& module) const {
  return source_ ? source_->computed_from(module.codes) : std::nullopt;
}

void Checkpoint::read_rows(const Nvfp4Linear& module, const RowRange& rows, std::span<uint8_t> codes,
                           std::span<uint8_t> scales) const {
  check(source_ != nullptr, "a module whose weights are computed");
  source_->read_rows(module.codes, rows, codes, scales);
}

Json Checkpoint::computed_result(const Nvfp4Linear& module) const {
  return source_ ? source_->computed_result(module.codes) : Json(nullptr);
}

}  // namespace twofour
