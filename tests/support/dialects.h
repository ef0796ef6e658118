#pragma once
#include <string_view>

#include "formats/dialect.h"
#include "formats/error.h"

namespace twofour {

/// The dialect of that name for single matrices.
inline const Nvfp4Dialect& dialect(std::string_view name) {
  for (const Nvfp4Dialect& d : nvfp4_dialects()) {
    if (!d.stacked && d.name == name) return d;
  }
  throw Error("no such dialect");
}

}  // namespace twofour
