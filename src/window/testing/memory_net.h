#pragma once

// A network for one-sided operations between the threads of a test, each a rank. Bytes and signals
// reach the target's memory at once. The test decides when requests are done, and how many requests
// a connection takes.

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "transport/net/net.h"
#include "transport/net/rma.h"

namespace tutti::testing {

class MemoryNet final : public Net {
 public:
  std::string_view name() const override { return "Memory"; }
  const std::vector<NetDevice>& devices() const override { return devices_; }
  Status IsViable() const override { return Status::Ok(); }
  Result<std::unique_ptr<NetListener>> Listen(int) override {
    return InternalError("there are no messages");
  }
  Result<std::unique_ptr<NetSendComm>> Connect(int, const NetHandle&, const WaitLimits&) override {
    return InternalError("there are no messages");
  }
  NetRma* rma() override { return &rma_; }

  // The most requests under way on a connection.
  std::atomic<size_t> room = 64;
  // While set, no request ends.
  std::atomic<bool> held = false;
  // While set, only the last of the requests under way can end.
  std::atomic<bool> backwards = false;
  // While set, the network says that its additions are not atomic with those of processors.
  std::atomic<bool> adds_alone = false;
  // While set, nobody can connect.
  std::atomic<bool> refuses = false;
  // So many of the next connections are refused.
  std::atomic<int> num_refused = 0;
  std::atomic<int> num_puts = 0, num_gets = 0, num_flushes = 0;

 private:
  // The registered regions of all ranks, by the number in their keys.
  class Regions {
   public:
    uint64_t Add(const NetRegion& region) {
      const MutexLock lock(mutex_);
      regions_[++last_] = region;
      return last_;
    }
    void Remove(uint64_t number) {
      const MutexLock lock(mutex_);
      regions_.erase(number);
    }
    // Returns the memory of a remote range, or an error that breaks the connection.
    Result<std::byte*> Find(const NetRemote& place, size_t bytes) {
      uint64_t number = 0;
      std::memcpy(&number, place.key.data(), sizeof(number));
      const MutexLock lock(mutex_);
      const auto found = regions_.find(number);
      if (found == regions_.end()) return RemoteError("the key is unknown");
      if (place.offset > found->second.bytes || bytes > found->second.bytes - place.offset)
        return RemoteError("the range lies outside of the region");
      return found->second.address + place.offset;
    }

   private:
    Mutex mutex_;
    uint64_t last_ TUTTI_GUARDED_BY(mutex_) = 0;
    std::map<uint64_t, NetRegion> regions_ TUTTI_GUARDED_BY(mutex_);
  };

  class Memory final : public NetMemory {
   public:
    Memory(Regions& regions, const NetRegion& region)
        : NetMemory(region), regions_(regions), number_(regions.Add(region)) {}
    ~Memory() override { regions_.Remove(number_); }
    NetRemoteKey remote_key() const override {
      NetRemoteKey key = {};
      std::memcpy(key.data(), &number_, sizeof(number_));
      return key;
    }

   private:
    Regions& regions_;
    const uint64_t number_;
  };

  class Comm final : public NetRmaComm {
   public:
    explicit Comm(MemoryNet& net) : net_(net) {}
    Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) override {
      return std::unique_ptr<NetMemory>(new Memory(net_.regions_, region));
    }
    Result<bool> Progress() override {
      TUTTI_TRY(Status(broken_));
      return false;
    }
    Result<bool> Test(NetRequest& request) override {
      TUTTI_TRY(Status(broken_));
      if (net_.held || (net_.backwards && under_way_.back().get() != &request)) return false;
      std::erase_if(under_way_, [&](const auto& each) { return each.get() == &request; });
      return true;
    }
    NetIdle PrepareToWait(std::vector<NetWait>&) override { return NetIdle::kPoll; }
    void AppendFds(std::vector<int>&) const override {}
    void Shutdown() override { broken_ = RemoteError("the connection was shut down"); }
    std::string_view peer() const override { return "a thread"; }

