#include "lib/base/names/quantization_methods.h"

#include <algorithm>
#include <iterator>

namespace twofour {
namespace {

struct Method {
  std::string_view name;
  bool has_own_codes = false;
};

constexpr Method kMethods[] = {
    {"compressed-tensors"},
    {"compressed_tensors"},
    {"fp8"},
    {"mxfp4"},
    {"mxfp8"},
    {"gptq", true},
    {"awq", true},
    {"quark"},
    {"auto-round"},
    {"auto_round"},
    {"autoround"},
    {"inc"},
    {"intel/auto-round"},
    {"bitsandbytes", true},
    {"fbgemm_fp8"},
    {"ptpc_fp8"},
    {"torchao"},
    {"quanto", true},
    {"hqq", true},
    {"eetq", true},
    {"vptq", true},
    {"spqr", true},
    {"aqlm", true},
    {"higgs", true},
    {"bitnet", true},
    {"fp_quant"},
    {"sinq", true},
    {"moe_wna16"},
    {"w4afp8"},
    {"gguf", true},
    {"petit_nvfp4"},
    {"nvfp4"},
    {"twofour"},
    {"metal"},
    {"exl3", true},
    {"rtn"},
    {"w8a8_int8"},
    {"w8a8_fp8"},
    {"qoq", true},
    {"marlin", true},
    {"experts_int8"},
    {"deepspeedfp"},
};

const Method* find(std::string_view name) {
  const auto at = std::find_if(std::begin(kMethods), std::end(kMethods),
                               [&](const Method& method) { return method.name == name; });
  return at == std::end(kMethods) ? nullptr : &*at;
}

}  // namespace

bool is_known_method(std::string_view method) {
  return method.starts_with("modelopt") || find(method) != nullptr;
}

bool has_own_codes(std::string_view method) {
  const Method* known = find(method);
  return known != nullptr && known->has_own_codes;
}

}  // namespace twofour
