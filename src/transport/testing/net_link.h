#pragma once

// For tests: the two sides of a network, as two processes have them, and a connection between them.
// The contract suites of networks (net_contract.h, rma_contract.h) use them.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "testing/sanitizer_slowdown.h"
#include "transport/net/net.h"

namespace tutti {

// The networks of two ranks that reach each other. Both may be the same object.
class NetPair {
 public:
  virtual ~NetPair() = default;
  virtual Net& sending() = 0;
  virtual Net& receiving() = 0;
  // The device from which the sending rank connects, and the device at which the receiving rank
  // listens.
  virtual int sending_device() const { return 0; }
  virtual int receiving_device() const { return 0; }
};

struct NetFactory {
  std::string name;
  // Makes a pair, or aborts the program with a message, since nothing can be tested without a pair.
  std::function<std::unique_ptr<NetPair>()> make;
  // The longest message to test. Lower this value where the machine cannot hold, or pin, the
  // longest message of the interface. The message's memory is 2 MiB, mapped again and again.
  size_t longest_bytes = kMaxNetMessageBytes;
};

namespace net_contract {

// The bound is generous, because a machine inside another machine is slow.
constexpr double BoundS() { return 60 * kSanitizerSlowdown; }

inline WaitLimits Bound() { return {Deadline::AfterSeconds(BoundS()), nullptr}; }

// Memory that is registered with a comm where the comm's device needs registrations.
class NetBuffer {
 public:
  NetBuffer(const NetDevice& device, NetComm& comm, size_t bytes) : bytes_(bytes) {
    Register(device, comm);
  }
  std::byte* data() { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }
  NetMemory* memory() { return memory_.get(); }

  // Writes bytes that follow from `seed`.
  void Fill(uint64_t seed) {
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = At(seed, i);
  }
  // Returns the first of `bytes` bytes that differs from the bytes of Fill(seed), or `bytes`.
  size_t FirstWrong(uint64_t seed, size_t bytes) const {
    for (size_t i = 0; i < bytes; ++i) {
      if (bytes_[i] != At(seed, i)) return i;
    }
    return bytes;
  }

 private:
  static std::byte At(uint64_t seed, size_t i) {
    return static_cast<std::byte>(seed * 131 + i * 3 + i / 251);
  }
  void Register(const NetDevice& device, NetComm& comm) {
    if (!device.needs_registration || bytes_.empty()) return;
    Result<std::unique_ptr<NetMemory>> memory = comm.Register({bytes_.data(), bytes_.size()});
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    memory_ = std::move(memory).value();
  }

  std::vector<std::byte> bytes_;
  std::unique_ptr<NetMemory> memory_;
};

// The two ends of one connection. A test may reset one end to see the response of the other end.
struct NetLink {
  std::unique_ptr<NetListener> listener;
  std::unique_ptr<NetSendComm> sender;
  std::unique_ptr<NetRecvComm> receiver;
  NetDevice from;
  NetDevice to;

  explicit NetLink(NetPair& pair)
      : from(pair.sending().devices()[static_cast<size_t>(pair.sending_device())]),
        to(pair.receiving().devices()[static_cast<size_t>(pair.receiving_device())]) {
    auto listening = pair.receiving().Listen(pair.receiving_device());
    Require(listening.status());
    listener = std::move(listening).value();
    auto connected = pair.sending().Connect(pair.sending_device(), listener->handle(), Bound());
    Require(connected.status());
    sender = std::move(connected).value();
    auto accepted = listener->Accept(Bound());
    Require(accepted.status());
    receiver = std::move(accepted).value();
  }

  NetBuffer SendBuffer(size_t bytes) { return {from, *sender, bytes}; }
  NetBuffer ReceiveBuffer(size_t bytes) { return {to, *receiver, bytes}; }

  // Begins to receive one message. Null when there is no room, or after a failure.
  NetRequest* Receive(NetBuffer& buffer, uint32_t tag = 0) {
    const NetReceive receive = {buffer.data(), buffer.size(), tag, buffer.memory()};
    Result<NetRequest*> request = receiver->Irecv({&receive, 1});
    EXPECT_TRUE(request.ok()) << request.status().message();
    return request.ok() ? *request : nullptr;
  }
  NetRequest* Send(NetBuffer& buffer, uint32_t tag = 0, uint32_t op_tag = 0) {
    return Send({buffer.data(), buffer.size(), tag, op_tag, buffer.memory()});
  }
  NetRequest* Send(const NetSend& message) {
    Result<NetRequest*> request = sender->Isend(message);
    EXPECT_TRUE(request.ok()) << request.status().message();
    return request.ok() ? *request : nullptr;
  }
  // Sends, driving both ends until the receiver has granted a buffer.
  NetRequest* SendSoon(NetBuffer& buffer, uint32_t tag = 0, uint32_t op_tag = 0) {
    NetRequest* request = nullptr;
    Drive([&] { return (request = Send(buffer, tag, op_tag)) != nullptr; });
    return request;
  }

