// SPDX-License-Identifier: Apache-2.0
#include "rendezvous.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <iomanip>
#include <random>
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

// Some stores take no empty value.
constexpr const char* kPassed = "passed";
// Begins the reason of a rank 0 without an id, in the id's place.
constexpr const char* kFailed = "failed: ";
// The words of the library where an id leads nowhere (bootstrap/root_client.cc): nobody listens at
// its address, or the host of the address is silent. Other failures have other causes.
constexpr const char* kUnreachable = "cannot reach the root";
constexpr const char* kRefused = "ECONNREFUSED";
constexpr const char* kSilent = "the host did not answer";

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
      : id(key), there(key + "/there"), came(key + "/came"), told(key + "/told") {}
  const std::string id;     // rank 0's offer, or the reason why there is none
  const std::string there;  // how often rank 0 has stored the offer
  const std::string came;   // how many of the other ranks have come
  const std::string told;   // how many ranks know the reason
};

// The value that rank 0 leaves for the other ranks.
struct Offer {
  ncclUniqueId id{};
  // A random number. The id under NCCL_COMM_ID may be the same for all communicators.
  uint64_t number = 0;
};

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

  // Returns the remaining time of the limit, in seconds; 0: no limit.
  double RemainingSeconds() const {
    if (meeting_.limit.time.count() == 0) return 0;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        begun_ + meeting_.limit.time - Clock::now());
    return std::clamp(Seconds(left), Seconds(meeting_.least_for_init), kMostForInit);
  }

 private:
  static constexpr double kMostForInit = 1e6;  // the longest initTimeoutSeconds
  // As src/base/long_wait.h has it.
  static constexpr std::chrono::seconds kWarnEvery{10};
  static constexpr std::chrono::milliseconds kFewestWarn{500};

  std::chrono::milliseconds WarnInterval() const {
    if (meeting_.limit.time.count() == 0) return kWarnEvery;
    return std::clamp<std::chrono::milliseconds>(meeting_.limit.time / 2, kFewestWarn, kWarnEvery);
  }
  std::string Sentence(Clock::time_point now) const {
    return c10::str("rank ", meeting_.shown_rank, " of the group has waited ",
                    SecondsText(now - begun_), " s for ", meeting_.whom, " to make ",
                    meeting_.what);
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

// Counts a rank that knows why rank 0 cannot begin. The last rank takes the reason out of the
// store.
void CountTold(c10d::Store& store, const MeetingKeys& keys, int size) {
  try {
    if (store.add(keys.told, 1) < size) return;
  } catch (const std::exception&) {
    return;  // The reason itself matters more.
  }
  for (const std::string& key : {keys.id, keys.there, keys.told}) DeleteKey(store, key);
}

// Leaves an offer in the store, or the reason why this rank has none.
Offer LeaveOffer(const Library& library, c10d::Store& store, const MeetingKeys& keys, int size) {
  std::random_device random;
  Offer offer;
  offer.number = uint64_t{random()} << 32 | random();
  const ncclResult_t made = MakeId(library, store, &offer.id);
  std::vector<uint8_t> bytes(sizeof offer);
  std::memcpy(bytes.data(), &offer, sizeof offer);
  store.set(keys.id, made == ncclSuccess
                         ? bytes
                         : BytesOf(kFailed + std::string(library.ncclGetLastError(nullptr))));
  store.add(keys.there, 1);
  if (made != ncclSuccess) CountTold(store, keys, size);
  library.Check(made, nullptr);
  return offer;
}

std::string NoteOf(const Offer& offer) { return c10::str("left/", offer.number); }

Met MeetAsFirst(const Library& library, c10d::Store& store, const Meeting& meeting,
                const MeetingKeys& keys, MeetingWait& wait) {
  const Offer offer = LeaveOffer(library, store, keys, meeting.size);
  ncclComm_t comm = nullptr;
  try {
    while (store.add(keys.came, 0) < meeting.size - 1) wait.Pause();
    library.Check(Init(library, meeting, offer.id, wait.RemainingSeconds(), &comm), nullptr);
  } catch (...) {
    DeleteKey(store, keys.there);  // The offer serves nobody any more.
    throw;
  }
  for (const std::string& key : meeting.forget) DeleteKey(store, key);
  for (const std::string& key : {keys.id, keys.came, keys.there}) DeleteKey(store, key);
  return {comm, NoteOf(offer)};
}

// Waits until rank 0 has taken the meeting out of the store.
void AwaitForgotten(c10d::Store& store, const MeetingKeys& keys) {
  const Clock::time_point until = Clock::now() + kReturnTime;
  microseconds pause = kFirstPause;
  try {
    while (store.check({keys.there}) && Clock::now() < until) {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 3 / 2, kLongestPause);
    }
  } catch (const std::exception&) {
    // Without the store there is no next meeting.
  }
}

