#include "lib/jobs/compress/encoded_linears.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPiece = 4 << 20;

/// The settings that decide the bytes of a group, except the rule, the weights and the statistics.
Json describe(const QuantizedGroup& group) {
  Json all = Json::array();
  for (const EncodedMatrix& m : group.matrices()) {
    all.push_back({m.name, m.rows, m.k, static_cast<int>(m.solving.method), m.solving.sweeps,
                   m.solving.damping, m.solving.target_offset.has_value()});
  }
  return all;
}

struct PartPlace {
  uint64_t begin, bytes;  ///< range of bytes in the file
  std::string hash;
};

/// Calls f(). Returns false if files differ from the written ones. Throws the errors of reading them.
template <class F>
bool unless_damaged(F&& f) {
  try {
    f();
    return true;
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) {
  } catch (const Json::exception&) {
  }
  return false;
}

/// The hash of a range of bytes of a file. `see` receives the bytes piece by piece.
std::string hash_part(const InputFile& file, uint64_t begin, uint64_t bytes,
                      const std::function<void(std::span<const uint8_t>)>& see) {
  Hasher hasher;
  std::vector<uint8_t> piece;
  for (uint64_t done = 0; done < bytes; done += piece.size()) {
    piece.resize(std::min(kPiece, bytes - done));
    file.read(begin + done, piece);
    hasher.update(piece);
    see(piece);
  }
  return hasher.digest().hex();
}

}  // namespace

void write_work_text(const fs::path& path, std::string_view text) {
  WorkFile(path, text.size()).write(0, {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

void GroupFile::plan(const QuantizedGroup& group, const Checkpoint& source) {
  groups_.push_back({&group});
  for (const TensorInfo& t : group.outputs(source)) {
    groups_.back().parts.push_back({t.name, 0, t.bytes()});
    tensors_.push_back(t);
    tensors_.back().end -= tensors_.back().begin;
    tensors_.back().begin = 0;
  }
}

void GroupFile::begin() {
  const uint64_t bytes = assign_offsets(tensors_);
  const std::string header = format_safetensors_header(tensors_, {{"format", "pt"}});
  std::map<std::string_view, uint64_t> places;
  for (const TensorInfo& t : tensors_) places[t.name] = header.size() + t.begin;
  for (Group& group : groups_) {
    for (Part& part : group.parts) part.begin = places.at(part.tensor);
  }
  file_ = std::make_unique<WorkFile>(path_, header.size() + bytes);
  file_->write(0, {reinterpret_cast<const uint8_t*>(header.data()), header.size()});
}

EncodedBefore::Write GroupFile::writer(size_t number) {
  return [this, number](int part, std::span<const uint8_t> bytes) {
    Part& to = groups_[number].parts[static_cast<size_t>(part)];
    file_->write(to.begin + to.written, bytes);
    to.hasher.update(bytes);
    to.written += bytes.size();
  };
}

Json GroupFile::note(size_t number, const std::vector<EncodedResult>& results) const {
  Json note = {{"file", path_.filename().string()},
               {"matrices", describe(*groups_[number].group)},
               {"parts", Json::array()},
               {"results", Json::array()}};
  for (const Part& p : groups_[number].parts)
    note["parts"].push_back({p.tensor, p.begin, p.bytes, p.hasher.digest().hex()});
  for (const EncodedResult& r : results) note["results"].push_back(to_json(r));
  return note;
}

void EncodedLinears::write_notes(const fs::path& folder, Json groups) {
  const Json notes = {{"groups", std::move(groups)}};
  write_work_text(folder / kNotes, seal_object(notes.dump()));
}

EncodedLinears::EncodedLinears(const fs::path& work) {
  for (const auto& entry : fs::directory_iterator(work)) {
    if (!entry.is_directory() || is_absent(entry.path() / kNotes)) continue;
    folders_.push_back(entry.path());
    const size_t folder = folders_.size() - 1;
    unless_damaged([&] {
      const auto notes = notes_of(folder);
      for (size_t i = 0; i < notes->size(); ++i)
        places_[notes->at(i).at("matrices").at(0).at(0).get<std::string>()] = {folder, i};
    });
  }
}

std::shared_ptr<const Json> EncodedLinears::notes_of(size_t folder) const {
  const std::lock_guard lock(mutex_);
  if (const auto* found = held_.find(folder)) return *found;
  const fs::path path = folders_[folder] / kNotes;
  const std::string text = read_text(path);
  if (!is_sealed_object(text)) throw Error(fmt::format("{}: expected its hash at its end", path.string()));
  auto notes = std::make_shared<const Json>(parse_json(path.string(), text).at("groups"));
  if (held_.size() == kHeldNotes) held_.take_oldest();
  return held_.add(folder, std::move(notes));
}

std::optional<std::vector<EncodedResult>> EncodedLinears::read(const QuantizedGroup& group,
                                                               const Write& write) const {
  const auto at = places_.find(group.matrices()[0].name);
  if (at == places_.end()) return std::nullopt;
  const fs::path& folder = folders_[at->second.folder];
  std::optional<InputFile> file;
  bool is_same = false;
  std::vector<PartPlace> parts;
  std::vector<EncodedResult> results;
  const bool is_whole = unless_damaged([&] {
    const auto notes = notes_of(at->second.folder);
    const Json& note = notes->at(at->second.number);
    if (note.at("matrices") != describe(group)) return;
    for (const Json& part : note.at("parts")) {
      const TensorInfo& t = group.part_info(static_cast<int>(parts.size()));
      if (part.at(0) != t.name || part.at(2) != t.bytes()) return;
      parts.push_back({whole_number<uint64_t>(part.at(1)), t.bytes(), part.at(3).get<std::string>()});
      if (parts.size() == group.part_count()) break;
    }
    for (const Json& r : note.at("results")) results.push_back(encoded_from_json(r));
    file.emplace(folder / note.at("file").get<std::string>());
    // All parts are compared before the first is written.
    is_same = std::all_of(parts.begin(), parts.end(), [&](const PartPlace& part) {
      return hash_part(*file, part.begin, part.bytes, [](auto) {}) == part.hash;
    });
  });
  if (!is_whole || !is_same || parts.size() != group.part_count() ||
      results.size() != group.matrices().size())
    return std::nullopt;
  for (size_t p = 0; p < parts.size(); ++p) {
    const std::string hash =
        hash_part(*file, parts[p].begin, parts[p].bytes,
                  [&](std::span<const uint8_t> piece) { write(static_cast<int>(p), piece); });
    if (hash != parts[p].hash)
      throw Error(fmt::format("{}: expected bytes that do not change, found a change; try again",
                              file->path().string()));
  }
  return results;
}

}  // namespace twofour
