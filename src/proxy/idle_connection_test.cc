// Connections that break, or have a message to send, while nothing is under way at an end of
// theirs.

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "proxy/testing/pair.h"
#include "transport/testing/cable.h"

namespace tutti {
namespace {

constexpr size_t kSlotBytes = 32 * 1024;
constexpr uint32_t kTag = 0x2a;

// A pair of proxy connections through a cable.
class CabledPair {
 public:
  CabledPair() {
    Settings settings;
    settings.socket_nthreads = 1;
    settings.nsocks_perthread = 1;
    const Key key = RandomKey();
    const WaitLimits limits = {Deadline::AfterSeconds(20), nullptr};
    sending_ = TestSide::Create(key, settings, /*ipv6=*/false).value();
    receiving_ = TestSide::Create(key, settings, /*ipv6=*/false).value();
    listener_ = receiving_.net->Listen(0).value();
    cable = std::make_unique<Cable>(AddressIn(listener_->handle()));
    auto sender = sending_.net->Connect(0, Through(*cable, listener_->handle()), limits).value();
    auto receiver = listener_->Accept(limits).value();
    send = sending_.proxy->CreateSendConnection(std::move(sender), {kSlotBytes}, "rank 1").value();
    recv =
        receiving_.proxy->CreateRecvConnection(std::move(receiver), {kSlotBytes}, "rank 0").value();
    out_ = FifoSender(send->fifo());
    in_ = FifoReceiver(recv->fifo());
  }

  void Send(size_t bytes = 100) {
    send->Begin(1, kTag);
    std::byte* const place = out_.TryAcquire(bytes);
    ASSERT_NE(place, nullptr);
    std::memset(place, 1, bytes);
    out_.Publish(bytes, kTag);
    send->HandOver();
  }
  void BeginToReceive() {
    recv->Begin(1, kTag);
    recv->HandOver();
  }
  void AwaitChunk() {
    const Deadline deadline = Deadline::AfterSeconds(60);
    while (!in_.TryPeek().data) {
      ASSERT_FALSE(deadline.Passed());
      ASSERT_TRUE(recv->status().ok()) << recv->status().message();
      in_.SleepForChunk(10'000'000);
    }
    in_.Release();
  }
  // Waits until the connection has been made this many times.
  void AwaitConnections(int count) {
    const Deadline deadline = Deadline::AfterSeconds(60);
    while (cable->accepted() < count) {
      ASSERT_FALSE(deadline.Passed()) << "the connection was not made again";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  TestSide sending_;
  TestSide receiving_;
  std::unique_ptr<NetListener> listener_;

 public:
  std::unique_ptr<Cable> cable;
  std::unique_ptr<ProxyConnection> send;
  std::unique_ptr<ProxyConnection> recv;

 private:
  FifoSender out_;
  FifoReceiver in_;
};

// The sender computes, and does not look at the connection, while the receiver already waits.
TEST(IdleConnectionTest, IsMadeAgainWhileTheOtherEndWaits) {
  CabledPair pair;
  pair.BeginToReceive();
  pair.Send();
  pair.AwaitChunk();
  for (int cuts = 1; cuts <= 3; ++cuts) {
    pair.BeginToReceive();
    pair.cable->Cut();
    pair.AwaitConnections(1 + cuts);
    pair.Send();
    pair.AwaitChunk();
  }
}

// A long message awaits its acknowledgement, and the descriptor that brings the acknowledgement is
// armed for a single event. The idle sender must still notice that the connection breaks.
TEST(IdleConnectionTest, IsMadeAgainAfterItsDescriptorHasFired) {
  CabledPair pair;
  pair.BeginToReceive();
  pair.Send(kSlotBytes);
  pair.AwaitChunk();
  const Deadline deadline = Deadline::AfterSeconds(60);
  while (pair.send->ChunksDone() < 1) {
    ASSERT_FALSE(deadline.Passed());
    std::this_thread::yield();
  }
  pair.BeginToReceive();
  pair.cable->Cut();
  pair.AwaitConnections(2);
  pair.Send();
  pair.AwaitChunk();
}

TEST(IdleConnectionTest, IsMadeAgainWhileNobodyWaits) {
  CabledPair pair;
  pair.BeginToReceive();
  pair.Send();
  pair.AwaitChunk();
  pair.cable->Cut();
  pair.AwaitConnections(2);
  pair.BeginToReceive();
  pair.Send();
  pair.AwaitChunk();
}

// A receiver puts off its reports on a long message, and sends them although nobody drives the
// receiver any more.
TEST(IdleConnectionTest, TellsTheSenderWhatItHas) {
  CabledPair pair;
  const Deadline deadline = Deadline::AfterSeconds(60);
  for (uint64_t sent = 1; sent <= 20; ++sent) {
    pair.recv->Begin(1, kTag);
    pair.Send(kSlotBytes);
    while (pair.recv->ChunksDone() < sent) {
      pair.recv->Poll();
      ASSERT_FALSE(deadline.Passed());
    }
    pair.AwaitChunk();
    while (pair.send->ChunksDone() < sent) {
      std::this_thread::yield();
      ASSERT_FALSE(deadline.Passed());
    }
  }
}

}  // namespace
}  // namespace tutti
