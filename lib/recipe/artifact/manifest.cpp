#include "lib/recipe/artifact/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/base/threads/parallel.h"
#include "lib/recipe/artifact/layout_names.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

namespace fs = std::filesystem;

namespace {

/// Takes an entry for the source of a target or of a rewritten module into the manifest.
void take_source(const std::string& where, const Json& json, Manifest& manifest) {
  const Json& bits = json.at("global_scale_bits");
  if (!bits.is_array()) {
    manifest.raw_bits.push_back(parse_bits(where, bits));
    return;
  }
  for (const Json& b : bits) manifest.raw_bits.push_back(parse_bits(where, b));
  if (bits.size() != 1) return;
  const auto input = json.find("input_scale_bits");
  const auto shape = [&](const char* key) {
    std::optional<std::vector<int64_t>> found;
    if (json.contains(key)) {
      found.emplace();
      for (const Json& dimension : json.at(key)) found->push_back(whole_number<int64_t>(dimension));
    }
    return found;
  };
  manifest.originals[json.at("module").get<std::string>()] = {
      json.at("dialect").get<std::string>(), manifest.raw_bits.back(),
      input == json.end() ? 0 : parse_bits(where, *input), shape("global_scale_shape"),
      shape("input_scale_shape")};
}

/// Takes the original types of the scales of a converted linear into the manifest.
void take_scale_types(const Json& json, Manifest& manifest) {
  const auto type = [&](const char* key) -> std::optional<DType> {
    return json.contains(key) ? dtype_from_name(json.at(key).get<std::string>()) : std::nullopt;
  };
  const Manifest::ScaleTypes types{type("scale_dtype"), type("input_scale_dtype")};
  if (types.scale || types.input_scale) manifest.scale_types[json.at("module").get<std::string>()] = types;
}

constexpr std::string_view kBaseTensors = "tensors_xxh3_128", kBaseTexts = "texts";

GraftBase read_graft_base(std::string_view where, const Json& json, UnknownKeys unknown) {
  check_keys(where, "source.base", json, std::array{kBaseTensors, kBaseTexts}, unknown);
  GraftBase base{parse_hash(where, json.at(kBaseTensors).get<std::string>()), {}};
  for (const auto& [name, text] : json.at(kBaseTexts).items()) base.texts[name] = text.get<std::string>();
  return base;
}

}  // namespace

Hash128 hash_descriptions(std::span<const TensorInfo> tensors) {
  Hasher hasher;
  for (const TensorInfo& t : tensors) {
    hasher.update(t.name);
    hasher.update(fmt::format(" {}\n", describe(t)));
  }
  return hasher.digest();
}

Json graft_base_to_json(const GraftBase& base) {
  return {{kBaseTensors, base.tensors.hex()}, {kBaseTexts, Json(base.texts)}};
}

std::string manifest_seal(const Hash128& hash) {
  return fmt::format("\"manifest_xxh3_128\": \"{}\"\n}}\n", hash.hex());
}

std::string integrity_error(const InputFile& file) {
  std::string found(std::min<uint64_t>(file.size(), manifest_seal({}).size()), '\0');
  const uint64_t before = file.size() - found.size();
  file.read(before, {reinterpret_cast<uint8_t*>(found.data()), found.size()});
  const Hash128 hash = hash_range(file, 0, before, [](uint64_t) {});
  if (found == manifest_seal(hash)) return {};
  const size_t key = found.find(": ");
  return fmt::format("expected it to end with {}, the hash of the text before it, found {}", hash.hex(),
                     json_quote(key == found.npos ? found : found.substr(key + 2, 34)));
}