  // Drives both ends until `ready`. Returns false, and fails the test, when an end fails or time is
  // up.
  template <class Ready>
  bool Drive(Ready ready) {
    const Deadline deadline = Deadline::AfterSeconds(BoundS());
    while (!ready()) {
      for (NetComm* comm :
           {static_cast<NetComm*>(sender.get()), static_cast<NetComm*>(receiver.get())}) {
        if (!comm) continue;
        const Result<bool> moved = comm->Progress();
        EXPECT_TRUE(moved.ok()) << moved.status().message();
        if (!moved.ok()) return false;
      }
      EXPECT_FALSE(deadline.Passed()) << "nothing came of it in time";
      if (deadline.Passed()) return false;
    }
    return true;
  }
  // Drives one end until it fails, and returns the failure; ok when it does not fail in time.
  static Status AwaitFailure(NetComm& comm) {
    const Deadline deadline = Deadline::AfterSeconds(BoundS());
    while (!deadline.Passed()) {
      Result<bool> moved = comm.Progress();
      if (!moved.ok()) return std::move(moved).status();
      if (!*moved) std::this_thread::yield();
    }
    return Status::Ok();
  }
  // Sends, and drives the sender, until it fails. Messages with earlier grants may still go out; in
  // the end the sender notices that nobody takes them.
  Status AwaitSendFailure(NetBuffer& buffer) {
    const Deadline deadline = Deadline::AfterSeconds(BoundS());
    while (!deadline.Passed()) {
      Status status = sender->Isend({buffer.data(), buffer.size(), 0, 0, buffer.memory()}).status();
      if (status.ok()) status = sender->Progress().status();
      if (!status.ok()) return status;
    }
    return Status::Ok();
  }
  static bool Done(NetComm& comm, NetRequest* request) {
    const Result<bool> done = comm.Test(*request);
    EXPECT_TRUE(done.ok()) << done.status().message();
    return !done.ok() || *done;
  }
  bool Sent(NetRequest* request) { return Done(*sender, request); }
  bool Received(NetRequest* request) { return Done(*receiver, request); }

 private:
  static void Require(const Status& status) {
    if (status.ok()) return;
    ADD_FAILURE() << status.message();
    std::abort();
  }
};

// Sleeps as the proxy's thread does: in poll(2) on the comm's descriptors, or for a moment where
// the comm has no descriptors. Returns false when it slept until `deadline`.
inline bool SleepOn(NetComm& comm, Deadline deadline) {
  std::vector<NetWait> waits;
  switch (comm.PrepareToWait(waits)) {
    case NetIdle::kProgress:
      return true;
    case NetIdle::kPoll:
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return !deadline.Passed();
    case NetIdle::kWait:
      break;
  }
  std::vector<pollfd> polls;
  for (const NetWait& wait : waits) {
    polls.push_back({wait.fd, static_cast<short>(wait.events), 0});
  }
  return ::poll(polls.data(), polls.size(), static_cast<int>(deadline.RemainingMs(60'000))) > 0;
}

// A gibibyte that takes two mebibytes: the same pages, mapped one behind the other.
class RepeatedMemory {
 public:
  static constexpr size_t kPageBytes = size_t{2} << 20;

  explicit RepeatedMemory(size_t bytes) : bytes_(bytes) {
    const UniqueFd fd(memfd_create("net-contract", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(fd.get(), kPageBytes), 0);
    void* const all = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(all, MAP_FAILED);
    data_ = static_cast<std::byte*>(all);
    for (size_t at = 0; at < bytes; at += kPageBytes) {
      EXPECT_NE(mmap(data_ + at, std::min(kPageBytes, bytes - at), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_FIXED, fd.get(), 0),
                MAP_FAILED);
    }
  }
  ~RepeatedMemory() { munmap(data_, bytes_); }
  RepeatedMemory(const RepeatedMemory&) = delete;
  RepeatedMemory& operator=(const RepeatedMemory&) = delete;

  std::byte* data() { return data_; }
  size_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace net_contract
}  // namespace tutti
