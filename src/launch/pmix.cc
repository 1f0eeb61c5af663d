// Sharing over PMIx, which Open MPI's mpirun and `srun --mpi=pmix` offer the processes they start.
// libpmix is looked up at run time; programs run without libpmix where no such launcher is used.
// PMIx numbers and layouts are those of the stable ABI (version 2 and later).

#include <dlfcn.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "launch/hex.h"
#include "launch/share.h"

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

// A client of PMIx, for one thread.
class PmixClient {
 public:
  PmixClient() = default;
  PmixClient(const PmixClient&) = delete;
  PmixClient& operator=(const PmixClient&) = delete;
  // Leaves the job and thereby tells the launcher that this process ends in good order. The library
  // stays loaded: its threads outlive PMIx_Finalize.
  ~PmixClient() {
    if (joined_) finalize_(nullptr, 0);
  }

  // Loads libpmix and joins the job that the environment names.
  Status Connect() {
    TUTTI_TRY(Load());
    TUTTI_TRY(Check(init_(&self_, nullptr, 0), "joining the job"));
    joined_ = true;
    return Status::Ok();
  }

  Status Put(std::string_view key, std::string_view value) {
    if (key.size() > kMaxKey) return InvalidArgument("a PMIx key has at most {} bytes", kMaxKey);
    std::string copy(value);
    Value wrapped{};
    wrapped.type = kTypeString;
    wrapped.data.string = copy.data();
    TUTTI_TRY(Check(put_(kScopeGlobal, std::string(key).c_str(), &wrapped), "storing a value"));
    return Check(commit_(), "publishing values");
  }

  // Waits for every process of the job; values of earlier Puts can then be read.
  Status Fence(Deadline deadline) {
    Process everyone = self_;
    everyone.rank = kWholeJob;
    const auto answer = std::make_shared<Answer>();
    void* const given = Answer::Give(answer);
    const int started = fence_(&everyone, 1, nullptr, 0, &Answer::OnOperation, given);
    return Await(started, given, *answer, deadline, "waiting for the other ranks");
  }

  Result<std::string> Get(uint32_t rank, std::string_view key, Deadline deadline) {
    Process owner = self_;
    owner.rank = rank;
    const std::string name(key);
    const auto answer = std::make_shared<Answer>();
    void* const given = Answer::Give(answer);
    const int started = get_(&owner, name.c_str(), nullptr, 0, &Answer::OnValue, given);
    TUTTI_TRY(Await(started, given, *answer, deadline,
                    fmt::format("getting '{}' of rank {}", name, rank)));
    if (std::optional<std::string> text = answer->text()) return *std::move(text);
    return SystemError("PMIx gave '{}' of rank {} in a form other than text", name, rank);
  }

 private:
  template <typename Function>
  Status Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (!*function) return SystemError("libpmix has no function {}", name);
    return {};
  }

  Status Load() {
    for (const char* name : {"libpmix.so.2", "libpmix.so"}) {
      if (!handle_) handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (!handle_) {
      return SystemError(
          "the launcher offers PMIx but libpmix.so.2 cannot be loaded ({}): install libpmix2, or "
          "set TUTTI_ADDR=HOST:PORT with the address of rank 0",
          dlerror());
    }
    TUTTI_TRY(Find("PMIx_Init", &init_));
    TUTTI_TRY(Find("PMIx_Finalize", &finalize_));
    TUTTI_TRY(Find("PMIx_Put", &put_));
    TUTTI_TRY(Find("PMIx_Commit", &commit_));
    TUTTI_TRY(Find("PMIx_Fence_nb", &fence_));
    TUTTI_TRY(Find("PMIx_Get_nb", &get_));
    return Find("PMIx_Error_string", &error_string_);
  }

  Status Check(int code, std::string_view doing) const {
    if (code == 0) return {};
    return SystemError("PMIx failed in {}: {}", doing, error_string_(code));
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

  void* handle_ = nullptr;
  Process self_{};
  bool joined_ = false;
  int (*init_)(Process*, void*, size_t) = nullptr;
  int (*finalize_)(const void*, size_t) = nullptr;
  int (*put_)(uint8_t, const char*, Value*) = nullptr;
  int (*commit_)() = nullptr;
  int (*fence_)(const Process*, size_t, const void*, size_t, void (*)(int, void*), void*) = nullptr;
  int (*get_)(const Process*, const char*, const void*, size_t, void (*)(int, Value*, void*),
              void*) = nullptr;
  const char* (*error_string_)(int) = nullptr;
};

}  // namespace

Result<std::string> ShareOverPmix(const LaunchInfo& info, std::string_view value,
                                  Deadline deadline) {
  PmixClient client;
  TUTTI_TRY(client.Connect());
  if (info.rank == 0) TUTTI_TRY(client.Put("tutti.value", ToHex(value)));
  TUTTI_TRY(client.Fence(deadline));
  TUTTI_ASSIGN(const std::string hex, client.Get(0, "tutti.value", deadline));
  // No process leaves before all have read, lest the launcher remove rank 0's values.
  TUTTI_TRY(client.Fence(deadline));
  return FromHex(hex);
}

}  // namespace tutti::launch