Manifest read_manifest(const std::filesystem::path& path, size_t tensors) {
  const std::string where = path.string();
  Manifest manifest;
  // Each tensor and module is taken and dropped during parsing, so the whole document is never in memory. The
  // number of remaining objects is limited.
  constexpr int kMaxKept = 20'000;
  int kept = 0;
  const auto keep = [&](Json& json) {
    manifest.folds += json.contains("fold_relative_error");
    // The content hash covers the bytes of a source.
    if (json.contains("codes_xxh3_128")) {
      take_source(where, json, manifest);
      return false;
    }
    if (json.contains("weights_xxh3_128")) return false;
    if (json.contains("module") && json.contains("dtype")) {
      take_scale_types(json, manifest);
      return false;
    }
    if (json.contains("gated")) {
      const Json& shape = json.at("shape");
      const auto name = json.at("name").get<std::string>();
      manifest.layouts[name] = json.at("layout").get<std::string>();
      manifest.shapes[name] = {whole_number<int64_t>(shape.at(0)), whole_number<int64_t>(shape.at(1)),
                               whole_number<int64_t>(shape.at(2)), json.at("gated").get<bool>()};
      kept = 0;
      return false;
    }
    if (!json.contains("xxh3_128")) {
      if (++kept > kMaxKept)
        throw Error(fmt::format("{}: expected a twofour manifest, found too many objects", where));
      return true;
    }
    const auto dtype = dtype_from_name(json.at("dtype").get<std::string>());
    std::vector<int64_t> shape;
    for (const Json& dimension : json.at("shape")) shape.push_back(whole_number<int64_t>(dimension));
    manifest.outputs[json.at("name").get<std::string>()] = {
        parse_hash(where, json.at("xxh3_128").get<std::string>()),
        dtype ? describe(*dtype, shape) : "an unknown type"};
    return false;
  };
  try {
    ManifestText text = parse_manifest_text(path, tensors, keep);
    const Json& json = text.json;
    manifest.integrity_error = std::move(text.integrity_error);
    manifest.format = text.format;
    check_layout_names(where, json, manifest.layouts);
    manifest.version = json.at("tool").at("version").get<std::string>();
    manifest.commit = json.at("tool").at("commit").get<std::string>();
    manifest.recipe = std::move(text.recipe);
    for (Rule& rule : manifest.recipe.rules) {
      rule.keeps_absent = true;
      // An FP8 rule without a scale type is from a version that quantized every source as floats and
      // permitted blocks of any shape.
      if (rule.to != "fp8" || !rule.scale_dtype.empty()) continue;
      rule.exact = Exact::kOff;
      rule.odd_blocks = OddBlocks::kWrite;
    }
    for (const auto& [name, hash] : json.at("files").items()) {
      manifest.files[name] = parse_hash(where, hash.get<std::string>());
    }
    if (json.contains("readme")) manifest.readme = json.at("readme").get<std::string>();
    for (const Json& file : json.at("source").at("files")) {
      manifest.sources.push_back({file.at("name").get<std::string>(),
                                  whole_number<uint64_t>(file.at("bytes")),
                                  parse_hash(where, file.at("header_xxh3_128").get<std::string>())});
    }
    if (const auto base = json.at("source").find("base"); base != json.at("source").end())
      manifest.graft_base = read_graft_base(where, *base, text.unknown_keys);
    if (const auto remote = json.at("source").find("remote"); remote != json.at("source").end())
      manifest.remote = *remote;
    manifest.source_content = json.at("source").at("content_xxh3_128").get<std::string>();
  } catch (const Json::exception&) {
    throw Error(fmt::format("{}: expected a twofour manifest, found something else", where));
  }
  return manifest;
}

ManifestText parse_manifest_text(const fs::path& path, size_t tensors, const KeepJson& keep) {
  // A tensor takes a line of about 200 bytes. A source takes a few more bytes.
  constexpr uint64_t kBase = 256u << 20, kPerTensor = 1024;
  constexpr size_t kObjects = 1'000'000, kObjectsPerTensor = 4;
  const InputFile file(path);
  const uint64_t most = kBase + kPerTensor * tensors;
  if (file.size() > most) {
    throw Error(fmt::format("{}: expected at most {} bytes for {} tensors, found {}", path.string(), most,
                            tensors, file.size()));
  }
  ManifestText text{nullptr, integrity_error(file), 0, {}, UnknownKeys::kIgnore};
  size_t taken = 0;
  const KeepJson count = [&](Json& json) {
    if (keep(json)) return true;
    if (++taken <= kObjects + kObjectsPerTensor * tensors) return false;
    throw Error(
        fmt::format("{}: expected a manifest of {} tensors, found too many objects", path.string(), tensors));
  };
  std::string piece;
  uint64_t read = 0;
  const JsonPieces next = [&] {
    constexpr uint64_t kPiece = 1u << 20;
    piece.resize(std::min(kPiece, file.size() - read));
    file.read(read, {reinterpret_cast<uint8_t*>(piece.data()), piece.size()});
    read += piece.size();
    return std::string_view(piece);
  };
  text.json = parse_json_pieces(path.string(), next, count);
  const auto format = whole_number<int64_t>(text.json.at("format"));
  if (format < kOldestManifestFormat || format > kManifestFormat) {
    throw Error(fmt::format("{}: expected manifest format {} to {}, found {}{}", path.string(),
                            kOldestManifestFormat, kManifestFormat, format,
                            format > kManifestFormat ? ": a newer twofour wrote it; use that version" : ""));
  }
  text.format = static_cast<int>(format);
  // An unknown key in a damaged file is reported as damage.
  if (format >= kFirstStrictFormat && text.integrity_error.empty()) text.unknown_keys = UnknownKeys::kRefuse;
  text.recipe = recipe_from_json(path.string(), text.json.at("recipe"), text.unknown_keys);
  return text;
}

