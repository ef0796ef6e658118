#pragma once
#include <fmt/format.h>

#include <exception>
#include <functional>
#include <string>

#include "formats/error.h"
#include "kernels/device/device.h"

/// Helpers of the C interface. They catch errors before these reach the caller, and check arguments.

namespace twofour {

/// Runs `work`. Returns TWOFOUR_OK, or TWOFOUR_ERROR if it throws. In that case, stores the message for
/// twofour_last_error().
int guarded(const std::function<void()>& work) noexcept;

/// The object that a caller's pointer points to. Throws Error, which names `what`, if the pointer is NULL.
template <class T>
T& given(T* pointer, const char* what) {
  if (pointer == nullptr) throw Error(fmt::format("{}: expected a pointer, found NULL", what));
  return *pointer;
}

/// A caller's struct. Throws Error if it is smaller than the struct that this library knows.
template <class T>
T& sized(T* pointer, const char* what) {
  T& value = given(pointer, what);
  if (value.size < sizeof(T))
    throw Error(fmt::format("{}: expected size {}, found {}", what, sizeof(T), value.size));
  return value;
}

/// The device that TWOFOUR_CPU, TWOFOUR_CUDA or TWOFOUR_CUDA_DEVICE(index) stands for. Only the last sets
/// `index`. Throws Error on other values.
Device device_of(int device, int& index);

/// A copy of a text, which the caller frees by twofour_free().
char* copied(const std::string& text);

}  // namespace twofour
