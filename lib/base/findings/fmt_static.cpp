// Debian has fmt as a shared library and as headers. This file compiles the functions of the library from the
// headers.
#include <fmt/format-inl.h>

namespace fmt {
namespace detail {
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl<char>(locale_ref) -> char;
}  // namespace detail
}  // namespace fmt
