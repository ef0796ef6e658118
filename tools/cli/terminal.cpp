#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "formats/error.h"
#include "kernels/device/device.h"
#include "lib/threads/parallel.h"
#include "lib/threads/stopwatch.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"

namespace twofour {
namespace {

std::string progress_line(const Progress& progress, double seconds) {
  const uint64_t done = progress.done, total = progress.total;
  const double share = total > 0 ? std::min(1.0, static_cast<double>(done) / static_cast<double>(total)) : 0;
  std::string line =
      fmt::format("{} {:3.0f} %  {} of {}  {:.2f} GB/s", progress.phase.load(), 100 * share,
                  format_bytes(done), format_bytes(total), static_cast<double>(done) / 1e9 / seconds);
  if (share > 0.02 && share < 1) line += fmt::format("  {:.0f} s left", seconds / share * (1 - share));
  return line;
}

/// Shows progress from a thread of its own until destroyed.
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
    const auto period = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10'000);
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, period, [this] { return stop_; })) {
      const std::string line = progress_line(progress_, watch_.seconds());
      terminal_ ? print_stderr("\r\033[K{}", line) : print_stderr("{}\n", line);
      std::fflush(stderr);
      shown_ = true;
    }
  }

  const Progress& progress_;
  const Stopwatch watch_;
  const bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false, shown_ = false;
  std::jthread thread_;
};

/// A character of UTF-8, or a byte that begins none.
struct Character {
  uint32_t code;
  size_t bytes = 1;
  bool valid = true;
};

Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) -> uint32_t { return static_cast<unsigned char>(text[i]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return {lead, 1, false};
  uint32_t code = lead & (0x7Fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {lead, 1, false};
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  if (code < kLeast[bytes] || code > 0x10FFFF || surrogate) return {lead, 1, false};
  return {code, bytes};
}

/// C1 controls, soft hyphen, and Unicode's format characters and separators that show nothing or turn the
/// text.
bool is_unseen(uint32_t c) {
  return (c >= 0x80 && c < 0xA0) || c == 0xAD || c == 0x61C || c == 0x180E || (c >= 0x200B && c <= 0x200F) ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF ||
         (c >= 0xFFF9 && c <= 0xFFFB) || (c >= 0xE0000 && c <= 0xE007F);
}

/// `text` with control characters and what is unseen spelled out; line ends too, or not.
std::string spelled_out(std::string_view text, bool keep_line_ends) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character c = first_character(text);
    if (!c.valid || (c.code < 0x20 && !(keep_line_ends && c.code == '\n')) || c.code == 0x7F) {
      out += fmt::format("\\x{:02X}", static_cast<unsigned char>(text[0]));
    } else if (is_unseen(c.code)) {
      out += fmt::format("\\u{{{:X}}}", c.code);
    } else {
      out += text.substr(0, c.bytes);
    }
    text.remove_prefix(c.bytes);
  }
  return out;
}

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
    // A list of some of them: the index counts in it
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
  return args.option("--html", file, "Write a page with heat maps, histograms and findings, for a browser")
      .value_name("FILE");
}

void print_json(const Json& json) {
  const std::string text = json.dump(2);
  write_stdout(
      fmt::format("{{\n  \"schema_version\": {},{}\n", kSchemaVersion, std::string_view(text).substr(1)));
}

void print_json(const Json& head, const std::vector<JsonList>& lists) {
  std::string opened = head.dump(2);
  opened.resize(opened.size() - 2);  // its "\n}"
  write_stdout(
      fmt::format("{{\n  \"schema_version\": {},{}", kSchemaVersion, std::string_view(opened).substr(1)));
  for (const JsonList& list : lists) {
    write_stdout(fmt::format(",\n  \"{}\": [", list.name));
    for (size_t i = 0; i < list.size; ++i) {
      write_stdout(fmt::format("{}\n    {}", i > 0 ? "," : "", json_line(list.element(i))));
    }
    write_stdout(list.size > 0 ? "\n  ]" : "]");
  }
  write_stdout("\n}\n");
}

void print_coloured(std::FILE* to, Severity severity, std::string_view text) {
  const char *no_color = std::getenv("NO_COLOR"), *term = std::getenv("TERM");
  const bool plain =
      (no_color != nullptr && *no_color != '\0') || term == nullptr || term == std::string_view("dumb");
  const auto write = [to](std::string_view part) { to == stdout ? write_stdout(part) : write_stderr(part); };
  if (plain || CapturedConsole::current() != nullptr || ::isatty(::fileno(to)) == 0) {
    write(text);
    return;
  }
  // Bold; red, yellow or cyan.
  const int colour = severity == Severity::kError ? 31 : severity == Severity::kWarning ? 33 : 36;
  write(fmt::format("\033[1;{}m{}\033[0m", colour, text));
}

std::string printable(std::string_view text) { return spelled_out(text, true); }

std::string printable_line(std::string_view text) { return spelled_out(text, false); }

std::string shortened(const std::string& line) {
  constexpr size_t kWord = 300, kLine = 2000;
  const auto cut = [](std::string_view text, size_t most) {
    if (text.size() <= most) return std::string(text);
    const size_t tail = most / 5, head = most - tail;
    return fmt::format("{}... ({} characters) ...{}", text.substr(0, head), text.size(),
                       text.substr(text.size() - tail));
  };
  std::string out;
  for (size_t at = 0; at <= line.size();) {
    const size_t end = std::min(line.find(' ', at), line.size());
    if (at > 0) out += ' ';
    out += cut(std::string_view(line).substr(at, end - at), kWord);
    at = end + 1;
  }
  return cut(out, kLine);
}

std::string format_bytes(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < 1000) return fmt::format("{} B", bytes);
  if (value < 999.5e3) return fmt::format("{:.3g} kB", value / 1e3);
  if (value < 999.5e6) return fmt::format("{:.3g} MB", value / 1e6);
  if (value < 999.5e9) return fmt::format("{:.3g} GB", value / 1e9);
  return fmt::format("{:.4g} TB", value / 1e12);
}

}  // namespace twofour
