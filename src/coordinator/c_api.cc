// The C functions: check, translate, call the coordinator.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/last_error.h"
#include "coordinator/coordinator.h"
#include "coordinator/nccl_library.h"
#include "sys/fork.h"
#include "tutti/coordinator_c.h"

namespace {

using tutti::Deadline;
using tutti::ForksBehind;
using tutti::InvalidArgument;
using tutti::InvalidUsage;
using tutti::Result;
using tutti::Status;
using namespace tutti::coordinator;

static_assert(tuttiOpBarrier == static_cast<int>(OpKind::kBarrier));
static_assert(tuttiReduceProduct == static_cast<int>(ReduceOp::kProduct));
static_assert(tuttiFloat8e5m2 == static_cast<int>(ElementType::kFloat8e5m2));
static_assert(tuttiCompressionBfloat16 == static_cast<int>(Compression::kBfloat16));

thread_local tutti::LastError last_error;

}  // namespace

struct tuttiCoordinator {
  TicketTable tickets;  // outlives those who hold them
  std::unique_ptr<Coordinator> coordinator;
  std::shared_ptr<ProcessSet> all;  // set 0, which nearly every call means
  const uint32_t forks_behind = ForksBehind();

  ProcessSet& SetOf(const Ticket& ticket) const { return ticket.set ? *ticket.set : *all; }
};

