#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <memory>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/job_queue.h"
#include "tools/bench/bench.h"
#include "tools/cli/arguments.h"
#include "tools/cli/option_values.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;
struct IoBenchOptions {
  std::filesystem::path work;    ///< directory where files are made and removed
  std::filesystem::path source;  ///< a file or a directory with *.safetensors; made if empty
  uint64_t bytes = 2'000'000'000;
  uint64_t request = 4u << 20;
  int rounds = 3;
};

/// The speed of one way of reading or writing.
struct IoRate {
  bool write = false;
  Io io = Io::kCached;  ///< kCached is a plain loop of read(2), or of write(2) and then fsync(2), like dd
  int in_flight = 1;
  Spread gb_s{};
};

struct IoBench {
  uint64_t read_bytes = 0, written_bytes = 0;  ///< bytes of each measurement
  bool in_memory = false;                      ///< the work directory is in memory, so nothing in it is cold
  std::vector<IoRate> rates;
};

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Random bytes, which no disk can compress.
std::vector<uint8_t> random_bytes(uint64_t count) {
  std::vector<uint8_t> bytes(count);
  uint64_t state = 88172645463325252u;
  for (uint8_t& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<uint8_t>(state >> 56);
  }
  return bytes;
}

/// A file to read, and the number of bytes to read from its beginning.
struct Input {
  fs::path path;
  uint64_t bytes;
};

std::vector<Input> find_inputs(const fs::path& source, uint64_t limit) {
  std::vector<fs::path> paths;
  if (fs::is_directory(source)) {
    for (const auto& entry : fs::directory_iterator(source)) {
      if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
  } else {
    paths.push_back(source);
  }
  std::vector<Input> inputs;
  for (const fs::path& path : paths) {
    const uint64_t bytes = std::min(limit, InputFile(path).size());
    if (bytes > 0) inputs.push_back({path, bytes});
    limit -= bytes;
  }
  if (inputs.empty()) {
    throw Error(
        fmt::format("{}: expected a file or *.safetensors with bytes in them, found none", source.string()));
  }
  return inputs;
}

struct Request {
  size_t file;
  uint64_t begin, bytes;
};

std::vector<Request> requests_for(const std::vector<Input>& inputs, uint64_t step) {
  std::vector<Request> requests;
  for (size_t f = 0; f < inputs.size(); ++f) {
    for (uint64_t at = 0; at < inputs[f].bytes; at += step) {
      requests.push_back({f, at, std::min(step, inputs[f].bytes - at)});
    }
  }
  return requests;
}

template <class F>
void run_requests(std::vector<Request> requests, int in_flight, F&& f) {
  JobQueue<Request> queue(std::move(requests));
  queue.run(
      in_flight,
      [&] {
        return [&](const Request& r) {
          check_interrupt();
          f(r);
        };
      },
      [] {});
}

void drop_inputs(const std::vector<Input>& inputs) {
  for (const Input& input : inputs) drop_pages(InputFile(input.path).descriptor());
}

/// Reads files one after another, like cat. Returns the seconds.
double read_plainly(const std::vector<Input>& inputs, std::vector<uint8_t>& buffer) {
  drop_inputs(inputs);
  const auto start = Clock::now();
  for (const Input& input : inputs) {
    check_interrupt();
    const InputFile file(input.path);
    for (uint64_t done = 0; done < input.bytes;) {
      const uint64_t left = std::min<uint64_t>(buffer.size(), input.bytes - done);
      const ssize_t got = ::read(file.descriptor(), buffer.data(), left);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) throw_io_error(input.path, "read", got < 0 ? errno : EIO);
      done += static_cast<uint64_t>(got);
    }
  }
  return seconds_since(start);
}

/// Reads files. Returns the seconds, or an empty value if the files cannot be read in this way.
std::optional<double> read_all(const std::vector<Input>& inputs, Io io, int in_flight, uint64_t step) {
  drop_inputs(inputs);
  const auto start = Clock::now();
  const auto windows = std::make_shared<ReadWindows>();
  std::deque<InputFile> files;
  for (const Input& input : inputs) {
    files.emplace_back(input.path, io, windows);
    if (io == Io::kDirect && files.back().io() != io) return std::nullopt;
  }
  run_requests(requests_for(inputs, step), in_flight, [&](const Request& r) {
    thread_local std::vector<uint8_t> buffer;
    buffer.resize(r.bytes);
    files[r.file].read(r.begin, buffer);
  });
  return seconds_since(start);
}

double write_plainly(const fs::path& path, uint64_t bytes, const std::vector<uint8_t>& data) {
  const auto start = Clock::now();
  AtomicFile file(path, Io::kCached);
  for (uint64_t at = 0; at < bytes; at += data.size()) {
    check_interrupt();
    file.write(at, std::span(data).first(std::min<uint64_t>(data.size(), bytes - at)));
  }
  file.flush();
  return seconds_since(start);
}

