#include "transport/net/verbs/library.h"

#include <dlfcn.h>

namespace tutti {
namespace {

// A library may hold several versions of a function, with different structures. Symbols of a
// stand-in have no versions.
void* LookUp(void* library, const char* symbol, const char* version) {
  if (void* const found = dlvsym(library, symbol, version)) return found;
  return dlsym(library, symbol);
}

}  // namespace

Result<VerbsLibrary> LoadVerbsLibrary(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* const why = dlerror();
    return SystemError("{} cannot be loaded: {}", file, why ? why : "no reason given");
  }
  VerbsLibrary calls;
#define TUTTI_VERBS_FIND(name, symbol, version, result, parameters)                      \
  calls.name = reinterpret_cast<decltype(calls.name)>(LookUp(library, symbol, version)); \
  if (!calls.name) return SystemError("{} lacks the function {} ({})", file, symbol, version);
  TUTTI_VERBS_CALLS(TUTTI_VERBS_FIND)
#undef TUTTI_VERBS_FIND
#define TUTTI_VERBS_FIND(name, symbol, version, result, parameters) \
  calls.name = reinterpret_cast<decltype(calls.name)>(LookUp(library, symbol, version));
  TUTTI_VERBS_OPTIONAL_CALLS(TUTTI_VERBS_FIND)
#undef TUTTI_VERBS_FIND
  return calls;
}

}  // namespace tutti
