#include "ras/server.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "backend/cuda/driver.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "bootstrap/wire.h"
#include "observe/folder.h"
#include "observe/reader.h"
#include "ras/collector.h"
#include "ras/conversation.h"
#include "ras/format.h"
#include "ras/report.h"
#include "sys/bounded_listener.h"
#include "sys/event_loop.h"

namespace tutti::ras {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kTimeoutS = 5;              // the default of NCCL
constexpr int64_t kPatienceNs = 500'000'000;  // for the answer of a process
constexpr int64_t kLookEveryNs = kSecondNs;   // while clients monitor
constexpr size_t kMostUnread = 64 << 10;      // bytes of answers to a client
constexpr size_t kMostLetters = 1024;         // in the queue of the thread
constexpr size_t kMostSilent = 4096;

// Letters: the kind in a byte, the number of the question, and the report of an answer.
enum class Letter : uint8_t { kQuestion = 1, kAnswer = 2 };

Bytes MakeLetter(Letter kind, uint64_t question, std::span<const std::byte> report = {}) {
  WireWriter writer;
  writer.U8(static_cast<uint8_t>(kind));
  writer.U64(question);
  writer.Raw(report);
  return std::move(writer).Take();
}

// A look-up of the default name would load the system's libraries for names.
Result<UniqueFd> ListenFor(std::string text) {
  constexpr std::string_view kLocal = "localhost:";
  if (text.starts_with(kLocal)) text.replace(0, kLocal.size(), "127.0.0.1:");
  TUTTI_ASSIGN(const SocketAddress address, ParseSocketAddress(text));
  return ListenShared(address);
}

}  // namespace

class Server::Impl {
 public:
  using Number = BoundedListener::Number;

  Impl(const Settings& settings, observe::Board& board, WaitBoard& letters)
      : board_(board),
        letters_(letters),
        address_(settings.ras_addr),
        shown_address_(Printable(observe::TextOf(observe::ToShortText<64>(address_)))),
        folders_(observe::FoldersOfBoards(settings.observe_dir, ProcessVariables())),
        factor_(settings.ras_timeout_factor),
        places_(kMostClients) {}

  Status Start() {
    TUTTI_ASSIGN(loop_, EventLoop::Create("tutti-ras"));
    loop_->RunSync([this] { Listen(); });
    letters_.SetLetterHandler([this](uint64_t communicator, int from, auto letter) {
      if (waiting_letters_.fetch_add(1) >= kMostLetters) {
        waiting_letters_.fetch_sub(1);
        return;
      }
      loop_->Post([this, communicator, from, copy = Bytes(letter.begin(), letter.end())] {
        waiting_letters_.fetch_sub(1);
        OnLetter({communicator, from}, copy);
      });
    });
    return Status::Ok();
  }

  ~Impl() {
    letters_.SetLetterHandler(nullptr);
    if (!loop_) return;
    loop_->RunSync([this] {
      while (!clients_.empty()) Drop(clients_.begin()->first);
      loop_->CancelTimer(look_timer_);
      if (listener_) listener_->Close();
    });
    loop_.reset();
  }

 private:
  struct Client {
    int fd = -1;
    UniqueFd own = {};  // owns `fd` of a monitoring client; else the listener owns `fd`
    Conversation talk = {};
    std::string out = {};
    size_t sent = 0;
    int64_t begin_ns = 0;
    std::unique_ptr<Collector> collector = nullptr;  // while the report is being collected
    EventLoop::TimerId timer = 0;
    bool last = false;  // The connection ends when all of `out` is sent.
  };

  void Listen();
  Report LocalReport();

  // Clients
  void OnReady(Number number);
  bool Receive(Client& client);
  bool Send(Client& client);
  void Drop(Number number);
  void BeginStatus(Number number, Client& client);
  void AdvanceStatus(Number number);
  Frame MakeFrame();

  // Monitoring clients
  void BeginMonitor(Number number, Client& client);
  void LookForEvents();
  void TellAll(const Report& report, const std::set<ProcessName>& processes,
               std::string_view event);