namespace {

// The child of a fork has none of the threads for which calls wait, and locks may be held by such
// threads.
Status CheckNotTheParents(tuttiCoordinator_t c) {
  if (c == nullptr || c->forks_behind == ForksBehind()) return Status::Ok();
  return InvalidUsage(
      "the coordinator was made before this process was forked and is its parent's: processes make "
      "coordinators of their own");
}

// Returns the outcome of `call`, including exceptions.
template <class F>
ncclResult_t Answer(const char* function, tuttiCoordinator_t c, F call) noexcept {
  return static_cast<ncclResult_t>(last_error.Keep(function, [&]() -> Status {
    TUTTI_TRY(CheckNotTheParents(c));
    return call();
  }));
}

Result<TicketHold> Find(tuttiCoordinator_t c, int64_t number) {
  if (c == nullptr) return InvalidArgument("coordinator is null");
  TicketHold ticket = c->tickets.Find(number);
  if (!ticket) return InvalidArgument("there is no handle {}", number);
  return ticket;
}

Status Release(tuttiCoordinator_t c, int64_t number) {
  if (c == nullptr) return InvalidArgument("coordinator is null");
  if (!c->tickets.Release(number)) return InvalidArgument("there is no handle {}", number);
  return Status::Ok();
}

// An operation that failed returns its own error here.
Result<TicketHold> FindDone(tuttiCoordinator_t c, int64_t number) {
  TUTTI_ASSIGN(TicketHold ticket, Find(c, number));
  if (!ticket->done.load(std::memory_order_acquire)) {
    return InvalidUsage("the operation of handle {} is not done", number);
  }
  TUTTI_TRY(Status(ticket->status));
  return ticket;
}

// Checks all that must hold before the fields are read: pointers, counts, and enumerators. The
// queue checks whether the values make sense.
Status CheckTensor(const tuttiTensor_t& t) {
  if (t.size != sizeof(tuttiTensor_t)) {
    return InvalidArgument("a tensor says that it is {} bytes long instead of {}", t.size,
                           sizeof(tuttiTensor_t));
  }
  if (t.name == nullptr) return InvalidArgument("a tensor has no name");
  const auto in_range = [](int value, int count) { return value >= 0 && value < count; };
  if (!in_range(t.kind, tuttiOpBarrier + 1)) {
    return InvalidArgument("\"{}\": there is no operation {}", t.name, static_cast<int>(t.kind));
  }
  if (!in_range(t.type, kNumElementTypes)) {
    return InvalidArgument("\"{}\": there is no element type {}", t.name, static_cast<int>(t.type));
  }
  if (!in_range(t.op, kNumReduceOps)) {
    return InvalidArgument("\"{}\": there is no reduction operator {}", t.name,
                           static_cast<int>(t.op));
  }
  if (!in_range(t.compression, kNumCompressions)) {
    return InvalidArgument("\"{}\": there is no compression {}", t.name,
                           static_cast<int>(t.compression));
  }
  if (t.ndim < 0 || (t.ndim > 0 && t.shape == nullptr)) {
    return InvalidArgument("\"{}\": a shape of {} dimensions is missing", t.name, t.ndim);
  }
  if (t.kind == tuttiOpAlltoall && (t.nsplits < 0 || (t.nsplits > 0 && t.splits == nullptr))) {
    return InvalidArgument("\"{}\": {} splits are missing", t.name, t.nsplits);
  }
  return Status::Ok();
}

// Asks for one tensor or several. Leaves no handle after a refusal.
Status EnqueueChecked(tuttiCoordinator& c, int process_set, std::span<const tuttiTensor_t> tensors,
                      const char* group, std::span<TicketHold> tickets, int64_t* handles) {
  std::shared_ptr<ProcessSet> other;  // The tickets keep a set other than 0.
  if (process_set != 0) {
    TUTTI_ASSIGN(other, c.coordinator->FindSet(process_set));
  }
  for (size_t i = 0; i < tickets.size(); ++i) tickets[i] = c.tickets.Take(other, &handles[i]);
  Status status = (other ? *other : *c.all).Enqueue(tensors, group, tickets);
  if (status.ok()) return status;
  for (size_t i = 0; i < tickets.size(); ++i) c.tickets.Release(handles[i]);
  return status;
}

Status Enqueue(tuttiCoordinator_t c, int process_set, const tuttiTensor_t* tensors, int count,
               const char* group, int64_t* handles) {
  if (c == nullptr) return InvalidArgument("coordinator is null");
  if (count < 1 || tensors == nullptr || handles == nullptr) {
    return InvalidArgument("there are no tensors, or nowhere to store their handles");
  }
  const std::span all(tensors, static_cast<size_t>(count));
  for (const tuttiTensor_t& tensor : all) TUTTI_TRY(CheckTensor(tensor));
  if (count == 1) {
    TicketHold ticket;
    return EnqueueChecked(*c, process_set, all, group, {&ticket, 1}, handles);
  }
  std::vector<TicketHold> tickets(all.size());
  // The handles are stored only after success.
  std::vector<int64_t> numbers(all.size());
  TUTTI_TRY(EnqueueChecked(*c, process_set, all, group, tickets, numbers.data()));
  std::copy(numbers.begin(), numbers.end(), handles);
  return Status::Ok();
}

Status Create(tuttiCoordinator_t* out, const tuttiCoordinatorOptions_t* o) {
  if (out == nullptr || o == nullptr) return InvalidArgument("coordinator or options is null");
  *out = nullptr;
  if (o->size != sizeof(tuttiCoordinatorOptions_t)) {
    return InvalidArgument("the options say that they are {} bytes long instead of {}", o->size,
                           sizeof(tuttiCoordinatorOptions_t));
  }
  if (o->id == nullptr) return InvalidArgument("options.id is null");
  if (o->nranks < 1 || o->rank < 0 || o->rank >= o->nranks) {
    return InvalidArgument("rank {} of {} ranks is no rank", o->rank, o->nranks);
  }
  Coordinator::Options options;
  options.rank = o->rank;
  options.num_ranks = o->nranks;
  if (o->local_size > 0 && o->cross_size > 0) {
    options.place = {o->local_rank, o->local_size, o->cross_rank, o->cross_size};
  }
  TUTTI_ASSIGN(options.id, tutti::UniqueId::Decode(o->id->internal));
  TUTTI_ASSIGN(options.settings, tutti::ReadProcessSettings());
  auto c = std::make_unique<tuttiCoordinator>();
  TUTTI_ASSIGN(c->coordinator, Coordinator::Create(options));
  TUTTI_ASSIGN(c->all, c->coordinator->FindSet(0));
  *out = c.release();
  return Status::Ok();
}

Status Wait(tuttiCoordinator_t c, int64_t number, double timeout_s) {
  TUTTI_ASSIGN(const TicketHold ticket, Find(c, number));
  if (!ticket->done.load(std::memory_order_acquire)) {
    const Deadline deadline = timeout_s < 0 ? Deadline::Never() : Deadline::AfterSeconds(timeout_s);
    if (!c->SetOf(*ticket).Wait(*ticket, deadline)) {
      return Status(tutti::Code::kInProgress,
                    fmt::format("the operation is not done after {} s", timeout_s));
    }
  }
  return ticket->status;
}

// Stores a list in two steps: a caller with too little room learns the count and calls again.
template <typename T>
void Store(const std::vector<T>& values, T* out, int capacity, int* count) {
  *count = static_cast<int>(values.size());
  for (int i = 0; i < capacity && i < *count; ++i) out[i] = values[static_cast<size_t>(i)];
}

Status ReadCounter(tuttiCoordinator_t c, int process_set, const char* name, uint64_t* value) {
  if (c == nullptr || name == nullptr || value == nullptr) return InvalidArgument("null argument");
  TUTTI_ASSIGN(const std::shared_ptr<ProcessSet> set, c->coordinator->FindSet(process_set));
  const ProcessSet::Counters counters = set->counters();
  const std::pair<const char*, uint64_t> all[] = {{"rounds", counters.rounds},
                                                  {"negotiated_rounds", counters.negotiated_rounds},
                                                  {"round_calls", counters.round_calls},
                                                  {"batches", counters.batches},
                                                  {"tensors", counters.tensors},
                                                  {"cached", counters.cached},
                                                  {"moved_inline", counters.moved_inline},
                                                  {"handed_over", counters.handed_over},
                                                  {"names", counters.names}};
  for (const auto& [known, number] : all) {
    if (std::strcmp(known, name) != 0) continue;
    *value = number;
    return Status::Ok();
  }
  return InvalidArgument("there is no counter \"{}\"", name);
}

}  // namespace