namespace {

std::string read_own_readme(const fs::path& directory, size_t tensors) {
  const auto keep = [](const Json& object) {
    return !object.contains("xxh3_128") && !object.contains("module");
  };
  const ManifestText text = parse_manifest_text(directory / kManifestName, tensors, keep);
  if (!text.integrity_error.empty() || !text.json.contains("readme")) return {};
  const auto name = text.json.at("readme").get<std::string>();
  if (name != kReadmeName && name != kBesideReadmeName) return {};
  const Json& files = text.json.at("files");
  const bool is_same = files.contains(name) && !is_absent(directory / name) &&
                       hash_file(directory / name).hex() == files.at(name).get<std::string>();
  return is_same ? name : std::string();
}

}  // namespace

std::string own_readme(const fs::path& directory, size_t tensors) {
  if (is_absent(directory / kManifestName)) return {};
  try {
    return read_own_readme(directory, tensors);
  } catch (const Json::exception&) {
    return {};  // another program's file
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) {
    return {};  // a damaged file proves nothing
  }
}

uint32_t parse_bits(std::string_view where, const Json& json) {
  const auto hex = json.get<std::string>();
  uint32_t bits = 0;
  const bool read = std::sscanf(hex.c_str(), "%8x", &bits) == 1;
  if (read && fmt::format("{:08x}", bits) == hex) return bits;
  throw Error(fmt::format("{}: expected eight hexadecimal digits, found {}", where, json_quote_short(hex)));
}

void check_tensor_hashes(const std::filesystem::path& path, const std::string& prefix, Progress& progress) {
  if (is_absent(path / kManifestName)) {
    throw Error(fmt::format("{}: expected a twofour artifact, found no {}", path.string(), kManifestName));
  }
  const Checkpoint artifact = Checkpoint::open(path);
  const Manifest manifest = read_manifest(path / kManifestName, artifact.tensors().size());
  if (!manifest.integrity_error.empty())
    throw Error(fmt::format("{}: {}", (path / kManifestName).string(), manifest.integrity_error));
  std::vector<size_t> wanted;
  for (size_t i = 0; i < artifact.tensors().size(); ++i) {
    if (!artifact.tensors()[i].name.starts_with(prefix)) continue;
    wanted.push_back(i);
    progress.total += artifact.tensors()[i].bytes();
  }
  parallel_for(wanted.size(), [&](size_t i) {
    const TensorInfo& t = artifact.tensors()[wanted[i]];
    const auto at = manifest.outputs.find(t.name);
    if (at == manifest.outputs.end()) {
      throw Error(fmt::format("{}: expected it in {}, found none of that name", artifact.where(wanted[i]),
                              kManifestName));
    }
    Hasher hasher;
    const auto read = [&](uint64_t begin, std::span<uint8_t> piece) {
      artifact.read(wanted[i], begin, piece);
    };
    read_in_pieces(t.bytes(), 1u << 20, read, [&](uint64_t, std::span<const uint8_t> piece) {
      hasher.update(piece);
      progress.done += piece.size();
    });
    if (hasher.digest() == at->second.hash) return;
    throw Error(fmt::format("{}: expected hash {} ({}), found {}; twofour validate names all that differ",
                            artifact.where(wanted[i]), at->second.hash.hex(), kManifestName,
                            hasher.digest().hex()));
  });
}

}  // namespace twofour
