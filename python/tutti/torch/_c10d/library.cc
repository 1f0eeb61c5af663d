// SPDX-License-Identifier: Apache-2.0
#include "library.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstdlib>

namespace tutti_c10d {
namespace {

template <typename Function>
void LookUp(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  TORCH_CHECK(function != nullptr, "this libtutti has no ", name,
              "; the Python package and the library are of different versions");
}

}  // namespace

void ThrowFailure(ncclResult_t result, const std::string& sentence) {
  C10_THROW_ERROR(DistBackendError,
                  result == ncclTimeout
                      ? c10::str("an operation came to the timeout of its group: ", sentence)
                      : sentence);
}

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
  if (result != ncclSuccess) ThrowFailure(result, ncclGetLastError(comm));
}

std::chrono::milliseconds Library::SecondsOf(const char* setting) const {
  const char* text = nullptr;
  int length = 0;
  Check(ncclParamGetParameter(setting, &text, &length), nullptr);
  return std::chrono::milliseconds(static_cast<int64_t>(std::strtod(text, nullptr) * 1e3));
}

}  // namespace tutti_c10d
