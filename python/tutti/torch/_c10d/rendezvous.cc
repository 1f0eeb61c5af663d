// SPDX-License-Identifier: Apache-2.0
#include "rendezvous.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <iomanip>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "work.h"

namespace tutti_c10d {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr microseconds kFirstPause{500};
constexpr microseconds kLongestPause{50'000};
// Some stores take no empty value.
constexpr const char* kPassed = "passed";
// Begins the reason of a rank 0 without an id, in the id's place.
constexpr const char* kFailed = "failed: ";
// The words of the library for an id at whose address nobody listens (bootstrap/root_client.cc).
constexpr const char* kUnreachable = "cannot reach the root";
// Part of EHOSTUNREACH and ENETUNREACH: no way leads to the address, whichever rank 0 has left it.
constexpr const char* kNoWay = "UNREACH";
// Where the random name of a job lies in a unique id (bootstrap/unique_id.h).
constexpr size_t kNameBegin = 68, kNameEnd = 76;

// Looks again and again, at growing intervals, until the counter was raised (true) or `give_up`
// returns true (false).
template <typename GiveUp>
bool AwaitRaised(c10d::Store& store, const std::string& key, const GiveUp& give_up) {
  microseconds pause = kFirstPause;
  while (store.add(key, 0) == 0) {
    if (give_up()) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 3 / 2, kLongestPause);
  }
  return true;
}

std::vector<uint8_t> BytesOf(const std::string& text) { return {text.begin(), text.end()}; }

std::string TextOf(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

double Seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1e3; }

// Waits for all other ranks, and returns the error text, or "".
std::string AwaitAll(c10d::Store& store, int size, Clock::time_point until, double seconds,
                     bool wait_all_ranks) {
  if (until <= Clock::now()) return "Rank 0 timed out in monitoredBarrier: it was given no time";
  std::string missing;
  for (int rank = 1; rank < size; ++rank) {
    const auto late = [until] { return Clock::now() >= until; };
    if (AwaitRaised(store, c10::str("came/", rank), late)) continue;
    missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    if (!wait_all_ranks) break;
  }
  if (missing.empty()) return "";
  // The first words are those of Gloo's errors, which programs look for.
  return c10::str(wait_all_ranks ? "Ranks " : "Rank ", missing,
                  " failed to pass monitoredBarrier: did not come, of ", size, " ranks, in ",
                  seconds, " s");
}

// The keys of a meeting in the store.
struct MeetingKeys {
  explicit MeetingKeys(const std::string& key)
      : id(key), there(key + "/there"), came(key + "/came") {}
  const std::string id;     // the unique id, or the reason why there is none
  const std::string there;  // how often rank 0 has stored the id
  const std::string came;   // how many of the other ranks have come
};

// Not every store can delete.
void DeleteKey(c10d::Store& store, const std::string& key) {
  try {
    store.deleteKey(key);
  } catch (const std::exception&) {
  }
}

// A rank's wait for the other ranks of a meeting. `meeting` must outlive the wait.
class MeetingWait {
 public:
  MeetingWait(c10d::Store& store, const Meeting& meeting)
      : store_(store), meeting_(meeting), begun_(Clock::now()), warned_(begun_) {}

  // Throws where the wait is over, else sleeps for a moment, longer each time.
  void Pause(const std::string& addition = "") {
    const Clock::time_point now = Clock::now();
    const Limit& limit = meeting_.limit;
    if (limit.time.count() > 0 && now - begun_ >= limit.time)
      ThrowFailure(ncclTimeout, c10::str(Sentence(now), "; ", limit.origin,
                                         " sets how long is waited", addition));
    if (meeting_.check) meeting_.check();
    if (pause_ == kLongestPause && meeting_.peer >= 0 &&
        HasLeft(store_, meeting_.note, meeting_.peer))
      ThrowFailure(ncclRemoteError,
                   c10::str("rank ", meeting_.peer, " of the group has left the group, and rank ",
                            meeting_.shown_rank, " waits for it to make ", meeting_.what));
    if (meeting_.warns && now - warned_ >= WarnInterval()) {
      warned_ = now;
      TORCH_WARN(Sentence(now), ", and goes on waiting", addition);
    }
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 3 / 2, kLongestPause);
  }

