// Slots of a FIFO in memory of a GPU of the stand-in, registered with a NIC of the stand-in for
// libibverbs: by a DMA-BUF, else by peer memory, else not.

#include "gpu/direct_slots.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cerrno>

#include "backend/testing/pieced_memory.h"
#include "gpu/nic_memory.h"
#include "lent_memory.h"
#include "testing/ranks.h"
#include "verbs_net_pair.h"

namespace tutti {

std::string FakeVerbsLibrary() { return TUTTI_FAKE_VERBS_LIBRARY; }

namespace {

using ::testing::AllOf;
using testing::Environment;
using ::testing::HasSubstr;

constexpr size_t kBytes = size_t{3} << 20;

class DirectSlotsTest : public ::testing::Test {
 protected:
  ~DirectSlotsTest() override {
    nets_.clear();
    fakeverbs::Reset();
    EXPECT_EQ(fakeverbs::ObjectsAlive(), 0);
  }
  // A network; `peer_memory`: the kernel has the module for it.
  GpuDirect Open(bool peer_memory, const Settings& settings = {}) {
    const PeerMemoryModule module;
    auto& pair = nets_.emplace_back(
        std::make_unique<VerbsNetPair>(settings, peer_memory ? module.path() : "/nowhere"));
    return {{std::shared_ptr<void>(), &pair->receiving()}, 0, true, true};
  }
  static long Count(const std::string& name, const NetRegion& region) {
    const auto calls = fakeverbs::Calls();
    return std::count_if(calls.begin(), calls.end(), [&](const fakeverbs::Call& call) {
      return call.name == name && call.address == reinterpret_cast<uintptr_t>(region.address) &&
             call.bytes == region.bytes;
    });
  }

  const cuda::Driver& driver_ = **cuda::Driver::Find();
  const std::unique_ptr<cuda::Device> device_ = cuda::Device::Open(driver_, 0).value();
  std::vector<std::unique_ptr<VerbsNetPair>> nets_;
};

TEST_F(DirectSlotsTest, ADmabufIsTakenFirst) {
  const GpuDirect direct = Open(/*peer_memory=*/true);
  const DirectSlots slots = DirectSlots::Create(*device_, direct, kBytes).value();
  EXPECT_EQ(slots.way(), "DMA-BUF");
  EXPECT_TRUE(slots.needs_flush());
  EXPECT_GE(slots.region().bytes, kBytes);
  EXPECT_EQ(slots.device_bytes(), slots.region().bytes);
  EXPECT_EQ(Count("reg_dmabuf_mr", slots.region()), 1);
  EXPECT_EQ(Count("reg_mr_iova2", slots.region()), 0);
}

TEST_F(DirectSlotsTest, ConnectionsFindItRegistered) {
  const GpuDirect direct = Open(/*peer_memory=*/false);
  const DirectSlots slots = DirectSlots::Create(*device_, direct, kBytes).value();
  const auto listener = direct.net->Listen(0).value();
  const auto sender = direct.net->Connect(0, listener->handle(), net_contract::Bound()).value();
  fakeverbs::RefuseCalls("reg_dmabuf_mr", ENOMEM, /*times=*/100);
  EXPECT_TRUE(sender->Register(slots.region()).ok());
}

TEST_F(DirectSlotsTest, WhereDmabufsAreRefusedPeerMemoryIsTaken) {
  const GpuDirect direct = Open(/*peer_memory=*/true);
  fakeverbs::RefuseCalls("reg_dmabuf_mr", ENOMEM);
  const DirectSlots slots = DirectSlots::Create(*device_, direct, kBytes).value();
  EXPECT_EQ(slots.way(), "peer memory");
  EXPECT_EQ(slots.region().dmabuf_fd, -1);
  EXPECT_EQ(Count("reg_dmabuf_mr", slots.region()), 1);
  EXPECT_EQ(Count("reg_mr_iova2", slots.region()), 1);
}

TEST_F(DirectSlotsTest, WhatKeepsFromDmabufsKeepsNotFromPeerMemory) {
  const Environment none(Environment::Settings{{"TUTTI_FAKE_NO_DMABUF", "1"}});
  EXPECT_EQ(DirectSlots::Create(*device_, Open(true), kBytes)->way(), "peer memory");
  const Environment there(Environment::Settings{{"TUTTI_FAKE_NO_DMABUF", "0"}});
  Settings off;
  off.dmabuf = false;
  EXPECT_EQ(DirectSlots::Create(*device_, Open(true, off), kBytes)->way(), "peer memory");
}

TEST_F(DirectSlotsTest, WhereAllIsRefusedEachReasonIsTold) {
  const GpuDirect direct = Open(/*peer_memory=*/true);
  fakeverbs::RefuseCalls("reg_dmabuf_mr", EINVAL);
  fakeverbs::RefuseCalls("reg_mr_iova2", ENOMEM);
  const auto refused = DirectSlots::Create(*device_, direct, kBytes);
  EXPECT_EQ(refused.status().code(), Code::kSystemError);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("fake0 takes no memory of CUDA device 0"), HasSubstr("DMA-BUF: "),
                    HasSubstr("peer memory: "), HasSubstr("ulimit -l")));
}

// Of several allocations that are mapped one behind the other the stand-in makes no DMA-BUF; by its
// address the memory is one range.
TEST_F(DirectSlotsTest, MemoryOfSeveralPiecesIsRegisteredAsAWhole) {
  const cuda::ManagingScope scope(driver_, device_->context());
  const cuda::PiecedMemory memory(
      {2 * cuda::PiecedMemory::kPieceUnit, cuda::PiecedMemory::kPieceUnit});
  const std::span<std::byte> most(memory.data() + 4096, memory.size() - 8192);
  const NicMemory known = NicMemory::Register(*device_, Open(true), most).value();
  EXPECT_EQ(known.way(), "peer memory");
  EXPECT_EQ(Count("reg_mr_iova2", known.region()), 1);
  EXPECT_EQ(known.region().bytes, most.size());
  EXPECT_THAT(std::string(NicMemory::Register(*device_, Open(false), most).status().message()),
              AllOf(HasSubstr("takes no memory of CUDA device 0"), HasSubstr("making a DMA-BUF")));
}

TEST_F(DirectSlotsTest, GpusThatOrderWritesNeedNoFlush) {
  const Environment ordered(Environment::Settings{{"TUTTI_FAKE_WRITES_ORDERING", "100"}});
  EXPECT_FALSE(DirectSlots::Create(*device_, Open(false), kBytes)->needs_flush());
}

}  // namespace
}  // namespace tutti