  // Other hosts
  void OnLetter(const Collector::Seat& from, std::span<const std::byte> letter);

  observe::Board& board_;
  WaitBoard& letters_;
  const std::string address_, shown_address_;
  const std::vector<std::string> folders_;
  const int64_t factor_;

  std::unique_ptr<EventLoop> loop_;
  std::atomic<size_t> waiting_letters_ = 0;

  // The rest belongs to the loop's thread.
  AcceptLimit places_;
  std::shared_ptr<BoundedListener> listener_;
  std::map<Number, Client> clients_;
  uint64_t next_question_ = 1;
  std::set<Collector::Seat> silent_;
  std::map<uint64_t, Collector::Seat> asked_;  // the latest questions without an answer
  Report local_;
  int64_t local_ns_ = 0;  // when local_ was read
  EventLoop::TimerId look_timer_ = 0;
  std::set<ProcessName> seen_, seen_dead_;  // by the last look for events
};

// ---------------------------------------------------------------------------------------------------------------------
// The part of this machine

void Server::Impl::Listen() {
  Result<UniqueFd> fd = ListenFor(address_);
  Status started = fd.status();
  if (started.ok()) {
    listener_ = std::make_shared<BoundedListener>(
        *loop_, places_, std::move(fd).value(),
        BoundedListener::Options{
            .name = "RAS",
            .time_ns = kClientNs,
            .on_connection = [this](auto number, int client,
                                    const auto&) { clients_[number].fd = client; },
            .on_ready = [this](auto number) { OnReady(number); },
            .on_over = [this](auto number, auto) { Drop(number); }});
    started = listener_->Start();
    if (!started.ok()) std::exchange(listener_, nullptr)->Close();
  }
  if (started.ok())
    TUTTI_INFO(kLogInit | kLogRas, "RAS listens for clients at {}", address_);
  else
    TUTTI_INFO(kLogInit | kLogRas, "RAS answers no clients (NCCL_RAS_ADDR): {}", started.message());
}

// The part of this process comes from its memory, because the process may have no board.
Report Server::Impl::LocalReport() {
  const int64_t now_ns = NowNs();
  if (local_ns_ != 0 && now_ns - local_ns_ < kReadEveryNs) return local_;
  observe::Reading reading = observe::ReadBoards(folders_);
  const observe::ProcessKey own = observe::ProcessKey::OfThisProcess();
  std::erase_if(reading.processes, [&](const auto& one) { return one.key == own; });
  observe::ProcessSnapshot here = {
      .key = own, .life = observe::Life::kRunning, .trouble = {}, .board = {}};
  here.board.host = HostName();
  here.board.ras_address = shown_address_;
  here.board.communicators = board_.Communicators();
  reading.processes.push_back(std::move(here));
  local_ = ReportOf(std::move(reading), shown_address_, own.pid);
  for (auto& [id, state] : local_.communicators)
    for (const int rank : letters_.LostRanks(id)) state.dead.insert(rank);
  local_ns_ = NowNs();
  return local_;
}

// ---------------------------------------------------------------------------------------------------------------------
// Clients

// The server reads nothing from a client while it waits for its answer. An event without anything
// to send is then the end of the connection.
void Server::Impl::OnReady(Number number) {
  Client& client = clients_.at(number);
  const bool talks = client.talk.state() == Conversation::State::kTalking;
  if (!talks && client.out.empty()) return Drop(number);
  if (talks && !Receive(client)) return Drop(number);
  if (talks && client.talk.state() == Conversation::State::kStatus) BeginStatus(number, client);
  if (talks && client.talk.monitors() && !client.own.valid()) BeginMonitor(number, client);
  // BeginStatus may have dropped the client.
  if (const auto found = clients_.find(number); found != clients_.end() && !Send(found->second))
    Drop(number);
}

