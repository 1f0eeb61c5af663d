// One-sided operations over connections that break: all are carried out, each signal once.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "transport/net/rma.h"
#include "transport/net/socket/rma_comm.h"
#include "transport/testing/cable.h"

namespace tutti {
namespace {

constexpr size_t kSlots = 8;
constexpr size_t kSlotBytes = 64 * 1024;

// One end, which puts into the other end's slots, gets the same bytes back, and is signalled.
struct End {
  std::unique_ptr<NetRmaComm> comm;
  std::vector<std::byte> sent = std::vector<std::byte>(kSlots * kSlotBytes);
  std::vector<std::byte> got = std::vector<std::byte>(kSlots * kSlotBytes);
  std::vector<std::byte> slots = std::vector<std::byte>(kSlots * kSlotBytes);
  uint64_t signals = 0;
  std::unique_ptr<NetMemory> sent_memory;
  std::unique_ptr<NetMemory> got_memory;
  std::unique_ptr<NetMemory> slots_memory;
  std::unique_ptr<NetMemory> signals_memory;
  std::array<NetRequest*, kSlots> under_way = {};
  uint64_t begun = 0;  // rounds of a slot
  uint64_t done = 0;

  // Registrations end before their connection.
  void Close() {
    for (auto* memory : {&sent_memory, &got_memory, &slots_memory, &signals_memory}) {
      memory->reset();
    }
    comm.reset();
  }
  void Register() {
    sent_memory = comm->Register({sent.data(), sent.size()}).value();
    got_memory = comm->Register({got.data(), got.size()}).value();
    slots_memory = comm->Register({slots.data(), slots.size()}).value();
    signals_memory =
        comm->Register({reinterpret_cast<std::byte*>(&signals), sizeof(signals)}).value();
  }
};

std::byte ByteOf(uint64_t round, size_t i) { return static_cast<std::byte>(round * 31 + i); }

// Every third put is too long to be copied.
size_t BytesOf(uint64_t round) {
  return round % 3 == 0 ? kSlotBytes - round : 1 + round * 7 % 9000;
}

class RmaResumeTest : public ::testing::Test {
 protected:
  void Connect(const NetFactory& factory) {
    pair_ = factory.make();
    const auto listener = pair_->receiving().rma()->Listen(0).value();
    cable_ = std::make_unique<Cable>(AddressIn(listener->handle()));
    ends_[0].comm = pair_->sending()
                        .rma()
                        ->Connect(0, Through(*cable_, listener->handle()), net_contract::Bound())
                        .value();
    ends_[1].comm = listener->Accept(net_contract::Bound()).value();
    for (End& end : ends_) end.Register();
  }
  // Makes both ends go on. The failure of one end fails the test.
  void Drive() {
    for (End& end : ends_) {
      const Result<bool> moved = end.comm->Progress();
      ASSERT_TRUE(moved.ok()) << moved.status().message();
    }
  }
  template <class Begin>
  NetRequest* Soon(Begin begin) {
    const Deadline deadline = Deadline::AfterSeconds(net_contract::BoundS());
    while (!HasFatalFailure() && !deadline.Passed()) {
      Result<NetRequest*> request = begin();
      EXPECT_TRUE(request.ok()) << request.status().message();
      if (!request.ok() || *request) return request.ok() ? *request : nullptr;
      Drive();
    }
    return nullptr;
  }
  void Finish(End& end, NetRequest* request) {
    const Deadline deadline = Deadline::AfterSeconds(net_contract::BoundS());
    while (!*end.comm->Test(*request)) {
      Drive();
      if (HasFatalFailure()) return;
      ASSERT_FALSE(deadline.Passed());
    }
  }
  // Puts a round into its slot at the other end, with a signal, once the slot's last put is done.
  void BeginRound(int number) {
    End& end = ends_[static_cast<size_t>(number)];
    const End& other = ends_[static_cast<size_t>(1 - number)];
    const uint64_t round = end.begun++;
    const size_t slot = round % kSlots;
    const size_t bytes = BytesOf(round);
    if (end.under_way[slot]) Finish(end, end.under_way[slot]);
    std::byte* const data = &end.sent[slot * kSlotBytes];
    for (size_t i = 0; i < bytes; ++i) data[i] = ByteOf(round, i);
    const NetSignal signal = {{other.signals_memory->remote_key(), 0}, 1, true};
    end.under_way[slot] = Soon([&] {
      return end.comm->Iput({end.sent_memory.get(), slot * kSlotBytes},
                            {other.slots_memory->remote_key(), slot * kSlotBytes}, bytes, &signal);
    });
  }
  // Gets the last rounds back and compares them.
  void Check(int number) {
    End& end = ends_[static_cast<size_t>(number)];
    const End& other = ends_[static_cast<size_t>(1 - number)];
    for (NetRequest*& request : end.under_way) {
      if (request) Finish(end, std::exchange(request, nullptr));
    }
    NetRequest* const flush = Soon([&] { return end.comm->Iflush(); });
    ASSERT_NE(flush, nullptr);
    Finish(end, flush);
    EXPECT_EQ(other.signals, end.begun);
    NetRequest* const get = Soon([&] {
      return end.comm->Iget({end.got_memory.get(), 0}, {other.slots_memory->remote_key(), 0},
                            kSlots * kSlotBytes);
    });
    ASSERT_NE(get, nullptr);
    Finish(end, get);
    for (uint64_t round = end.begun - kSlots; round < end.begun; ++round) {
      const std::byte* const data = &end.got[round % kSlots * kSlotBytes];
      for (size_t i = 0; i < BytesOf(round); ++i) {
        ASSERT_EQ(data[i], ByteOf(round, i)) << "byte " << i << " of round " << round;
      }
    }
  }

