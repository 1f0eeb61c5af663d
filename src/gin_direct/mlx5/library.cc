#include "gin_direct/mlx5/library.h"

#include <dlfcn.h>

namespace tutti {

Result<Mlx5Library> LoadMlx5Library(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* const why = dlerror();
    return SystemError("{} cannot be loaded: {}", file, why ? why : "no reason given");
  }
  Mlx5Library calls;
#define TUTTI_MLX5_FIND(name, symbol, result, parameters)                      \
  calls.name = reinterpret_cast<decltype(calls.name)>(dlsym(library, symbol)); \
  if (!calls.name) return SystemError("{} lacks the function {}", file, symbol);
  TUTTI_MLX5_CALLS(TUTTI_MLX5_FIND)
#undef TUTTI_MLX5_FIND
  return calls;
}

}  // namespace tutti