extern "C" {

ncclResult_t tuttiCoordinatorCreate(tuttiCoordinator_t* coordinator,
                                    const tuttiCoordinatorOptions_t* options) {
  return Answer(__func__, nullptr, [&] { return Create(coordinator, options); });
}

ncclResult_t tuttiCoordinatorShutdown(tuttiCoordinator_t coordinator) {
  return Answer(__func__, coordinator, [&] {
    if (coordinator != nullptr) coordinator->coordinator->Shutdown("");
    return Status::Ok();
  });
}

ncclResult_t tuttiCoordinatorDestroy(tuttiCoordinator_t coordinator) {
  return Answer(__func__, coordinator, [&] {
    if (coordinator == nullptr) return Status::Ok();
    coordinator->coordinator->Shutdown("");
    coordinator->tickets.ReleaseAll();
    delete coordinator;
    return Status::Ok();
  });
}

ncclResult_t tuttiCoordinatorEnqueue(tuttiCoordinator_t coordinator, int process_set,
                                     const tuttiTensor_t* tensors, int count, const char* group,
                                     int64_t* handles) {
  return Answer(__func__, coordinator,
                [&] { return Enqueue(coordinator, process_set, tensors, count, group, handles); });
}

ncclResult_t tuttiCoordinatorJoin(tuttiCoordinator_t coordinator, int process_set,
                                  int64_t* handle) {
  return Answer(__func__, coordinator, [&]() -> Status {
    if (coordinator == nullptr || handle == nullptr) return InvalidArgument("null argument");
    TUTTI_ASSIGN(const auto set, coordinator->coordinator->FindSet(process_set));
    int64_t number = 0;
    Status status = set->Join(coordinator->tickets.Take(process_set == 0 ? nullptr : set, &number));
    if (status.ok()) {
      *handle = number;
    } else {
      coordinator->tickets.Release(number);
    }
    return status;
  });
}

ncclResult_t tuttiCoordinatorPoll(tuttiCoordinator_t coordinator, int64_t handle, int* done) {
  return Answer(__func__, coordinator, [&]() -> Status {
    if (done == nullptr) return InvalidArgument("done is null");
    TUTTI_ASSIGN(const TicketHold ticket, Find(coordinator, handle));
    *done = ticket->done.load(std::memory_order_acquire) ? 1 : 0;
    return Status::Ok();
  });
}

ncclResult_t tuttiCoordinatorWait(tuttiCoordinator_t coordinator, int64_t handle,
                                  double timeout_s) {
  return Answer(__func__, coordinator, [&] { return Wait(coordinator, handle, timeout_s); });
}

ncclResult_t tuttiCoordinatorOutput(tuttiCoordinator_t coordinator, int64_t handle, void** data) {
  return Answer(__func__, coordinator, [&]() -> Status {
    if (data == nullptr) return InvalidArgument("data is null");
    TUTTI_ASSIGN(const TicketHold ticket, FindDone(coordinator, handle));
    *data = ticket->output;
    return Status::Ok();
  });
}

ncclResult_t tuttiCoordinatorOutputShape(tuttiCoordinator_t coordinator, int64_t handle,
                                         int64_t* shape, int capacity, int* ndim) {
  return Answer(__func__, coordinator, [&]() -> Status {
    if (ndim == nullptr) return InvalidArgument("ndim is null");
    TUTTI_ASSIGN(const TicketHold ticket, FindDone(coordinator, handle));
    Store(ticket->output_shape, shape, capacity, ndim);
    return Status::Ok();
  });
}

ncclResult_t tuttiCoordinatorReceivedSplits(tuttiCoordinator_t coordinator, int64_t handle,
                                            int64_t* splits, int capacity, int* count) {
  return Answer(__func__, coordinator, [&]() -> Status {
    if (count == nullptr) return InvalidArgument("count is null");
    TUTTI_ASSIGN(const TicketHold ticket, FindDone(coordinator, handle));
    Store(ticket->received_splits, splits, capacity, count);
    return Status::Ok();
  });
}

ncclResult_t tuttiCoordinatorLastJoined(tuttiCoordinator_t coordinator, int64_t handle, int* rank) {
  return Answer(__func__, coordinator, [&]() -> Status {
    if (rank == nullptr) return InvalidArgument("rank is null");
    TUTTI_ASSIGN(const TicketHold ticket, FindDone(coordinator, handle));
    *rank = ticket->number;
    return Status::Ok();
  });
}

ncclResult_t tuttiCoordinatorStreamWait(tuttiCoordinator_t coordinator, int64_t handle,
                                        void* stream) {
  return Answer(__func__, coordinator, [&]() -> Status {
    TUTTI_ASSIGN(const TicketHold ticket, FindDone(coordinator, handle));
    if (!ticket->gpu) return Status::Ok();
    GpuOutcome& outcome = *ticket->gpu;
    outcome.stream = stream;
    return outcome.gpu->Await(stream, *outcome.done);
  });
}

ncclResult_t tuttiCoordinatorRelease(tuttiCoordinator_t coordinator, int64_t handle) {
  return Answer(__func__, coordinator, [&] { return Release(coordinator, handle); });
}

ncclResult_t tuttiCoordinatorAddProcessSet(tuttiCoordinator_t coordinator, const int* ranks,
                                           int count, int* process_set) {
  return Answer(__func__, coordinator, [&]() -> Status {
    if (coordinator == nullptr || ranks == nullptr || process_set == nullptr || count < 1) {
      return InvalidArgument("there are no ranks, or nowhere to store the number of the set");
    }
    TUTTI_ASSIGN(*process_set,
                 coordinator->coordinator->AddSet(std::vector<int>(ranks, ranks + count)));
    return Status::Ok();
  });
}

ncclResult_t tuttiCoordinatorRemoveProcessSet(tuttiCoordinator_t coordinator, int process_set) {
  return Answer(__func__, coordinator, [&]() -> Status {
    if (coordinator == nullptr) return InvalidArgument("coordinator is null");
    return coordinator->coordinator->RemoveSet(process_set);
  });
}

ncclResult_t tuttiCoordinatorProcessSetRanks(tuttiCoordinator_t coordinator, int process_set,
                                             int* ranks, int capacity, int* count) {
  return Answer(__func__, coordinator, [&]() -> Status {
    if (coordinator == nullptr || count == nullptr) return InvalidArgument("null argument");
    TUTTI_ASSIGN(const auto members, coordinator->coordinator->SetRanks(process_set));
    Store(members, ranks, capacity, count);
    return Status::Ok();
  });
}

ncclResult_t tuttiCoordinatorStartTimeline(tuttiCoordinator_t coordinator, const char* path,
                                           int mark_rounds) {
  return Answer(__func__, coordinator, [&]() -> Status {
    if (coordinator == nullptr || path == nullptr) return InvalidArgument("null argument");
    return coordinator->coordinator->StartTimeline(path, mark_rounds != 0);
  });
}

ncclResult_t tuttiCoordinatorStopTimeline(tuttiCoordinator_t coordinator) {
  return Answer(__func__, coordinator, [&]() -> Status {
    if (coordinator == nullptr) return InvalidArgument("coordinator is null");
    if (!coordinator->coordinator->timeline().is_open()) {
      return InvalidUsage("no timeline is being written");
    }
    coordinator->coordinator->timeline().Close();
    return Status::Ok();
  });
}

ncclResult_t tuttiCoordinatorCounter(tuttiCoordinator_t coordinator, int process_set,
                                     const char* name, uint64_t* value) {
  return Answer(__func__, coordinator,
                [&] { return ReadCounter(coordinator, process_set, name, value); });
}

ncclResult_t tuttiCoordinatorFindNccl(int* version, char* path, size_t capacity) {
  return Answer(__func__, nullptr, [&]() -> Status {
    if (version == nullptr || (path == nullptr && capacity > 0)) {
      return InvalidArgument("null argument");
    }
    TUTTI_ASSIGN(const tutti::Settings settings, tutti::ReadProcessSettings());
    TUTTI_ASSIGN(const auto library, FindNcclForGpus(settings.nccl_library, NcclCandidates()));
    *version = library->version();
    if (capacity > 0) path[library->path().copy(path, capacity - 1)] = '\0';
    return Status::Ok();
  });
}

const char* tuttiCoordinatorLastError(void) { return last_error.sentence(); }

}  // extern "C"
