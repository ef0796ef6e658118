#include "lib/source/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <utility>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/source/tokenizer/unicode.h"

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

/// At first, the matcher sees only kFirstWindow bytes and takes at most kFirstSteps steps at each place. If a
/// match needs more, the place is tried separately, and the work there is counted. This limits expressions
/// that read to the end of the text at every character, and expressions that try all ways to divide a word.
constexpr size_t kFirstWindow = 1024, kFirstSteps = 1024, kGrowth = 4;
constexpr size_t kStepsPerByte = 4, kMostSteps = 40'000'000;
/// The limit of counted work for a text of n bytes. A unit of work is the reading of a byte, which takes up
/// to 10 ns, so the limit is a few seconds.
constexpr uint64_t work_limit(size_t n) { return 500'000'000 + 50 * uint64_t{n}; }
constexpr uint64_t kWorkPerStep = 8;
constexpr size_t kJitStackFirst = 32 << 10, kJitStackMost = 64 << 20;

}  // namespace

struct Pattern::Compiled {
  std::string where, expression;
  Code code, anchored;  ///< `anchored` matches only at the start of the text
};

namespace {

size_t window_end(std::string_view text, size_t begin, size_t size) {
  if (size >= text.size() - begin) return text.size();
  size_t end = begin + size;
  while (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) ++end;  // to its end
  return end;
}

}  // namespace

struct Pattern::Matcher::State {
  MatchContext context{pcre2_match_context_create(nullptr)};
  MatchData data{pcre2_match_data_create(1, nullptr)};
  JitStack stack;
  uint64_t work_left = 0;
};

namespace {

enum class Outcome { kMatch, kNone, kMoreText, kMoreSteps, kMoreStack, kFailed };

/// Searches text [from, end) for a match, with a limit on the steps at each place. If it returns kMoreText,
/// `match` begins at the place that needs more text.
template <class State>
Outcome run(State& s, const pcre2_code* code, std::string_view text, size_t from, size_t end, size_t steps,
            Span& match) {
  pcre2_set_match_limit(s.context.get(), static_cast<uint32_t>(std::min<size_t>(steps, UINT32_MAX)));
  const uint32_t partial = end == text.size() ? 0u : PCRE2_PARTIAL_HARD;
  const int rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), end, from,
                             PCRE2_NO_UTF_CHECK | partial, s.data.get(), s.context.get());
  const size_t* at = pcre2_get_ovector_pointer(s.data.get());
  if (rc >= 0 || rc == PCRE2_ERROR_PARTIAL) match = {at[0], at[1]};
  return rc >= 0                            ? Outcome::kMatch
         : rc == PCRE2_ERROR_NOMATCH        ? Outcome::kNone
         : rc == PCRE2_ERROR_PARTIAL        ? Outcome::kMoreText
         : rc == PCRE2_ERROR_MATCHLIMIT     ? Outcome::kMoreSteps
         : rc == PCRE2_ERROR_JIT_STACKLIMIT ? Outcome::kMoreStack
                                            : Outcome::kFailed;
}

}  // namespace

Pattern::Matcher::Matcher(const Pattern& pattern, size_t bytes)
    : compiled_(*pattern.compiled_), bytes_(bytes), state_(std::make_unique<State>()) {
  state_->work_left = work_limit(bytes);
}

Pattern::Matcher::~Matcher() = default;

/// Finds the first match that begins at `from` or later.
Pattern::Matcher::Result Pattern::Matcher::find(std::string_view text, size_t from, Span& match) {
  size_t careful = from;  // places before this one are tried one by one
  for (;;) {
    if (from < careful) {
      if (const Result result = find_at(text, from, match); result != Result::kNone) return result;
      if (from == text.size()) return Result::kNone;
      next_character(text, from);
      continue;
    }
    const size_t end = window_end(text, from, kFirstWindow);
    switch (run(*state_, compiled_.code.get(), text, from, end, kFirstSteps, match)) {
      case Outcome::kMatch:
        return Result::kMatch;
      case Outcome::kNone:
        if (end == text.size()) return Result::kNone;
        from = end;  // no match begins earlier, or needs the text after it
        break;
      case Outcome::kMoreText:
        from = match.begin;
        careful = from + 1;
        break;
      case Outcome::kMoreSteps:
      case Outcome::kMoreStack:
        careful = end + 1;  // an empty match may begin at the end, too
        break;
      case Outcome::kFailed:
        return Result::kTooMuch;
    }
  }
}

/// Finds a match that begins at `at`.
Pattern::Matcher::Result Pattern::Matcher::find_at(std::string_view text, size_t at, Span& match) {
  State& s = *state_;
  const size_t most_steps = std::max(kMostSteps, text.size() * kStepsPerByte);
  for (size_t size = kFirstWindow * kGrowth;; size *= kGrowth) {
    const size_t end = window_end(text, at, size), steps = std::min(size * kStepsPerByte, most_steps);
    uint64_t work = 0;
    switch (run(s, compiled_.anchored.get(), text, at, end, steps, match)) {
      case Outcome::kMatch:
        return Result::kMatch;
      case Outcome::kNone:
        return Result::kNone;
      case Outcome::kMoreText:
        work = end - at;
        break;
      case Outcome::kMoreSteps:
        if (steps == most_steps) return Result::kTooMuch;
        work = steps * kWorkPerStep;
        break;
      case Outcome::kMoreStack:
        if (s.stack != nullptr) return Result::kTooMuch;
        s.stack.reset(pcre2_jit_stack_create(kJitStackFirst, kJitStackMost, nullptr));
        pcre2_jit_stack_assign(s.context.get(), nullptr, s.stack.get());
        break;
      case Outcome::kFailed:
        return Result::kTooMuch;
    }
    if (work > s.work_left) return Result::kTooMuch;
    s.work_left -= work;
  }
}

namespace {

Code compile(std::string_view where, std::string_view expression, const std::string& translated,
             uint32_t options) {
  const CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t at = 0;
  // Auto-possessification of 10.42 loses matches, such as the match of -{0,2}(?i:z)?+\S{2} in "--".
  options |= PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_POSSESS;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options, &error,
                          &at, context.get()));
  if (code == nullptr) {
    char message[256] = "";
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
    throw Error(fmt::format("{}: expected a regular expression, found {}: {}", where,
                            json_quote_short(expression), message));
  }
  // PCRE2 interprets if it has no compiler for the processor.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  return code;
}

}  // namespace

Pattern::Pattern(std::string_view where, std::string_view expression)
    : compiled_(std::make_unique<Compiled>()) {
  compiled_->where = where;
  compiled_->expression = expression;
  const std::string translated = pcre2_expression(where, expression);
  compiled_->code = compile(where, expression, translated, 0);
  compiled_->anchored = compile(where, expression, translated, PCRE2_ANCHORED);
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
    next_character(piece, from);
  }
}

}  // namespace twofour
