// Measures the threads that move the data of GPUs between hosts (proxy/kernel_proxy.h), without
// GPUs: one connection over this host's loopback with such a thread at either end. A third thread
// stands for both kernels. At the sending end this thread fills slots at the pace of a channel
// among eight or more, and at the receiving end the thread empties slots. At this pace the proxy
// threads are busy for a part of the time only. Prints the processor time of the two proxy threads
// for each GB at several paces, and the time and processor time of a short message.
//
//   kernel_proxy_bench [rounds of short messages]

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "proxy/kernel_proxy.h"
#include "proxy/testing/pair.h"
#include "require.h"

namespace tutti {
namespace {

constexpr size_t kSlotBytes = 256 << 10;

class OneConnection final : public KernelConnections {
 public:
  explicit OneConnection(ProxyConnection& connection) : connection_(connection) {}
  Status Open(const KernelOps&) override { return Status::Ok(); }
  ProxyConnection* Find(size_t) override { return &connection_; }
  void OnFailure(Status status) override { Require(status); }

 private:
  ProxyConnection& connection_;
};

// Returns the processor seconds of all threads with a name.
double SecondsOf(const std::string& name) {
  double seconds = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string comm, ns;
    std::ifstream(task.path() / "comm") >> comm;
    std::ifstream(task.path() / "schedstat") >> ns;
    if (comm == name) seconds += std::strtod(ns.c_str(), nullptr) * 1e-9;
  }
  return seconds;
}

void Sleep(int64_t ns) {
  const timespec time = {0, ns};
  nanosleep(&time, nullptr);
}

class Ends {
 public:
  Ends()
      : pair_(Value(TestPair::Create(kSlotBytes, Settings()))),
        send_(*pair_->send_connection),
        receive_(*pair_->recv_connection),
        sender_(Value(KernelProxy::Create("bench-kproxy", send_, 8))),
        receiver_(Value(KernelProxy::Create("bench-kproxy", receive_, 8))),
        producer_(pair_->send_connection->fifo()),
        consumer_(pair_->recv_connection->fifo()) {}

  // Announces a kernel that passes `chunks` chunks of `bytes` bytes.
  void Post(uint64_t chunks, size_t bytes) {
    const auto ops = std::make_shared<const KernelOps>(KernelOps{7, {{0, chunks, chunks * bytes}}});
    sender_->Post(ops);
    receiver_->Post(ops);
  }
  bool Produce(size_t bytes) {
    std::byte* const place = producer_.TryAcquire(bytes, /*inline_small=*/false);
    if (place == nullptr) return false;
    std::memset(place, 1, std::min<size_t>(bytes, 64));
    producer_.Publish(bytes, 7);
    return true;
  }
  bool Consume() {
    if (consumer_.TryPeek().data == nullptr) return false;
    consumer_.Release();
    return true;
  }

 private:
  std::unique_ptr<TestPair> pair_;
  OneConnection send_, receive_;
  std::shared_ptr<KernelProxy> sender_, receiver_;
  FifoSender producer_;
  FifoReceiver consumer_;
};

// Runs kernels of 32 chunks, one after another, with a chunk every `pace_us`.
void Stream(Ends& ends, int64_t pace_us) {
  constexpr int kKernels = 20, kChunks = 32;
  const double before = SecondsOf("bench-kproxy");
  const int64_t begin_ns = NowNs();
  for (int kernel = 0; kernel < kKernels; ++kernel) {
    ends.Post(kChunks, kSlotBytes);
    int64_t next_ns = NowNs();
    for (int produced = 0, consumed = 0; consumed < kChunks;) {
      if (produced < kChunks && NowNs() >= next_ns && ends.Produce(kSlotBytes)) {
        ++produced;
        next_ns += pace_us * 1000;
      }
      if (ends.Consume())
        ++consumed;
      else
        Sleep(10'000);
    }
  }
  const double seconds = static_cast<double>(NowNs() - begin_ns) * 1e-9;
  const double gigabytes = kKernels * kChunks * static_cast<double>(kSlotBytes) * 1e-9;
  std::printf("a chunk of 256 KiB each %5lld us: %.2f GB/s, %.2f s for each GB\n",
              static_cast<long long>(pace_us), gigabytes / seconds,
              (SecondsOf("bench-kproxy") - before) / gigabytes);
}

// Sends messages of one chunk, one after another.
void Latency(Ends& ends, size_t bytes, int rounds) {
  const double before = SecondsOf("bench-kproxy");
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const int64_t begin_ns = NowNs();
    ends.Post(1, bytes);
    ends.Produce(bytes);
    while (!ends.Consume()) CpuPause();
    times.push_back(static_cast<double>(NowNs() - begin_ns) * 1e-3);
  }
  std::sort(times.begin(), times.end());
  std::printf(
      "a message of %6zu bytes: median %.1f us, nine of ten within %.1f, %.1f us of processor\n",
      bytes, times[times.size() / 2], times[times.size() * 9 / 10],
      (SecondsOf("bench-kproxy") - before) * 1e6 / rounds);
}

void Run(int rounds) {
  Ends ends;
  Latency(ends, 64, rounds);
  Latency(ends, 4096, rounds);
  Latency(ends, 65536, rounds);
  for (const int64_t pace_us : {0, 200, 500, 1000, 2000, 5000}) Stream(ends, pace_us);
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) { tutti::Run(argc > 1 ? std::atoi(argv[1]) : 300); }
