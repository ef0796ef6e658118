#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/json.h"
#include "formats/naming.h"
#include "lib/artifact/edit.h"
#include "lib/checkpoint/zero_points.h"
#include "lib/io/links.h"
#include "lib/names/pattern.h"
#include "lib/statistics/mask_file.h"
#include "lib/statistics/statistics.h"

namespace twofour {

class EncodedBefore;

/// Scales that are given, of weights (of another checkpoint, kept when weights are quantized again) or of
/// inputs; by the modules' names, stacks taken apart.
struct FixedGlobalScales {
  bool divides = false;  ///< as compressed-tensors stores them; else multipliers
  struct Scale {
    std::string name;
    uint32_t bits;  ///< float32
  };
  std::vector<Scale> scales = {};  ///< sorted by name
  void sort();
  const Scale* find(std::string_view name) const;  ///< null if absent
};

/// What is done about routed experts of layers that predict further tokens: they are chosen by name, and not
/// by the role of experts; they stay as they are; they are chosen as the others are.
enum class DraftExperts { kByName, kKeep, kCast };

/// Which modules a command works on; see product.md, "Everywhere".
struct Selection {
  std::vector<NamePattern> include;  ///< restrict the default set; empty: all of it
  std::vector<NamePattern> exclude;
  std::vector<NamePattern> also;  ///< add to the default set
  /// Whether modules of the default set are chosen though no role names them. With it `include` restricts
  /// that set; without it nothing but `also` and `roles` chooses.
  bool from_default = true;
  std::vector<ModuleRole> roles = {};  ///< likewise: modules that have one of them
  DraftExperts draft_experts = DraftExperts::kByName;
  bool is_match = false;  ///< of a recipe file, for messages; decides nothing
};

/// What to do about unequal global scales of gate and up: fold them to the larger, refusing what that harms;
/// refuse them; fold whatever it costs.
enum class Fold { kLarger, kStrict, kAny };
/// In that order.
inline constexpr std::string_view kFoldWords[] = {"larger", "strict", "any"};
/// Nothing for any other word.
std::optional<Fold> parse_fold(std::string_view word);

/// Which modules become what, in the words of the command line; make_plan() gives them their types.
struct Rule {
  std::string to = "v7";         ///< a layout or another method: see lib/plan/method.h
  std::string pattern = {};      ///< prune: "2:4" or "4:8-paired"; quantize: "2:4" or none
  std::string dialect = {};      ///< nvfp4, fp8, quantize: of what is written
  std::string granularity = {};  ///< fp8: "tensor", "row" or "block"
  std::string block = {};        ///< fp8 by blocks: "128x128", "32x32" or "1x128", rows by inputs
  std::string scale_dtype = {};  ///< fp8 by blocks: "f32", "bf16" or "e8m0"
  std::string odd_blocks = {};   ///< fp8 by blocks: "refuse" (or empty), "keep" or "write"
  /// Of quantized sources: "best" (or empty), "strict" where every value must stay, "off" to take them as
  /// floats.
  std::string exact = {};
  std::string arithmetic = {};   ///< quantize: "modelopt" or "compressed-tensors"; empty: the dialect's
  std::string block_scale = {};  ///< quantize: "max" (or empty), "mse" or "four-over-six"
  std::string zero_block = {};   ///< quantize: "producer" (or empty) or "zero"
  FixedGlobalScales kept = {};   ///< quantize: global scales that are given
  /// quantize: how weights are chosen by the statistics of their inputs: "" for the best that the file holds,
  /// "joint", "gptq", "wanda" or "rtn"; "magnitude" chooses as without a file.
  std::string method = {};
  int sweeps = -1;                   ///< of descent; below 0: the method's own
  bool strict_statistics = false;    ///< refuse those of other weights of the model; decides no byte
  std::string statistics_hash = {};  ///< XXH3-128 of the file; empty: none
  std::string statistics_from =
      {};  ///< device and instruction set that collected them, where the file says so
  std::string statistics_input = {};  ///< XXH3-128 of what was fed to the model, where the file says so
  std::shared_ptr<const Statistics> statistics = {};  ///< the file, see open_statistics()
  std::shared_ptr<const EncodedBefore> encoded = {};  ///< groups that were solved by it; null: none
  std::string mask_hash = {};  ///< with a pattern: XXH3-128 of a file of masks; empty: they are chosen
  std::shared_ptr<const MaskFile> masks = {};  ///< the file, see open_masks()
  std::string input_scale = {};                ///< "keep", "none", "constant=1.0", "neighbours" or "given"
  FixedGlobalScales input_scales = {};         ///< with "given": multipliers
  bool one_input_scale_a_layer = false;        ///< experts of a layer share the largest of each projection
  Selection selection = {};
  Fold fold = Fold::kLarger;
  std::string label = {};  ///< of a recipe file, for people: "rule 2 (experts)"; decides nothing
};

/// Everything that decides the bytes of an artifact. Jobs, device and paths are no part of it. The first rule
/// that takes a module decides; what none takes stays as it is.
struct Recipe {
  Edit edit = {};                      ///< before any rule
  std::vector<Rule> rules = {Rule{}};  ///< the default: the default set to v7
  /// Of the whole output; "source": the source's own; empty: the words of single rules decide.
  std::string dialect = {};
  ZeroPoints zero_points = ZeroPoints::kAsStated;  ///< of the source's INT4
  uint64_t max_shard_size = 5'000'000'000;
  /// Of the source: whose targets go along. twofour.json lists the files that went, and not this.
  Links links = Links::kInside;

  Recipe() = default;
  explicit Recipe(Rule rule) : rules{std::move(rule)} {}
  Recipe(Rule rule, uint64_t size) : rules{std::move(rule)}, max_shard_size(size) {}
  /// Without rules: all tensors stay as the edit leaves them.
  Recipe(Edit change, uint64_t size) : edit(std::move(change)), rules{}, max_shard_size(size) {}
  /// "v7" where all rules make one thing, else "mixed"; without rules "graft" or "drop".
  std::string what() const;
};

/// Opens the statistics file of the rules that were made with one. Throws Error where its hash is another,
/// where it is needed and `file` is empty, and where it is not needed.
void open_statistics(Recipe& recipe, const std::filesystem::path& file);

/// The same of the file of masks.
void open_masks(Recipe& recipe, const std::filesystem::path& file);

/// "keep" or "cast"; anything else chooses by name.
DraftExperts parse_draft_experts(std::string_view word);

/// What a reader does about keys that it does not know where keys decide bytes.
enum class UnknownKeys { kRefuse, kIgnore };

/// Throws Error naming `where`, the path there ("recipe.rules[0]"), the key and what to do if `json` has a
/// key that is not among `keys`, unless unknown ones are ignored. Throws Json::exception where it is no
/// object.
void check_keys(std::string_view where, std::string_view path, const Json& json,
                std::span<const std::string_view> keys, UnknownKeys unknown);

/// What a recipe says, as twofour.json, plan.json and resume know it.
Json recipe_to_json(const Recipe& recipe);
/// The inverse. Where unknown keys are ignored, a rule is a recipe of one rule, as format 2 of twofour.json
/// has it. Throws Error naming `where` on anything else, and on words that this version does not know.
Recipe recipe_from_json(std::string_view where, const Json& json, UnknownKeys unknown = UnknownKeys::kRefuse);

/// `size` bytes, decimal: "5GB", "500MB", "1234". Throws Error.
uint64_t parse_size(const std::string& text);

}  // namespace twofour
