// Measures one connection of a network between two processes of this host. bench/connections runs
// this program in turns with other programs.
//
//   connection_bench socket|ib stream|latency BYTES SECONDS [SOCKETS]
//
// stream: messages of BYTES bytes one way, as many under way as the network takes, at most 128. An
// idle end sleeps, as iperf3's ends do. latency: a message there and a message back, again and
// again. An idle end yields, and sleeps after a while, as ranks do. Prints one line of NAME=VALUE:
// messages, seconds, gb_per_s, us_one_way, and the processor time of both ends as cpu_s.

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "bootstrap/auth.h"
#include "require.h"
#include "transport/net/socket/socket_net.h"
#include "transport/net/verbs/verbs_net.h"

namespace tutti {
namespace {

constexpr uint64_t kMostUnderWay = 128;
// The number of yields of an end that awaits a message, before the end sleeps.
constexpr int kYields = 100;
constexpr uint32_t kLast = 1;  // the op tag of the last message

struct Task {
  bool verbs = false;
  bool latency = false;
  size_t bytes = 0;
  double seconds = 0;
  int sockets = 1;
};

double ProcessorSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Memory that is registered with a connection where the device of the connection requires
// registration.
struct Buffer {
  std::vector<std::byte> bytes;
  std::unique_ptr<NetMemory> memory;

  Buffer(const NetDevice& device, NetComm& comm, size_t size) : bytes(size) {
    if (device.needs_registration) memory = Value(comm.Register({bytes.data(), size}));
  }
};

// One end: a connection to the peer and a connection from the peer.
class End {
  // The network is destroyed after its connections.
  const std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<Net> net_;
  std::unique_ptr<NetListener> listener_;

 public:
  End(const Task& task, const Key& key, int other)
      : loop_(Value(EventLoop::Create("connection"))), yields_(task.latency ? kYields : 0) {
    Settings settings;
    settings.socket_nthreads = 1;
    settings.nsocks_perthread = task.sockets;
    if (const char* const devices = std::getenv("NCCL_IB_HCA")) settings.ib_hca = devices;
    SocketNet::Options sockets;
    VerbsNet::Options verbs;
    sockets.address = verbs.address = Value(ParseSocketAddress("127.0.0.1:0"));
    net_ = task.verbs ? Value(VerbsNet::Create(*loop_, key, settings, verbs))
                      : Value(SocketNet::Create(*loop_, key, settings, sockets));
    Require(net_->IsViable());
    listener_ = Value(net_->Listen(0));
    NetHandle there = {};
    const auto moved = static_cast<ssize_t>(there.size());
    if (write(other, listener_->handle().data(), there.size()) != moved ||
        recv(other, there.data(), there.size(), MSG_WAITALL) != moved) {
      Require(RemoteError("the other end has gone"));
    }
    const WaitLimits limits = {Deadline::AfterSeconds(20), nullptr};
    sender = Value(net_->Connect(0, there, limits));
    receiver = Value(listener_->Accept(limits));
    from = std::make_unique<Buffer>(device(), *sender, task.bytes);
    to = std::make_unique<Buffer>(device(), *receiver, task.bytes);
  }

  const NetDevice& device() const { return net_->devices()[0]; }
  NetRequest* Send(uint32_t op_tag) {
    return Value(sender->Isend({.data = from->bytes.data(),
                                .bytes = from->bytes.size(),
                                .op_tag = op_tag,
                                .memory = from->memory.get()}));
  }
  NetRequest* Receive() {
    const NetReceive place = {
        .data = to->bytes.data(), .capacity = to->bytes.size(), .memory = to->memory.get()};
    return Value(receiver->Irecv({&place, 1}));
  }
  // Moves all messages that can move. Otherwise yields, and sleeps after a while.
  void Drive() {
    const bool sent = Value(sender->Progress());
    if (Value(receiver->Progress()) || sent) {
      idle_ = 0;
    } else if (++idle_ < yields_) {
      sched_yield();
    } else {
      Sleep();
    }
  }
  template <class Ready>
  void DriveUntil(Ready ready) {
    while (!ready()) Drive();
  }

  std::unique_ptr<NetSendComm> sender;
  std::unique_ptr<NetRecvComm> receiver;
  std::unique_ptr<Buffer> from;
  std::unique_ptr<Buffer> to;

 private:
  void Sleep() {
    std::vector<NetWait> waits;
    const bool both = sender->PrepareToWait(waits) == NetIdle::kWait &&
                      receiver->PrepareToWait(waits) == NetIdle::kWait;
    if (!both) return;
    std::vector<pollfd> entries;
    for (const NetWait& wait : waits)
      entries.push_back({wait.fd, static_cast<short>(wait.events), 0});
    poll(entries.data(), entries.size(), /*ms=*/100);
  }

