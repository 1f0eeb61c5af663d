#pragma once

// The ranks that a plugin with one-sided operations joins, from the view of one rank: its context,
// its group, and its comms. rma_plugin.h makes them.
//
// A plugin cannot tell when a put has arrived. A comm finds out by the plugins' promise about
// signals: the comm adds 1 to a word of the target by a strong signal, and gets the word until it
// shows the sum. All earlier operations have arrived then.
//
//   scratch memory of each rank, registered with the group:
//     arrived[rank]    counts the flushes of each rank that have come here
//     fetched[rank]    the last value got of this rank's own count at each rank
//     stage            bytes on their way from memory that is not registered
//
// A call that fails toward a rank breaks the comm to that rank alone, as when the rank has ended
// its group. A plugin cannot be told to cancel an operation, and callers may free the memory of a
// comm once the comm reports that it is broken. A breaking comm therefore begins nothing any more,
// but reports the failure only when each operation toward the rank has ended or failed. NICs flush
// the rest of a queue within moments. If an operation is still under way after kBreakNs, the whole
// group fails and is closed, and nothing can move bytes any more.
//
// Threads: as rma_group.h and rma.h. Close may be called by any thread at any time.

#include <array>
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "transport/net/plugin/rma_library.h"
#include "transport/net/rma_group.h"

namespace tutti {

// A plugin's context for one communicator.
class RmaPluginContext {
 public:
  static Result<std::shared_ptr<RmaPluginContext>> Create(std::shared_ptr<RmaLibrary> library,
                                                          uint64_t number);
  ~RmaPluginContext();
  RmaPluginContext(const RmaPluginContext&) = delete;
  RmaPluginContext& operator=(const RmaPluginContext&) = delete;

  RmaFunctions& functions() const { return library_->functions(); }
  void* context() const { return context_; }
  const tuttiGinProperties_v14_t& properties() const { return properties_; }
  // "plugin NAME"
  const std::string& name() const { return name_; }
  Mutex& set_up() TUTTI_RETURN_CAPABILITY(set_up_) { return set_up_; }
  // Calls a function of the set-up as call(functions), and turns its result into a Status.
  template <class Call>
  Status Do(std::string_view what, Call&& call) TUTTI_EXCLUDES(set_up_) {
    const MutexLock lock(set_up_);
    return Check(what, call(functions()));
  }
  Status Check(std::string_view what, ncclResult_t result) const;

 private:
  RmaPluginContext(std::shared_ptr<RmaLibrary> library, void* context);
  Status ReadProperties();

  const std::shared_ptr<RmaLibrary> library_;
  void* const context_;
  const std::string name_;
  tuttiGinProperties_v14_t properties_ = {};
  Mutex set_up_;
};

// Memory for a put or get of this rank, or memory that all ranks reach.
class RmaPluginMemory : public NetMemory {
 public:
  // `handle` is the plugin's handle, or null where the region is not registered. The region begins
  // `base` bytes behind the begin of the handle's memory.
  RmaPluginMemory(const NetRegion& region, void* handle, uint64_t base)
      : NetMemory(region), handle_(handle), base_(base) {}
  void* handle() const { return handle_; }
  uint64_t base() const { return base_; }
  NetRemoteKey remote_key() const override;
  static RmaFunctions::Place PlaceOf(const NetRemote& remote);

 private:
  void* const handle_;
  const uint64_t base_;
};

class RmaPluginGroup final : public RmaGroup {
 public:
  // Takes over `coll_comm` and `made`, a plugin's comm of all ranks and its context. Collective.
  static Result<std::unique_ptr<RmaPluginGroup>> Create(std::shared_ptr<RmaPluginContext> context,
                                                        void* coll_comm, void* made, int num_ranks,
                                                        int rank);
  ~RmaPluginGroup() override;

  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) override;
  std::unique_ptr<NetRmaComm> MakeComm(int peer) override;
  size_t LongestPut(const NetMemory& memory) const override {
    const bool known = static_cast<const RmaPluginMemory&>(memory).handle() != nullptr;
    return known ? kMaxNetMessageBytes : kStageBytes;
  }
  bool has_strong_signals() const override { return context_->properties().supportsStrongSignals; }
  bool has_va_signals() const override { return context_->properties().supportsVASignals; }
  std::string_view name() const override { return context_->name(); }

  // Closes all objects of the plugin, even with operations under way, unless this rank waits for
  // other ranks in a registration. In that case the destructor closes them. Nothing is begun or
  // tested any more in either case.
  void Close() TUTTI_EXCLUDES(data_);

 private:
  friend class RmaPluginComm;
  class Registered;
  static constexpr size_t kStageBytes = size_t{256} << 10;
  // How often the plugin is asked for an error that no call has reported.
  static constexpr int64_t kAskForErrorNs = 100'000'000;
  // How long the operations of a breaking comm may take to end.
  static constexpr int64_t kBreakNs = 500'000'000;

  struct Region {
    void* handle = nullptr;
    NetRegion region;
  };

  RmaPluginGroup(std::shared_ptr<RmaPluginContext> context, void* coll_comm, void* made,
                 int num_ranks, int rank)
      : context_(std::move(context)),
        num_ranks_(num_ranks),
        rank_(rank),
        coll_comm_(coll_comm),
        made_(made) {}

