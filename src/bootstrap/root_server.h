#pragma once

// RootServer: the work of a root (bootstrap/root.h) on its event loop.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/long_wait.h"
#include "base/status.h"
#include "bootstrap/auth.h"
#include "bootstrap/root_messages.h"
#include "config/settings.h"
#include "sys/event_loop.h"

namespace tutti {

// A failed root goes on telling latecomers the reason for this long. Launchers start the ranks of a
// job within seconds.
inline constexpr int64_t kLateArrivalsNs = 10'000'000'000;

// Lives on the loop's thread after Start. Kept alive by its timer in the loop: a timer of
// kUnaskedNs until the first rank asks, then the job's deadline, and after a failure a timer of
// kLateArrivalsNs. The timer is cancelled when the root's work is done.
class RootServer : public std::enable_shared_from_this<RootServer> {
 public:
  // `unasked` may be null, see Root::Create.
  RootServer(EventLoop& loop, const Settings& settings, AcceptLimit* unasked = nullptr)
      : loop_(loop),
        secret_source_(settings.secret_source),
        dead_after_s_(static_cast<int>(settings.host_timeout_s)),
        unasked_(unasked) {}

  Status Start(UniqueFd listen_fd, const Key& key, const std::string& name);

 private:
  struct Client {
    SealedSocket socket;
    RootRequest request;
    Bytes out = {};  // what is to be sent
    size_t sent = 0;
    bool answered = false;  // the answer is in `out`; no more will come
    bool extra = false;     // came when the job was complete: nobody waits for its answer to leave
  };
  using ClientNumber = uint64_t;

  void OnConnection(SealedSocket socket, const Hello& hello, const SocketAddress& from);
  Status CheckAgainstJob(const RootRequest& request) const;
  bool HasRegistered(const RootRequest& request) const;
  void ForgetEarlier(ClientNumber number);
  void TakeRegistration(ClientNumber number);
  void TakeSecond(ClientNumber number);
  Status TakenTwice(const RootRequest& second) const;
  int64_t timeout_ns() const { return int64_t{first_.timeout_ms} * 1'000'000; }
  void OnDeadline();
  void OnLook();
  void LookLater();
  void TellWhoIsMissing();
  std::string WhoIsMissing(std::string_view arrived) const;
  void OnClientReady(ClientNumber number);
  void OnClientGone(ClientNumber number, const Status& how);
  void AwaitStray(const RootRequest& request, bool answered, ClientNumber number, const Status& why,
                  int rounds);
  void OnRankGone(const RootRequest& request, bool answered, const Status& why);
  void Answer(ClientNumber number, const Status& failure);
  void SendOut(ClientNumber number);
  void AnswerAll();
  void Fail(Status reason);
  void FinishIfDone();
  void Finish();
  void LeavePlace();
  void SetTimer(int64_t delay_ns, void (RootServer::*what)());

  EventLoop& loop_;
  const std::string secret_source_;
  const int dead_after_s_;
  AcceptLimit* unasked_;  // null once a rank has asked
  AcceptLimit::Number place_ = 0;
  std::unique_ptr<AuthAcceptor> acceptor_;
  EventLoop::TimerId timer_ = 0;
  LongWait wait_;  // for the missing ranks
  EventLoop::TimerId look_timer_ = 0;
  std::map<ClientNumber, Client> clients_;
  ClientNumber next_number_ = 1;
  std::unordered_map<uint32_t, RootRequest> registered_;  // The key is the rank.
  // Ranks whose connection was reset, by the kind of their request and their number.
  using Asker = std::pair<RootRequest::Kind, uint32_t>;
  std::map<Asker, ClientNumber> strays_;
  bool job_known_ = false;
  RootRequest first_;  // the first request: later requests must agree with the first
  uint32_t registrations_due_ = 0;
  uint32_t look_ups_due_ = 0;
  std::set<Asker> served_;  // have closed their connection after the answer, or are lost since
  bool complete_ = false;
  Status failure_;
  std::set<uint32_t> told_;  // ranks that have heard of the failure
};

}  // namespace tutti
