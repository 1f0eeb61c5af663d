// The C functions: check, translate, call the module.

#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/last_error.h"
#include "launch/meeting.h"
#include "tutti/launch.h"

struct tuttiLaunch {
  tutti::launch::LaunchInfo info;
  std::atomic<bool> interrupted{false};
  std::optional<tutti::launch::Meeting> meeting;
};

namespace {

using namespace tutti;
using namespace tutti::launch;

static_assert(TUTTI_LAUNCH_MAX_VALUE_BYTES == kMaxValueBytes);

thread_local LastError last_error;

// Returns the outcome of `call`, also when `call` throws.
template <class F>
ncclResult_t Answer(const char* function, F call) noexcept {
  return static_cast<ncclResult_t>(last_error.Keep(function, call));
}

Status NullArgument() { return InvalidArgument("an argument is null"); }

template <size_t N>
void StoreText(std::string_view text, char (&to)[N]) {
  const size_t size = std::min(text.size(), N - 1);
  std::memcpy(to, text.data(), size);
  std::memset(to + size, 0, N - size);
}

Status Read(tuttiLaunch_t* launch, int flags) {
  if (!launch) return NullArgument();
  if ((flags & ~TUTTI_LAUNCH_MAY_JOIN_PMI) != 0) {
    return InvalidArgument("flags={} has bits without a meaning", flags);
  }
  const Environment environment = ProcessVariables();
  TUTTI_ASSIGN(LaunchInfo info, ReadLaunchEnvironment(environment, ThisMachine(environment),
                                                      {(flags & TUTTI_LAUNCH_MAY_JOIN_PMI) != 0}));
  *launch = new tuttiLaunch{std::move(info), false, std::nullopt};
  return Status::Ok();
}

Status Part(tuttiLaunch_t launch, const int* ranks, int nranks, tuttiLaunch_t* part) {
  if (!launch || !part || (!ranks && nranks > 0)) return NullArgument();
  std::vector<int> chosen;
  if (nranks > 0) chosen.assign(ranks, ranks + nranks);
  TUTTI_ASSIGN(LaunchInfo info, PartOf(launch->info, chosen));
  *part = new tuttiLaunch{std::move(info), false, std::nullopt};
  return Status::Ok();
}

std::string DescribeRendezvous(const LaunchInfo& info) {
  if (info.rendezvous != Rendezvous::kTcp) return std::string(Name(info.rendezvous));
  return fmt::format("TCP at {}", info.endpoints.front().ToString());
}

Status Describe(tuttiLaunch_t launch, tuttiLaunchInfo_t* info) {
  if (!launch || !info) return NullArgument();
  // Later versions append fields to the struct.
  if (info->size < sizeof(tuttiLaunchInfo_t)) {
    return InvalidArgument("size={} is smaller than the struct, which has {} bytes", info->size,
                           sizeof(tuttiLaunchInfo_t));
  }
  const LaunchInfo& read = launch->info;
  info->rank = read.rank;
  info->nranks = read.size;
  info->local_rank = read.local_rank;
  info->local_size = read.local_size;
  info->one_machine = read.one_machine ? 1 : 0;
  info->timeout_s = read.timeout_s;
  StoreText(Name(read.launcher), info->launcher);
  StoreText(DescribeRendezvous(read), info->rendezvous);
  return Status::Ok();
}

Status MeetRanks(tuttiLaunch_t launch, const void* value, size_t value_size, void* received,
                 size_t capacity, size_t* received_size, double timeout_s) {
  if (!launch || !received_size || (!received && capacity > 0)) return NullArgument();
  const bool gives = launch->info.rank == 0;
  if (gives && !value && value_size > 0) return NullArgument();
  const double seconds = timeout_s > 0 ? timeout_s : launch->info.timeout_s;
  const WaitLimits limits = {Deadline::AfterSeconds(std::min(seconds, 1e6)), &launch->interrupted};
  const std::string_view mine(static_cast<const char*>(value), gives ? value_size : 0);
  TUTTI_ASSIGN(Meeting meeting, Meet(launch->info, mine, limits));
  *received_size = meeting.value.size();
  if (meeting.value.size() > capacity) {
    return InvalidArgument("rank 0 gave a value of {} bytes, and there is room for {}",
                           meeting.value.size(), capacity);
  }
  if (!meeting.value.empty()) std::memcpy(received, meeting.value.data(), meeting.value.size());
  launch->meeting = std::move(meeting);
  return Status::Ok();
}

void StorePlaces(const std::vector<Place>& from, tuttiLaunchPlace_t* to) {
  for (const Place& place : from) {
    *to++ = {place.machine, place.local_rank, place.local_size, place.cross_rank, place.cross_size};
  }
}

Status Places(tuttiLaunch_t launch, tuttiLaunchPlace_t* places, int nranks) {
  if (!launch || !places) return NullArgument();
  if (!launch->meeting) return InvalidUsage("the ranks have not met");
  if (nranks != launch->info.size) {
    return InvalidArgument("nranks={}, but the job has {}", nranks, launch->info.size);
  }
  StorePlaces(launch->meeting->places, places);
  return Status::Ok();
}

Status StoreMachine(char* name, size_t capacity) {
  if (!name) return NullArgument();
  const std::string machine = MachineName(ProcessEnvironment());
  if (machine.size() + 1 > capacity) {
    return InvalidArgument("the machine's name has {} bytes, and there is room for {}",
                           machine.size() + 1, capacity);
  }
  std::memcpy(name, machine.c_str(), machine.size() + 1);
  return Status::Ok();
}

Status CountPlaces(const char* const* machines, tuttiLaunchPlace_t* places, int nranks) {
  if (!machines || !places) return NullArgument();
  if (nranks < 1 || nranks > kMaxRanks) {
    return InvalidArgument("nranks={} is not a number from 1 to {}", nranks, kMaxRanks);
  }
  std::vector<Residence> residences;
  for (int rank = 0; rank < nranks; ++rank) {
    if (!machines[rank]) return NullArgument();
    residences.push_back({machines[rank], -1, -1});
  }
  StorePlaces(SettlePlaces(residences), places);
  return Status::Ok();
}

}  // namespace

