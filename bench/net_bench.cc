// Measures the cost of a proxy connection beside bare sockets: one-way latency and throughput over
// this host's loopback, both measured in one run, alternating, with the ratio of the medians.
//
//   net_bench [rounds [bytes]]     bytes: the latency of messages of this size only

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "proxy/testing/pair.h"

namespace tutti {
namespace {

// Two connected TCP sockets over loopback, non-blocking as Tutti's.
struct RawPair {
  UniqueFd a;
  UniqueFd b;
  static RawPair Create() {
    SocketAddress address = ParseSocketAddress("127.0.0.1:0").value();
    const UniqueFd listening = Listen(address).value();
    RawPair pair;
    pair.a = Connect(address, {Deadline::AfterSeconds(10), nullptr}).value();
    while (!pair.b.valid()) pair.b = Accept(listening.get(), nullptr).value();
    return pair;
  }
};

void SpinSend(int fd, const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN) std::abort();
    if (sent > 0) data += sent, bytes -= static_cast<size_t>(sent);
  }
}
void SpinRecv(int fd, char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::recv(fd, data, bytes, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) std::abort();
    if (got > 0) data += got, bytes -= static_cast<size_t>(got);
  }
}

double Seconds(const std::function<void()>& first, const std::function<void()>& second) {
  std::atomic<int> ready = 0;
  const auto start = [&] {
    ready.fetch_add(1);
    while (ready.load() < 2) CpuPause();
  };
  int64_t begin_ns = 0;
  std::thread other([&] {
    start();
    second();
  });
  start();
  begin_ns = NowNs();
  first();
  other.join();
  return static_cast<double>(NowNs() - begin_ns) * 1e-9;
}

double RawLatencyUs(size_t bytes, int iterations) {
  const RawPair pair = RawPair::Create();
  const auto side = [&](int fd, bool leads) {
    std::vector<char> buffer(bytes);
    for (int i = 0; i < iterations; ++i) {
      if (leads) SpinSend(fd, buffer.data(), bytes);
      SpinRecv(fd, buffer.data(), bytes);
      if (!leads) SpinSend(fd, buffer.data(), bytes);
    }
  };
  return Seconds([&] { side(pair.a.get(), true); }, [&] { side(pair.b.get(), false); }) * 1e6 /
         (2.0 * iterations);
}

double RawThroughput(size_t chunk, size_t total) {
  const RawPair pair = RawPair::Create();
  return static_cast<double>(total) * 1e-9 /
         Seconds(
             [&] {
               std::vector<char> buffer(chunk);
               for (size_t done = 0; done < total; done += chunk) {
                 SpinSend(pair.a.get(), buffer.data(), chunk);
               }
             },
             [&] {
               std::vector<char> buffer(chunk);
               for (size_t done = 0; done < total; done += chunk) {
                 SpinRecv(pair.b.get(), buffer.data(), chunk);
               }
             });
}

void Check(const ProxyConnection& proxy) {
  if (proxy.status().ok()) return;
  std::fprintf(stderr, "%s\n", std::string(proxy.status().message()).c_str());
  std::exit(1);
}

void Put(ProxyConnection& proxy, FifoSender& fifo, const char* data, size_t bytes) {
  proxy.Begin(1, 0);
  std::byte* place;
  while (!(place = fifo.TryAcquire(bytes))) {
    proxy.Poll();
    Check(proxy);
  }
  std::memcpy(place, data, bytes);
  fifo.Publish(bytes, 0);
  proxy.Poll();
}
void Take(ProxyConnection& proxy, FifoReceiver& fifo, char* data) {
  proxy.Begin(1, 0);
  FifoChunk chunk;
  while (!(chunk = fifo.TryPeek()).data) {
    proxy.Poll();
    Check(proxy);
  }
  std::memcpy(data, chunk.data, chunk.bytes);
  fifo.Release();
}

double ProxyLatencyUs(size_t bytes, int iterations) {
  const auto forth = TestPair::Create(std::max<size_t>(bytes, 4096), {}).value();
  const auto back = TestPair::Create(std::max<size_t>(bytes, 4096), {}).value();
  const auto side = [&](ProxyConnection& out_connection, ProxyConnection& in_connection,
                        bool leads) {
    std::vector<char> buffer(bytes);
    FifoSender out(out_connection.fifo());
    FifoReceiver in(in_connection.fifo());
    for (int i = 0; i < iterations; ++i) {
      if (leads) Put(out_connection, out, buffer.data(), bytes);
      Take(in_connection, in, buffer.data());
      if (!leads) Put(out_connection, out, buffer.data(), bytes);
    }
  };
  return Seconds([&] { side(*forth->send_connection, *back->recv_connection, true); },
                 [&] { side(*back->send_connection, *forth->recv_connection, false); }) *
         1e6 / (2.0 * iterations);
}

double ProxyThroughput(size_t chunk, size_t total) {
  const auto pair = TestPair::Create(chunk, {}).value();
  return static_cast<double>(total) * 1e-9 /
         Seconds(
             [&] {
               std::vector<char> buffer(chunk);
               FifoSender out(pair->send_connection->fifo());
               for (size_t done = 0; done < total; done += chunk) {
                 Put(*pair->send_connection, out, buffer.data(), chunk);
               }
               if (!pair->send_connection->Flush(kFlushNs, nullptr).ok()) std::abort();
             },
             [&] {
               std::vector<char> buffer(chunk);
               FifoReceiver in(pair->recv_connection->fifo());
               for (size_t done = 0; done < total; done += chunk) {
                 Take(*pair->recv_connection, in, buffer.data());
               }
             });
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Compare(const char* what, size_t bytes, int rounds, bool more_is_better,
             const std::function<double()>& raw, const std::function<double()>& proxy) {
  std::vector<double> raws;
  std::vector<double> proxies;
  for (int i = 0; i < rounds; ++i) {
    raws.push_back(raw());
    proxies.push_back(proxy());
  }
  const double a = Median(raws);
  const double b = Median(proxies);
  std::printf("%-16s %9zu B   sockets %8.2f   proxy %8.2f   worse by %.2fx\n", what, bytes, a, b,
              more_is_better ? a / b : b / a);
  std::fflush(stdout);
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  using namespace tutti;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  std::vector<size_t> sizes = {8, 1024, 4096, 16384, 65536};
  if (argc > 2) sizes = {static_cast<size_t>(std::atoll(argv[2]))};
  for (const size_t bytes : sizes) {
    const int iterations = bytes < 10000 ? 10000 : 2000;
    Compare(
        "one-way us", bytes, rounds, false, [&] { return RawLatencyUs(bytes, iterations); },
        [&] { return ProxyLatencyUs(bytes, iterations); });
  }
  if (argc > 2) return 0;
  for (const size_t chunk :
       {size_t{16} << 10, size_t{64} << 10, size_t{128} << 10, size_t{512} << 10}) {
    const size_t total = size_t{512} << 20;
    Compare(
        "one-way GB/s", chunk, rounds, true, [&] { return RawThroughput(chunk, total); },
        [&] { return ProxyThroughput(chunk, total); });
  }
  return 0;
}
