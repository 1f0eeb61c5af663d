// The contract over plain memory: the promises of a FIFO without any transport.

#include <cstdlib>

#include "transport/testing/transport_contract.h"

namespace tutti {
namespace {

class MemoryPair final : public TransportPair {
 public:
  explicit MemoryPair(size_t slot_bytes) : memory_(FifoView::BytesFor(slot_bytes) / 64) {
    const FifoView view = {memory_.data()->bytes, slot_bytes};
    producer = FifoSender(view);
    consumer = FifoReceiver(view);
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  std::vector<Line> memory_;
};

class MemoryContract : public TransportContract {};
TEST_P(MemoryContract, Holds) { Run(); }
INSTANTIATE_TEST_SUITE_P(All, MemoryContract,
                         ContractCasesFor({"Memory",
                                           [](size_t slot_bytes) {
                                             return std::make_unique<MemoryPair>(slot_bytes);
                                           }}),
                         ContractCaseName);

}  // namespace
}  // namespace tutti