  Status MakeScratch();
  void Deregister(void* handle) TUTTI_EXCLUDES(data_);
  void CloseAll() TUTTI_REQUIRES(context_->set_up());
  void CloseLocked() TUTTI_REQUIRES(context_->set_up(), data_);
  // Returns this rank's memory with a registration that contains the region, or with none.
  std::unique_ptr<NetMemory> MemoryFor(const NetRegion& region) TUTTI_EXCLUDES(data_);

  // Calls a function that moves data for all ranks, as call(functions, context, comm). Keeps the
  // first failure, after which every call of the group fails in the same way.
  template <class Call>
  Status Do(std::string_view what, Call&& call) TUTTI_REQUIRES(data_) {
    if (!failure_.ok()) return failure_;
    Status status = context_->Check(what, call(context_->functions(), made_, coll_comm_));
    if (!status.ok()) Fail(status);
    return status;
  }
  // Breaks all comms, and closes the group unless this rank waits for peers in a registration.
  void Fail(const Status& why) TUTTI_REQUIRES(data_);
  Status Drive() TUTTI_REQUIRES(data_);

  uint64_t ArrivedAt(int rank) const { return static_cast<uint64_t>(rank) * 8; }
  uint64_t FetchedAt(int rank) const { return static_cast<uint64_t>(num_ranks_ + rank) * 8; }
  uint64_t StageAt() const { return static_cast<uint64_t>(num_ranks_) * 16; }

  const std::shared_ptr<RmaPluginContext> context_;
  const int num_ranks_;
  const int rank_;
  std::vector<uint64_t> scratch_;
  std::unique_ptr<NetMemory> scratch_memory_;

  Mutex data_;  // taken after context_->set_up()
  void* coll_comm_ TUTTI_GUARDED_BY(data_);
  void* made_ TUTTI_GUARDED_BY(data_);
  Status failure_ TUTTI_GUARDED_BY(data_);
  std::vector<Region> regions_ TUTTI_GUARDED_BY(data_);
  bool stage_taken_ TUTTI_GUARDED_BY(data_) = false;
  int64_t asked_ns_ TUTTI_GUARDED_BY(data_) = 0;
};

// A comm to one rank.
class RmaPluginComm final : public NetRmaComm {
 public:
  RmaPluginComm(RmaPluginGroup& group, int peer);

  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) override;
  Result<NetRequest*> Iput(NetLocal from, NetRemote to, size_t bytes,
                           const NetSignal* signal) override;
  Result<NetRequest*> Iget(NetLocal to, NetRemote from, size_t bytes) override;
  Result<NetRequest*> Iatomic(NetLocal before, const NetAtomic& atomic) override;
  Result<NetRequest*> Iflush() override;
  Result<bool> Progress() override;
  Result<bool> Test(NetRequest& request) override;
  NetIdle PrepareToWait(std::vector<NetWait>&) override { return NetIdle::kPoll; }
  void AppendFds(std::vector<int>&) const override {}
  // Closes the group if an operation toward the rank is still under way.
  void Shutdown() override;
  std::string_view peer() const override { return peer_name_; }

 private:
  enum class State : uint8_t {
    kFree,
    kUnderWay,   // the plugin has a request
    kSignal,     // a flush must add to the target's word, and waits for room
    kSignalled,  // a flush's signal is under way
    kFetch,      // a flush must get the word
    kFetched,    // a flush's get is under way
    kDone,
  };
  struct Request : NetRequest {
    State state = State::kFree;
    bool staged = false;  // the request holds the stage
    void* request = nullptr;
  };

  Request* FreeRequest();
  // Calls a function that moves data to or from the rank, as call(functions, context, comm). The
  // first call that fails breaks the comm. No function is called while the comm breaks or after it
  // is broken.
  template <class Call>
  Status Do(std::string_view what, Call&& call) TUTTI_REQUIRES(group_.data_) {
    TUTTI_TRY(Failure());
    if (breaks()) return Status::Ok();
    RmaPluginContext& context = *group_.context_;
    const ncclResult_t result = call(context.functions(), group_.made_, group_.coll_comm_);
    return result == ncclSuccess ? Status::Ok() : OnFailure(what, result);
  }
  Status OnFailure(std::string_view what, ncclResult_t result) TUTTI_REQUIRES(group_.data_);
  Status Failure() const TUTTI_REQUIRES(group_.data_) {
    return group_.failure_.ok() ? failure_ : group_.failure_;
  }
  bool breaks() const TUTTI_REQUIRES(group_.data_) { return !breaking_.ok(); }
  // Returns the failure of a breaking comm once the comm is broken, and ok until then.
  Status Break() TUTTI_REQUIRES(group_.data_);
  ncclResult_t TestRequest(Request& request, bool* ended) TUTTI_REQUIRES(group_.data_);
  bool EndRequests() TUTTI_REQUIRES(group_.data_);
  Status Step(Request& request, bool* moved) TUTTI_REQUIRES(group_.data_);
  Status StepFlush(Request& request) TUTTI_REQUIRES(group_.data_);

  RmaPluginGroup& group_;
  const int peer_;
  const std::string peer_name_;
  Status failure_ TUTTI_GUARDED_BY(group_.data_);   // not ok: the comm is broken
  Status breaking_ TUTTI_GUARDED_BY(group_.data_);  // not ok: the comm breaks, since breaking_ns_
  int64_t breaking_ns_ TUTTI_GUARDED_BY(group_.data_) = 0;
  std::array<Request, TUTTI_GIN_MAX_REQUESTS> requests_;
  Request* flush_ = nullptr;  // at most one flush is under way
  uint64_t num_flushes_ = 0;
};

}  // namespace tutti
