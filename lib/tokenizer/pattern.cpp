#include "lib/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <utility>

#include "formats/error.h"
#include "formats/json.h"

namespace twofour {
namespace {

template <class T, void (*Free)(T*)>
struct Deleter {
  void operator()(T* p) const { Free(p); }
};
using Code = std::unique_ptr<pcre2_code, Deleter<pcre2_code, pcre2_code_free>>;
using CompileContext =
    std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context, pcre2_compile_context_free>>;
using MatchContext =
    std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context, pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data, pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack, pcre2_jit_stack_free>>;

/// A match first sees so many bytes, and the rest only as far as it asks for it: so an attempt that reads to
/// the end of the text at every character, as \s+$ does in a long run of blanks, does not take quadratic time
/// unnoticed.
constexpr size_t kFirstWindow = 1024;
constexpr size_t kGrowth = 4;
/// Steps of the matcher in a window, for each of its bytes.
constexpr size_t kStepsPerByte = 4;
constexpr size_t kMostSteps = 40'000'000;
/// What all windows but first ones may take, for a text of n bytes; some seconds.
constexpr uint64_t work_limit(size_t n) { return 4'000'000'000 + 1000 * uint64_t{n}; }
constexpr size_t kJitStackFirst = 32 << 10, kJitStackMost = 64 << 20;

}  // namespace

struct Pattern::Compiled {
  std::string where, expression;
  Code code;
};

namespace {

size_t window_end(std::string_view text, size_t begin, size_t size) {
  if (size >= text.size() - begin) return text.size();
  size_t end = begin + size;
  while ((static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) ++end;  // at a character, or the end of the text
  return end;
}

}  // namespace

struct Pattern::Matcher::State {
  MatchContext context{pcre2_match_context_create(nullptr)};
  MatchData data{pcre2_match_data_create(1, nullptr)};
  JitStack stack;
  uint64_t work_left = 0;
};

Pattern::Matcher::Matcher(const Pattern& pattern, size_t bytes)
    : compiled_(*pattern.compiled_), bytes_(bytes), state_(std::make_unique<State>()) {
  state_->work_left = work_limit(bytes);
}

Pattern::Matcher::~Matcher() = default;

/// The first match that begins at `from` or behind it.
Pattern::Matcher::Result Pattern::Matcher::find(std::string_view text, size_t from, Span& match) {
  State& s = *state_;
  for (size_t size = kFirstWindow;;) {
    const size_t end = window_end(text, from, size);
    const size_t steps = std::min(size * kStepsPerByte, kMostSteps);
    pcre2_set_match_limit(s.context.get(), static_cast<uint32_t>(steps));
    const bool whole = end == text.size();
    const int rc =
        pcre2_match(compiled_.code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), end, from,
                    PCRE2_NO_UTF_CHECK | (whole ? 0u : PCRE2_PARTIAL_HARD), s.data.get(), s.context.get());
    const size_t* at = pcre2_get_ovector_pointer(s.data.get());
    if (rc >= 0) {
      match = {at[0], at[1]};
      return Result::kMatch;
    }
    if (rc == PCRE2_ERROR_NOMATCH) {
      if (whole) return Result::kNone;
      // Nothing begins before the end of the window, nor asked for what is behind it.
      from = end, size = kFirstWindow;
      continue;
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && s.stack == nullptr) {
      s.stack.reset(pcre2_jit_stack_create(kJitStackFirst, kJitStackMost, nullptr));
      pcre2_jit_stack_assign(s.context.get(), nullptr, s.stack.get());
      continue;
    }
    if (rc == PCRE2_ERROR_PARTIAL) {
      from = at[0];
    } else if (rc != PCRE2_ERROR_MATCHLIMIT || steps == kMostSteps) {
      return Result::kTooMuch;
    }
    size *= kGrowth;
    const uint64_t work = std::min(size, text.size() - from) + std::min(size * kStepsPerByte, kMostSteps);
    if (work > s.work_left) return Result::kTooMuch;
    s.work_left -= work;
  }
}

Pattern::Pattern(std::string_view where, std::string_view expression)
    : compiled_(std::make_unique<Compiled>()) {
  compiled_->where = where;
  compiled_->expression = expression;
  const std::string translated = pcre2_expression(where, expression);
  const CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t at = 0;
  compiled_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                      &error, &at, context.get()));
  if (compiled_->code == nullptr) {
    char message[256] = "";
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
    throw Error(fmt::format("{}: expected a regular expression, found {}: {}", where,
                            json_quote_short(expression), message));
  }
  // Where the processor has no compiler, PCRE2 interprets.
  pcre2_jit_compile(compiled_->code.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
}

Pattern Pattern::literal(std::string_view where, std::string_view text) {
  std::string expression;
  for (const char c : text) {
    if (c > ' ' && c < 0x7F && std::isalnum(static_cast<unsigned char>(c)) == 0) expression += '\\';
    expression += c;
  }
  return Pattern(where, expression);
}

Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

const std::vector<Span>& Pattern::Matcher::find_all(std::string_view piece) {
  matches_.clear();
  size_t from = 0;
  for (Span match{};;) {
    const Result result = find(piece, from, match);
    if (result == Result::kNone) return matches_;
    if (result == Result::kTooMuch) {
      throw Error(fmt::format(
          "{}: expected a split pattern that takes few steps, found {}, which takes too many in a "
          "text of {} bytes",
          compiled_.where, json_quote_short(compiled_.expression), bytes_));
    }
    if (!match.empty() || matches_.empty() || matches_.back().end != match.end) matches_.push_back(match);
    from = match.end;
    if (!match.empty()) continue;
    if (from == piece.size()) return matches_;
    for (++from; from < piece.size() && (static_cast<uint8_t>(piece[from]) & 0xC0) == 0x80;) ++from;
  }
}

}  // namespace twofour
