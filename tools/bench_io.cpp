#include "lib/bench_io.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tools/bench/bench.h"
#include "tools/option_values.h"

namespace twofour {
namespace {

struct Options {
  std::string work = ".", source, size = "2GB", request = "4MB";
  int rounds = 3;
};

const char* io_name(Io io) {
  return io == Io::kCached ? "plain" : io == Io::kBuffered ? "buffered" : "direct";
}

int run(const Options& o, const Common& common) {
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

std::function<int()> setup_bench_io(CLI::App& bench, const Common& common) {
  CLI::App* io = bench.add_subcommand(
      "io",
      "The disk: cold reads, writes with fsync, through the page cache and past it, against plain loops");
  auto o = std::make_shared<Options>();
  io->add_option("--work", o->work, "Directory on the disk to measure (default: this one)");
  io->add_option("--source", o->source,
                 "Checkpoint or file to read instead of one that is made; it leaves the page cache");
  io->add_option("--size", o->size, "Bytes of each measurement: 2GB, 500MB");
  io->add_option("--request", o->request, "Bytes asked for at once");
  io->add_option("--rounds", o->rounds, "Rounds")->check(CLI::Range(1, 1000));
  io->fallthrough();
  return [o, &common] { return run(*o, common); };
}

}  // namespace twofour
