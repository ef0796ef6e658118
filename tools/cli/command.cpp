#include "tools/cli/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "formats/error.h"
#include "kernels/device/device.h"
#include "lib/base/threads/parallel.h"
#include "lib/base/threads/stopwatch.h"
#include "tools/cli/arguments.h"
#include "tools/console/progress_line.h"

namespace twofour {
namespace {

/// Shows progress from a separate thread until this object is destroyed.
class ProgressPrinter {
 public:
  explicit ProgressPrinter(const Progress& progress)
      : progress_(progress), thread_(start_thread([this] { run(); })) {}
  ~ProgressPrinter() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
    if (shown_ && terminal_) print_stderr("\r\033[K");
  }

 private:
  void run() {
    constexpr size_t kUsual = 100;
    const auto period = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10'000);
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, period, [this] { return stop_; })) {
      // A terminal moves a line that reaches its last column on to the next line.
      const size_t columns = terminal_columns(stderr);
      const std::string line =
          progress_line(shown(progress_), watch_.seconds(), columns > 1 ? columns - 1 : kUsual);
      terminal_ ? print_stderr("\r\033[K{}", line) : print_stderr("{}\n", line);
      std::fflush(stderr);
      shown_ = true;
    }
  }

  const Progress& progress_;
  const Stopwatch watch_;
  const bool terminal_ = obeys_controls(stderr);
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false, shown_ = false;
  std::jthread thread_;
};

}  // namespace

Device choose_device(const Common& common) {
  if (common.device == "cpu") return Device::cpu;
  if (common.device == "auto") return cuda_device() ? Device::cuda : Device::cpu;
  if (!cuda_device())
    throw Error(
        fmt::format("--device {}: expected a CUDA device, found none ({})", common.device, no_cuda_reason()));
  return Device::cuda;
}

void show_one_device(const Common& common) {
  constexpr std::string_view kPrefix = "cuda:";
  constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
  if (!common.device.starts_with(kPrefix)) return;
  if (CapturedConsole::current() != nullptr) {
    throw Error(
        fmt::format("--device {}: expected cpu, cuda or auto in a process that may use CUDA already, found "
                    "an index; set {}",
                    common.device, kVisible));
  }
  const auto index = std::stoul(common.device.substr(kPrefix.size()));
  std::string shown = std::to_string(index);
  if (const char* visible = std::getenv(kVisible)) {
    // If the variable lists some devices, the index counts within that list.
    std::string_view rest = visible;
    for (unsigned long i = 0; i < index; ++i) {
      const size_t comma = rest.find(',');
      rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
    }
    shown = rest.substr(0, rest.find(','));
  }
  setenv(kVisible, shown.c_str(), 1);
}

void check_device(const Common& common, const std::string& command) {
  if (common.device.starts_with("cuda")) {
    throw Error(fmt::format("--device {}: expected cpu or auto, found {}, which runs on the CPU alone",
                            common.device, command));
  }
}

Device choose_solver_device(const Common& common, bool solves) {
  if (solves) return choose_device(common);
  check_device(common, common.command + " without --stats");
  return Device::cpu;
}

std::string device_text(Device device) {
  return device == Device::cpu ? "cpu" : fmt::format("cuda ({})", cuda_device()->name);
}

std::string device_text(const Common& common, Device device) {
  const bool none = device == Device::cpu && common.device == "auto";
  return none ? fmt::format("cpu (no CUDA device: {})", no_cuda_reason()) : device_text(device);
}

void with_progress(const Common& common, const std::function<void(Progress&)>& work) {
  Progress progress;
  if (CapturedConsole* console = CapturedConsole::current()) {
    struct Watch {
      CapturedConsole& console;
      ~Watch() { console.watch(nullptr); }
    };
    console->watch(&progress);
    const Watch watch{*console};
    work(progress);
    return;
  }
  if (common.quiet) {
    work(progress);
    return;
  }
  const ProgressPrinter printer(progress);
  work(progress);
}

void print_findings(const Common& common, const Findings& findings) {
  if (common.json || common.quiet) return;
  for (const Finding& f : findings) {
    if (f.severity == Severity::kNote && !common.verbose) continue;
    print_coloured(stderr, f.severity, severity_name(f.severity));
    print_stderr(": {}: {} [{}]\n", f.where, f.message, f.id);
  }
}

Json findings_to_json(const Findings& findings) {
  Json list = Json::array();
  for (const Finding& f : findings) {
    list.push_back({{"severity", severity_name(f.severity)},
                    {"rule", f.id},
                    {"where", f.where},
                    {"message", f.message}});
  }
  return list;
}

Argument& add_html_option(Arguments& args, std::string& file) {
  const ArgumentGroup group(args, "Reports");
  return args.option("--html", file, "Write a page with heat maps, histograms and findings, for a browser")
      .value_name("FILE");
}

}  // namespace twofour
