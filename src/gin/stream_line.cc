#include "gin/stream_line.h"

#include <fmt/format.h>

#include <string>

namespace tutti {
namespace {

using cuda::AddressOf;

}  // namespace

GinStreamLine::GinStreamLine(GinDeviceProxy& proxy)
    : proxy_(proxy),
      driver_(proxy.device().driver()),
      rank_(proxy.host().team.first + proxy.host().team.place),
      posted_(proxy.plan().num_queues) {}

// Asks the driver first, because a stream that waits for a word without support would fail only
// later, in the middle of a program.
Result<std::unique_ptr<GinStreamLine>> GinStreamLine::Create(GinDeviceProxy& proxy) {
  std::unique_ptr<GinStreamLine> line(new GinStreamLine(proxy));
  const cuda::Driver& driver = line->driver_;
  int usable = 0;
  if (driver.StreamWaitWord == nullptr || driver.StreamWaitWord32 == nullptr ||
      driver.StreamWriteWord == nullptr ||
      driver.DeviceGetAttribute(&usable, cuda::kStreamsUseWords, proxy.device().ordinal()) != 0 ||
      usable == 0)
    return InvalidUsage("streams of CUDA device {} cannot wait for words of memory",
                        proxy.device().ordinal());
  TUTTI_TRY(line->PinTeam());
  return line;
}

Status GinStreamLine::PinTeam() {
  const Window& host = proxy_.host();
  const size_t bytes = proxy_.layout().signals_at + proxy_.plan().num_signals * sizeof(uint64_t);
  for (int place = 0; place < host.team.size; ++place) {
    TUTTI_ASSIGN(cuda::PinnedRange pinned,
                 cuda::PinnedRange::Pin(proxy_.device(), {host.At(place, 0), bytes}));
    team_.push_back(std::move(pinned));
  }
  return Status::Ok();
}

Status GinStreamLine::Check(int result, const char* doing) const {
  return driver_.Check(result, doing);
}

std::byte* GinStreamLine::SlotOf(uint32_t queue, uint32_t index) const {
  const uint32_t depth = proxy_.plan().queue_depth;
  const size_t slot = size_t{queue} * depth + (index & (depth - 1));
  return proxy_.pinned() + proxy_.layout().descriptors_at + slot * sizeof(device::GinDescriptor);
}

Status GinStreamLine::AwaitConsumer(cuda::Stream stream, uint32_t queue, uint32_t index) const {
  const std::byte* const word =
      proxy_.pinned() + proxy_.layout().consumers_at + size_t{queue} * sizeof(uint32_t);
  return Check(driver_.StreamWaitWord32(stream, AddressOf(word), index, cuda::kWaitUntilReached),
               "having a stream wait for a proxy");
}

// Each word of a descriptor has a valid bit, and the words may therefore arrive in any order.
Status GinStreamLine::Post(cuda::Stream stream, uint32_t queue,
                           const device::GinOperation& operation) {
  const uint32_t index = posted_[queue].fetch_add(1, std::memory_order_relaxed);
  TUTTI_TRY(AwaitConsumer(stream, queue, index + 1 - proxy_.plan().queue_depth));
  const device::GinDescriptor descriptor = device::PackGin(operation);
  const std::byte* const slot = SlotOf(queue, index);
  for (size_t i = 0; i < device::GinDescriptor::kUsedWords; ++i)
    TUTTI_TRY(Check(driver_.StreamWriteWord(stream, AddressOf(slot) + i * sizeof(uint64_t),
                                            descriptor.words[i], 0),
                    "posting an operation on the network from a stream"));
  return Status::Ok();
}

Status GinStreamLine::AwaitDone(cuda::Stream stream, uint32_t queue) const {
  return AwaitConsumer(stream, queue, posted_[queue].load(std::memory_order_relaxed));
}

Status GinStreamLine::AwaitSignal(cuda::Stream stream, int from, uint64_t count) const {
  const std::byte* const word =
      proxy_.pinned() + proxy_.layout().signals_at + static_cast<size_t>(from) * sizeof(uint64_t);
  return Check(driver_.StreamWaitWord(stream, AddressOf(word), count, cuda::kWaitUntilReached),
               "having a stream wait for a signal");
}

Status GinStreamLine::Raise(cuda::Stream stream, int place, uint64_t count) const {
  const std::byte* const signals =
      team_[static_cast<size_t>(place)].data() + proxy_.layout().signals_at;
  return Check(
      driver_.StreamWriteWord(
          stream, AddressOf(signals) + static_cast<size_t>(rank_) * sizeof(uint64_t), count, 0),
      "signalling from a stream");
}

// A word far ahead of all counts, but less than half of the range, has come to each of them.
void GinStreamLine::EndWaits() {
  std::byte* const own = proxy_.host().own.data();
  const GinHostLayout& layout = proxy_.layout();
  auto* const signals = reinterpret_cast<uint64_t*>(own + layout.signals_at);
  auto* const consumers = reinterpret_cast<uint32_t*>(own + layout.consumers_at);
  for (size_t i = 0; i < proxy_.plan().num_signals; ++i)
    std::atomic_ref<uint64_t>(signals[i]).store(uint64_t{1} << 62, std::memory_order_release);
  for (size_t i = 0; i < posted_.size(); ++i)
    std::atomic_ref<uint32_t>(consumers[i])
        .store(posted_[i].load(std::memory_order_relaxed) + (uint32_t{1} << 30),
               std::memory_order_release);
}

}  // namespace tutti
