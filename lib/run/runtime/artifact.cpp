#include "lib/run/runtime/artifact.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "formats/error.h"
#include "formats/layouts/layouts.h"
#include "lib/base/names/natural.h"
#include "lib/look/inspect/inspect.h"
#include "lib/run/runtime/state.h"
#include "lib/source/config/model_config.h"

namespace twofour {
namespace {

LayerMatrix matrix_of(const decltype(ArtifactModules::matrices)::value_type& matrix) {
  return {matrix.shape, matrix.parts, matrix.global_scale};
}

uint64_t bytes_of(const Checkpoint& artifact, const LayerMatrix& matrix) {
  uint64_t bytes = artifact.tensors()[matrix.global_scale].bytes();
  for (const size_t part : matrix.parts) bytes += artifact.tensors()[part].bytes();
  return bytes;
}

/// The first part of a name that is a number: "3" in "model.layers.3.mlp.experts".
std::string_view number_of(std::string_view name) {
  while (!name.empty()) {
    const std::string_view part = name.substr(0, name.find('.'));
    if (!part.empty() && part.find_first_not_of("0123456789") == part.npos) return part;
    name.remove_prefix(std::min(name.size(), part.size() + 1));
  }
  return {};
}

void add_layer(ArtifactState& state, const std::string& name, const std::string& layout,
               const LayerMatrix& w13, const LayerMatrix& w2) {
  const Shape &up = w13.shape, &down = w2.shape;
  const int64_t each = up.gated ? 2 : 1;
  if (up.e != down.e || up.k != down.n || down.gated || up.n != each * down.k) {
    throw Error(
        fmt::format("{}: {}: expected w13 [E, {}I, H] and w2 [E, H, I], found [{}, {}, {}] and "
                    "[{}, {}, {}]",
                    (state.artifact.path() / kManifestName).string(), name, up.gated ? "2" : "", up.e, up.n,
                    up.k, down.e, down.n, down.k));
  }
  state.layers.push_back({name, layout, up.e, up.k, down.k, up.gated,
                          bytes_of(state.artifact, w13) + bytes_of(state.artifact, w2)});
  state.matrices.push_back({w13, w2});
}

}  // namespace

RuntimeArtifact RuntimeArtifact::open(const std::filesystem::path& path) {
  auto state = std::make_shared<ArtifactState>(Checkpoint::open(path));
  if (!holds_layout(state->artifact)) {
    throw Error(fmt::format("{}: expected an artifact in {}, found {}; convert it to one of these first",
                            path.string(), layout_names(), describe_kind(state->artifact)));
  }
  for (const std::string& problem : find_odd_settings(state->artifact.config()))
    throw Error(fmt::format("{}: {}", (path / "config.json").string(), problem));
  const ArtifactModules modules = read_artifact_modules(state->artifact);
  state->artifact.check_same_files();
  const auto less = [](const std::string& a, const std::string& b) { return natural_less(a, b); };
  std::map<std::string, std::array<size_t, 2>, decltype(less)> blocks(less);
  const size_t none = modules.matrices.size();
  for (size_t i = 0; i < none; ++i) {
    const std::string& name = modules.matrices[i].name;
    for (const size_t which : {size_t{0}, size_t{1}}) {
      const std::string_view suffix = which == 0 ? ".w13" : ".w2";
      if (!name.ends_with(suffix)) continue;
      auto& block = blocks.try_emplace(name.substr(0, name.size() - suffix.size()), std::array{none, none})
                        .first->second;
      block[which] = i;
    }
  }
  for (const auto& [name, block] : blocks) {
    // If only one of w13 and w2 was converted, there is no layer to run.
    if (block[0] == none || block[1] == none) continue;
    const auto &w13 = modules.matrices[block[0]], &w2 = modules.matrices[block[1]];
    if (w13.layout != w2.layout) {
      throw Error(fmt::format("{}: {}: expected w13 and w2 in one layout, found {} and {}",
                              (path / kManifestName).string(), name, w13.layout, w2.layout));
    }
    add_layer(*state, name, w13.layout, matrix_of(w13), matrix_of(w2));
  }
  if (state->layers.empty())
    throw Error(fmt::format("{}: expected layers with w13 and w2, found none", path.string()));
  return RuntimeArtifact(std::move(state));
}

RuntimeArtifact::RuntimeArtifact(std::shared_ptr<const ArtifactState> state) : state_(std::move(state)) {}
RuntimeArtifact::RuntimeArtifact(RuntimeArtifact&&) noexcept = default;
RuntimeArtifact& RuntimeArtifact::operator=(RuntimeArtifact&&) noexcept = default;
RuntimeArtifact::~RuntimeArtifact() = default;

const std::filesystem::path& RuntimeArtifact::path() const { return state_->artifact.path(); }

std::span<const LayerInfo> RuntimeArtifact::layers() const { return state_->layers; }

std::vector<size_t> RuntimeArtifact::find(std::string_view name) const {
  std::vector<size_t> exact, numbered, below;
  for (size_t i = 0; i < state_->layers.size(); ++i) {
    const std::string& layer = state_->layers[i].name;
    if (layer == name) exact.push_back(i);
    if (!name.empty() && number_of(layer) == name) numbered.push_back(i);
    if (!name.empty() && layer.starts_with(name) && layer.substr(name.size()).starts_with("."))
      below.push_back(i);
  }
  return !exact.empty() ? exact : !numbered.empty() ? numbered : below;
}

}  // namespace twofour
