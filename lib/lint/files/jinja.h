#pragma once
#include <set>
#include <string>
#include <string_view>

namespace twofour {

/// Facts that the text of a Jinja template shows without running it.
struct TemplateFacts {
  std::string problem{};           ///< why Jinja does not parse it, with the line; empty: it parses
  bool is_empty = false;           ///< it writes nothing: no text and no expression
  std::set<std::string> tokens{};  ///< texts of the form <|...|> that it writes
  std::string written{};           ///< all texts that it may write, a line each
  std::string mistyped{};          ///< a name that nothing sets and that is nearly another, with the line
  std::string names{};             ///< all names and compared texts that it reads, between blanks
  bool writes_roles = false;       ///< it writes the role of each message
  std::string behind{};            ///< the texts that it writes behind contents of messages, a line each
  std::string prompt{};            ///< the texts that it writes if add_generation_prompt is true
  std::string answer_head{};       ///< the text that it writes before the content of an answer
  std::string ending{};            ///< the texts that it always writes behind the messages
  std::string lost_role{};         ///< "user" or "assistant", where it compares other roles and not this one
  bool repeats_begin = false;      ///< it writes bos_token twice in a row
};

/// Reads a template by the syntax of Jinja 3 with the extensions of transformers: loop controls, and blocks
/// {% generation %}. Blocks, brackets and strings are checked; expressions only for operators without
/// operands. Source: Jinja, lexer.py, parser.py; transformers, utils/chat_template_utils.py.
TemplateFacts read_template(std::string_view text);

}  // namespace twofour
