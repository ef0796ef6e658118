#include "lib/lint/files/jinja.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>
#include <vector>

#include "lib/lint/files/jinja_names.h"
#include "lib/lint/files/jinja_words.h"

namespace twofour {
namespace {

using Part = JinjaPart;
using Piece = JinjaPiece;

/// A statement that opens a block, and what may be in it and must end it.
struct Block {
  std::string_view opens, ends;
  std::string_view between = "";  ///< statements that divide the block
};
constexpr Block kBlocks[] = {{"if", "endif", "elif else"},    {"for", "endfor", "else"},
                             {"macro", "endmacro"},           {"call", "endcall"},
                             {"filter", "endfilter"},         {"set", "endset"},
                             {"block", "endblock"},           {"with", "endwith"},
                             {"autoescape", "endautoescape"}, {"raw", "endraw"},
                             {"generation", "endgeneration"}};
/// Statements that open no block.
constexpr std::string_view kSimple[] = {"break", "continue", "include", "import", "from", "extends"};

/// Returns a piece for messages, which have one line.
std::string shown(const Piece& piece) {
  constexpr size_t kMost = 32;
  std::string text(piece.text.substr(0, kMost));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return piece.kind == Part::kString ? fmt::format("'{}'", text) : text;
}

template <class List>
bool is_one_of(const List& list, std::string_view text) {
  return std::find(std::begin(list), std::end(list), text) != std::end(list);
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  TemplateFacts read() {
    facts_.is_empty = true;
    while (facts_.problem.empty() && at_ < text_.size()) step();
    if (facts_.problem.empty() && !open_.empty())
      problem(open_.back().line, "expected {{% {} %}} for {{% {} %}}, found the end",
              open_.back().block->ends, open_.back().block->opens);
    // A role that another part of the template compares is not lost.
    const bool is_elsewhere = facts_.names.find(fmt::format(" {} ", facts_.lost_role)) != std::string::npos;
    if (facts_.writes_roles || is_elsewhere) facts_.lost_role.clear();
    facts_.mistyped = names_.mistyped();
    return std::move(facts_);
  }

 private:
  template <class... Args>
  void problem(size_t line, fmt::format_string<Args...> text, Args&&... args) {
    if (facts_.problem.empty())
      facts_.problem = fmt::format("line {}: {}", line, fmt::format(text, std::forward<Args>(args)...));
  }
  size_t line() const {
    return 1 + static_cast<size_t>(
                   std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n'));
  }

  /// Reads text up to the next tag, and the tag.
  void step() {
    size_t tag = at_;
    while (tag < text_.size() && !(text_[tag] == '{' && tag + 1 < text_.size() &&
                                   (text_[tag + 1] == '{' || text_[tag + 1] == '%' || text_[tag + 1] == '#')))
      ++tag;
    write(text_.substr(at_, tag - at_));
    at_ = tag;
    if (at_ >= text_.size()) return;
    const char kind = text_[at_ + 1];
    if (kind == '#') {
      const size_t end = text_.find("#}", at_ + 2);
      if (end == text_.npos) return problem(line(), "expected #}} after {{#, found none");
      at_ = end + 2;
      return;
    }
    const size_t begin = line();
    at_ += 2;
    if (at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+')) ++at_;
    std::vector<Piece> pieces;
    if (!read_pieces(kind == '{' ? "}}" : "%}", begin, pieces)) return;
    for (const Piece& p : pieces) facts_.names.append(" ").append(p.text).append(" ");
    names_.take(pieces, kind == '%', begin);
    if (kind == '{') {
      if (pieces.empty()) return problem(begin, "expected an expression in {{{{ }}}}, found none");
      facts_.is_empty = false;
      check_expression(pieces, begin);
      const bool begins = pieces.size() == 1 && pieces[0].text == "bos_token";
      facts_.repeats_begin = facts_.repeats_begin || (begins && follows_begin_);
      follows_begin_ = begins;
      write_strings(pieces);
    } else {
      follows_begin_ = false;
      statement(pieces, begin);
    }
  }

  void write(std::string_view text) {
    facts_.written.append(text).append("\n");
    const bool is_blank = std::all_of(text.begin(), text.end(), [](unsigned char c) {
      return std::isspace(c) != 0 || c == '\\' || c == 'n';  // with line ends as strings write them
    });
    if (!is_blank && std::exchange(follows_content_, false)) facts_.behind.append(text).append("\n");
    if (!is_blank) {
      before_ = text;
      follows_begin_ = false;
      if (open_.empty()) facts_.ending.append(text).append("\n");
      if (std::ranges::any_of(open_, &Open::is_prompt)) facts_.prompt.append(text).append("\n");
    }
    if (std::any_of(text.begin(), text.end(), [](unsigned char c) { return std::isspace(c) == 0; }))
      facts_.is_empty = false;
    add_tokens(text, "<|", "|>");
    add_tokens(text, "<\uFF5C", "\uFF5C>");
    for (const std::string_view token : {"<start_of_turn>", "<end_of_turn>", "</s>"}) {
      if (text.find(token) != text.npos) facts_.tokens.emplace(token);
    }
  }
  /// Adds the tokens in a text that begin and end with these marks.
  void add_tokens(std::string_view text, std::string_view opens, std::string_view closes) {
    for (size_t at = text.find(opens); at != text.npos; at = text.find(opens, at + 1)) {
      const size_t begin = at + opens.size(), end = text.find(closes, begin);
      if (end == text.npos) return;
      const std::string_view name = text.substr(begin, end - begin);
      const bool is_token =
          !name.empty() && name.size() <= 64 && name.find_first_of("<>|{} \t\n'\"") == name.npos;
      if (is_token) facts_.tokens.emplace(text.substr(at, end + closes.size() - at));
    }
  }
  /// Adds the tokens in the strings of an expression that writes them. Strings that are compared, or that are
  /// searched for, are left out.
  void write_strings(const std::vector<Piece>& pieces) {
    std::vector<bool> searched;  // for each open bracket
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Piece& p = pieces[i];
      const std::string_view before = i > 0 ? pieces[i - 1].text : "",
                             after = i + 1 < pieces.size() ? pieces[i + 1].text : "";
      constexpr std::string_view kCompares[] = {"==", "!=", "in", "is", "not"};
      const bool is_read =
          (p.kind == Part::kName || before == "[") && !is_one_of(kCompares, before) &&
          !is_one_of(kCompares, after) &&
          !(after == "]" && i + 2 < pieces.size() && is_one_of(kCompares, pieces[i + 2].text));
      if (is_read && p.text == "role" && pieces[0].text != "raise_exception") facts_.writes_roles = true;
      if (is_read && p.text == "content") {
        follows_content_ = true;
        const auto branch =
            std::find_if(open_.rbegin(), open_.rend(), [](const Open& o) { return !o.role.empty(); });
        if (branch != open_.rend() && branch->role == "assistant" && !before_.empty())
          facts_.answer_head = before_;
      }
      if (p.kind == Part::kOperator && (p.text == "(" || p.text == "[" || p.text == "{")) {
        searched.push_back((!searched.empty() && searched.back()) || p.text == "[" ||
                           (p.text == "(" && is_one_of(kSearches, before)));
      } else if (p.kind == Part::kOperator && (p.text == ")" || p.text == "]" || p.text == "}")) {
        if (!searched.empty()) searched.pop_back();
      } else if (p.kind == Part::kString && (searched.empty() || !searched.back())) {
        constexpr std::string_view kCompared[] = {"==", "!=", "in", "is"};
        if (!is_one_of(kCompared, before) && !is_one_of(kCompared, after) && after != "not") write(p.text);
      }
    }
  }

  /// Reads the pieces of a tag and what ends it.
  bool read_pieces(std::string_view end, size_t begin, std::vector<Piece>& pieces) {
    std::string brackets;
    for (;;) {
      while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
      if (at_ >= text_.size()) {
        problem(begin, "expected {} after {{{}, found the end", end, end == "}}" ? '{' : '%');
        return false;
      }
      const std::string_view rest = text_.substr(at_);
      if (brackets.empty()) {
        const bool trims = (rest[0] == '-' || rest[0] == '+') && rest.substr(1).starts_with(end);
        if (trims || rest.starts_with(end)) {
          at_ += end.size() + (trims ? 1 : 0);
          return true;
        }
      }
      if (!read_piece(rest, brackets, pieces)) return false;
    }
  }
  bool read_piece(std::string_view rest, std::string& brackets, std::vector<Piece>& pieces) {
    const auto c = static_cast<unsigned char>(rest[0]);
    const auto take = [&](Part kind, size_t size) {
      pieces.push_back({kind, rest.substr(0, size)});
      at_ += size;
      return true;
    };
    if (c == '\'' || c == '"') {
      size_t end = 1;
      while (end < rest.size() && rest[end] != rest[0]) end += rest[end] == '\\' ? 2 : 1;
      if (end >= rest.size()) {
        problem(line(), "expected {} at the end of a string, found none", rest[0]);
        return false;
      }
      pieces.push_back({Part::kString, rest.substr(1, end - 1)});
      at_ += end + 1;
      return true;
    }
    if (std::isalpha(c) != 0 || c == '_' || c >= 0x80) {
      size_t end = 1;
      while (end < rest.size() && (std::isalnum(static_cast<unsigned char>(rest[end])) != 0 ||
                                   rest[end] == '_' || static_cast<unsigned char>(rest[end]) >= 0x80))
        ++end;
      return take(Part::kName, end);
    }
    if (std::isdigit(c) != 0) {
      size_t end = 1;
      while (end < rest.size() &&
             (std::isalnum(static_cast<unsigned char>(rest[end])) != 0 || rest[end] == '_' ||
              (rest[end] == '.' && end + 1 < rest.size() &&
               std::isdigit(static_cast<unsigned char>(rest[end + 1])) != 0)))
        ++end;
      return take(Part::kNumber, end);
    }
    if (c == '(' || c == '[' || c == '{') brackets += static_cast<char>(c);
    if (c == ')' || c == ']' || c == '}') {
      const char opens = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (brackets.empty() || brackets.back() != opens) {
        problem(line(), "expected no {}, or {} before it, found {}", rest[0], opens, rest[0]);
        return false;
      }
      brackets.pop_back();
    }
    for (const std::string_view two : {"==", "!=", "<=", ">=", "**", "//"}) {
      if (rest.starts_with(two)) return take(Part::kOperator, 2);
    }
    if (std::string_view("()[]{}+-*/%~<>|.=,:;").find(rest[0]) == std::string_view::npos) {
      problem(line(), "expected an expression, found {}", rest[0]);
      return false;
    }
    return take(Part::kOperator, 1);
  }

  /// Reports operators without an operand after them, and operands without an operator between them.
  void check_expression(const std::vector<Piece>& pieces, size_t begin) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Piece& p = pieces[i];
      const Piece* next = i + 1 < pieces.size() ? &pieces[i + 1] : nullptr;
      const bool filters = p.kind == Part::kOperator && p.text == "|" && next != nullptr;
      if (filters && next->kind == Part::kName && !is_one_of(kFilters, next->text))
        return problem(begin, "expected a filter of Jinja, found {}", next->text);
      if (is_operator(pieces, i) && is_one_of(kBinary, p.text)) {
        const bool ends =
            next == nullptr || (next->kind == Part::kOperator && is_one_of(kNoBeginnings, next->text));
        if (ends)
          return problem(begin, "expected something after {}, found {}", p.text,
                         next == nullptr ? "none" : next->text);
      }
      if (next == nullptr || !ends_operand(pieces, i) || next->kind == Part::kOperator ||
          is_operator(pieces, i + 1))
        continue;
      // Strings are joined, and a test may have its argument after its name.
      const bool is_joined = p.kind == Part::kString && next->kind == Part::kString;
      const bool is_test = i > 0 && (pieces[i - 1].text == "is" || pieces[i - 1].text == "not");
      if (!is_joined && !is_test)
        return problem(begin, "expected an operator between {} and {}, found none", shown(p), shown(*next));
    }
  }
  /// True for symbols and for names that are operators. A name after a dot is an attribute.
  static bool is_operator(const std::vector<Piece>& pieces, size_t i) {
    constexpr std::string_view kWords[] = {"and", "or", "not", "in", "is", "if", "else", "recursive"};
    const Piece& p = pieces[i];
    const bool is_attribute = i > 0 && pieces[i - 1].kind == Part::kOperator && pieces[i - 1].text == ".";
    return p.kind == Part::kOperator || (p.kind == Part::kName && !is_attribute && is_one_of(kWords, p.text));
  }
  /// True if a piece is the end of an operand.
  static bool ends_operand(const std::vector<Piece>& pieces, size_t i) {
    const Piece& p = pieces[i];
    if (p.kind == Part::kOperator) return p.text == ")" || p.text == "]" || p.text == "}";
    return !is_operator(pieces, i);
  }

