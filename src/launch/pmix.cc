#include "launch/pmix.h"

#include <dlfcn.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/mutex.h"

namespace tutti::launch {
namespace {

// The part of the PMIx ABI in use here, in layouts that have not changed since version 2.
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
// A call with this outcome has completed, and its callback will not be called.
constexpr int kDoneAtOnce = -157;

// Holds the result of a callback of PMIx. The callback shares the object, because nothing ends an
// operation of PMIx: at the deadline the waiting thread leaves, and the callback may still come.
class Answer {
 public:
  // Hands a reference to PMIx; TakeBack ends it.
  static void* Give(const std::shared_ptr<Answer>& answer) {
    return new std::shared_ptr<Answer>(answer);
  }
  static std::shared_ptr<Answer> TakeBack(void* given) {
    const std::unique_ptr<std::shared_ptr<Answer>> owned(
        static_cast<std::shared_ptr<Answer>*>(given));
    return std::move(*owned);
  }

  static void OnOperation(int code, void* given) { TakeBack(given)->Set(code, nullptr); }
  static void OnValue(int code, Value* value, void* given) { TakeBack(given)->Set(code, value); }

  // Returns false at the deadline.
  bool Await(Deadline deadline) TUTTI_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!done_ && !deadline.Passed()) {
      changed_.WaitFor(lock, std::chrono::milliseconds(deadline.RemainingMs(1000)));
    }
    return done_;
  }
  int code() TUTTI_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return code_;
  }
  std::optional<std::string> text() TUTTI_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return text_;
  }

 private:
  void Set(int code, const Value* value) TUTTI_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    done_ = true;
    code_ = code;
    if (value && value->type == kTypeString && value->data.string) text_ = value->data.string;
    changed_.NotifyAll();
  }

  Mutex mutex_;
  CondVar changed_;
  bool done_ TUTTI_GUARDED_BY(mutex_) = false;
  int code_ TUTTI_GUARDED_BY(mutex_) = 0;
  // empty where the value is not a text
  std::optional<std::string> text_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace

struct PmixClient::Library {
  void* handle = nullptr;
  Process self{};
  bool joined = false;
  int (*init)(Process*, void*, size_t) = nullptr;
  int (*finalize)(const void*, size_t) = nullptr;
  int (*put)(uint8_t, const char*, Value*) = nullptr;
  int (*commit)() = nullptr;
  int (*fence)(const Process*, size_t, const void*, size_t, void (*)(int, void*), void*) = nullptr;
  int (*get)(const Process*, const char*, const void*, size_t, void (*)(int, Value*, void*),
             void*) = nullptr;
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
          "set TUTTI_ADDR=HOST:PORT with the address of rank 0",
          dlerror());
    }
    TUTTI_TRY(Find("PMIx_Init", &init));
    TUTTI_TRY(Find("PMIx_Finalize", &finalize));
    TUTTI_TRY(Find("PMIx_Put", &put));
    TUTTI_TRY(Find("PMIx_Commit", &commit));
    TUTTI_TRY(Find("PMIx_Fence_nb", &fence));
    TUTTI_TRY(Find("PMIx_Get_nb", &get));
    return Find("PMIx_Error_string", &error_string);
  }

  Status Check(int code, std::string_view doing) const {
    if (code == 0) return {};
    return SystemError("PMIx failed in {}: {}", doing, error_string(code));
  }

  // Waits for an operation. `started` is the result of the call that was given `given` for
  // `answer`.
  Status Await(int started, void* given, Answer& answer, Deadline deadline,
               std::string_view doing) const {
    if (started != 0) {
      Answer::TakeBack(given);
      return started == kDoneAtOnce ? Status::Ok() : Check(started, doing);
    }
    if (!answer.Await(deadline)) return Timeout("PMIx had no answer at the deadline for {}", doing);
    return Check(answer.code(), doing);
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

Status PmixClient::Fence(Deadline deadline) {
  Process everyone = library_->self;
  everyone.rank = kWholeJob;
  const auto answer = std::make_shared<Answer>();
  void* const given = Answer::Give(answer);
  const int started = library_->fence(&everyone, 1, nullptr, 0, &Answer::OnOperation, given);
  return library_->Await(started, given, *answer, deadline, "waiting for the other ranks");
}

Result<std::string> PmixClient::Get(uint32_t rank, std::string_view key, Deadline deadline) {
  Process owner = library_->self;
  owner.rank = rank;
  const std::string name(key);
  const auto answer = std::make_shared<Answer>();
  void* const given = Answer::Give(answer);
  const int started = library_->get(&owner, name.c_str(), nullptr, 0, &Answer::OnValue, given);
  TUTTI_TRY(library_->Await(started, given, *answer, deadline,
                            fmt::format("getting '{}' of rank {}", name, rank)));
  if (std::optional<std::string> text = answer->text()) return *std::move(text);
  return SystemError("PMIx gave '{}' of rank {} in a form other than text", name, rank);
}

}  // namespace tutti::launch
