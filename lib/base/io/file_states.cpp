#include "lib/base/io/file_states.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "formats/error.h"
#include "lib/base/io/descriptor.h"
#include "lib/base/io/file.h"
#include "lib/base/io/remote_file.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// True if the file system keeps the inode numbers of files. FUSE and SMB may give a file a new number if
/// nothing has it open.
bool has_lasting_inodes(const fs::path& path) {
  constexpr uint32_t kFuse = 0x65735546, kCifs = 0xff534d42, kSmb2 = 0xfe534d42;
  struct statfs system {};
  if (::statfs(path.c_str(), &system) != 0) return true;
  const auto type = static_cast<uint32_t>(system.f_type);
  return type != kFuse && type != kCifs && type != kSmb2;
}

bool is_printed_into(const struct stat& file) {
  return std::ranges::any_of(std::initializer_list<int>{STDOUT_FILENO, STDERR_FILENO}, [&](int fd) {
    struct stat own {};
    return ::fstat(fd, &own) == 0 && own.st_dev == file.st_dev && own.st_ino == file.st_ino;
  });
}

/// A regular file, or a link to one.
std::optional<struct stat> stat_of_file(const fs::path& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0 || !S_ISREG(st.st_mode) || is_printed_into(st)) return std::nullopt;
  return st;
}

fs::path resolved(const fs::path& path) {
  std::error_code error;
  return fs::weakly_canonical(fs::absolute(path, error), error);
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

/// Calls see(path) for everything below a directory except hidden files and folders.
template <class See>
void walk(const fs::path& directory, See&& see) {
  std::error_code error;
  fs::recursive_directory_iterator it(directory, fs::directory_options::skip_permission_denied, error), end;
  for (; !error && it != end; it.increment(error)) {
    if (is_hidden(it->path())) {
      it.disable_recursion_pending();
    } else {
      see(it->path());
    }
  }
  const bool is_gone = error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (error && !is_gone) throw Error(fmt::format("{}: cannot list: {}", directory.string(), error.message()));
}

/// Adds the quoted names of weight files in a piece of an index.
void add_names(std::string_view text, std::set<std::string>& names) {
  constexpr std::string_view kEnd = ".safetensors\"";
  for (size_t at = text.find(kEnd); at != text.npos; at = text.find(kEnd, at + kEnd.size())) {
    const size_t quote = at == 0 ? text.npos : text.rfind('"', at - 1);
    if (quote != text.npos) names.emplace(text.substr(quote + 1, at + kEnd.size() - quote - 2));
  }
}

/// Calls see(path) for the files that the indexes of a directory name, with any names and in any folders.
/// Other code parses and checks an index; here it is enough to find the names.
template <class See>
void for_indexed(const fs::path& directory, See&& see) {
  constexpr std::string_view kIndex = ".safetensors.index.json";
  constexpr size_t kPiece = 1u << 20, kLongestName = 4096;
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (!it->path().filename().string().ends_with(kIndex)) continue;
    try {
      const InputFile file(it->path());
      std::string text;
      for (uint64_t at = 0; at < file.size(); at += kPiece) {
        text.erase(0, text.size() - std::min(text.size(), kLongestName));
        const size_t known = text.size();
        text.resize(known + std::min<uint64_t>(kPiece, file.size() - at));
        file.read(at, {reinterpret_cast<uint8_t*>(text.data()) + known, text.size() - known});
        add_names(text, names);
      }
    } catch (const ReadError&) {
      throw;
    } catch (const Error&) {
      // The file cannot be read as an index.
    }
  }
  for (const std::string& name : names) see(directory / name);
}

/// True if loaders read a file by this name because it is there.
bool is_read_by_name(const fs::path& file) {
  return file.extension() == ".safetensors" || file.extension() == ".json";
}

}  // namespace

FileStates::FileStates(std::vector<fs::path> paths) : paths_(std::move(paths)) {
  std::erase_if(paths_, [](const fs::path& p) { return p.empty() || !remote_name(p).empty(); });
  files_ = list();
}

FileStates::States FileStates::list() const {
  States states;
  for (const fs::path& path : paths_) {
    const bool lasting = has_lasting_inodes(path);
    const auto add = [&](const fs::path& file) {
      const auto st = stat_of_file(file);
      if (!st || is_left_out(file)) return;
      states[file.string()] = {static_cast<uint64_t>(st->st_size), nanoseconds(st->st_mtim),
                               nanoseconds(st->st_ctim), lasting ? uint64_t{st->st_dev} : 0,
                               lasting ? uint64_t{st->st_ino} : 0};
    };
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) {
      walk(path, add);
      for_indexed(path, add);
    } else {
      add(path);
    }
  }
  return states;
}

bool FileStates::is_left_out(const fs::path& file) const {
  return !left_out_.empty() && std::ranges::count(left_out_, resolved(file)) > 0;
}

void FileStates::leave_out(const fs::path& file) {
  if (file.empty()) return;
  left_out_.push_back(resolved(file));
  std::erase_if(files_, [&](const auto& entry) { return is_left_out(entry.first); });
}

void FileStates::check_unchanged(const std::string& advice) const {
  const auto refuse = [&](const std::string& file, const std::string& expected, const std::string& found) {
    throw Error(fmt::format("{}: expected {}, found {}; {}", file, expected, found, advice));
  };
  constexpr const char* kStays = "a file that does not change while being read";
  const States now = list();
  for (const auto& [file, then] : files_) {
    const auto at = now.find(file);
    if (at == now.end()) refuse(file, kStays, "no file: it was removed or renamed");
    const State& found = at->second;
    if (found == then) continue;
    if (found.inode != then.inode || found.device != then.device)
      refuse(file, kStays, "another file of that name: it was replaced");
    if (found.bytes != then.bytes)
      refuse(file, kStays, fmt::format("a change: {} bytes before, {} now", then.bytes, found.bytes));
    refuse(file, kStays, "a change: written to or touched");
  }
  for (const auto& [file, state] : now) {
    if (!files_.contains(file) && is_read_by_name(file))
      refuse(file, "no new file while its directory is being read", "one");
  }
}

}  // namespace twofour
