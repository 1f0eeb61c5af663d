#include "proxy/proxy.h"

#include "proxy/connection_ends.h"

namespace tutti {
namespace {

Result<FifoMemory> MakeMemory(const NetComm& comm, const FifoPlace& place, bool huge_pages) {
  if (place.slots.address != nullptr)
    return FifoMemory::Borrow({place.memory, place.slot_bytes, 0, place.slots.address});
  if (place.memory != nullptr)
    return FifoMemory::Borrow({place.memory, place.slot_bytes, kOpTagGapBytes});
  const size_t gap_bytes = comm.CarriesOpTag() ? 0 : kOpTagGapBytes;
  return FifoMemory::Create(place.slot_bytes, gap_bytes, huge_pages);
}

Result<NetFifo> MakeFifo(NetComm& comm, const FifoPlace& place, bool huge_pages) {
  TUTTI_ASSIGN(FifoMemory memory, MakeMemory(comm, place, huge_pages));
  const std::span<std::byte> bytes = memory.bytes();
  const bool on_gpu = place.slots.address != nullptr;
  TUTTI_ASSIGN(std::unique_ptr<NetMemory> registration,
               comm.Register(on_gpu ? place.slots : NetRegion{bytes.data(), bytes.size()}));
  return NetFifo{std::move(memory),
                 std::move(registration),
                 place.memory != nullptr,
                 on_gpu && place.flush,
                 place.lent,
                 place.memory != nullptr && !comm.CarriesOpTag()};
}

}  // namespace

Result<std::unique_ptr<Proxy>> Proxy::Create(const Options& options) {
  TUTTI_ASSIGN(std::unique_ptr<EventLoop> loop, EventLoop::Create("tutti-proxy"));
  return std::unique_ptr<Proxy>(new Proxy(options, std::move(loop)));
}

Result<std::unique_ptr<ProxyConnection>> Proxy::CreateSendConnection(
    std::unique_ptr<NetSendComm> comm, const FifoPlace& place, const std::string& peer) {
  TUTTI_ASSIGN(NetFifo fifo, MakeFifo(*comm, place, options_.huge_pages));
  return std::unique_ptr<ProxyConnection>(
      std::make_unique<SendConnection>(*loop_, std::move(fifo), std::move(comm), peer));
}

Result<std::unique_ptr<ProxyConnection>> Proxy::CreateRecvConnection(
    std::unique_ptr<NetRecvComm> comm, const FifoPlace& place, const std::string& peer) {
  TUTTI_ASSIGN(NetFifo fifo, MakeFifo(*comm, place, options_.huge_pages));
  return std::unique_ptr<ProxyConnection>(
      std::make_unique<RecvConnection>(*loop_, std::move(fifo), std::move(comm), peer));
}

}  // namespace tutti
