#pragma once
#include <memory>

#include "lib/write/plan/method.h"

namespace twofour {

/// The makers in the rows of methods(). Each is defined in its own file.
std::unique_ptr<Method> make_to_layout(Rule& rule);
std::unique_ptr<Method> make_keep(Rule& rule);
std::unique_ptr<Method> make_prune(Rule& rule);
std::unique_ptr<Method> make_to_dialect(Rule& rule);
std::unique_ptr<Method> make_to_bf16(Rule& rule);
std::unique_ptr<Method> make_to_fp8(Rule& rule);
std::unique_ptr<Method> make_to_mx(Rule& rule);
std::unique_ptr<Method> make_quantize(Rule& rule);

}  // namespace twofour
