#include "lib/base/io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>
#include <vector>

#include "formats/error.h"
#include "lib/base/findings/error_kinds.h"
#include "lib/base/findings/shown_url.h"
#include "lib/base/findings/suggest.h"
#include "lib/base/io/descriptor.h"
#include "lib/base/io/links.h"
#include "lib/base/io/remote_file.h"
#include "lib/base/io/temporary_file.h"

namespace twofour {

namespace fs = std::filesystem;

namespace {

std::string io_message(const fs::path& path, const char* doing, int error) {
  return fmt::format("{}: cannot {}: {}", path.string(), doing, system_message(error));
}

int64_t modified_at(const struct stat& st) { return nanoseconds(st.st_mtim); }

constexpr std::string_view kTemporaryEnd = ".unfinished";

/// Reads as much as direct I/O can. Afterwards, `offset` and `out` describe the rest.
void read_directly(const DirectFile& direct, const fs::path& path, uint64_t& offset,
                   std::span<uint8_t>& out) {
  if (!direct.is_open() || out.size() < kDirectMinimum) return;
  const size_t done = direct.read(path, offset, out);
  offset += done;
  out = out.subspan(done);
}

}  // namespace

namespace {

/// True if a text can be the name of an organization or a model on the Hub.
bool is_hub_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name[0] != '-' &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '_' || c == '-'; });
}

/// A question about a path at which nothing is: a name that is alike, or a model on the Hub.
std::string meant_instead(const fs::path& path) {
  std::error_code error;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  constexpr size_t kMost = 10'000;
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end && names.size() < kMost;
       it.increment(error))
    names.push_back(it->path().filename().string());
  const std::string meant = did_you_mean(path.filename().string(), names);
  if (!meant.empty()) return meant;
  const std::string text = path.string();
  const size_t slash = text.find('/');
  if (slash == text.npos || !is_absent(folder) || !is_hub_name(text.substr(0, slash)) ||
      !is_hub_name(text.substr(slash + 1)))
    return "";
  return fmt::format("; hf://{}?", text);
}

}  // namespace

void throw_io_error(const fs::path& path, const char* doing, int error) {
  throw_error(error == ENOENT ? ErrorKind::kNotFound : ErrorKind::kOther, io_message(path, doing, error));
}

ReadError::ReadError(const fs::path& path, int error, const char* doing)
    : Error(io_message(path, doing, error)) {}

fs::file_status status_of(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::none) throw ReadError(path, error.value(), "look at");
  if (!fs::exists(status) && path.string().find("://") != std::string::npos) {
    throw Error(fmt::format(
        "{}: expected a path: URLs are read by inspect, lint --headers-only, diff --headers-only, plan, "
        "convert, quantize and prune; download it first",
        shown_url(path.string())));
  }
  if (const std::string link = dangling_link(path); !link.empty())
    throw NotFoundError(fmt::format("{}: expected a file or directory, found {}", path.string(), link));
  if (!fs::exists(status))
    throw NotFoundError(fmt::format("{}: no such file or directory{}", path.string(), meant_instead(path)));
  return status;
}

bool is_absent(const fs::path& path) {
  std::error_code error;
  return fs::status(path, error).type() == fs::file_type::not_found;
}

fs::path temporary_folder() {
  std::error_code error;
  fs::path folder = fs::temp_directory_path(error);
  if (!error) return folder;
  const char* given = std::getenv("TMPDIR");
  throw Error(fmt::format("TMPDIR: expected a directory, found {}: {}", given != nullptr ? given : "/tmp",
                          error.message()));
}

std::string system_message(int error) { return std::generic_category().message(error); }

InputFile::InputFile(const fs::path& path, Io io, std::shared_ptr<ReadWindows> windows) : path_(path) {
  // Without O_NONBLOCK, opening a FIFO would wait for a writer.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) {
    const int error = errno;
    const std::string link = error == ENOENT ? dangling_link(path) : "";
    if (!link.empty()) throw NotFoundError(fmt::format("{}: expected a file, found {}", path.string(), link));
    if (error == ENOENT || error == ENOTDIR || error == ELOOP) throw_io_error(path, "open", error);
    throw ReadError(path, error, "open");
  }
  struct stat st {};
  if (::fstat(fd_, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(fd_);
    throw Error(fmt::format("{}: expected a regular file, found something else", path.string()));
  }
  size_ = static_cast<uint64_t>(st.st_size);
  modified_ = modified_at(st);
  status_changed_ = nanoseconds(st.st_ctim);
  remote_ = find_remote_file(path);
  if (remote_) {
    modified_ = status_changed_ = remote_->version();
    return;
  }
  if (io == Io::kCached || is_in_memory(fd_)) return;
  windows_ = windows ? std::move(windows) : std::make_shared<ReadWindows>();
  resident_ = resident_windows(fd_, size_);
  if (io == Io::kDirect) direct_ = DirectFile(path_, fd_, false);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      modified_(other.modified_),
      status_changed_(other.status_changed_),
      direct_(std::move(other.direct_)),
      windows_(std::move(other.windows_)),
      resident_(std::move(other.resident_)),
      remote_(std::move(other.remote_)) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(modified_, other.modified_);
  std::swap(status_changed_, other.status_changed_);
  std::swap(direct_, other.direct_);
  std::swap(windows_, other.windows_);
  std::swap(resident_, other.resident_);
  std::swap(remote_, other.remote_);
  return *this;
}