  // Returns the remaining time of the limit, in seconds; 0: no limit. The ranks that have met by
  // the store need a moment for the rest of the meeting, however late they have met.
  double RemainingSeconds() const {
    if (meeting_.limit.time.count() == 0) return 0;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        begun_ + meeting_.limit.time - Clock::now());
    return std::max(kLeastForInit, Seconds(left));
  }

 private:
  static constexpr double kLeastForInit = 5;
  // As src/base/long_wait.h has it.
  static constexpr std::chrono::seconds kWarnEvery{10};
  static constexpr std::chrono::milliseconds kFewestWarn{500};

  std::chrono::milliseconds WarnInterval() const {
    if (meeting_.limit.time.count() == 0) return kWarnEvery;
    return std::clamp<std::chrono::milliseconds>(meeting_.limit.time / 2, kFewestWarn, kWarnEvery);
  }
  std::string Sentence(Clock::time_point now) const {
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - begun_);
    std::ostringstream seconds;
    seconds << std::fixed << std::setprecision(1) << Seconds(waited);
    return c10::str("rank ", meeting_.shown_rank, " of the group has waited ", seconds.str(),
                    " s for ", meeting_.whom, " to make ", meeting_.what);
  }

  c10d::Store& store_;
  const Meeting& meeting_;
  const Clock::time_point begun_;
  Clock::time_point warned_;
  microseconds pause_ = kFirstPause;
};

ncclResult_t Init(const Library& library, const Meeting& meeting, const ncclUniqueId& id,
                  double limit_s, ncclComm_t* comm) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.device = meeting.device;
  config.timeoutSeconds = Seconds(meeting.timeout);
  config.initTimeoutSeconds = limit_s;
  std::array<int, 2> shown{meeting.shown_rank, meeting.peer};
  if (meeting.rank == 1) std::swap(shown[0], shown[1]);
  if (meeting.peer >= 0) config.shownRanks = shown.data();
  return library.tuttiCommInitRankConfig(comm, meeting.size, id, meeting.rank, nullptr, &config);
}

// Makes an id that the ranks reach as they reach the store, whichever interfaces the hosts have.
ncclResult_t MakeId(const Library& library, c10d::Store& store, ncclUniqueId* id) {
  c10d::Store* innermost = &store;
  while (auto* const prefix = dynamic_cast<c10d::PrefixStore*>(innermost))
    innermost = prefix->getUnderlyingStore().get();
  if (auto* const tcp = dynamic_cast<c10d::TCPStore*>(innermost))
    return library.tuttiGetUniqueIdFor(id, tcp->getHost().c_str());
  return library.ncclGetUniqueId(id);
}

// Leaves an id in the store, or the reason why this rank has none.
ncclUniqueId OfferId(const Library& library, c10d::Store& store, const MeetingKeys& keys) {
  ncclUniqueId id{};
  const ncclResult_t made = MakeId(library, store, &id);
  std::vector<uint8_t> bytes(sizeof id);
  std::memcpy(bytes.data(), &id, sizeof id);
  store.set(keys.id, made == ncclSuccess
                         ? bytes
                         : BytesOf(kFailed + std::string(library.ncclGetLastError(nullptr))));
  store.add(keys.there, 1);
  library.Check(made, nullptr);
  return id;
}

std::string NoteOf(const ncclUniqueId& id) {
  std::ostringstream note;
  note << "left/" << std::hex << std::setfill('0');
  for (size_t i = kNameBegin; i < kNameEnd; ++i)
    note << std::setw(2) << static_cast<unsigned>(static_cast<unsigned char>(id.internal[i]));
  return note.str();
}

Met MeetAsFirst(const Library& library, c10d::Store& store, const Meeting& meeting,
                const MeetingKeys& keys, MeetingWait& wait) {
  const ncclUniqueId id = OfferId(library, store, keys);
  try {
    while (store.add(keys.came, 0) < meeting.size - 1) wait.Pause();
  } catch (...) {
    DeleteKey(store, keys.there);  // The id serves nobody any more.
    throw;
  }
  ncclComm_t comm = nullptr;
  library.Check(Init(library, meeting, id, wait.RemainingSeconds(), &comm), nullptr);
  for (const std::string& key : meeting.forget) DeleteKey(store, key);
  for (const std::string& key : {keys.id, keys.came, keys.there}) DeleteKey(store, key);
  return {comm, NoteOf(id)};
}

// Waits until rank 0 has taken the meeting out of the store.
void AwaitForgotten(c10d::Store& store, const MeetingKeys& keys) {
  const Clock::time_point until = Clock::now() + kReturnTime;
  try {
    while (store.check({keys.there}) && Clock::now() < until)
      std::this_thread::sleep_for(kFirstPause);
  } catch (const std::exception&) {
    // Without the store there is no next meeting.
  }
}

