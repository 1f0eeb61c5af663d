// Measures the costs of TUTTI_CHECKSUM and TUTTI_ENCRYPT: processor time per message of one thread
// that drives both ends of a connection over this host's loopback, with 8 messages under way. Load
// of other programs hardly shows in processor time. Encryption is measured by ChaCha20-Poly1305 and
// by AES-256-GCM; without instructions for AES both columns are of ChaCha20-Poly1305.
//
//   protection_bench [rounds]

#include <time.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#include "bootstrap/auth.h"
#include "require.h"
#include "transport/net/socket/socket_net.h"

namespace tutti {
namespace {

double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Way {
  Settings settings;
  bool use_aes = true;
};

double MicrosecondsPerMessage(const Way& way, size_t bytes, int messages) {
  const auto loop = Value(EventLoop::Create("protection"));
  SocketNet::Options options;
  options.address = Value(ParseSocketAddress("127.0.0.1:0"));
  options.use_aes = way.use_aes;
  const Key key = RandomKey();
  const auto net = Value(SocketNet::Create(*loop, key, way.settings, options));
  const WaitLimits limits = {Deadline::AfterSeconds(20), nullptr};
  const auto listener = Value(net->Listen(0));
  const auto sender = Value(net->Connect(0, listener->handle(), limits));
  const auto receiver = Value(listener->Accept(limits));
  const std::vector<std::byte> from(bytes);
  std::vector<std::byte> to(kNetWindow * bytes);
  std::deque<NetRequest*> sending;
  std::deque<NetRequest*> receiving;
  const double before = ThreadSeconds();
  for (int sent = 0, posted = 0, received = 0; received < messages || !sending.empty();) {
    while (posted < messages && receiving.size() < kNetWindow) {
      const NetReceive place = {&to[static_cast<size_t>(posted) % kNetWindow * bytes], bytes};
      NetRequest* const request = Value(receiver->Irecv({&place, 1}));
      if (request == nullptr) break;
      receiving.push_back(request);
      ++posted;
    }
    while (sent < messages && sending.size() < kNetWindow) {
      NetRequest* const request = Value(sender->Isend({from.data(), bytes}));
      if (request == nullptr) break;
      sending.push_back(request);
      ++sent;
    }
    Require(sender->Progress().status());
    Require(receiver->Progress().status());
    while (!sending.empty() && Value(sender->Test(*sending.front()))) sending.pop_front();
    while (!receiving.empty() && Value(receiver->Test(*receiving.front()))) {
      receiving.pop_front();
      ++received;
    }
  }
  return (ThreadSeconds() - before) * 1e6 / messages;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The ways take turns, and a change of the machine's speed affects all of them.
void Compare(size_t bytes, int rounds) {
  std::array<Way, 4> ways;
  for (Way& way : ways) {
    way.settings.socket_nthreads = 1;
    way.settings.nsocks_perthread = 1;
  }
  ways[1].settings.checksum = true;
  ways[2].settings.encrypt = ways[3].settings.encrypt = true;
  ways[2].use_aes = false;
  const int messages = bytes < 100'000 ? 5000 : bytes < 1'000'000 ? 500 : 50;
  std::array<std::vector<double>, 4> times;
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < ways.size(); ++i) {
      times[i].push_back(MicrosecondsPerMessage(ways[i], bytes, messages));
    }
  }
  const double bare = Median(times[0]);
  std::printf("| %zu | %.2f |", bytes, bare);
  for (size_t i = 1; i < ways.size(); ++i)
    std::printf(" %.2f | %.2f |", Median(times[i]), Median(times[i]) / bare);
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  std::printf(
      "| bytes | bare, us | checksum, us | ratio | ChaCha20, us | ratio | AES, us | ratio |\n");
  for (const size_t bytes : {8, 1024, 4096, 16384, 65536, 524288, 4194304})
    tutti::Compare(bytes, rounds);
  return 0;
}
