#pragma once

// KernelProxy: the thread that moves the data of a GPU's kernels over the network.
//
// A kernel is launched once and then waits for words of its FIFOs only; unlike the threads of
// hosts, a kernel cannot drive a connection. The thread that launches a kernel therefore posts the
// number of chunks for each connection, which is known beforehand (kernels/counting.h), and the
// proxy's thread takes every run of chunks through its connection:
//
//   send      posted (the chunk lies in its slot) → transmitted (the network has it) → done (the
//             slot is the kernel's again)
//   receive   posted (the slot waits for the chunk) → received → transmitted (the chunk is
//             announced) → done (the kernel has released the slot)
//
// ConnectionCore is the state machine of a connection; KernelProxy decides which connections have
// work. The thread works on these connections, and takes newly posted operations all at once, when
// it has nothing else to do and after every `harvest_every` rounds. With nothing posted and nothing
// under way the thread looks for a tenth of a millisecond more, for programs that launch short
// operations in a row, and then sleeps, so an idle communicator costs no processor time.
//
// After a round without progress, the thread looks again at once while the first kernel's operation
// is short, because each wait then counts. A long operation moves by slots and by the buffers of
// sockets, which last longer than a nap, and the thread naps instead: many such threads run at
// once, and beyond copying they spend their time on polling.
//
// Other processes may also announce data for a connection (KernelConnections::Take); they ring the
// doorbell on which the thread sleeps.
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

// The data that a kernel passes through a connection.
struct KernelOp {
  size_t connection = 0;  // the connection's number in KernelConnections
  uint64_t chunks = 0;
  uint64_t bytes = 0;  // the bytes of all chunks together
};

// The data that a kernel passes through all of its connections.
struct KernelOps {
  uint32_t op_tag = 0;
  std::vector<KernelOp> ops;
};

// Makes the connections when they are first needed. Called on the thread of the KernelProxy only.
class KernelConnections {
 public:
  virtual ~KernelConnections() = default;
  // Makes the connections of `ops` that do not exist yet. May wait for other ranks; ends soon after
  // the communicator has stopped.
  virtual Status Open(const KernelOps& ops) = 0;
  // Returns a connection, or null where the connection has not been made.
  virtual ProxyConnection* Find(size_t connection) = 0;
  // Called once, when a connection has failed or could not be made. The thread ends then.
  virtual void OnFailure(Status status) = 0;

  // Returns the doorbell that other processes ring when they announce data; null without such
  // connections.
  virtual Doorbell* doorbell() { return nullptr; }
  // Returns the operations announced since the last call. Open may be called for them while other
  // data is under way, and waits for no other rank's kernel.
  virtual KernelOps Take() { return {}; }
  // Returns whether they may announce more.
  virtual bool MayAnnounce() const { return false; }
};

class KernelProxy {
 public:
  // `connections` must outlive the thread. `name` becomes the name of the thread.
  static Result<std::shared_ptr<KernelProxy>> Create(const std::string& name,
                                                     KernelConnections& connections,
                                                     int harvest_every);
  ~KernelProxy();
  KernelProxy(const KernelProxy&) = delete;
  KernelProxy& operator=(const KernelProxy&) = delete;

  // Announces the next operation. Operations of all kernels pass a connection in the order in which
  // they are posted, which must be the order of the kernels, the same on all ranks. Has no effect
  // after Abort or Finish.
  void Post(std::shared_ptr<const KernelOps> ops);
  // Has the thread break all connections with `reason`, and end at once. Does not wait for the end.
  void Abort(const Status& reason);
  // Ends the thread: when all posted operations are done, at the deadline, or after Abort. Waits
  // for the end. The call is made once, by a thread other than the proxy's own.
  void Finish(Deadline deadline);

 private:
  using Posted = std::deque<std::shared_ptr<const KernelOps>>;
  enum class Ending : uint8_t { kNo, kWhenIdle, kNow };

  // The data that a kernel passes through a connection.
  struct Share {
    uint64_t chunks;
    uint32_t op_tag;
    uint64_t number;   // Kernels are numbered in the order in which they run.
    bool long_kernel;  // The kernel passes much through any of its connections.
    uint64_t end = 0;  // the value of Active::begun behind this operation, once begun
  };
  // A connection with work.
  struct Active {
    ProxyConnection* connection = nullptr;
    uint64_t begun = 0;  // chunks of all operations begun over the connection's life
    std::deque<Share> under_way;
    std::deque<Share> waiting;  // They are not begun yet: a connection holds few operations.
    bool listed = false;        // is in active_
  };

  KernelProxy(KernelConnections& connections, int harvest_every)
      : connections_(connections),
        harvest_every_(harvest_every),
        doorbell_(connections.doorbell() != nullptr ? *connections.doorbell() : own_doorbell_) {}

  void Run();
  // Takes the posted operations, and waits for them where nothing is under way. Returns false at
  // the end.
  bool Harvest();
  void TakePosted();
  Status StartHarvested();
  Status StartAnnounced();
  void Start(const KernelOps& ops);
  // Moves as much as can be moved. Returns whether anything moved.
  Result<bool> MoveAll();
  static void BeginWaiting(Active& active);
  // Rests after a round without progress.
  void Rest();
  // Returns whether the first kernel whose data are under way is a long kernel.
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

  // The members below belong to the thread.
  Posted harvested_;
  KernelOps announced_;
  std::map<size_t, Active> all_;
  std::vector<Active*> active_;
  uint64_t kernels_ = 0;            // the number of kernels started
  std::optional<Backoff> backoff_;  // counts the rounds without progress

  std::thread thread_;
};

}  // namespace tutti
