#include "library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>

#include "base/datatype.h"

namespace tutti::tools {
namespace {

template <typename Function>
bool Find(void* handle, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(handle, name));
  return *function != nullptr;
}

std::string LoadedPath(void* handle, const std::string& asked) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name && *map->l_name)
    return map->l_name;
  return asked;
}

}  // namespace

Result<NcclLibrary> NcclLibrary::Load(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) return InvalidArgument("the library cannot be loaded: {}", dlerror());
  NcclLibrary library;
  library.path_ = LoadedPath(handle, path);
  NcclFunctions& functions = library.functions_;
#define X(name)                                                                         \
  if (!Find(handle, "nccl" #name, &functions.name)) {                                   \
    return InvalidArgument(                                                             \
        "{} is no library with NCCL's interface: it has no function nccl" #name, path); \
  }
  TUTTI_TOOLS_REQUIRED_FUNCTIONS(X)
#undef X
#define X(name) Find(handle, "nccl" #name, &functions.name);
  TUTTI_TOOLS_OPTIONAL_FUNCTIONS(X)
#undef X
#define X(name) Find(handle, "tutti" #name, &functions.tutti##name);
  TUTTI_TOOLS_OWN_FUNCTIONS(X)
#undef X
  return library;
}

std::string NcclLibrary::Version() const {
  int code = 0;
  if (functions_.GetVersion(&code) != ncclSuccess) return "unknown version";
  const char* own = nullptr;
  if (functions_.tuttiGetVersion && functions_.tuttiGetVersion(&own) == ncclSuccess && own) {
    return fmt::format("Tutti {} (NCCL {})", own, VersionText(code));
  }
  return "NCCL " + VersionText(code);
}

Status NcclLibrary::Check(ncclResult_t result, std::string_view doing, ncclComm_t comm) const {
  if (result == ncclSuccess) return {};
  const char* detail = functions_.GetLastError ? functions_.GetLastError(comm) : nullptr;
  return Status(static_cast<Code>(result),
                fmt::format("{}: {}{}{}", doing, functions_.GetErrorString(result),
                            detail && *detail ? ": " : "", detail ? detail : ""));
}

std::string FindLibrary(const std::string& name) {
  std::error_code error;
  if (!name.empty()) {
    // The ranks are started elsewhere: a relative path is made absolute here, and a bare name is
    // left to the loader.
    if (name.find('/') == std::string::npos && !std::filesystem::exists(name, error)) return name;
    return std::filesystem::absolute(name, error).string();
  }
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  // An installation has lib beside bin, Debian's with the machine's name below it; a build tree has
  // src beside tools.
  for (const char* place : {"../lib/libtutti.so.0", "../lib/x86_64-linux-gnu/libtutti.so.0",
                            "../lib/aarch64-linux-gnu/libtutti.so.0", "../lib64/libtutti.so.0",
                            "../src/libtutti.so.0"}) {
    const auto candidate = program / place;
    if (std::filesystem::exists(candidate, error))
      return std::filesystem::canonical(candidate, error).string();
  }
  return "libtutti.so.0";
}

std::string VersionText(int code) {
  if (code < 10000) return fmt::format("{}.{}.{}", code / 1000, code / 100 % 10, code % 100);
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

size_t ElementSize(ncclDataType_t type) { return SizeOf(static_cast<DataType>(type)); }

}  // namespace tutti::tools