// Returns false where the connection must end.
bool Server::Impl::Receive(Client& client) {
  std::array<std::byte, 4096> bytes;
  const Result<int64_t> got = TryRecv(client.fd, bytes);
  if (!got.ok() || *got == kEndOfStream) return false;
  const auto monitors = std::count_if(clients_.begin(), clients_.end(),
                                      [](const auto& entry) { return entry.second.own.valid(); });
  client.talk.set_may_monitor(static_cast<size_t>(monitors) < kMostMonitors);
  client.out += client.talk.Take(AsText(std::span(bytes).first(static_cast<size_t>(*got))));
  return client.talk.state() != Conversation::State::kOver &&
         client.out.size() - client.sent < kMostUnread;
}

// Sends as much as the kernel takes now. Returns false where the connection is over.
bool Server::Impl::Send(Client& client) {
  const Result<size_t> sent = TrySend(client.fd, AsBytes(client.out).subspan(client.sent));
  if (!sent.ok()) return false;
  client.sent += *sent;
  const bool all = client.sent == client.out.size();
  if (all) {
    client.out.clear();
    client.sent = 0;
  }
  const bool talks = client.talk.state() == Conversation::State::kTalking;
  const uint32_t events = (talks ? EPOLLIN : 0u) | (all ? 0u : EPOLLOUT);
  return !(all && client.last) && loop_->ModifyFd(client.fd, events).ok();
}

// Reads the rest first: with unread bytes, a close would make the kernel drop the answer.
void Server::Impl::Drop(Number number) {
  const auto found = clients_.find(number);
  if (found == clients_.end()) return;
  Client client = std::move(found->second);
  clients_.erase(found);
  loop_->CancelTimer(client.timer);
  std::array<std::byte, 4096> rest;
  [[maybe_unused]] const Result<int64_t> unread = TryRecv(client.fd, rest);
  if (client.own.valid())
    loop_->RemoveFd(client.fd);
  else
    listener_->Drop(number);
}

void Server::Impl::BeginStatus(Number number, Client& client) {
  client.begin_ns = NowNs();
  int64_t timeout_ns = kTimeoutS * factor_ * kSecondNs;
  if (const int64_t asked_s = client.talk.timeout_s(); asked_s != Conversation::kDefaultTimeout)
    timeout_ns = asked_s == 0 ? kClientNs : asked_s * kSecondNs;
  client.collector = std::make_unique<Collector>(
      LocalReport(), silent_,
      [this](const Collector::Seat& seat, uint64_t question) {
        asked_[question] = seat;
        if (asked_.size() > kMostSilent) asked_.erase(asked_.begin());
        return letters_.SendLetter(seat.first, seat.second,
                                   MakeLetter(Letter::kQuestion, question));
      },
      next_question_, kPatienceNs * factor_, client.begin_ns + std::min(timeout_ns, kClientNs));
  AdvanceStatus(number);
}

void Server::Impl::AdvanceStatus(Number number) {
  Client& client = clients_.at(number);
  loop_->CancelTimer(std::exchange(client.timer, 0));
  const int64_t now_ns = NowNs();
  if (const int64_t next_ns = client.collector->Advance(now_ns); next_ns != 0) {
    client.timer = loop_->AddTimer(std::max<int64_t>(next_ns - now_ns, 0),
                                   [this, number] { AdvanceStatus(number); });
    return;
  }
  const Report& report = client.collector->report();
  Frame frame = MakeFrame();
  frame.seconds = static_cast<double>(now_ns - client.begin_ns) / kSecondNs;
  frame.num_timeouts = client.collector->num_timeouts();
  client.out +=
      client.talk.as_json() ? ToJson(report, frame) : ToText(report, frame, client.talk.verbose());
  client.collector.reset();
  client.last = true;
  if (silent_.size() > kMostSilent) silent_.clear();
  if (!Send(client)) Drop(number);
}

// Asks the driver only where a rank of this process has a GPU: the first question starts CUDA.
Frame Server::Impl::MakeFrame() {
  Frame frame = {.time = TimeNow()};
  const std::vector<observe::CommunicatorSnapshot> own = board_.Communicators();
  if (std::none_of(own.begin(), own.end(), [](const auto& one) { return one.cuda_device >= 0; }))
    return frame;
  const Result<const cuda::Driver*> driver = cuda::Driver::Find();
  if (driver.ok()) frame.cuda_driver_version = (*driver)->version();
  return frame;
}

