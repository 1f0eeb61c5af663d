#pragma once

// The shared part of both directions of a socket connection: an authenticated control socket, the
// data sockets, the response to broken sockets, and the wording of failures.
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

// Says how to respond to broken connections.
struct FaultPolicy {
  // The longest time for which a connection tries to get new sockets.
  int64_t resume_within_ns = kResumeWithinNs;
  // Notices a silent host at the other end. Null: silence goes unnoticed.
  std::shared_ptr<SilenceWatch> silence;
};

// All sockets of a connection. The sockets do not block, and both ends have proven the key.
struct SocketSet : Sockets {
  std::string peer;  // "10.0.0.2:41000 over eth0"
  // Finds new sockets for the connection. Null: a broken socket breaks the connection.
  std::unique_ptr<SocketResumer> resumer;
  FaultPolicy faults;
  // At the receiver: the connection's number if the sender can resume the connection; 0: it cannot.
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
  // Returns whether the connection has no sockets and waits for new sockets.
  bool down() const { return down_; }
  // Returns whether the sockets differ from the sockets that AppendFds has named.
  bool replaced() const { return replaced_; }
  NetCare Care() const {
    if (down_ || TriesPaths()) return NetCare::kSoon;
    return replaced_ || LacksPaths() ? NetCare::kSeldom : NetCare::kNone;
  }
  // Returns whether a path of the connection is lost and will be tried again (paths.h).
  bool LacksPaths() const { return resumer_ && resumer_->LacksPaths(); }
  // Returns whether a lost path is being tried now, which needs calls of Move.
  bool TriesPaths() const { return resumer_ && resumer_->IsTrying(); }
  // Returns whether the other end has found the connection broken and offers new sockets.
  bool Offered() const { return resumer_ && resumer_->Offered(); }
  // Responds to the end or failure of a socket: `error` is an errno value, or 0 for the end of its
  // stream. Finds the cause, and calls Break, or Fail where the peer closed the connection in
  // order.
  Status Lost(int error);
  // Responds to an error of any of the sockets (an errno value). Returns ok when the connection is
  // down now and will be resumed, and a failure where it cannot be resumed. No thread touches
  // messages any more when Break returns.
  Status Break(int error);
  // Returns true when new sockets have come, and fails when none will come. REQUIRES: down.
  Result<bool> Resume();
  // Tries lost paths again. Returns true when the connection has moved to other sockets; the
  // messages then begin again as after Resume. REQUIRES: not down.
  Result<bool> Move();
  // Reports that the connection goes on, and that `repeated` messages (or `what`) are sent again.
  void TellResumed(uint64_t repeated, std::string_view what = "messages");
  // Counts a whole message that arrived, or that the other end has acknowledged.
  void CountWhole() { damages_in_a_row_ = 0; }
  int num_data_sockets() const { return num_data_sockets_; }
  std::string_view peer() const { return peer_; }

  // Notes that data may have been sent.
  void NoteActivity() {
    if (silence_) silence_->NoteActivity();
  }
  bool LookForSilence(int64_t now_ns, int64_t dead_after_ns) override;

  // Returns a registration at once, since TCP takes any memory of the host.
  Result<std::unique_ptr<NetMemory>> Register(const NetRegion& region) const;

  // Divides a message into pieces and gives them to the data sockets. `left` grows by the number of
  // pieces, and each piece decrements it when the piece has moved. REQUIRES: not down.
  void Push(std::byte* data, size_t bytes, uint64_t chunk, int used, std::atomic<uint32_t>& left);
  // Moves bytes through the data sockets that no helper drives. Returns true when bytes moved since
  // the last call. A failed data socket breaks the connection.
  Result<bool> Progress();

  void AppendDataWaits(std::vector<NetWait>& waits) const;
  void AppendFds(std::vector<int>& fds) const;
  // Returns how many of the written bytes the peer's host has not acknowledged. Returns at least 1
  // while the connection is down, or while the peer may have left the sockets unread for new
  // sockets.
  size_t Undelivered() const;
  void Shutdown();

  // Keep and return the first failure, and make the other end notice the failure. `error` is an
  // errno value of any of the sockets, or 0 for the end of the stream.
  Status Fail(int error);
  Status Fail(Status status);
  // Returns the first failure. Shutdown counts as a failure.
  Status Check() {
    if (failure_.ok() && shut_down_.load(std::memory_order_acquire)) return Fail(0);
    return failure_;
  }

 private:
  SocketChannel(SocketSet sockets, SocketDirection direction,
                std::shared_ptr<SocketHelpers> helpers, UniqueFd event);

  // Makes the kernel probe the sockets while they are idle.
  Status PrepareSockets();
  void AddDataSockets(std::vector<SocketStream> streams) TUTTI_REQUIRES(sockets_mutex_);
  void DetachDataSockets();
  void DropSockets();
  // Continues the connection on the given sockets.
  Status TakeSockets(Sockets sockets);
  void ShutdownSockets();
  std::vector<int> Fds() const;

  // Shutdown may come from any thread, and LookForSilence comes from the loop's thread.
  Mutex sockets_mutex_;
  SocketStream control_;
  const SocketDirection direction_;
  const std::unique_ptr<SocketResumer> resumer_;
  const int64_t resume_within_ns_;
  const std::shared_ptr<SilenceWatch> silence_;
  std::vector<SilenceMeter> meters_ TUTTI_GUARDED_BY(sockets_mutex_);  // one for each of Fds()
  // The silent socket for which LookForSilence has ended all sockets; -1: none.
  std::atomic<int> silent_socket_ = -1;
  bool down_ = false;
  bool replaced_ = false;
  bool moved_ = false;  // the sockets were replaced while they worked
  int64_t broke_ns_ = 0;
  int broken_by_ = 0;  // an errno value
  int damages_in_a_row_ = 0;
  int64_t told_ns_ = 0;  // the time of the last warning; 0: never
  std::string peer_;
  const std::shared_ptr<SocketHelpers> helpers_;
  mutable SocketDoorbell doorbell_;
  const int num_data_sockets_;
  std::vector<std::unique_ptr<DataSocket>> data_sockets_;  // none while down
  // The first sockets, kept open after a replacement, since callers still watch their descriptors.
  std::vector<UniqueFd> first_sockets_;
  uint64_t pieces_seen_ = 0;
  std::atomic<bool> shut_down_ = false;
  Status failure_;
};

}  // namespace tutti
