// SPDX-License-Identifier: Apache-2.0
#include "rendezvous.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

namespace tutti_c10d {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr microseconds kFirstPause{500};
constexpr microseconds kLongestPause{50'000};
// Some stores take no empty value.
constexpr const char* kPassed = "passed";

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

}  // namespace

ncclComm_t NewCommunicator(const Library& library, c10d::Store& store, const std::string& key,
                           int rank, int size, std::chrono::milliseconds timeout,
                           const std::function<bool()>& closing, int device) {
  ncclUniqueId id{};
  if (rank == 0) {
    library.Check(library.ncclGetUniqueId(&id), nullptr);
    std::vector<uint8_t> bytes(sizeof id);
    std::memcpy(bytes.data(), &id, sizeof id);
    store.set(key, bytes);
    store.add(key + "/there", 1);
  } else {
    const bool came = AwaitRaised(store, key + "/there", [&] { return closing && closing(); });
    TORCH_CHECK(came, "the group was destroyed before the sender came");
    const std::vector<uint8_t> bytes = store.get(key);
    TORCH_CHECK(bytes.size() == sizeof id, "the store holds another kind of id under ", key);
    std::memcpy(&id, bytes.data(), sizeof id);
  }
  ncclComm_t comm = nullptr;
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.device = device;
  config.timeoutSeconds = Seconds(timeout);
  library.Check(library.tuttiCommInitRankConfig(&comm, size, id, rank, nullptr, &config), nullptr);
  return comm;
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
