#include "lib/prove/mends/mended_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/error.h"
#include "formats/half.h"
#include "formats/json/access.h"
#include "lib/recipe/artifact/manifest.h"

namespace twofour {
namespace {

std::set<std::string> set_of(const Json& json, const char* key) {
  const auto all = strings_of(json, key);
  return {all.begin(), all.end()};
}

/// The bits of float32 numbers, as the records have them.
std::string hex_of(const MendedTensor& t) {
  std::string text;
  if (t.info.dtype != DType::kF32) return text;
  for (const float x : t.floats())
    text += fmt::format("{}{:08x}", text.empty() ? "" : " ", std::bit_cast<uint32_t>(x));
  return text;
}

MendNote read_mend_note(const Json& json) {
  MendNote note{.mend = text_of(json, "mend"),
                .prefix = text_of(json, "prefix"),
                .rules = set_of(json, "rules"),
                .tensors = set_of(json, "tensors"),
                .dropped = set_of(json, "dropped"),
                .files = set_of(json, "files")};
  const auto names = strings_of(json, "tensors"), values = strings_of(json, "values");
  for (size_t i = 0; i < std::min(names.size(), values.size()); ++i) note.values[names[i]] = values[i];
  const auto keys = strings_of(json, "settings"), before = strings_of(json, "before"),
             after = strings_of(json, "after");
  for (size_t i = 0; i < keys.size(); ++i) {
    const size_t colon = keys[i].find(": ");
    if (colon == std::string::npos || i >= before.size() || i >= after.size())
      throw Error("source.mends: expected FILE: KEY with before and after, found " + keys[i]);
    note.settings.push_back({keys[i].substr(0, colon), keys[i].substr(colon + 2), before[i], after[i]});
  }
  for (const auto& [module, loss] : members_of(json, "loss")) note.loss[module] = loss.get<double>();
  return note;
}

}  // namespace

RepairNote read_repair_note(const std::filesystem::path& manifest, size_t tensors) {
  const auto keep = [](Json& json) { return !json.contains("name") || !json.contains("xxh3_128"); };
  RepairNote note;
  try {
    const Json document = parse_manifest_text(manifest, tensors, keep).json;
    const Json& source = member(document, "source");
    note.readme = text_of(document, "readme");
    for (const Json& one : member(source, "mends")) note.mends.push_back(read_mend_note(one));
    note.donor = text_of(member(source, "donor"), "fingerprint");
  } catch (const Json::exception&) {
    throw Error(manifest.string() + ": source.mends: expected records of mends, found something else");
  }
  return note;
}

void MendedTensor::read(uint64_t begin, std::span<uint8_t> out) const {
  if (from == nullptr) {
    std::memcpy(out.data(), bytes.data() + begin, out.size());
    return;
  }
  from->read(tensor, begin, out);
  if (!table) return;
  for (uint8_t& byte : out) byte = (*table)[byte];
}

std::vector<float> MendedTensor::floats() const {
  constexpr uint64_t kMost = 1u << 20;
  const uint64_t size = info.bytes();
  if (size > kMost) return {};
  std::vector<uint8_t> all(size);
  read(0, all);
  std::vector<float> values;
  if (info.dtype == DType::kF32) {
    values.resize(size / 4);
    std::memcpy(values.data(), all.data(), values.size() * 4);
  } else if (info.dtype == DType::kBF16 || info.dtype == DType::kF16) {
    for (size_t i = 0; i + 1 < size; i += 2) {
      const auto bits = static_cast<uint16_t>(all[i] | all[i + 1] << 8);
      values.push_back(info.dtype == DType::kBF16 ? bf16_to_float(bits) : fp16_to_float(bits));
    }
  }
  return values;
}

std::vector<TensorInfo> MendedState::infos() const {
  std::vector<TensorInfo> all;
  for (const auto& [name, t] : tensors) all.push_back(t.info);
  return all;
}

void MendedState::make(const char* mend, const MendNote* note, std::vector<MendedTensor> made) {
  std::set<std::string> listed = note == nullptr ? std::set<std::string>{} : note->tensors;
  for (MendedTensor& t : made) {
    const std::string name = t.info.name;
    if (listed.erase(name) == 0) {
      differ("mend", name, fmt::format("expected the record of a mend ({}), found none", mend));
    } else if (const auto value = note->values.find(name);
               t.info.dtype == DType::kF32 && t.from == nullptr &&
               (value == note->values.end() || value->second != hex_of(t))) {
      differ("mend", name,
             fmt::format("expected {} by the mend {}, found {} in its record", hex_of(t), mend,
                         value == note->values.end() ? "nothing" : value->second));
    }
    tensors[name] = std::move(t);
  }
  for (const std::string& name : listed)
    differ("mend", name, fmt::format("expected no mend ({}), found a record of one", mend));
}

bool is_usable(float scale) { return std::isfinite(scale) && scale > 0; }

std::vector<Nvfp4Linear> sound_modules(const std::vector<TensorInfo>& infos) {
  std::vector<Nvfp4Linear> all;
  const auto where = [](size_t) { return std::string(); };
  for (size_t i = 0; i < infos.size(); ++i) {
    try {
      if (auto m = read_nvfp4_module(infos, i, where)) all.push_back(std::move(*m));
    } catch (const Error&) {
      continue;  // such a module stays as it is
    }
  }
  return all;
}

std::string name_kind(std::string_view name) {
  std::string kind;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    const std::string_view part = name.substr(at, end - at);
    const bool is_number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    kind += is_number ? "#." : std::string(part) + ".";
    at = end + 1;
  }
  return kind;
}

}  // namespace twofour