ncclResult_t tuttiLaunchRead(tuttiLaunch_t* launch, int flags) {
  return Answer(__func__, [&] { return Read(launch, flags); });
}

ncclResult_t tuttiLaunchPart(tuttiLaunch_t launch, const int* ranks, int nranks,
                             tuttiLaunch_t* part) {
  return Answer(__func__, [&] { return Part(launch, ranks, nranks, part); });
}

ncclResult_t tuttiLaunchDescribe(tuttiLaunch_t launch, tuttiLaunchInfo_t* info) {
  return Answer(__func__, [&] { return Describe(launch, info); });
}

ncclResult_t tuttiLaunchMeet(tuttiLaunch_t launch, const void* value, size_t value_size,
                             void* received, size_t capacity, size_t* received_size,
                             double timeout_s) {
  return Answer(__func__, [&] {
    return MeetRanks(launch, value, value_size, received, capacity, received_size, timeout_s);
  });
}

ncclResult_t tuttiLaunchPlaces(tuttiLaunch_t launch, tuttiLaunchPlace_t* places, int nranks) {
  return Answer(__func__, [&] { return Places(launch, places, nranks); });
}

ncclResult_t tuttiLaunchInterrupt(tuttiLaunch_t launch) {
  return Answer(__func__, [&] {
    if (!launch) return NullArgument();
    launch->interrupted.store(true, std::memory_order_release);
    return Status::Ok();
  });
}

ncclResult_t tuttiLaunchClose(tuttiLaunch_t launch) {
  return Answer(__func__, [&] {
    delete launch;
    return Status::Ok();
  });
}

ncclResult_t tuttiLaunchMachine(char* name, size_t capacity) {
  return Answer(__func__, [&] { return StoreMachine(name, capacity); });
}

ncclResult_t tuttiLaunchCountPlaces(const char* const* machines, tuttiLaunchPlace_t* places,
                                    int nranks) {
  return Answer(__func__, [&] { return CountPlaces(machines, places, nranks); });
}

const char* tuttiLaunchLastError(void) { return last_error.sentence(); }