  void statement(const std::vector<Piece>& pieces, size_t begin) {
    if (pieces.empty() || pieces[0].kind != Part::kName)
      return problem(begin, "expected a statement in {{% %}}, found none");
    const std::string_view word = pieces[0].text;
    if (is_one_of(kSimple, word)) return;
    for (const Block& block : kBlocks) {
      if (word == block.ends) return end_block(block, begin);
      if (word == block.opens) return begin_block(block, pieces, begin);
    }
    if (word == "elif" || word == "else") {
      if (open_.empty() || open_.back().block->between.find(word) == std::string_view::npos)
        return problem(begin, "expected {{% if %}} before {{% {} %}}, found {}", word,
                       open_.empty() ? "none" : open_.back().block->opens);
      begin_branch(open_.back(), pieces);
      if (word == "elif") check_condition(pieces, begin);
      return;
    }
    problem(begin, "expected a statement of Jinja, found {}", word);
  }
  void check_condition(const std::vector<Piece>& pieces, size_t begin) {
    if (pieces.size() == 1)
      return problem(begin, "expected a condition after {}, found none", pieces[0].text);
    check_expression({pieces.begin() + 1, pieces.end()}, begin);
  }
  void begin_block(const Block& block, const std::vector<Piece>& pieces, size_t begin) {
    const bool has = std::any_of(pieces.begin(), pieces.end(), [&](const Piece& p) {
      return p.kind != Part::kString && p.text == (block.opens == "for" ? "in" : "=");
    });
    if (block.opens == "if") check_condition(pieces, begin);
    if (block.opens == "for" && !has) return problem(begin, "expected in after for, found none");
    if (block.opens == "for") check_expression({pieces.begin() + 1, pieces.end()}, begin);
    if (block.opens == "set") {
      if (pieces.size() == 1) return problem(begin, "expected a name after set, found none");
      if (has) {
        check_expression({pieces.begin() + 1, pieces.end()}, begin);
        return;  // it has no block
      }
    }
    if (block.opens == "raw") {
      const size_t end = text_.find("endraw", at_);
      if (end == text_.npos) return problem(begin, "expected {{% endraw %}}, found the end");
      const size_t tag = text_.rfind("{%", end);
      write(text_.substr(at_, tag - at_));
      at_ = text_.find("%}", end);
      at_ = at_ == text_.npos ? text_.size() : at_ + 2;
      return;
    }
    if (block.opens == "for") facts_.ending.clear();
    open_.push_back({&block, begin});
    begin_branch(open_.back(), pieces);
  }
  void end_block(const Block& block, size_t begin) {
    if (open_.empty() || open_.back().block != &block) {
      return problem(
          begin, "expected {}, found {{% {} %}}",
          open_.empty() ? "no end of a block" : fmt::format("{{% {} %}}", open_.back().block->ends),
          block.ends);
    }
    const Open& open = open_.back();
    const bool user = open.roles.contains("user"), answer = open.roles.contains("assistant");
    if (open.roles.size() > 1 && !open.has_rest && user != answer)
      facts_.lost_role = user ? "assistant" : "user";
    open_.pop_back();
  }

