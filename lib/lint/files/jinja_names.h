#pragma once
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

enum class JinjaPart { kName, kNumber, kString, kOperator };
/// A piece of an expression or statement of Jinja.
struct JinjaPiece {
  JinjaPart kind;
  std::string_view text;  ///< a string without its quotes
};

/// The names that a template sets and reads. A name that nothing sets is empty in Jinja, without an error.
class JinjaNames {
 public:
  /// Takes the pieces of {{ }} or, with its first word, of {% %}.
  void take(const std::vector<JinjaPiece>& pieces, bool is_statement, size_t line);
  /// Returns a finding about the first name that nothing sets and that is nearly one that the template has,
  /// or nearly a key of messages; empty: there is none.
  std::string mistyped() const;

 private:
  void take_targets(const std::vector<JinjaPiece>& pieces, size_t begin, size_t end);

  std::set<std::string, std::less<>> set_, tested_;
  std::map<std::string, size_t, std::less<>> read_, keys_;  ///< with the line
};

}  // namespace twofour
