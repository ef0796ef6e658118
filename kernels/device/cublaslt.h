#pragma once
#include <cublasLt.h>
#include <dlfcn.h>

#include <string>

/// cuBLASLt, if the machine has it. The library is opened at run time, so compiling needs only its header.

namespace twofour::cuda {

/// The functions of cuBLASLt that are used. They are loaded from the machine's library.
struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmulDescCreate) create_product;
  decltype(&cublasLtMatmulDescDestroy) destroy_product;
  decltype(&cublasLtMatmulDescSetAttribute) set_product;
  decltype(&cublasLtMatrixLayoutCreate) create_matrix;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_matrix;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_matrix;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose;
  decltype(&cublasLtMatmul) multiply;
  std::string missing;  ///< the reason why functions are missing; empty if none is missing

  CublasLt() {
    const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      missing = dlerror();
      return;
    }
    const auto find = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
      if (!function) missing = name + ": no " + symbol;
    };
    find(create, "cublasLtCreate");
    find(destroy, "cublasLtDestroy");
    find(create_product, "cublasLtMatmulDescCreate");
    find(destroy_product, "cublasLtMatmulDescDestroy");
    find(set_product, "cublasLtMatmulDescSetAttribute");
    find(create_matrix, "cublasLtMatrixLayoutCreate");
    find(destroy_matrix, "cublasLtMatrixLayoutDestroy");
    find(set_matrix, "cublasLtMatrixLayoutSetAttribute");
    find(create_preference, "cublasLtMatmulPreferenceCreate");
    find(destroy_preference, "cublasLtMatmulPreferenceDestroy");
    find(set_preference, "cublasLtMatmulPreferenceSetAttribute");
    find(choose, "cublasLtMatmulAlgoGetHeuristic");
    find(multiply, "cublasLtMatmul");
  }
};

/// The library. It stays open until the program ends.
inline const CublasLt& cublaslt() {
  static const CublasLt library;
  return library;
}

}  // namespace twofour::cuda
