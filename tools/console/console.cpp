#include "tools/console/console.h"

#include <cstdio>

namespace twofour {
namespace {

thread_local CapturedConsole* captured = nullptr;

}  // namespace

ShownProgress shown(const Progress& p) {
  return {p.phase, p.done, p.total, p.layer, p.layers, p.part, p.tokens, p.all_tokens};
}

CapturedConsole::CapturedConsole() { captured = this; }
CapturedConsole::~CapturedConsole() { captured = nullptr; }

CapturedConsole* CapturedConsole::current() { return captured; }

void CapturedConsole::watch(const Progress* progress) {
  const std::lock_guard lock(mutex_);
  if (watched_ != nullptr) last_ = shown(*watched_);
  watched_ = progress;
}

ShownProgress CapturedConsole::progress() const {
  const std::lock_guard lock(mutex_);
  return watched_ != nullptr ? shown(*watched_) : last_;
}

void write_stdout(std::string_view text) {
  if (captured != nullptr) {
    captured->write(text);
  } else {
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
}

void write_stderr(std::string_view text) {
  if (captured == nullptr) std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace twofour