  const int yields_;
  int idle_ = 0;
};

void Stream(End& end, double seconds) {
  const uint64_t most = std::min(end.device().max_requests, kMostUnderWay);
  std::deque<NetRequest*> sending;
  const int64_t stop_ns = NowNs() + static_cast<int64_t>(seconds * 1e9);
  for (bool last = false; !last || !sending.empty();) {
    while (!last && sending.size() < most) {
      last = NowNs() >= stop_ns;
      NetRequest* const request = end.Send(last ? kLast : 0);
      if (!request) {
        last = false;
        break;
      }
      sending.push_back(request);
    }
    end.Drive();
    while (!sending.empty() && Value(end.sender->Test(*sending.front()))) sending.pop_front();
  }
}

// Returns the number of received messages; `seconds` gets the time since the first message.
uint64_t TakeStream(End& end, double& seconds) {
  const uint64_t most = std::min(end.device().max_requests, kMostUnderWay);
  std::deque<NetRequest*> receiving;
  uint64_t count = 0;
  int64_t first_ns = 0;
  for (bool last = false; !last;) {
    while (receiving.size() < most) {
      NetRequest* const request = end.Receive();
      if (!request) break;
      receiving.push_back(request);
    }
    end.Drive();
    while (!last && !receiving.empty() && Value(end.receiver->Test(*receiving.front()))) {
      last = receiving.front()->received[0].op_tag == kLast;
      receiving.pop_front();
      if (first_ns == 0) {
        first_ns = NowNs();
      } else {
        ++count;
      }
    }
  }
  seconds = static_cast<double>(NowNs() - first_ns) * 1e-9;
  return count;
}

// Sends a message and awaits a message, or in reverse order, until the leading end's time is over.
// Returns the number of answers.
uint64_t Exchange(End& end, bool leads, double seconds) {
  const int64_t stop_ns = NowNs() + static_cast<int64_t>(seconds * 1e9);
  NetRequest* sending = nullptr;
  NetRequest* receiving = nullptr;
  const auto receive = [&] { return (receiving = end.Receive()) != nullptr; };
  const auto sent = [&] { return !sending || Value(end.sender->Test(*sending)); };
  const auto send = [&](uint32_t op_tag) {
    end.DriveUntil(sent);
    end.DriveUntil([&] { return (sending = end.Send(op_tag)) != nullptr; });
  };
  end.DriveUntil(receive);
  uint32_t tag = 0;
  uint64_t count = 0;
  for (; tag != kLast; ++count) {
    if (leads) {
      tag = NowNs() >= stop_ns ? kLast : 0;
      send(tag);
    }
    end.DriveUntil([&] { return Value(end.receiver->Test(*receiving)); });
    if (!leads) tag = receiving->received[0].op_tag;
    if (tag != kLast) end.DriveUntil(receive);
    if (!leads) send(tag);
  }
  end.DriveUntil(sent);
  return count;
}

// The end of the parent: receives the stream, or leads.
void Measure(const Task& task, const Key& key, int other) {
  End end(task, key, other);
  const double before = ProcessorSeconds();
  uint64_t messages = 0;
  double seconds = 0;
  if (task.latency) {
    const int64_t begin_ns = NowNs();
    messages = 2 * Exchange(end, true, task.seconds);
    seconds = static_cast<double>(NowNs() - begin_ns) * 1e-9;
  } else {
    messages = TakeStream(end, seconds);
  }
  double cpu_s = ProcessorSeconds() - before;
  double theirs = 0;
  if (recv(other, &theirs, sizeof(theirs), MSG_WAITALL) == sizeof(theirs)) cpu_s += theirs;
  const auto count = static_cast<double>(messages);
  std::printf("messages=%.0f seconds=%.3f gb_per_s=%.4f us_one_way=%.3f cpu_s=%.3f\n", count,
              seconds, count * static_cast<double>(task.bytes) / seconds * 1e-9,
              seconds / count * 1e6, cpu_s);
}

void Answer(const Task& task, const Key& key, int other) {
  End end(task, key, other);
  const double before = ProcessorSeconds();
  if (task.latency) {
    Exchange(end, false, task.seconds);
  } else {
    Stream(end, task.seconds);
  }
  const double cpu_s = ProcessorSeconds() - before;
  if (write(other, &cpu_s, sizeof(cpu_s)) != sizeof(cpu_s)) std::exit(1);
  // The peer may still be taking sent messages.
  char none = 0;
  [[maybe_unused]] const ssize_t closed = recv(other, &none, 1, 0);
}

int Run(const Task& task) {
  const Key key = RandomKey();
  std::array<int, 2> ends = {};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return 1;
  const pid_t child = fork();
  if (child < 0) return 1;
  close(ends[child == 0 ? 0 : 1]);
  if (child == 0) {
    Answer(task, key, ends[1]);
    return 0;
  }
  Measure(task, key, ends[0]);
  close(ends[0]);
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: %s socket|ib stream|latency BYTES SECONDS [SOCKETS]\n", argv[0]);
    return 2;
  }
  tutti::Task task;
  task.verbs = std::string_view(argv[1]) == "ib";
  task.latency = std::string_view(argv[2]) == "latency";
  task.bytes = std::strtoull(argv[3], nullptr, 10);
  task.seconds = std::atof(argv[4]);
  if (argc > 5) task.sockets = std::atoi(argv[5]);
  return tutti::Run(task);
}
