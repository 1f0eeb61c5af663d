#pragma once

// Redialer: makes a connection again at the sender (resume.h). The redialer dials all sockets of
// the connection, each by its path (paths.h), and gives up unanswered paths.
//
// Besides, the redialer tries lost paths again while the connection works:
//
//   idle ──Begin──▶ pause ⇄ connecting ⇄ proving ──all sockets──▶ idle
//   idle ──TriesPath──▶ connecting, proving ──all sockets, or a failure──▶ idle
//
// The receiver may have taken the sockets of an attempt that fails here, for example when its last
// answer is damaged on the way. Sockets that are given up are therefore reset: their orderly end
// would tell the receiver that this end is gone for good.
//
// A trial begins with the sockets of the lost path, hence a trial of a dead path costs the other
// end nothing. Once the receiver has all sockets of a trial it uses them, and the connection moves.
//
// Threads: the comm's thread.

#include <cstdint>
#include <optional>
#include <vector>

#include "base/erased.h"
#include "bootstrap/auth.h"
#include "transport/net/socket/paths.h"
#include "transport/net/socket/resume.h"

namespace tutti {

class Redialer final : public SocketResumer {
 public:
  // `hello` is the connection's hello. The current sockets follow the current spread of `paths`.
  Redialer(SocketPaths paths, const Key& key, const DataHello& hello);

  void Begin(int silent_socket) override;
  Result<std::optional<Sockets>> Step() override;
  bool TriesPath(int64_t now_ns) override;
  bool IsTrying() const override { return stage_ != Stage::kIdle; }
  bool MayHaveMoved() const override {
    return stage_ == Stage::kProving && IsLast() && was_answered_;
  }
  bool LacksPaths() const override { return paths_.AnyToRetry(); }
  std::string TakeNotice() override { return paths_.TakeNotice(); }

 private:
  enum class Stage { kIdle, kPause, kConnecting, kProving };
  enum class Outcome { kWaits, kProven, kFailed };
  static constexpr int64_t kBetweenAttemptsNs = 50'000'000;

  // Begins an attempt anew with all sockets, after a pause.
  void Pause(int64_t for_ns);
  // Resets and closes the sockets of this attempt.
  void Abandon();
  void StartSocket();
  Result<Outcome> StepSocket();
  void TakeSocket();
  // Responds to a socket in turn that has failed or waits for too long.
  Status FailAttempt(int64_t now_ns);
  Sockets Finish();
  size_t Path() const { return path_of_[socket_in_turn()]; }
  size_t socket_in_turn() const { return order_[turn_]; }
  bool IsLast() const { return turn_ + 1 == order_.size(); }

  SocketPaths paths_;
  const Erased<Key> key_;
  DataHello hello_;
  Stage stage_ = Stage::kIdle;
  bool broken_ = false;          // the connection has no sockets and needs new ones
  std::optional<size_t> trial_;  // the lost path under trial
  int64_t next_ns_ = 0;          // the end of the pause
  std::vector<size_t> in_use_;   // the path of each socket of the connection
  std::vector<size_t> path_of_;  // the path of each socket of this attempt
  std::vector<size_t> order_;    // the sockets' numbers in dialing order
  size_t turn_ = 0;              // the place of the socket in turn in order_
  Sockets sockets_;              // the finished sockets of this attempt
  UniqueFd fd_;                  // the socket in turn
  std::optional<Handshake> handshake_;
  bool was_answered_ = false;  // the other end may have the proof
};

}  // namespace tutti
