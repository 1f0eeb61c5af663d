#pragma once

// The contract that every network's one-sided operations keep (rma.h). A test uses it like the
// contract of messages:
//
//   class SocketRmaContract : public RmaContract {};
//   TEST_P(SocketRmaContract, Holds) { Run(); }
//   INSTANTIATE_TEST_SUITE_P(Sockets, SocketRmaContract, RmaContractCasesFor({"Sockets", MakePair}),
//                            RmaContractCaseName);

#include <algorithm>
#include <atomic>
#include <deque>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "testing/threads.h"
#include "transport/net/rma.h"
#include "transport/testing/net_link.h"

namespace tutti {
namespace rma_contract {

using net_contract::Bound;
using net_contract::BoundS;
using net_contract::SleepOn;

// Memory that the other end of a comm reaches.
class Window {
 public:
  Window(NetRmaComm& comm, size_t bytes) : words_(bytes / 8 + 1), bytes_(bytes) {
    auto memory = comm.Register({data(), bytes});
    EXPECT_TRUE(memory.ok()) << memory.status().message();
    if (memory.ok()) memory_ = std::move(memory).value();
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(words_.data()); }
  size_t size() const { return bytes_; }
  NetMemory* memory() { return memory_.get(); }
  void End() { memory_.reset(); }

  NetLocal Local(uint64_t offset = 0) { return {memory_.get(), offset}; }
  NetRemote Remote(uint64_t offset = 0) { return {memory_->remote_key(), offset}; }
  // Returns the word at `offset`, to which the other end adds.
  uint64_t Load(uint64_t offset) {
    return std::atomic_ref<uint64_t>(words_[offset / 8]).load(std::memory_order_acquire);
  }
  void Fill(uint64_t seed) {
    for (size_t i = 0; i < bytes_; ++i) data()[i] = At(seed, i);
  }
  static std::byte At(uint64_t seed, size_t i) {
    return static_cast<std::byte>(seed * 29 + i * 7 + i / 255);
  }

 private:
  std::vector<uint64_t> words_;
  size_t bytes_;
  std::unique_ptr<NetMemory> memory_;
};

// The two ends of a comm.
struct RmaLink {
  std::unique_ptr<NetRmaListener> listener;
  std::unique_ptr<NetRmaComm> origin;
  std::unique_ptr<NetRmaComm> target;

  explicit RmaLink(NetPair& pair) {
    NetRma* const from = pair.sending().rma();
    NetRma* const to = pair.receiving().rma();
    if (!from || !to) {
      ADD_FAILURE() << "the network has no one-sided operations";
      std::abort();
    }
    listener = to->Listen(pair.receiving_device()).value();
    origin = from->Connect(pair.sending_device(), listener->handle(), Bound()).value();
    target = listener->Accept(Bound()).value();
  }

