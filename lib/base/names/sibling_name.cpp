#include "lib/base/names/sibling_name.h"

#include <algorithm>

#include "formats/module_names.h"

namespace twofour {
namespace {

bool is_layer_number(std::string_view piece) { return is_number_part(piece) && piece.size() < 10; }

/// The positions in a name at which the numbers of layer and expert begin; npos for a number that it does not
/// have.
struct NumberPlaces {
  size_t layer = std::string_view::npos, expert = std::string_view::npos;
};

NumberPlaces find_numbers(std::string_view name) {
  NumberPlaces at;
  std::string_view previous;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view piece = name.substr(begin, end - begin);
    size_t& place = previous.ends_with("experts") ? at.expert : at.layer;
    if (is_layer_number(piece) && place == name.npos) place = begin;
    previous = piece;
    begin = end + 1;
  }
  return at;
}

std::string before(const std::string& name, size_t place) {
  return place == name.npos ? name : name.substr(0, place > 0 ? place - 1 : 0);
}

}  // namespace

SiblingName sibling_name(std::string_view name) {
  const NumberPlaces places = find_numbers(name);
  SiblingName at;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string piece(name.substr(begin, end - begin));
    if (!at.kind.empty()) at.kind += '.';
    if (begin == places.layer || begin == places.expert) {
      (begin == places.layer ? at.layer : at.expert) = std::stoll(piece);
      at.kind += '*';
    } else {
      at.kind += piece;
    }
    begin = end + 1;
  }
  return at;
}

std::string experts_of(const std::string& name) { return before(name, find_numbers(name).expert); }

std::string layers_of(const std::string& name) { return before(name, find_numbers(name).layer); }

}  // namespace twofour