// Waits for an offer other than `stale`, which failed with the reason `why`.
std::vector<uint8_t> AwaitOffer(c10d::Store& store, const MeetingKeys& keys,
                                const std::vector<uint8_t>& stale, const std::string& why,
                                MeetingWait& wait) {
  for (;;) {
    if (store.add(keys.there, 0) > 0) {
      std::vector<uint8_t> bytes = store.get(keys.id);
      if (bytes != stale) return bytes;
    }
    wait.Pause(stale.empty() ? ""
                             : c10::str("; the unique id in the store seems stale, left by rank 0 "
                                        "of an earlier start of the job: ",
                                        why));
  }
}

bool LeadsNowhere(const std::string& why) {
  const auto has = [&](const char* words) { return why.find(words) != std::string::npos; };
  return has(kUnreachable) && (has(kRefused) || has(kSilent));
}

Met TakeOffer(const Library& library, c10d::Store& store, const Meeting& meeting,
              const MeetingKeys& keys, MeetingWait& wait) {
  std::string why;
  for (std::vector<uint8_t> stale;;) {
    const std::vector<uint8_t> bytes = AwaitOffer(store, keys, stale, why, wait);
    const std::string text = TextOf(bytes);
    if (text.rfind(kFailed, 0) == 0) {
      CountTold(store, keys, meeting.size);
      ThrowFailure(ncclRemoteError, c10::str("rank 0 cannot begin to make ", meeting.what, ": ",
                                             text.substr(std::strlen(kFailed))));
    }
    Offer offer;
    TORCH_CHECK(bytes.size() == sizeof offer, "the store holds another kind of id under ", keys.id);
    std::memcpy(&offer, bytes.data(), sizeof offer);
    ncclComm_t comm = nullptr;
    const ncclResult_t made = Init(library, meeting, offer.id, wait.RemainingSeconds(), &comm);
    if (made == ncclSuccess) {
      AwaitForgotten(store, keys);
      return {comm, NoteOf(offer)};
    }
    why = library.ncclGetLastError(nullptr);
    if (meeting.fresh || !LeadsNowhere(why)) ThrowFailure(made, why);
    stale = bytes;
  }
}

Met MeetAsOther(const Library& library, c10d::Store& store, const Meeting& meeting,
                const MeetingKeys& keys, MeetingWait& wait) {
  store.add(keys.came, 1);
  try {
    return TakeOffer(library, store, meeting, keys, wait);
  } catch (...) {
    try {
      // This rank does not come. Rank 0 may have taken the counter out of the store before.
      if (store.add(keys.came, -1) < 0) DeleteKey(store, keys.came);
    } catch (const std::exception&) {
    }
    throw;
  }
}

}  // namespace

// Not every store can delete.
void DeleteKey(c10d::Store& store, const std::string& key) {
  try {
    store.deleteKey(key);
  } catch (const std::exception&) {
  }
}

std::string SecondsText(std::chrono::nanoseconds time) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << static_cast<double>(time.count()) / 1e9;
  return text.str();
}

Met NewCommunicator(const Library& library, c10d::Store& store, const Meeting& meeting) {
  MeetingWait wait(store, meeting);
  const MeetingKeys keys(meeting.key);
  return meeting.rank == 0 ? MeetAsFirst(library, store, meeting, keys, wait)
                           : MeetAsOther(library, store, meeting, keys, wait);
}

void NoteLeft(c10d::Store& store, const std::string& note, int rank, int size) {
  try {
    store.set(c10::str(note, "/", rank), BytesOf("left"));
    if (store.add(note + "/count", 1) < size) return;
    for (int each = 0; each < size; ++each) DeleteKey(store, c10::str(note, "/", each));
    DeleteKey(store, note + "/count");
  } catch (const std::exception&) {
    // The process that served the store has ended, and so have the ranks that would read the note.
  }
}

bool HasLeft(c10d::Store& store, const std::string& note, int rank) {
  return store.check({c10::str(note, "/", rank)});
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