  template <class Ready>
  bool Drive(Ready ready) {
    const Deadline deadline = Deadline::AfterSeconds(BoundS());
    while (!ready()) {
      for (NetRmaComm* comm : {origin.get(), target.get()}) {
        const Result<bool> moved = comm->Progress();
        EXPECT_TRUE(moved.ok()) << moved.status().message();
        if (!moved.ok()) return false;
      }
      EXPECT_FALSE(deadline.Passed()) << "nothing came of it in time";
      if (deadline.Passed()) return false;
    }
    return true;
  }
  // Begins an operation, as soon as there is room, and returns its request.
  template <class Operation>
  NetRequest* Begin(Operation operation) {
    NetRequest* request = nullptr;
    Drive([&] {
      Result<NetRequest*> begun = operation();
      EXPECT_TRUE(begun.ok()) << begun.status().message();
      request = begun.ok() ? *begun : nullptr;
      return request != nullptr || !begun.ok();
    });
    return request;
  }
  bool Finish(NetRmaComm& comm, NetRequest* request) {
    return request && Drive([&] { return *comm.Test(*request); });
  }
  void Flush(NetRmaComm& comm) {
    EXPECT_TRUE(Finish(comm, Begin([&] { return comm.Iflush(); })));
  }
};

inline void PutsAndGetsBytes(const NetFactory& factory) {
  const auto pair = factory.make();
  RmaLink link(*pair);
  const size_t size = 3 << 20;
  for (const bool turned : {false, true}) {  // both ends may begin operations
    NetRmaComm& near = turned ? *link.target : *link.origin;
    NetRmaComm& far = turned ? *link.origin : *link.target;
    Window ours(near, size);
    Window theirs(far, size);
    std::mt19937 random(5);
    std::vector<std::byte> expected(size);
    std::vector<std::pair<size_t, size_t>> unflushed;
    for (int i = 0; i < 60; ++i) {
      const size_t bytes = i % 7 == 0 ? 0 : i % 5 == 0 ? random() % (1 << 20) : random() % 500;
      const size_t from = random() % (size - bytes);
      const size_t to = random() % (size - bytes);
      // Puts arrive in any order. A flush separates two puts whose order matters.
      const auto overlaps = [&](const std::pair<size_t, size_t>& other) {
        return to < other.second && other.first < to + bytes;
      };
      if (std::any_of(unflushed.begin(), unflushed.end(), overlaps)) {
        link.Flush(near);
        unflushed.clear();
      }
      unflushed.emplace_back(to, to + bytes);
      ours.Fill(static_cast<uint64_t>(i));
      NetRequest* const put = link.Begin(
          [&] { return near.Iput(ours.Local(from), theirs.Remote(to), bytes, nullptr); });
      ASSERT_TRUE(link.Finish(near, put));
      if (bytes > 0) std::memcpy(&expected[to], ours.data() + from, bytes);
    }
    link.Flush(near);
    ASSERT_EQ(std::memcmp(theirs.data(), expected.data(), size), 0);
    for (int i = 0; i < 30; ++i) {
      const size_t bytes = i % 7 == 0 ? 0 : random() % (1 << 18);
      const size_t from = random() % (size - bytes);
      const size_t to = random() % (size - bytes);
      NetRequest* const get =
          link.Begin([&] { return near.Iget(ours.Local(to), theirs.Remote(from), bytes); });
      ASSERT_TRUE(link.Finish(near, get));
      ASSERT_EQ(std::memcmp(ours.data() + to, &expected[from], bytes), 0) << i;
    }
  }
}

// A reader at the target that has loaded a signal sees the bytes of the signal's put.
inline void SignalsFollowTheirPuts(const NetFactory& factory) {
  const auto pair = factory.make();
  RmaLink link(*pair);
  const size_t most = 200'000;
  Window ours(*link.origin, most);
  Window theirs(*link.target, most + 8);
  const uint64_t word = most;
  uint64_t total = 0;
  for (uint64_t round = 1; round <= 60; ++round) {
    const size_t bytes = round % 3 == 0 ? most : 20'000;
    ours.Fill(round);
    const NetSignal signal = {theirs.Remote(word), round, round % 2 == 0};
    NetRequest* const put = link.Begin(
        [&] { return link.origin->Iput(ours.Local(), theirs.Remote(), bytes, &signal); });
    total += round;
    ASSERT_TRUE(link.Drive([&] { return theirs.Load(word) == total; }));
    ASSERT_EQ(std::memcmp(theirs.data(), ours.data(), bytes), 0) << "round " << round;
    ASSERT_TRUE(link.Finish(*link.origin, put));
  }
}

// A strong signal comes after all earlier operations, of any size.
inline void StrongSignalsFollowEverything(const NetFactory& factory) {
  const auto pair = factory.make();
  RmaLink link(*pair);
  constexpr size_t each = 100'000;
  const size_t puts = 20;
  const auto bytes_of = [](size_t i) { return i % 3 == 0 ? 10 : i % 3 == 1 ? 30'000 : each; };
  Window ours(*link.origin, each * puts);
  Window theirs(*link.target, each * puts + 8);
  for (uint64_t round = 1; round <= 10; ++round) {
    ours.Fill(round);
    std::vector<NetRequest*> requests;
    for (size_t i = 0; i < puts; ++i) {
      const size_t bytes = bytes_of(i);
      requests.push_back(link.Begin([&] {
        return link.origin->Iput(ours.Local(i * each), theirs.Remote(i * each), bytes, nullptr);
      }));
    }
    const NetSignal signal = {theirs.Remote(each * puts), 1, true};
    requests.push_back(link.Begin([&] { return link.origin->Iput({}, {}, 0, &signal); }));
    ASSERT_TRUE(link.Drive([&] { return theirs.Load(each * puts) == round; }));
    for (size_t i = 0; i < puts; ++i) {
      const size_t bytes = bytes_of(i);
      ASSERT_EQ(std::memcmp(theirs.data() + i * each, ours.data() + i * each, bytes), 0) << i;
    }
    for (NetRequest* request : requests) ASSERT_TRUE(link.Finish(*link.origin, request));
  }
}

inline void AddsSignals(const NetFactory& factory) {
  const auto pair = factory.make();
  RmaLink link(*pair);
  Window theirs(*link.target, 24);
  // 64 bits, rolling over; only the named word changes.
  const uint64_t large = ~uint64_t{0} - 2;
  for (const uint64_t value : {uint64_t{5}, uint64_t{1} << 40, large, uint64_t{0}}) {
    const NetSignal signal = {theirs.Remote(8), value, value % 2 == 0};
    NetRequest* const request = link.Begin([&] { return link.origin->Iput({}, {}, 0, &signal); });
    ASSERT_TRUE(link.Finish(*link.origin, request));
  }
  link.Flush(*link.origin);
  EXPECT_EQ(theirs.Load(8), 5 + (uint64_t{1} << 40) + large);
  EXPECT_EQ(theirs.Load(0), 0u);
  EXPECT_EQ(theirs.Load(16), 0u);
}

// Begins atomics that store their fetched values into the words of a window, one behind another. At
// most kNetWindow are under way.
class Fetcher {
 public:
  Fetcher(RmaLink& link, NetRmaComm& comm, Window& into) : link_(link), comm_(comm), into_(into) {}
  void Begin(const NetAtomic& atomic) {
    if (requests_.size() == kNetWindow) FinishOne();
    const uint64_t offset = 8 * begun_++;
    requests_.push_back(link_.Begin([&] { return comm_.Iatomic(into_.Local(offset), atomic); }));
  }
  void FinishAll() {
    while (!requests_.empty()) FinishOne();
  }

 private:
  void FinishOne() {
    EXPECT_TRUE(link_.Finish(comm_, requests_.front()));
    requests_.pop_front();
  }
  RmaLink& link_;
  NetRmaComm& comm_;
  Window& into_;
  uint64_t begun_ = 0;
  std::deque<NetRequest*> requests_;
};

// No addition to a word is lost or fetched twice, though signals are added to the word meanwhile.
inline void AtomicsFetchAndAdd(const NetFactory& factory) {
  const auto pair = factory.make();
  RmaLink link(*pair);
  constexpr uint64_t kCount = 300;
  constexpr uint64_t kOfSignal = 1000;
  for (const bool turned : {false, true}) {
    NetRmaComm& near = turned ? *link.target : *link.origin;
    Window ours(near, 8 * kCount);
    Window theirs(turned ? *link.origin : *link.target, 24);
    const NetRemote word = theirs.Remote(8);
    Fetcher fetcher(link, near, ours);
    std::vector<NetRequest*> signals;
    for (uint64_t i = 0; i < kCount; ++i) {
      fetcher.Begin({word, NetAtomic::Kind::kAdd, 1});
      if (i % 60 != 0) continue;
      const NetSignal signal = {word, kOfSignal, i % 120 == 0};
      signals.push_back(link.Begin([&] { return near.Iput({}, {}, 0, &signal); }));
    }
    fetcher.FinishAll();
    for (NetRequest* const signal : signals) ASSERT_TRUE(link.Finish(near, signal));
    link.Flush(near);
    EXPECT_EQ(theirs.Load(8), kCount + kOfSignal * signals.size());
    EXPECT_EQ(theirs.Load(0), 0u);
    EXPECT_EQ(theirs.Load(16), 0u);
    std::vector<bool> fetched(kCount);
    for (uint64_t i = 0; i < kCount; ++i) {
      const uint64_t additions = ours.Load(8 * i) % kOfSignal;
      ASSERT_LT(additions, kCount);
      EXPECT_FALSE(fetched[additions]) << additions;
      fetched[additions] = true;
    }
  }
}

inline void AtomicsCompareAndSwap(const NetFactory& factory) {
  const auto pair = factory.make();
  RmaLink link(*pair);
  Window ours(*link.origin, 5 * 8);
  Window theirs(*link.target, 24);
  constexpr uint64_t kMost = ~uint64_t{0};
  const NetRemote word = theirs.Remote(8);
  struct Step {
    NetAtomic atomic;
    uint64_t fetched;
  };
  const auto kSwap = NetAtomic::Kind::kCompareAndSwap;
  const Step steps[] = {{{word, kSwap, 7, 0}, 0},
                        {{word, kSwap, 9, 0}, 7},  // not 0 any more
                        {{word, kSwap, kMost, 7}, 7},
                        {{word, NetAtomic::Kind::kAdd, 3}, kMost},
                        {{word, kSwap, 2, kMost}, 2}};
  Fetcher fetcher(link, *link.origin, ours);
  for (const Step& step : steps) {
    fetcher.Begin(step.atomic);
    fetcher.FinishAll();
  }
  for (size_t i = 0; i < std::size(steps); ++i) EXPECT_EQ(ours.Load(8 * i), steps[i].fetched) << i;
  EXPECT_EQ(theirs.Load(8), 2u);
  EXPECT_EQ(theirs.Load(0), 0u);
  EXPECT_EQ(theirs.Load(16), 0u);
}

inline void TakesRequestsUntilFull(const NetFactory& factory) {
  const auto pair = factory.make();
  RmaLink link(*pair);
  Window ours(*link.origin, 1 << 16);
  Window theirs(*link.target, 1 << 16);
  theirs.Fill(3);
  for (int round = 0; round < 3; ++round) {
    std::vector<NetRequest*> requests;
    // Nothing is driven meanwhile, hence the room is used up at some point.
    while (requests.size() < 100'000) {
      const size_t at = requests.size() % 64 * 1024;
      Result<NetRequest*> begun = nullptr;
      switch (requests.size() % 3) {
        case 0:
          begun = link.origin->Iget(ours.Local(at), theirs.Remote(at), 1024);
          break;
        case 1:
          begun = link.origin->Iput(ours.Local(at), theirs.Remote(at), 0, nullptr);
          break;
        default:
          begun = link.origin->Iflush();
          break;
      }
      ASSERT_TRUE(begun.ok()) << begun.status().message();
      if (!*begun) break;
      requests.push_back(*begun);
    }
    EXPECT_GE(requests.size(), kNetWindow);
    EXPECT_LT(requests.size(), 100'000u);
    for (; !requests.empty(); requests.pop_back()) {  // the last is taken first
      ASSERT_TRUE(link.Finish(*link.origin, requests.back()));
    }
    for (size_t i = 0; i < 1024; ++i) ASSERT_EQ(ours.data()[i], Window::At(3, i));
  }
}

inline void BothEndsMoveAtOnce(const NetFactory& factory) {
  const auto pair = factory.make();
  RmaLink link(*pair);
  const size_t bytes = 8 << 20;
  Window a(*link.origin, bytes);
  Window b(*link.target, bytes);
  Window into_a(*link.origin, 2 * bytes);
  Window into_b(*link.target, 2 * bytes);
  a.Fill(1);
  b.Fill(2);
  std::vector<std::pair<NetRmaComm*, NetRequest*>> requests;
  const auto begin = [&](NetRmaComm& comm, Result<NetRequest*> request) {
    ASSERT_TRUE(request.ok() && *request);
    requests.push_back({&comm, *request});
  };
  begin(*link.origin, link.origin->Iput(a.Local(), into_b.Remote(), bytes, nullptr));
  begin(*link.target, link.target->Iput(b.Local(), into_a.Remote(), bytes, nullptr));
  begin(*link.origin, link.origin->Iget(into_a.Local(bytes), b.Remote(), bytes));
  begin(*link.target, link.target->Iget(into_b.Local(bytes), a.Remote(), bytes));
  begin(*link.origin, link.origin->Iflush());
  begin(*link.target, link.target->Iflush());
  for (const auto& [comm, request] : requests) ASSERT_TRUE(link.Finish(*comm, request));
  for (const size_t half : {size_t{0}, bytes}) {
    EXPECT_EQ(std::memcmp(into_b.data() + half, a.data(), bytes), 0);
    EXPECT_EQ(std::memcmp(into_a.data() + half, b.data(), bytes), 0);
  }
}

// Drives both ends until each has failed.
inline void ExpectBothFail(RmaLink& link, const std::string& what) {
  Status near;
  Status far;
  const Deadline deadline = Deadline::AfterSeconds(BoundS());
  while ((near.ok() || far.ok()) && !deadline.Passed()) {
    if (near.ok()) near = link.origin->Progress().status();
    if (near.ok()) near = link.origin->Iflush().status();
    if (far.ok()) far = link.target->Progress().status();
  }
  EXPECT_FALSE(near.ok()) << what;
  EXPECT_FALSE(far.ok()) << what;
  EXPECT_FALSE(near.message().empty());
  EXPECT_FALSE(far.message().empty());
  EXPECT_FALSE(link.origin->Progress().ok());
  EXPECT_FALSE(link.target->Progress().ok());
}

// An operation outside the ranges that were given out.
struct Attack {
  const char* what;
  std::function<Result<NetRequest*>(NetRmaComm&, Window&, NetRemote, NetRemote)> begin;
};

inline std::vector<Attack> AttacksOnRanges() {
  const auto put = [](uint64_t offset, size_t bytes) {
    return [=](NetRmaComm& comm, Window& ours, NetRemote range, NetRemote) {
      range.offset = offset;
      return comm.Iput(ours.Local(), range, bytes, nullptr);
    };
  };
  const auto get = [](uint64_t offset, size_t bytes) {
    return [=](NetRmaComm& comm, Window& ours, NetRemote range, NetRemote) {
      range.offset = offset;
      return comm.Iget(ours.Local(), range, bytes);
    };
  };
  const auto signal = [](uint64_t offset) {
    return [=](NetRmaComm& comm, Window& ours, NetRemote range, NetRemote) {
      const NetSignal add = {{range.key, offset}, 1, true};
      return comm.Iput(ours.Local(), range, 64, &add);
    };
  };
  const auto atomic = [](uint64_t offset) {
    return [=](NetRmaComm& comm, Window& ours, NetRemote range, NetRemote) {
      return comm.Iatomic(ours.Local(), {{range.key, offset}, NetAtomic::Kind::kAdd, 1});
    };
  };
  return {
      {"a put past the end", put(3, 4094)},
      {"a put longer than the range", put(0, 8000)},
      {"a put far away", put(uint64_t{1} << 62, 16)},
      {"a put whose end overflows", put(~uint64_t{0} - 7, 16)},
      {"a get past the end", get(4096, 1)},
      {"a get whose end overflows", get(~uint64_t{0} - 7, 16)},
      {"a signal past the end", signal(4096)},
      {"a signal across the end", signal(4092)},
      {"a signal on an odd byte", signal(9)},
      {"an atomic past the end", atomic(4096)},
      {"an atomic across the end", atomic(4092)},
      {"an atomic on an odd byte", atomic(12)},
      {"a key of zeroes", [](NetRmaComm& comm, Window& ours, NetRemote,
                             NetRemote) { return comm.Iput(ours.Local(), {}, 16, nullptr); }},
      {"a key of garbage",
       [](NetRmaComm& comm, Window& ours, NetRemote range, NetRemote) {
         for (std::byte& byte : range.key) byte ^= std::byte{0x5a};
         return comm.Iput(ours.Local(), range, 16, nullptr);
       }},
      {"a key that no longer holds",
       [](NetRmaComm& comm, Window& ours, NetRemote, NetRemote ended) {
         return comm.Iput(ours.Local(), ended, 16, nullptr);
       }},
  };
}

// An operation outside the given ranges changes nothing and breaks the comm at both ends.
inline void RefusesWhatWasNotGivenOut(const NetFactory& factory) {
  const auto pair = factory.make();
  for (const Attack& attack : AttacksOnRanges()) {
    SCOPED_TRACE(attack.what);
    RmaLink link(*pair);
    Window ours(*link.origin, 8192);
    ours.Fill(1);
    Window ended(*link.target, 4096);
    Window theirs(*link.target, 4096);
    const NetRemote ended_range = ended.Remote();
    ended.End();
    Result<NetRequest*> request = attack.begin(*link.origin, ours, theirs.Remote(), ended_range);
    EXPECT_TRUE(!request.ok() || *request);
    ExpectBothFail(link, attack.what);
    for (Window* window : {&ended, &theirs}) {
      for (size_t i = 0; i < 4096; ++i) ASSERT_EQ(window->data()[i], std::byte{0}) << i;
    }
  }
}

inline void ShutsDownUnderWay(const NetFactory& factory) {
  const auto pair = factory.make();
  for (const bool far_end : {false, true}) {
    RmaLink link(*pair);
    Window ours(*link.origin, 4 << 20);
    Window theirs(*link.target, 4 << 20);
    ASSERT_TRUE(link.origin->Iput(ours.Local(), theirs.Remote(), 4 << 20, nullptr).ok());
    std::thread other([&] { (far_end ? link.target : link.origin)->Shutdown(); });
    ExpectBothFail(link, "shutdown");
    other.join();
  }
}

// A target that sleeps on the descriptors of PrepareToWait serves operations.
inline void WakesASleepingTarget(const NetFactory& factory) {
  const auto pair = factory.make();
  RmaLink link(*pair);
  Window ours(*link.origin, 5000);
  Window theirs(*link.target, 5000);
  theirs.Fill(8);
  std::atomic<pid_t> thread = 0;
  std::thread sleeper([&] {
    thread.store(testing::ThisThread());
    const Deadline deadline = Deadline::AfterSeconds(BoundS());
    while (link.target->Progress().ok() && SleepOn(*link.target, deadline)) {
    }
  });
  while (thread.load() == 0) std::this_thread::yield();
  for (int round = 0; round < 5; ++round) {
    EXPECT_TRUE(testing::AwaitAsleep(thread.load()));
    NetRequest* const get = *link.origin->Iget(ours.Local(), theirs.Remote(), 5000);
    const Deadline deadline = Deadline::AfterSeconds(BoundS());
    bool done = false;
    while (get && !done && !deadline.Passed()) {
      const Result<bool> moved = link.origin->Progress();
      EXPECT_TRUE(moved.ok()) << moved.status().message();
      if (!moved.ok()) break;
      done = *link.origin->Test(*get);
    }
    EXPECT_TRUE(done);
    for (size_t i = 0; i < 5000; ++i) EXPECT_EQ(ours.data()[i], Window::At(8, i));
  }
  link.origin->Shutdown();
  sleeper.join();
}

struct Case {
  const char* name;
  void (*run)(const NetFactory&);
};

inline std::vector<Case> Cases() {
  return {{"PutsAndGetsBytes", PutsAndGetsBytes},
          {"SignalsFollowTheirPuts", SignalsFollowTheirPuts},
          {"StrongSignalsFollowEverything", StrongSignalsFollowEverything},
          {"AddsSignals", AddsSignals},
          {"AtomicsFetchAndAdd", AtomicsFetchAndAdd},
          {"AtomicsCompareAndSwap", AtomicsCompareAndSwap},
          {"TakesRequestsUntilFull", TakesRequestsUntilFull},
          {"BothEndsMoveAtOnce", BothEndsMoveAtOnce},
          {"RefusesWhatWasNotGivenOut", RefusesWhatWasNotGivenOut},
          {"ShutsDownUnderWay", ShutsDownUnderWay},
          {"WakesASleepingTarget", WakesASleepingTarget}};
}

}  // namespace rma_contract

using RmaContractParam = std::tuple<NetFactory, rma_contract::Case>;

class RmaContract : public ::testing::TestWithParam<RmaContractParam> {
 protected:
  void Run() { std::get<1>(GetParam()).run(std::get<0>(GetParam())); }
};

inline auto RmaContractCasesFor(NetFactory factory) {
  return ::testing::Combine(::testing::Values(std::move(factory)),
                            ::testing::ValuesIn(rma_contract::Cases()));
}

inline std::string RmaContractCaseName(const ::testing::TestParamInfo<RmaContractParam>& info) {
  return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name;
}

}  // namespace tutti