std::optional<double> write_all(const fs::path& path, uint64_t bytes, const std::vector<uint8_t>& data, Io io,
                                int in_flight) {
  const auto start = Clock::now();
  AtomicFile file(path, io);
  if (io == Io::kDirect && file.io() != io) return std::nullopt;
  file.resize(bytes);
  run_requests(requests_for({{path, bytes}}, data.size()), in_flight,
               [&](const Request& r) { file.write(r.begin, std::span(data).first(r.bytes)); });
  file.flush();
  return seconds_since(start);
}

/// Measures reading and writing in alternating rounds, through the page cache and past it, with 1, 2, 4 and 8
/// requests at a time. Pages of the read files are dropped from the page cache before. Writing includes
/// fsync. A file system that refuses direct I/O has no rates for it. Afterwards, the pages of `source` are
/// not in the page cache.
IoBench bench_io(const IoBenchOptions& o) {
  std::vector<uint8_t> data = random_bytes(o.request), buffer(o.request);
  const fs::path made = o.work / "read", written = o.work / "written";
  IoBench bench;
  bench.written_bytes = o.bytes;
  if (o.source.empty()) {
    AtomicFile file(made, Io::kBuffered);
    file.resize(o.bytes);
    for (uint64_t at = 0; at < o.bytes; at += data.size()) {
      check_interrupt();
      file.write(at, std::span(data).first(std::min<uint64_t>(data.size(), o.bytes - at)));
    }
    bench.in_memory = file.io() == Io::kCached;
    file.commit();
  }
  const std::vector<Input> inputs = find_inputs(o.source.empty() ? made : o.source, o.bytes);
  for (const Input& input : inputs) bench.read_bytes += input.bytes;

  for (const bool write : {false, true}) {
    bench.rates.push_back({.write = write});
    for (const Io io : {Io::kBuffered, Io::kDirect}) {
      for (const int in_flight : {1, 2, 4, 8}) bench.rates.push_back({write, io, in_flight, {}});
    }
  }
  std::vector<std::vector<double>> found(bench.rates.size());
  for (int round = 0; round < o.rounds; ++round) {
    for (size_t i = 0; i < bench.rates.size(); ++i) {
      const auto& [write, io, in_flight, unused] = bench.rates[i];
      std::optional<double> seconds;
      if (io == Io::kCached) {
        seconds = write ? write_plainly(written, o.bytes, data) : read_plainly(inputs, buffer);
      } else {
        seconds = write ? write_all(written, o.bytes, data, io, in_flight)
                        : read_all(inputs, io, in_flight, o.request);
      }
      const double bytes = static_cast<double>(write ? bench.written_bytes : bench.read_bytes);
      if (seconds) found[i].push_back(bytes / 1e9 / std::max(*seconds, 1e-9));
    }
  }
  for (size_t i = 0; i < found.size(); ++i) bench.rates[i].gb_s = spread_of(std::move(found[i]));
  std::erase_if(bench.rates, [](const IoRate& r) { return r.gb_s.max == 0; });
  return bench;
}

struct IoArguments {
  std::string work = ".", source, size = "2GB", request = "4MB";
  int rounds = 3;
};

const char* io_name(Io io) {
  return io == Io::kCached ? "plain" : io == Io::kBuffered ? "buffered" : "direct";
}

int run_io(const IoArguments& o, const Common& common) {
  const WorkDirectory work(o.work);
  const IoBench b = bench_io({work.path(), o.source, parse_size_option("--size", o.size),
                              parse_size_option("--request", o.request), o.rounds});
  if (common.json) {
    Json rates = Json::array();
    for (const IoRate& r : b.rates) {
      rates.push_back({{"what", r.write ? "write" : "read"},
                       {"io", io_name(r.io)},
                       {"in_flight", r.in_flight},
                       {"gb_s", spread_to_json(r.gb_s)}});
    }
    print_json({{"bytes_read", b.read_bytes},
                {"bytes_written", b.written_bytes},
                {"in_memory", b.in_memory},
                {"rates", rates}});
    return kDone;
  }
  fmt::print("{} read after its pages were dropped{}, {} written and flushed; GB/s\n",
             format_bytes(b.read_bytes), b.in_memory ? " (in memory: they stay)" : "",
             format_bytes(b.written_bytes));
  for (const IoRate& r : b.rates) {
    fmt::print("{:<6} {:<9} {} in flight  {}\n", r.write ? "write" : "read", io_name(r.io), r.in_flight,
               spread_text(r.gb_s));
  }
  return kDone;
}

}  // namespace

std::function<int()> setup_bench_io(Arguments& args, const Common& common) {
  auto o = std::make_shared<IoArguments>();
  args.option("--work", o->work, "Directory on the disk to measure").value_name("DIRECTORY");
  args.option("--source", o->source,
              "Checkpoint or file to read instead of one that is made; it leaves the page cache")
      .value_name("PATH");
  args.option("--size", o->size, "Bytes of each measurement: 2GB, 500MB").value_name("SIZE");
  args.option("--request", o->request, "Bytes asked for at once").value_name("SIZE");
  args.option("--rounds", o->rounds, "Rounds").range(1, 1000);
  return [o, &common] { return run_io(*o, common); };
}

}  // namespace twofour
