#pragma once
#include <fmt/format.h>

#include <exception>
#include <functional>
#include <string>

#include "formats/error.h"
#include "kernels/device/device.h"

/// What the functions of the C interface share: errors that do not cross the border, and checked arguments.

namespace twofour {

/// Runs `work`; TWOFOUR_OK, or TWOFOUR_ERROR where it throws, with the message for twofour_last_error().
int guarded(const std::function<void()>& work) noexcept;

/// What a pointer of the caller's points to. Throws Error naming `what` on NULL.
template <class T>
T& given(T* pointer, const char* what) {
  if (pointer == nullptr) throw Error(fmt::format("{}: expected a pointer, found NULL", what));
  return *pointer;
}

/// A struct of the caller's. Throws Error where it is smaller than the one that this library knows.
template <class T>
T& sized(T* pointer, const char* what) {
  T& value = given(pointer, what);
  if (value.size < sizeof(T))
    throw Error(fmt::format("{}: expected size {}, found {}", what, sizeof(T), value.size));
  return value;
}

/// TWOFOUR_CPU, TWOFOUR_CUDA or TWOFOUR_CUDA_DEVICE(index), which sets `index`; else it stays. Throws Error
/// on others.
Device device_of(int device, int& index);

/// A copy for twofour_free().
char* copied(const std::string& text);

}  // namespace twofour