// Waits for an id that is not `stale`.
std::vector<uint8_t> AwaitId(c10d::Store& store, const MeetingKeys& keys,
                             const std::vector<uint8_t>& stale, MeetingWait& wait) {
  try {
    for (;;) {
      if (store.add(keys.there, 0) > 0) {
        std::vector<uint8_t> bytes = store.get(keys.id);
        if (bytes != stale) return bytes;
      }
      wait.Pause(stale.empty() ? ""
                               : "; the unique id in the store is stale: nobody listens at its "
                                 "address, and rank 0 of an earlier start of the job has left it");
    }
  } catch (...) {
    try {
      store.add(keys.came, -1);  // This rank does not come.
    } catch (const std::exception&) {
    }
    throw;
  }
}

Met MeetAsOther(const Library& library, c10d::Store& store, const Meeting& meeting,
                const MeetingKeys& keys, MeetingWait& wait) {
  store.add(keys.came, 1);
  for (std::vector<uint8_t> stale;;) {
    const std::vector<uint8_t> bytes = AwaitId(store, keys, stale, wait);
    ncclUniqueId id{};
    if (bytes.size() != sizeof id) {
      const std::string text = TextOf(bytes);
      TORCH_CHECK(text.rfind(kFailed, 0) == 0, "the store holds another kind of id under ",
                  keys.id);
      ThrowFailure(ncclRemoteError, c10::str("rank 0 cannot begin to make ", meeting.what, ": ",
                                             text.substr(std::strlen(kFailed))));
    }
    std::memcpy(&id, bytes.data(), sizeof id);
    ncclComm_t comm = nullptr;
    const ncclResult_t made = Init(library, meeting, id, wait.RemainingSeconds(), &comm);
    if (made == ncclSuccess) {
      AwaitForgotten(store, keys);
      return {comm, NoteOf(id)};
    }
    const std::string why = library.ncclGetLastError(nullptr);
    if (why.find(kUnreachable) == std::string::npos || why.find(kNoWay) != std::string::npos)
      ThrowFailure(made, why);
    stale = bytes;
  }
}

}  // namespace

Met NewCommunicator(const Library& library, c10d::Store& store, const Meeting& meeting) {
  MeetingWait wait(store, meeting);
  const MeetingKeys keys(meeting.key);
  return meeting.rank == 0 ? MeetAsFirst(library, store, meeting, keys, wait)
                           : MeetAsOther(library, store, meeting, keys, wait);
}

void NoteLeft(c10d::Store& store, const std::string& note, int rank, int size) {
  try {
    if (!store.hasExtendedApi()) return;
    store.append(note, BytesOf(c10::str(rank, ",")));
    const std::vector<uint8_t> ranks = store.get(note);
    if (std::count(ranks.begin(), ranks.end(), ',') >= size) store.deleteKey(note);
  } catch (const std::exception&) {
    // The process that served the store has ended, and so have the ranks that would read the note.
  }
}

bool HasLeft(c10d::Store& store, const std::string& note, int rank) {
  if (!store.hasExtendedApi() || !store.check({note})) return false;
  // The commas make each number a whole one.
  return c10::str(",", TextOf(store.get(note))).find(c10::str(",", rank, ",")) != std::string::npos;
}

void MonitoredBarrier(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout,
                      bool wait_all_ranks) {
  const Clock::time_point until = Clock::now() + timeout;
  std::string error;
  if (rank != 0) {
    store.add(c10::str("came/", rank), 1);
    TORCH_CHECK(AwaitRaised(store, "outcome", [until] { return Clock::now() >= until; }),
                "rank 0 did not let rank ", rank, " pass monitored_barrier in ", Seconds(timeout),
                " s: it, or a rank that it waits for, did not come");
    error = TextOf(store.get("error"));
    if (error != kPassed)
      error =
          c10::str("Rank ", rank, " successfully reached monitoredBarrier, but received errors ",
                   "while waiting for send/recv from rank 0: ", error);
  } else {
    error = AwaitAll(store, size, until, Seconds(timeout), wait_all_ranks);
    store.set("error", BytesOf(error.empty() ? kPassed : error));
    store.add("outcome", 1);
  }
  TORCH_CHECK(error.empty() || error == kPassed, error);
}

}  // namespace tutti_c10d
