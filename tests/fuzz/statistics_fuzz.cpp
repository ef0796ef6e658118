#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "lib/recipe/statistics/statistics.h"
#include "tests/fuzz/fuzz.h"

using namespace twofour;

namespace {

/// A file in memory, one for all inputs.
class MemoryFile {
 public:
  explicit MemoryFile() : fd_(::memfd_create("statistics", 0)) { promise(fd_ >= 0); }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string fill(const uint8_t* data, size_t size) const {
    promise(::ftruncate(fd_, 0) == 0);
    promise(::pwrite(fd_, data, size, 0) == static_cast<ssize_t>(size));
    return "/proc/self/fd/" + std::to_string(fd_);
  }

 private:
  int fd_;
};

/// The sums that solving reads, where there are few of them.
void read_sums(const Statistics& s, const StatisticsEntry& e) {
  promise(e.k > 0 && e.count >= 0 && !e.members.empty() && e.sums < s.tensors().size());
  constexpr int64_t kMost = 256;
  if (e.k > kMost || e.count == 0) return;
  expect_error_at_most([&] { promise(s.read_diagonal(e).size() == static_cast<size_t>(e.k)); });
  if (e.kind == StatisticsKind::kDiagonal) return;
  expect_error_at_most([&] { promise(s.read_hessian(e).size() == static_cast<size_t>(e.k * e.k)); });
  if (e.fisher)
    expect_error_at_most([&] { promise(s.read_fisher(e).size() == static_cast<size_t>(e.k * e.k)); });
}

}  // namespace

void twofour::fuzz_statistics(const uint8_t* data, size_t size) {
  static const MemoryFile file;
  const std::string path = file.fill(data, size);
  expect_error_at_most([&] {
    const Statistics s = Statistics::open(path);
    for (const StatisticsEntry& e : s.entries()) {
      read_sums(s, e);
      for (const std::string& member : e.members) promise(s.find(member) != nullptr);
    }
    for (const StatisticsEntry& e : s.heldout_entries()) read_sums(s, e);
  });
}
