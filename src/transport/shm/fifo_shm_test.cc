// The transport contract over real shared memory: one mapping with two threads, two mappings of the
// same pages at different addresses, and two processes.

#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "sys/shared_memory.h"
#include "transport/testing/transport_contract.h"

namespace tutti {
namespace {

SharedMemory MakeRing(size_t slot_bytes) {
  auto memory = SharedMemory::Create(FifoView::BytesFor(slot_bytes), HugePages::kAdvise);
  if (!memory.ok()) abort();
  return std::move(memory).value();
}

class OneMappingPair final : public TransportPair {
 public:
  explicit OneMappingPair(size_t slot_bytes) : memory_(MakeRing(slot_bytes)) {
    producer = FifoSender({memory_.data(), slot_bytes});
    consumer = FifoReceiver({memory_.data(), slot_bytes});
  }

 private:
  SharedMemory memory_;
};

class TwoMappingsPair final : public TransportPair {
 public:
  explicit TwoMappingsPair(size_t slot_bytes) : ours_(MakeRing(slot_bytes)) {
    auto mapped = SharedMemory::Map(UniqueFd(dup(ours_.fd())), ours_.size());
    if (!mapped.ok()) abort();
    theirs_ = std::move(mapped).value();
    producer = FifoSender({ours_.data(), slot_bytes});
    consumer = FifoReceiver({theirs_.data(), slot_bytes});
  }

 private:
  SharedMemory ours_;
  SharedMemory theirs_;
};

template <class Pair>
std::unique_ptr<TransportPair> Make(size_t slot_bytes) {
  return std::make_unique<Pair>(slot_bytes);
}

class SharedMemoryContract : public TransportContract {};
TEST_P(SharedMemoryContract, Holds) { Run(); }
INSTANTIATE_TEST_SUITE_P(OneMapping, SharedMemoryContract,
                         ContractCasesFor({"OneMapping", Make<OneMappingPair>}), ContractCaseName);
INSTANTIATE_TEST_SUITE_P(TwoMappings, SharedMemoryContract,
                         ContractCasesFor({"TwoMappings", Make<TwoMappingsPair>}),
                         ContractCaseName);

class OneEnd final : public TransportPair {};

// Sends chunks of these sizes.
bool PlayProducer(FifoView out, const std::vector<size_t>& sizes) {
  OneEnd end;
  end.producer = FifoSender(out);
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::byte* const place = contract::AwaitRoom(end, sizes[i], contract::kBoundNs);
    if (place == nullptr) return false;
    contract::Fill(place, sizes[i], i);
    end.producer.Publish(sizes[i], contract::TagOf(i));
    // Makes the consumer find nothing and sleep now and then.
    if (i % 1000 == 999) usleep(2000);
  }
  return true;
}

TEST(SharedMemoryFifo, JoinsTwoProcesses) {
  constexpr size_t kSlotBytes = 4096;
  const SharedMemory memory = MakeRing(kSlotBytes);
  std::mt19937 random(11);
  std::vector<size_t> sizes(10'000);
  for (size_t& bytes : sizes)
    bytes = random() % 4 == 0 ? random() % (kSlotBytes + 1) : random() % 60;
  const pid_t child = fork();
  if (child == 0) {
    // The child maps the memory on its own, as a rank does.
    auto mapped = SharedMemory::Map(UniqueFd(dup(memory.fd())), memory.size());
    _exit(mapped.ok() && PlayProducer({mapped->data(), kSlotBytes}, sizes) ? 0 : 1);
  }
  OneEnd end;
  end.consumer = FifoReceiver({memory.data(), kSlotBytes});
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t before_ns = NowNs();
    const FifoChunk chunk = contract::AwaitChunk(end, contract::kBoundNs);
    ASSERT_TRUE(contract::Holds(chunk, sizes[i], i)) << i;
    ASSERT_EQ(chunk.op_tag, contract::TagOf(i));
    ASSERT_LT(NowNs() - before_ns, contract::kBoundNs / 2);  // no wake-up was lost
    end.consumer.Release();
    if (i % 1500 == 1499) usleep(2000);  // makes the producer sleep
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace tutti