InputFile::~InputFile() {
  if (fd_ < 0) return;
  if (windows_) windows_->give_up(fd_);
  ::close(fd_);
}

Io InputFile::io() const { return direct_.is_open() ? Io::kDirect : windows_ ? Io::kBuffered : Io::kCached; }

bool InputFile::is_pinned() const {
  return remote_ == nullptr || remote_->version() != RemoteFile::kUnknownVersion;
}

void InputFile::check_unchanged() const {
  if (remote_) return;  // each answer identifies its contents by an ETag
  struct stat st {};
  if (::fstat(fd_, &st) != 0) throw_io_error(path_, "look at", errno);
  if (static_cast<uint64_t>(st.st_size) == size_ && modified_at(st) == modified_) return;
  throw Error(fmt::format("{}: expected a file that does not change while being read, found a change",
                          path_.string()));
}

void InputFile::read(uint64_t offset, std::span<uint8_t> out) const {
  if (remote_) {
    if (offset > size_ || out.size() > size_ - offset) {
      throw Error(fmt::format("{}: expected {} bytes at {}, found a file of {}", path_.string(), out.size(),
                              offset, size_));
    }
    return remote_->read(offset, out);
  }
  read_directly(direct_, path_, offset, out);
  if (out.empty()) return;
  read_at(fd_, path_, offset, out);
  if (!windows_) return;
  for (uint64_t w = offset / kCacheWindow; w * kCacheWindow < offset + out.size(); ++w) {
    if (w < resident_.size() && !resident_[w]) windows_->add(fd_, w);
  }
}

std::string temporary_name(const std::string& name) { return fmt::format(".{}{}", name, kTemporaryEnd); }

std::string name_of_temporary(std::string_view name) {
  const bool is_one =
      name.size() > 1 + kTemporaryEnd.size() && name.starts_with('.') && name.ends_with(kTemporaryEnd);
  return std::string(is_one ? name.substr(1, name.size() - 1 - kTemporaryEnd.size()) : std::string_view());
}

AtomicFile::AtomicFile(const fs::path& path, Io io) : path_(path) {
  temporary_ = path.parent_path() / temporary_name(path.filename().string());
  fd_ = create_temporary(temporary_);
  if (io == Io::kCached || is_in_memory(fd_)) return;
  // Reading back always bypasses the page cache, so that the bytes come from the disk.
  direct_ = DirectFile(temporary_, fd_, io == Io::kDirect);
  io_ = io == Io::kDirect && direct_.is_open() ? Io::kDirect : Io::kBuffered;
  reads_ = std::make_unique<ReadWindows>();
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      fd_(std::exchange(other.fd_, -1)),
      io_(other.io_),
      flushed_(other.flushed_.load()),
      direct_(std::move(other.direct_)),
      writes_(std::move(other.writes_)),
      reads_(std::move(other.reads_)) {}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) discard_temporary(fd_, temporary_);
}

void AtomicFile::resize(uint64_t size) {
  if (size == 0) return;
  if (io_ == Io::kBuffered) writes_ = std::make_unique<WriteWindows>(size);
  // A file in memory does not fragment, and reserving would touch every page once more.
  const bool in_memory = is_in_memory(fd_);
  struct statfs system {};
  if (in_memory && ::fstatfs(fd_, &system) == 0 &&
      size / static_cast<uint64_t>(system.f_bsize) > system.f_bavail && system.f_blocks > 0) {
    throw_io_error(path_, fmt::format("reserve {} bytes", size).c_str(), ENOSPC);
  }
  // posix_fallocate() is avoided, because it writes to each block of a file system that cannot preallocate.
  int error = EOPNOTSUPP;
  if (!in_memory) {
    do {
      error = ::fallocate(fd_, 0, 0, static_cast<off_t>(size)) == 0 ? 0 : errno;
    } while (error == EINTR);
  }
  // File systems without preallocation still need the size, so that pieces can land in any order.
  if (error == EOPNOTSUPP || error == ENOSYS || error == EINVAL) {
    if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) throw_io_error(path_, "resize", errno);
  } else if (error != 0) {
    throw_io_error(path_, fmt::format("reserve {} bytes", size).c_str(), error);
  }
}

