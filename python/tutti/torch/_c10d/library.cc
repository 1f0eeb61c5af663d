// SPDX-License-Identifier: Apache-2.0
#include "library.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

namespace tutti_c10d {
namespace {

template <typename Function>
void LookUp(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  TORCH_CHECK(function != nullptr, "this libtutti has no ", name,
              "; the Python package and the library are of different versions");
}

// Throws the library's sentence. Programs know a time-out of a group by Gloo's word for time-outs.
[[noreturn]] void Throw(ncclResult_t result, const char* sentence) {
  C10_THROW_ERROR(DistBackendError,
                  result == ncclTimeout
                      ? c10::str("an operation came to the timeout of its group: ", sentence)
                      : std::string(sentence));
}

}  // namespace

std::shared_ptr<const Library> Library::Open(const std::string& name) {
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(handle != nullptr, "libtutti could not be loaded: ", dlerror());
  auto library = std::make_shared<Library>();
#define TUTTI_C10D_LOOK_UP(function) LookUp(handle, #function, library->function);
  TUTTI_C10D_FUNCTIONS(TUTTI_C10D_LOOK_UP)
#undef TUTTI_C10D_LOOK_UP
  return library;
}

void Library::Check(ncclResult_t result, ncclComm_t comm) const {
  if (result != ncclSuccess) Throw(result, ncclGetLastError(comm));
}

std::exception_ptr Library::Error(ncclResult_t result, ncclComm_t comm) const {
  try {
    Throw(result, ncclGetLastError(comm));
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace tutti_c10d