// ---------------------------------------------------------------------------------------------------------------------
// Monitoring clients, which may stay for ever. Their number is therefore bounded.

void Server::Impl::BeginMonitor(Number number, Client& client) {
  client.own = listener_->Take(number);
  const auto on_ready = [this, number](uint32_t) {
    if (clients_.contains(number)) OnReady(number);
  };
  if (!loop_->AddFd(client.fd, EPOLLIN, on_ready).ok()) return;
  if (look_timer_ != 0) return;
  seen_.clear();
  LookForEvents();
}

void Server::Impl::LookForEvents() {
  look_timer_ = 0;
  const Report report = LocalReport();
  std::set<ProcessName> dead, born, died;
  for (const auto& [id, state] : report.communicators)
    for (const MissingRank& one : report.MissingOf(state))
      if (one.dead && one.process.known()) dead.insert(one.process);
  std::set_difference(report.heard.begin(), report.heard.end(), seen_.begin(), seen_.end(),
                      std::inserter(born, born.end()));
  std::set_difference(dead.begin(), dead.end(), seen_dead_.begin(), seen_dead_.end(),
                      std::inserter(died, died.end()));
  if (!seen_.empty()) {
    TellAll(report, born, "PEER_NEW");
    TellAll(report, died, "PEER_DEAD");
  }
  seen_ = report.heard;
  seen_dead_ = std::move(dead);
  const bool wanted = std::any_of(clients_.begin(), clients_.end(),
                                  [](const auto& entry) { return entry.second.own.valid(); });
  if (wanted) look_timer_ = loop_->AddTimer(kLookEveryNs, [this] { LookForEvents(); });
}

void Server::Impl::TellAll(const Report& report, const std::set<ProcessName>& processes,
                           std::string_view event) {
  std::vector<Number> over;
  for (auto& [number, client] : clients_) {
    if (!client.own.valid()) continue;
    for (const ProcessName& process : processes)
      client.out += EventText(report, process, event, TimeNow(), client.talk.as_json());
    if (client.out.size() - client.sent >= kMostUnread || !Send(client)) over.push_back(number);
  }
  for (const Number number : over) Drop(number);
}

// ---------------------------------------------------------------------------------------------------------------------
// Other hosts

void Server::Impl::OnLetter(const Collector::Seat& from, std::span<const std::byte> letter) {
  WireReader reader(letter);
  const auto kind = static_cast<Letter>(reader.U8());
  const uint64_t question = reader.U64();
  if (reader.failed()) return;
  const auto body = reader.Raw(reader.remaining());
  if (kind == Letter::kQuestion) {
    letters_.SendLetter(from.first, from.second,
                        MakeLetter(Letter::kAnswer, question, Encode(LocalReport())));
    return;
  }
  if (kind != Letter::kAnswer) return;
  // The answer may come from another rank of the process.
  if (const auto asked = asked_.find(question); asked != asked_.end()) {
    silent_.erase(asked->second);
    asked_.erase(asked);
  }
  const std::optional<Report> report = Decode(body);
  if (!report) return;
  for (auto& [number, client] : clients_)
    if (client.collector && client.collector->OnAnswer(question, *report))
      return AdvanceStatus(number);
}

// ---------------------------------------------------------------------------------------------------------------------
// Server

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

std::unique_ptr<Server> Server::Create(const Settings& settings, observe::Board& board,
                                       WaitBoard& letters) {
  if (!settings.ras_enable) return nullptr;
  auto impl = std::make_unique<Impl>(settings, board, letters);
  if (const Status started = impl->Start(); !started.ok()) {
    TUTTI_INFO(kLogInit | kLogRas, "there is no RAS: {}", started.message());
    return nullptr;
  }
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

}  // namespace tutti::ras
