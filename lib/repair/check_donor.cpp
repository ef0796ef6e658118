#include <fmt/format.h>

#include <algorithm>

#include "lib/base/findings/problems.h"
#include "lib/lint/family/family.h"
#include "lib/repair/repair.h"

namespace twofour {
namespace {

/// True for norms that were never trained, which are those of any model.
bool is_constant(const std::vector<uint8_t>& bytes) {
  return std::equal(bytes.begin() + sizeof(float), bytes.end(), bytes.begin());
}

/// Compares the first numbers of tensors that both have as the same floats: norms, embeddings, routers.
/// Returns what is wrong if all of them differ. A fault, or a scale that was merged into norms, leaves some
/// equal; training changes all. Few tensors are no evidence.
std::string unlike_numbers(Repair& r) {
  constexpr size_t kFew = 4;
  constexpr uint64_t kFirst = 4096;
  const Checkpoint& ours = r.view();
  size_t compared = 0;
  std::string first;
  for (size_t i = 0; i < ours.tensors().size(); ++i) {
    const TensorInfo& t = ours.tensors()[i];
    if (!is_float(t.dtype) || !t.name.ends_with(".weight") || t.bytes() < sizeof(float)) continue;
    auto at = r.donor->find(t.name);
    if (!at) at = r.donor->find(unwrapped(t.name));
    if (!at) continue;
    const TensorInfo& other = r.donor->tensors()[*at];
    if (other.dtype != t.dtype || other.shape != t.shape) continue;
    std::vector<uint8_t> a(std::min(kFirst, t.bytes())), b(a.size());
    ours.read(i, 0, a);
    if (is_constant(a)) continue;
    r.donor->read(*at, 0, b);
    if (a == b) return "";
    if (compared++ == 0) first = r.donor->where(*at);
  }
  if (compared < kFew) return "";
  return fmt::format(
      "{}: expected a checkpoint of the same model as {}, found other numbers in all of {} tensors that were "
      "compared, the first {}; a model that was trained further is no donor",
      r.donor->path().string(), r.source.path().string(), compared, first);
}

}  // namespace

void refuse_other_model(Repair& r) {
  Problems problems;
  const auto type_of = [](const Json& config) {
    const auto at = config.is_object() ? config.find("model_type") : config.end();
    return config.is_object() && at != config.end() && at->is_string() ? at->get<std::string>()
                                                                       : std::string();
  };
  const std::string ours = type_of(r.edited.config), theirs = type_of(r.donor->config());
  if (!ours.empty() && !theirs.empty() && ours != theirs) {
    problems.add("{}: model_type: expected {} as {} says, found {}",
                 (r.donor->path() / "config.json").string(), ours, (r.source.path() / "config.json").string(),
                 theirs);
  }
  size_t common = 0, floats = 0, unlike = 0;
  std::string first;
  for (const EditedTensor& t : r.edited.tensors) {
    if (!is_float(t.info.dtype)) continue;
    ++floats;
    auto at = r.donor->find(t.info.name);
    if (!at) at = r.donor->find(unwrapped(t.info.name));
    if (!at || !is_float(r.donor->tensors()[*at].dtype)) continue;
    ++common;
    if (r.donor->tensors()[*at].shape == t.info.shape) continue;
    if (unlike++ == 0)
      first = fmt::format("{}: expected {} as in {}, found {}", r.donor->where(*at), describe(t.info),
                          r.source.path().string(), describe(r.donor->tensors()[*at]));
  }
  // A tensor of the source may be what is wrong. The others then agree.
  if (4 * unlike > common) problems.add(first);
  if (problems.empty() && 4 * common < floats) {
    problems.add("{}: expected tensors of the same names as in {}, found {} of {}", r.donor->path().string(),
                 r.source.path().string(), common, floats);
  }
  if (problems.empty()) {
    if (std::string other = unlike_numbers(r); !other.empty()) problems.add(std::move(other));
  }
  problems.refuse();
}

}  // namespace twofour
