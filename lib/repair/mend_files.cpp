#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/lint/lint.h"
#include "lib/repair/repair.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

using Duplicate = LooseFiles::Duplicate;

/// True if two tensors of one name have the same type, shape and bytes.
bool are_equal(const Checkpoint& c, const Duplicate& one) {
  const TensorInfo& other = c.tensors()[one.of];
  if (one.info.dtype != other.dtype || one.info.shape != other.shape) return false;
  const Shard& shard = c.shards()[one.shard];
  std::vector<uint8_t> second;
  bool same = true;
  const auto read = [&](uint64_t at, std::span<uint8_t> piece) {
    if (same) shard.file.read(shard.data_begin + one.info.begin + at, piece);
  };
  read_in_pieces(other.bytes(), 1u << 20, read, [&](uint64_t at, std::span<const uint8_t> piece) {
    if (!same) return;
    second.resize(piece.size());
    c.read(one.of, at, second);
    same = std::equal(piece.begin(), piece.end(), second.begin());
  });
  return same;
}

/// Decides which files of the source the result is made of.
class FileMend {
 public:
  FileMend(Repair& repair, MendRecord& record) : r_(repair), c_(repair.source), record_(record) {
    for (const Duplicate& one : r_.loose.duplicates) of_file_[one.shard].push_back(&one);
    for (size_t i = 0; i < c_.tensors().size(); ++i) ++kept_[c_.shard_index_of(i)];
  }

  bool run() {
    for (const uint32_t file : r_.loose.unindexed) settle_unindexed(file);
    for (const auto& [file, duplicates] : of_file_) {
      for (const Duplicate* one : duplicates) {
        if (!are_equal(c_, *one)) {
          throw Error(fmt::format(
              "{}: {}: expected the bytes that {} has under this name, found others; nothing says which are "
              "the model's, so remove one of them first",
              c_.shards()[file].name, one->info.name, c_.shard_of(one->of).name));
        }
        record_.dropped.insert(fmt::format("{}: {}", c_.shards()[file].name, one->info.name));
      }
    }
    for (const LintFinding* f : r_.found_in_source(
             {"duplicate-tensor", "leftover-file", "missing-shard", "bad-index", "no-index",
              "index-stale-tensor", "index-wrong-file", "index-incomplete", "index-total-size"})) {
      const std::string rule = lint_rules()[f->rule].id;
      if (rule == "leftover-file" && r_.edited.kept_files.contains(f->file)) continue;
      if ((rule == "missing-shard" || rule == "index-stale-tensor") && !is_complete()) {
        r_.leave(rule, f->where(), "what the index names is in no file; a donor may have it");
        continue;
      }
      record_.rules.insert(rule);
    }
    if (record_.rules.empty() && record_.files.empty() && record_.dropped.empty()) return false;
    record_.files.insert(kIndexName);
    return true;
  }

 private:
  /// Decides whether a file that the index does not name goes, is taken in, or is copied beside the weights.
  void settle_unindexed(uint32_t file) {
    const std::string& name = c_.shards()[file].name;
    const auto twice = of_file_.find(file);
    if (kept_[file] == 0) {  // it has tensors of other files, or none
      const bool equal =
          twice == of_file_.end() || std::all_of(twice->second.begin(), twice->second.end(),
                                                 [&](auto* one) { return are_equal(c_, *one); });
      if (!equal) return keep(file, "it has other bytes under names of the indexed files");
      record_.files.insert(name);
      return;
    }
    if (twice != of_file_.end()) return keep(file, "it has tensors of the indexed files, and others");
    // The tensors are there already. The question is whether the model lacks them.
    const Edited with = r_.edited;
    const size_t before = r_.faults();
    remove(file);
    if (r_.faults() <= before) return keep(file, "the model lacks none of its tensors");
    r_.edited = with;
    r_.changed();
    record_.files.insert(name);
  }
  void keep(uint32_t file, const char* why) {
    const std::string& name = c_.shards()[file].name;
    remove(file);
    of_file_.erase(file);
    r_.edited.kept_files.insert(name);
    r_.leave("leftover-file", name, why);
  }
  void remove(uint32_t file) {
    std::erase_if(r_.edited.tensors, [&](const EditedTensor& t) { return t.shard == file; });
    r_.changed();
  }
  /// True if the family's row states the necessary tensors, so that no loss is hidden by a new index.
  bool is_complete() const {
    try {
      const auto model = find_language_model(c_.config());
      return model && !model->family->is_open;
    } catch (const Error&) {
      return false;
    }
  }

  Repair& r_;
  const Checkpoint& c_;
  MendRecord& record_;
  std::map<uint32_t, std::vector<const Duplicate*>> of_file_;
  std::map<uint32_t, size_t> kept_;
};

}  // namespace

bool mend_files(Repair& repair, MendRecord& record) { return FileMend(repair, record).run(); }

}  // namespace twofour