    Result<NetRequest*> Iput(NetLocal from, NetRemote to, size_t bytes,
                             const NetSignal* signal) override {
      TUTTI_TRY(Status(broken_));
      if (under_way_.size() >= net_.room) return nullptr;
      ++net_.num_puts;
      if (bytes > 0) {
        TUTTI_ASSIGN(std::byte* const at, Reach(to, bytes));
        std::memcpy(at, from.memory->region().address + from.offset, bytes);
      }
      if (signal != nullptr) {
        TUTTI_ASSIGN(std::byte* const word, Reach(signal->word, sizeof(uint64_t)));
        std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(word))
            .fetch_add(signal->value, std::memory_order_release);
      }
      return Begun();
    }
    Result<NetRequest*> Iget(NetLocal to, NetRemote from, size_t bytes) override {
      TUTTI_TRY(Status(broken_));
      if (under_way_.size() >= net_.room) return nullptr;
      ++net_.num_gets;
      TUTTI_ASSIGN(const std::byte* const at, Reach(from, bytes));
      std::memcpy(to.memory->region().address + to.offset, at, bytes);
      return Begun();
    }
    Result<NetRequest*> Iatomic(NetLocal, const NetAtomic&) override {
      return InternalError("there are no atomics");
    }
    Result<NetRequest*> Iflush() override {
      TUTTI_TRY(Status(broken_));
      ++net_.num_flushes;
      return Begun();
    }

   private:
    Result<std::byte*> Reach(const NetRemote& place, size_t bytes) {
      Result<std::byte*> found = net_.regions_.Find(place, bytes);
      if (!found.ok()) broken_ = found.status();
      return found;
    }
    NetRequest* Begun() { return under_way_.emplace_back(new NetRequest).get(); }

    MemoryNet& net_;
    Status broken_;
    std::vector<std::unique_ptr<NetRequest>> under_way_;
  };

  class Listener final : public NetRmaListener {
   public:
    Listener(MemoryNet& net, uint64_t number) : net_(net) {
      std::memcpy(handle_.data(), &number, sizeof(number));
    }
    const NetHandle& handle() const override { return handle_; }
    Result<std::unique_ptr<NetRmaComm>> Accept(const WaitLimits& limits) override {
      TUTTI_TRY(net_.AwaitConnected(handle_, limits));
      return std::unique_ptr<NetRmaComm>(new Comm(net_));
    }

   private:
    MemoryNet& net_;
    NetHandle handle_ = {};
  };

  class Rma final : public NetRma {
   public:
    explicit Rma(MemoryNet& net) : net_(net) {}
    Result<std::unique_ptr<NetRmaListener>> Listen(int) override {
      return std::unique_ptr<NetRmaListener>(new Listener(net_, ++last_));
    }
    Result<std::unique_ptr<NetRmaComm>> Connect(int, const NetHandle& handle,
                                                const WaitLimits&) override {
      if (net_.refuses || net_.num_refused.fetch_sub(1) > 0)
        return RemoteError("the network is down");
      net_.NoteConnected(handle);
      return std::unique_ptr<NetRmaComm>(new Comm(net_));
    }
    bool AtomicWithProcessors() const override { return !net_.adds_alone; }

   private:
    MemoryNet& net_;
    std::atomic<uint64_t> last_ = 0;
  };

  void NoteConnected(const NetHandle& handle) {
    const MutexLock lock(mutex_);
    connected_.insert(handle);
    changed_.NotifyAll();
  }
  Status AwaitConnected(const NetHandle& handle, const WaitLimits& limits) {
    MutexLock lock(mutex_);
    while (connected_.count(handle) == 0) {
      if (refuses) return RemoteError("the network is down");
      if (limits.deadline.Passed()) return Timeout("nobody connects");
      changed_.WaitFor(lock, std::chrono::milliseconds(limits.deadline.RemainingMs(1000)));
    }
    return Status::Ok();
  }

  const std::vector<NetDevice> devices_ = std::vector<NetDevice>(1);
  Rma rma_{*this};
  Regions regions_;
  Mutex mutex_;
  CondVar changed_;
  std::set<NetHandle> connected_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::testing
