#pragma once

// The part that both directions of a socket connection share: an authenticated control socket, the
// data sockets, what happens when they break, and the wording of failures.
//
//   up ──Lost, Break──▶ down ──Resume──▶ up, with other sockets
//   up ──Move──▶ up, with other sockets
//   up, down ──Fail, Shutdown──▶ failed, for ever

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "sys/silence.h"
#include "transport/net/net.h"
#include "transport/net/socket/data_socket.h"
#include "transport/net/socket/helpers.h"
#include "transport/net/socket/resume.h"
#include "transport/net/socket/silence_watch.h"
#include "transport/net/socket/stream.h"

namespace tutti {

// Says what is done about connections that break.
struct FaultPolicy {
  // A connection is tried to be made again for so long.
  int64_t resume_within_ns = kResumeWithinNs;
  // It notices that the other host is silent. Where it is null, nobody does.
  std::shared_ptr<SilenceWatch> silence;
};

// Has all sockets of a connection, which do not block, and whose ends are both proven to belong to
// the job.
struct SocketSet : Sockets {
  std::string peer;  // "10.0.0.2:41000 over eth0"
  // By this the connection can be made again. Where it is null, a broken socket breaks it.
  std::unique_ptr<SocketResumer> resumer;
  FaultPolicy faults;
  // Receiving: the connection's number, where its sender can resume it; 0: it cannot.
  uint64_t resumable = 0;
};

class SocketChannel final : public SilenceWatch::Subject {
 public:
  static Result<std::unique_ptr<SocketChannel>> Create(SocketSet sockets, SocketDirection direction,
                                                       std::shared_ptr<SocketHelpers> helpers);
  ~SocketChannel() override;

  SocketStream& control() { return control_; }
  int control_fd() const { return control_.fd(); }

  // Returns whether broken sockets may be replaced.
  bool resumable() const { return resumer_ != nullptr; }
  // Returns whether the connection has no sockets and waits for new ones.
  bool down() const { return down_; }
  // Returns whether the sockets are not those that AppendFds told of.
  bool replaced() const { return replaced_; }
  NetCare Care() const {
    if (down_ || TriesPaths()) return NetCare::kSoon;
    return replaced_ || LacksPaths() ? NetCare::kSeldom : NetCare::kNone;
  }
  // Returns whether a path of the connection is lost and is to be tried again (paths.h).
  bool LacksPaths() const { return resumer_ && resumer_->LacksPaths(); }
  // Returns whether it is being tried, which needs calls of Move.
  bool TriesPaths() const { return resumer_ && resumer_->IsTrying(); }
  // Returns whether the other end has found the connection broken and offers new sockets.
  bool Offered() const { return resumer_ && resumer_->Offered(); }
  // Takes notice that a socket has ended or failed: `error` is an errno value, 0 the end of its
  // stream. Finds out what ended it, and calls Break, or Fail where the peer closed it in order.
  Status Lost(int error);
  // Takes notice of an error of any of the sockets (an errno value): ok when the connection is down
  // now and will be resumed, a failure where it cannot be. No thread touches messages any more when
  // this returns.
  Status Break(int error);
  // REQUIRES: down. Returns true when there are new sockets, and fails when there will be none.
  Result<bool> Resume();
  // Tries lost paths again. Returns true when the connection has moved to other sockets: the
  // messages then begin again as after Resume. REQUIRES: not down.
  Result<bool> Move();
  // Says that the messages, or what `what` says, go on, `repeated` of them a second time.
  void TellResumed(uint64_t repeated, std::string_view what = "messages");
  // Takes notice that a message came, or that the other end has one more.
  void CountWhole() { damages_in_a_row_ = 0; }
  int num_data_sockets() const { return num_data_sockets_; }
  std::string_view peer() const { return peer_; }

  // Notes that something may have been sent.
  void NoteActivity() {
    if (silence_) silence_->NoteActivity();
  }
  bool LookForSilence(int64_t now_ns, int64_t dead_after_ns) override;

  // TCP takes any memory of the host as it is.
  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) const;

  // Hands the cut of a message to the data sockets; `left` grows by the pieces, and each counts it
  // down when it has moved. REQUIRES: not down.
  void Push(std::byte* data, size_t bytes, uint64_t chunk, int used, std::atomic<uint32_t>& left);
  // Moves bytes through the data sockets that no helper drives. Returns true when something moved
  // since the last call. A data socket that failed breaks the connection.
  Result<bool> Progress();

  void AppendDataWaits(std::vector<NetWait>& waits) const;
  void AppendFds(std::vector<int>& fds) const;
  // Returns how many of the bytes written the peer's host has not acknowledged; at least 1 while
  // the connection is down, or while the peer may have left the sockets unread for others.
  size_t Undelivered() const;
  void Shutdown();

  // Keep and return the first failure, and let the other end hear that this one has failed. `error`
  // is an errno value of any of the sockets, 0: end of stream.
  Status Fail(int error);
  Status Fail(Status status);
  // Returns the first failure, of which Shutdown is one.
  Status Check() {
    if (failure_.ok() && shut_down_.load(std::memory_order_acquire)) return Fail(0);
    return failure_;
  }

 private:
  SocketChannel(SocketSet sockets, SocketDirection direction,
                std::shared_ptr<SocketHelpers> helpers, UniqueFd event);

  // Has the kernel probe the sockets while they are idle.
  Status PrepareSockets();
  void AddDataSockets(std::vector<SocketStream> streams) TUTTI_REQUIRES(sockets_mutex_);
  void DetachDataSockets();
  void DropSockets();
  // Goes on with these sockets.
  Status TakeSockets(Sockets sockets);
  void ShutdownSockets();
  std::vector<int> Fds() const;

  // Shutdown comes from any thread, LookForSilence from that of the loop.
  Mutex sockets_mutex_;
  SocketStream control_;
  const SocketDirection direction_;
  const std::unique_ptr<SocketResumer> resumer_;
  const int64_t resume_within_ns_;
  const std::shared_ptr<SilenceWatch> silence_;
  std::vector<SilenceMeter> meters_ TUTTI_GUARDED_BY(sockets_mutex_);  // One for each of Fds().
  // The socket for which LookForSilence has ended the sockets; -1 while it has not.
  std::atomic<int> silent_socket_ = -1;
  bool down_ = false;
  bool replaced_ = false;
  bool moved_ = false;  // the sockets were replaced while they worked
  int64_t broke_ns_ = 0;
  int broken_by_ = 0;  // an errno value
  int damages_in_a_row_ = 0;
  int64_t told_ns_ = 0;  // A warning was last given then; 0 means never.
  std::string peer_;
  const std::shared_ptr<SocketHelpers> helpers_;
  mutable SocketDoorbell doorbell_;
  const int num_data_sockets_;
  std::vector<std::unique_ptr<DataSocket>> data_sockets_;  // none while down
  // Holds what AppendFds told of, once the sockets were replaced: others still watch these
  // descriptors.
  std::vector<UniqueFd> first_sockets_;
  uint64_t pieces_seen_ = 0;
  std::atomic<bool> shut_down_ = false;
  Status failure_;
};

}  // namespace tutti