  std::unique_ptr<NetPair> pair_;
  std::unique_ptr<Cable> cable_;
  std::array<End, 2> ends_;
};

TEST_F(RmaResumeTest, ResetsLoseNothingAndRepeatNoSignal) {
  Connect(SocketFactory("Socket", 1, 1));
  int cuts = 0;
  for (int round = 0; round < 48 && !HasFatalFailure(); ++round) {
    if (round % 12 == 5) {
      cable_->Cut();
      ++cuts;
    }
    BeginRound(0);
    BeginRound(1);
    if (round % 24 == 23) {
      Check(0);
      Check(1);
    }
  }
  EXPECT_GE(cable_->accepted(), 1 + cuts / 2);
}

// Answers are lost with a connection, and are asked for again.
TEST_F(RmaResumeTest, GetsAndFlushesAreAskedAgain) {
  Connect(SocketFactory("Socket", 1, 1));
  for (size_t i = 0; i < kSlots; ++i) BeginRound(0);
  Check(0);
  End& end = ends_[0];
  const NetRemoteKey key = ends_[1].slots_memory->remote_key();
  for (size_t i = 0; i < kSlots && !HasFatalFailure(); ++i) {
    std::deque<NetRequest*> requests;
    std::fill(end.got.begin(), end.got.end(), std::byte{0xee});
    for (size_t slot = 0; slot < kSlots; ++slot) {
      requests.push_back(Soon([&] {
        return end.comm->Iget({end.got_memory.get(), slot * kSlotBytes}, {key, slot * kSlotBytes},
                              kSlotBytes);
      }));
      requests.push_back(Soon([&] { return end.comm->Iflush(); }));
      if (slot == i) cable_->Cut();
      Drive();
    }
    for (NetRequest* const request : requests) Finish(end, request);
    EXPECT_EQ(end.got, ends_[1].slots);
  }
}

// A word is changed once by each operation, also where only the answer was lost.
TEST_F(RmaResumeTest, AtomicsAreCarriedOutOnce) {
  Connect(SocketFactory("Socket", 1, 1));
  End& end = ends_[0];
  const NetRemote word = {ends_[1].signals_memory->remote_key(), 0};
  constexpr uint64_t kTurns = 8;
  constexpr uint64_t kInTurn = 32;
  for (uint64_t turn = 0; turn < kTurns && !HasFatalFailure(); ++turn) {
    std::deque<NetRequest*> requests;
    for (uint64_t i = 0; i < kInTurn; ++i) {
      const uint64_t done = turn * kInTurn + i;
      NetAtomic atomic = {word, NetAtomic::Kind::kAdd, 1};
      if (i % 2 == 1) atomic = {word, NetAtomic::Kind::kCompareAndSwap, done + 1, done};
      requests.push_back(Soon([&] {
        return end.comm->Iatomic({end.got_memory.get(), 8 * i}, atomic);
      }));
      ASSERT_NE(requests.back(), nullptr);
      if (i == 4 * turn) cable_->Cut();
      Drive();
    }
    for (NetRequest* const request : requests) Finish(end, request);
    for (uint64_t i = 0; i < kInTurn; ++i) {
      uint64_t fetched = 0;
      std::memcpy(&fetched, &end.got[8 * i], sizeof(fetched));
      ASSERT_EQ(fetched, turn * kInTurn + i);
    }
  }
  EXPECT_EQ(ends_[1].signals, kTurns * kInTurn);
}

TEST_F(RmaResumeTest, DamageOnTheWayIsSentAgain) {
  for (const Sealing sealing : {Sealing::kChecksum, Sealing::kEncryption}) {
    for (End& end : ends_) end.Close();
    for (End& end : ends_) end = {};
    Connect(SocketFactory("Sealed", 1, 1, "127.0.0.1:0", sealing));
    cable_->Damage(10);
    const auto begin_rounds = [&] {
      for (int round = 0; round < 40 && !HasFatalFailure(); ++round) {
        BeginRound(0);
        BeginRound(1);
      }
    };
    const Deadline deadline = Deadline::AfterSeconds(net_contract::BoundS());
    do {
      begin_rounds();
    } while (cable_->damaged() == 0 && !HasFatalFailure() && !deadline.Passed());
    EXPECT_GT(cable_->damaged(), 0);
    cable_->Damage(0);
    begin_rounds();
    Check(0);
    Check(1);
  }
}

TEST_F(RmaResumeTest, FailsWhenTheOtherEndIsGone) {
  Connect(SocketFactory("Socket", 1, 1));
  BeginRound(0);
  ends_[1].Close();
  const Status status = net_contract::NetLink::AwaitFailure(*ends_[0].comm);
  EXPECT_EQ(status.code(), Code::kRemoteError) << status.message();
}

}  // namespace
}  // namespace tutti
