#pragma once

// KernelProxy: the thread that moves what the kernels of a GPU send and receive over the network.
//
// A kernel is launched once and then waits for words of its FIFOs only; it cannot drive a
// connection, as the threads of hosts do. So whoever launches a kernel posts what will pass each
// connection, which is known beforehand (kernels/counting.h), and this thread takes every run of
// chunks through the connection:
//
//   send      posted (the chunk lies in its slot) → transmitted (the network has it) → done (the
//             slot is the kernel's again)
//   receive   posted (the slot waits for the chunk) → received → transmitted (the chunk is
//             announced) → done (the kernel has released the slot)
//
// ConnectionCore is that state machine; this class says which connections have work. It works on
// those, and takes what was posted meanwhile, all at once, when it has nothing else to do and after
// every `harvest_every` rounds. With nothing posted and nothing under way it looks for a tenth of a
// millisecond more, as a program that launches short operations in a row needs it, and then sleeps,
// so that an idle communicator costs no processor time.
//
// After a round in which nothing has moved, it looks again at once while the operation that kernels
// run first is short, because each wait then counts. A long one moves by slots and by the buffers
// of sockets, which last longer than a nap, so that the thread naps instead: there are many of
// these threads, and what they take beyond copying is what they poll.
//
// What a connection passes may also be announced by other processes (KernelConnections::Take),
// which ring the doorbell on which the thread sleeps.
//
// Threads: Post and Abort from any thread; the rest runs on the thread of the object.

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/wait.h"
#include "connection/proxy_connection.h"
#include "proxy/doorbell.h"

namespace tutti {

// Says what a kernel passes through one connection.
struct KernelOp {
  size_t connection = 0;  // KernelConnections knows it by this number.
  uint64_t chunks = 0;
  uint64_t bytes = 0;  // All chunks together have so many.
};

// Says what a kernel passes through all of its connections.
struct KernelOps {
  uint32_t op_tag = 0;
  std::vector<KernelOp> ops;
};

// Makes the connections when they are first needed. Called on the thread of the KernelProxy only.
class KernelConnections {
 public:
  virtual ~KernelConnections() = default;
  // Makes those connections of `ops` that there are not yet. May wait for other ranks; ends soon
  // after the communicator has stopped.
  virtual Status Open(const KernelOps& ops) = 0;
  // Returns a connection, or null where it has not been made.
  virtual ProxyConnection* Find(size_t connection) = 0;
  // Called once, when a connection has failed or could not be made. The thread ends then.
  virtual void OnFailure(Status status) = 0;

  // For connections that pass what other processes announce: where these ring; else null.
  virtual Doorbell* doorbell() { return nullptr; }
  // Returns what they have announced since the last call. Open may be called for that while other
  // data is under way, and waits for no other rank's kernel.
  virtual KernelOps Take() { return {}; }
  // Returns whether they may announce more.
  virtual bool MayAnnounce() const { return false; }
};

class KernelProxy {
 public:
  // `connections` must outlive the thread. `name` is that of the thread.
  static Result<std::shared_ptr<KernelProxy>> Create(const std::string& name,
                                                     KernelConnections& connections,
                                                     int harvest_every);
  ~KernelProxy();
  KernelProxy(const KernelProxy&) = delete;
  KernelProxy& operator=(const KernelProxy&) = delete;

  // Announces the next operation. Operations of all kernels pass a connection in the order in which
  // they are posted; to be in that of the kernels, which is the same on all ranks. Has no effect
  // after Abort or Finish.
  void Post(std::shared_ptr<const KernelOps> ops);
  // Has the thread break all connections with `reason`, and end at once. Does not wait for that.
  void Abort(const Status& reason);
  // Ends the thread: when all that was posted is done, at the deadline, or after Abort. Waits for
  // that. One thread calls it, once, and not the thread itself.
  void Finish(Deadline deadline);

 private:
  using Posted = std::deque<std::shared_ptr<const KernelOps>>;
  enum class Ending : uint8_t { kNo, kWhenIdle, kNow };

  // Holds what a kernel passes through one connection.
  struct Share {
    uint64_t chunks;
    uint32_t op_tag;
    uint64_t number;   // Kernels are numbered in the order in which they run.
    bool long_kernel;  // The kernel passes much through any of its connections.
    uint64_t end = 0;  // The value of Active::begun behind it, once it is under way.
  };
  // A connection with work.
  struct Active {
    ProxyConnection* connection = nullptr;
    uint64_t begun = 0;  // chunks of all operations begun over the connection's life
    std::deque<Share> under_way;
    std::deque<Share> waiting;  // They are not begun yet: a connection holds few operations.
    bool listed = false;        // It is in active_.
  };

  KernelProxy(KernelConnections& connections, int harvest_every)
      : connections_(connections),
        harvest_every_(harvest_every),
        doorbell_(connections.doorbell() != nullptr ? *connections.doorbell() : own_doorbell_) {}

  void Run();
  // Takes what was posted, and waits for it where nothing is under way. Returns false at the end.
  bool Harvest();
  void TakePosted();
  Status StartHarvested();
  Status StartAnnounced();
  void Start(const KernelOps& ops);
  // Moves what can be moved. Returns whether anything was.
  Result<bool> MoveAll();
  static void BeginWaiting(Active& active);
  // Rests after a round in which nothing has moved.
  void Rest();
  // Returns whether the first kernel of those whose data are under way is a long one.
  bool FirstIsLong() const;
  void CloseAll();
  Ending ending() const { return ending_.load(std::memory_order_acquire); }

  KernelConnections& connections_;
  const int harvest_every_;
  Doorbell own_doorbell_;
  Doorbell& doorbell_;

  Mutex mutex_;
  CondVar ended_changed_;
  Posted posted_ TUTTI_GUARDED_BY(mutex_);
  Status abort_reason_ TUTTI_GUARDED_BY(mutex_);
  bool ended_ TUTTI_GUARDED_BY(mutex_) = false;
  std::atomic<Ending> ending_ = Ending::kNo;

  // These belong to the thread.
  Posted harvested_;
  KernelOps announced_;
  std::map<size_t, Active> all_;
  std::vector<Active*> active_;
  uint64_t kernels_ = 0;            // So many have been started.
  std::optional<Backoff> backoff_;  // Counts the rounds in which nothing has moved.

  std::thread thread_;
};

}  // namespace tutti