void AtomicFile::write(uint64_t offset, std::span<const uint8_t> bytes) {
  flushed_ = false;
  if (io_ == Io::kDirect) {
    // Pages that are shared with a neighbour, and therefore the end of the file, go through the page cache.
    const uint64_t page = DirectFile::alignment(), head = (page - offset % page) % page;
    const uint64_t whole = bytes.size() < head ? 0 : (bytes.size() - head) / page * page;
    if (whole >= kDirectMinimum) {
      write_through_cache(offset, bytes.first(head));
      const size_t done = head + direct_.write(path_, offset + head, bytes.subspan(head, whole));
      offset += done;
      bytes = bytes.subspan(done);
    }
  }
  write_through_cache(offset, bytes);
}

void AtomicFile::write_through_cache(uint64_t offset, std::span<const uint8_t> bytes) {
  write_at(fd_, path_, offset, bytes);
  if (!writes_) return;
  if (const int error = writes_->written(fd_, offset, bytes.size())) throw_io_error(path_, "write", error);
}

void AtomicFile::write(uint64_t offset, std::string_view bytes) {
  write(offset, std::span(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
}

void AtomicFile::flush() {
  if (::fsync(fd_) != 0) throw_io_error(path_, "flush", errno);
  flushed_ = true;
  if (io_ != Io::kCached) drop_pages(fd_);
}

void AtomicFile::read(uint64_t offset, std::span<uint8_t> out) const {
  read_directly(direct_, path_, offset, out);
  if (out.empty()) return;
  read_at(fd_, path_, offset, out);
  if (!reads_) return;
  for (uint64_t w = offset / kCacheWindow; w * kCacheWindow < offset + out.size(); ++w) reads_->add(fd_, w);
}

void AtomicFile::commit() {
  if (!flushed_) flush();
  if (io_ != Io::kCached) drop_pages(fd_);
  direct_ = DirectFile();
  commit_temporary(std::exchange(fd_, -1), temporary_, path_);
}

std::string read_text(const fs::path& path, uint64_t limit) { return read_text(InputFile(path), limit); }

std::string read_text(const InputFile& file, uint64_t limit) {
  if (file.size() > limit) {
    throw Error(
        fmt::format("{}: expected at most {} bytes, found {}", file.path().string(), limit, file.size()));
  }
  std::string text(file.size(), '\0');
  file.read(0, {reinterpret_cast<uint8_t*>(text.data()), text.size()});
  return text;
}

void write_text(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(0, text);
  file.commit();
}

bool same_contents(const fs::path& a, const fs::path& b) {
  const InputFile x(a), y(b);
  if (x.size() != y.size()) return false;
  std::vector<uint8_t> p(1u << 20), q(1u << 20);
  for (uint64_t at = 0; at < x.size(); at += p.size()) {
    const auto count = static_cast<size_t>(std::min<uint64_t>(p.size(), x.size() - at));
    x.read(at, {p.data(), count});
    y.read(at, {q.data(), count});
    if (!std::equal(p.begin(), p.begin() + static_cast<ptrdiff_t>(count), q.begin())) return false;
  }
  return true;
}

void sync_directory(const fs::path& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_io_error(directory, "open", errno);
  const int result = ::fsync(fd), error = errno;
  ::close(fd);
  // Some file systems cannot flush a directory and lose nothing by it.
  if (result != 0 && error != EINVAL) throw_io_error(directory, "flush", error);
}

std::map<std::string, uint64_t> files_below(const fs::path& directory) {
  std::map<std::string, uint64_t> files;
  std::error_code error;
  fs::recursive_directory_iterator it(directory, error), end;
  for (; !error && it != end; it.increment(error)) {
    std::error_code look;
    if (!it->is_regular_file(look)) continue;  // follows links
    const uint64_t size = it->file_size(look);
    if (look) throw Error(fmt::format("{}: cannot look at: {}", it->path().string(), look.message()));
    files[it->path().lexically_relative(directory).string()] = size;
  }
  if (error) throw Error(fmt::format("{}: cannot list: {}", directory.string(), error.message()));
  return files;
}

std::vector<std::string> list_files(const fs::path& directory, std::string_view suffix) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(suffix) && !name.starts_with(".")) names.push_back(name);
  }
  if (error) throw Error(fmt::format("{}: cannot list: {}", directory.string(), error.message()));
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace twofour
