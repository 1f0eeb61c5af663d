#include "launch/pmix.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstring>

namespace tutti::launch {
namespace {

// The part of the PMIx ABI that is used here, in layouts that have not changed since version 2.
struct Process {
  char name_space[256];
  uint32_t rank;
};
struct Value {
  uint16_t type;
  union {
    char* string;
    uint8_t space[24];
  } data;
};
static_assert(sizeof(Process) == 260 && offsetof(Value, data) == 8 && sizeof(Value) == 32);

constexpr uint16_t kTypeString = 3;
constexpr uint8_t kScopeGlobal = 3;
constexpr uint32_t kWholeJob = UINT32_MAX - 1;
constexpr size_t kMaxKey = 511;

}  // namespace

struct PmixClient::Library {
  void* handle = nullptr;
  Process self{};
  bool joined = false;
  int (*init)(Process*, void*, size_t) = nullptr;
  int (*finalize)(const void*, size_t) = nullptr;
  int (*put)(uint8_t, const char*, Value*) = nullptr;
  int (*commit)() = nullptr;
  int (*fence)(const Process*, size_t, const void*, size_t) = nullptr;
  int (*get)(const Process*, const char*, const void*, size_t, Value**) = nullptr;
  const char* (*error_string)(int) = nullptr;

  template <typename Function>
  Status Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(handle, name));
    if (!*function) return SystemError("libpmix has no function {}", name);
    return {};
  }

  Status Load() {
    for (const char* name : {"libpmix.so.2", "libpmix.so"}) {
      if (!handle) handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (!handle) {
      return SystemError(
          "the launcher offers PMIx but libpmix.so.2 cannot be loaded ({}): install libpmix2, or "
          "set "
          "TUTTI_ADDR=HOST:PORT with the address of rank 0",
          dlerror());
    }
    TUTTI_TRY(Find("PMIx_Init", &init));
    TUTTI_TRY(Find("PMIx_Finalize", &finalize));
    TUTTI_TRY(Find("PMIx_Put", &put));
    TUTTI_TRY(Find("PMIx_Commit", &commit));
    TUTTI_TRY(Find("PMIx_Fence", &fence));
    TUTTI_TRY(Find("PMIx_Get", &get));
    return Find("PMIx_Error_string", &error_string);
  }

  Status Check(int code, std::string_view doing) const {
    if (code == 0) return {};
    return SystemError("PMIx failed in {}: {}", doing, error_string(code));
  }
};

PmixClient::PmixClient(std::unique_ptr<Library> library) : library_(std::move(library)) {}
PmixClient::PmixClient(PmixClient&&) noexcept = default;
PmixClient& PmixClient::operator=(PmixClient&&) noexcept = default;

PmixClient::~PmixClient() {
  // The library stays loaded: its threads outlive PMIx_Finalize.
  if (library_ && library_->joined) library_->finalize(nullptr, 0);
}

Result<PmixClient> PmixClient::Connect() {
  auto library = std::make_unique<Library>();
  TUTTI_TRY(library->Load());
  TUTTI_TRY(library->Check(library->init(&library->self, nullptr, 0), "joining the job"));
  library->joined = true;
  return PmixClient(std::move(library));
}

Status PmixClient::Put(std::string_view key, std::string_view value) {
  if (key.size() > kMaxKey) return InvalidArgument("a PMIx key has at most {} bytes", kMaxKey);
  std::string copy(value);
  Value wrapped{};
  wrapped.type = kTypeString;
  wrapped.data.string = copy.data();
  TUTTI_TRY(library_->Check(library_->put(kScopeGlobal, std::string(key).c_str(), &wrapped),
                            "storing a value"));
  return library_->Check(library_->commit(), "publishing values");
}

Status PmixClient::Fence() {
  Process everyone = library_->self;
  everyone.rank = kWholeJob;
  return library_->Check(library_->fence(&everyone, 1, nullptr, 0), "waiting for the other ranks");
}

Result<std::string> PmixClient::Get(uint32_t rank, std::string_view key) {
  Process owner = library_->self;
  owner.rank = rank;
  Value* value = nullptr;
  const std::string name(key);
  TUTTI_TRY(library_->Check(library_->get(&owner, name.c_str(), nullptr, 0, &value),
                            fmt::format("getting '{}' of rank {}", name, rank)));
  if (!value) return SystemError("PMIx gave nothing for '{}' of rank {}", name, rank);
  std::string text;
  const bool is_string = value->type == kTypeString && value->data.string;
  if (is_string) text = value->data.string;
  if (is_string) free(value->data.string);
  free(value);
  if (!is_string)
    return SystemError("PMIx gave '{}' of rank {} in a form other than text", name, rank);
  return text;
}

}  // namespace tutti::launch
