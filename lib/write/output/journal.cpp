#include "lib/write/output/journal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhat = "a directory that twofour has not finished";

/// The first line. Its number changes when an older program would misunderstand the lines that follow.
const std::string& first_line() {
  static const std::string line = seal_line(fmt::format("{}, format 2", kWhat)) + "\n";
  return line;
}

/// Removes the first line from `text` and returns it without its hash. Returns an empty text if there is no
/// valid line.
std::string_view take_line(std::string_view& text) {
  const size_t end = text.find('\n');
  if (end == text.npos) return {};
  const std::string_view line = text_of_line(text.substr(0, end));
  text.remove_prefix(end + 1);
  return line;
}

bool is_part_of_first_line(std::string_view text) {
  return text.size() < first_line().size() && first_line().starts_with(text);
}

}  // namespace

JournalState journal_state(const fs::path& directory) {
  const fs::path path = directory / kJournalName;
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (!fs::exists(status)) return JournalState::kNone;
  if (!fs::is_regular_file(status)) return JournalState::kForeign;
  const InputFile file(path);
  // In other versions the first line is the run's fingerprint, so it may be longer.
  std::string head(std::min<uint64_t>(file.size(), 16u << 20), '\0');
  file.read(0, {reinterpret_cast<uint8_t*>(head.data()), head.size()});
  if (is_part_of_first_line(head)) return JournalState::kBegun;
  std::string_view rest = head;
  const std::string_view first = take_line(rest);
  if (first.empty()) return JournalState::kForeign;
  const bool is_cut = file.size() > head.size();
  const std::string_view second = take_line(rest);
  if (second == kSynthNote && take_line(rest).empty()) return JournalState::kSynth;
  return first.starts_with(kWhat) && second.empty() && !is_cut ? JournalState::kMarked : JournalState::kOurs;
}

Journal::Journal(const fs::path& directory, Sharing sharing)
    : path_(directory / kJournalName), file_(path_, sharing) {
  if (file_.descriptor() < 0) throw_io_error(path_, file_.was_there() ? "open" : "create", ENOENT);
  // Two runs that write one directory would remove each other's files. A run that has just finished removes
  // the journal.
  if (!file_.is_ours()) {
    throw Error(fmt::format("{}: expected no other run in this directory, found one that is writing it",
                            directory.string()));
  }
  read_lines();
}

void Journal::read_lines() {
  constexpr uint64_t kMaxJournal = 1u << 30;
  const std::string all = read_text(path_, kMaxJournal);
  for (size_t next; (next = all.find('\n', end_)) != std::string::npos; end_ = next + 1) {
    const std::string_view text = text_of_line(std::string_view(all).substr(end_, next - end_));
    if (text.empty()) break;
    lines_.emplace_back(text);
  }
  torn_ = end_ < all.size();
  current_ = all.starts_with(first_line()) || is_part_of_first_line(all);
  if (all.starts_with(first_line())) lines_.erase(lines_.begin());
}

void Journal::begin() {
  if (end_ > 0) return;
  // Tasks that reach this at the same time write the same bytes to the same place.
  write(0, first_line());
  torn_ = false;
}

void Journal::note(std::string_view text) {
  if (torn_ && ::ftruncate(file_.descriptor(), static_cast<off_t>(end_)) != 0)
    throw_io_error(path_, "cut", errno);
  torn_ = true;  // true until the whole line is written
  write(end_, seal_line(text) + "\n");
  torn_ = false;
}

void Journal::restart() {
  if (::ftruncate(file_.descriptor(), 0) != 0) throw_io_error(path_, "empty", errno);
  lines_.clear();
  end_ = 0;
  torn_ = false;
  current_ = true;
  begin();
}

void Journal::write(uint64_t at, std::string_view text) {
  write_at(file_.descriptor(), path_, at, {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  if (::fdatasync(file_.descriptor()) != 0) throw_io_error(path_, "flush", errno);
  end_ = at + text.size();
}

}  // namespace twofour