  struct Open {
    const Block* block;
    size_t line;
    bool is_prompt = false;                 ///< the branch is for add_generation_prompt
    bool has_rest = false;                  ///< a branch is for everything else
    std::string_view role = {};             ///< the role that the branch is for
    std::set<std::string_view> roles = {};  ///< the roles that all branches compare
  };
  /// Notes what a branch is for.
  void begin_branch(Open& open, const std::vector<Piece>& pieces) {
    before_ = {};
    open.role = {};
    open.is_prompt = false;
    if (pieces[0].text == "else") open.has_rest = true;
    if (pieces[0].text != "if" && pieces[0].text != "elif") return;
    const auto names = [&](std::string_view name) {
      return std::ranges::any_of(pieces, [&](const Piece& p) { return p.text == name; });
    };
    open.is_prompt = names("add_generation_prompt") && !names("not");
    if (!names("role")) return;
    for (const Piece& p : pieces) {
      if (p.kind != Part::kString || p.text == "role" || p.text == "content") continue;
      open.role = p.text;
      open.roles.insert(p.text);
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  std::vector<Open> open_;
  JinjaNames names_;
  TemplateFacts facts_;
  std::string_view before_{};     // the text that the branch wrote last
  bool follows_begin_ = false;    // bos_token was written last
  bool follows_content_ = false;  // no text is written after the content of a message
};

}  // namespace

TemplateFacts read_template(std::string_view text) { return Reader(text).read(); }

}  // namespace twofour
