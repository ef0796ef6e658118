#include "formats/error.h"
#include "tools/bench/fp8/fp8_multiply.h"

// Functions for builds without cuBLASLt's header.

namespace twofour::cuda {

std::string no_cublaslt_reason() { return "built without cuBLASLt"; }

Fp8Multiply::Fp8Multiply(const Fp8Shape&) {
  throw Error("FP8 multiplication: expected cuBLASLt, found a build without it");
}
Fp8Multiply::~Fp8Multiply() = default;
size_t Fp8Multiply::workspace_bytes() const { return 0; }
void Fp8Multiply::run(const Fp8Rows&, const Fp8Rows&, void*, void*, Stream) const {}

}  // namespace twofour::cuda
