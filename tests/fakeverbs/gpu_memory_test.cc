// GPUDirect, as far as it goes without a GPU and a NIC: which way to GPUs' memory is taken, how it
// is registered, and the read that follows what has come.

#include <gmock/gmock.h>

#include <cerrno>

#include "lent_memory.h"
#include "transport/testing/net_contract.h"
#include "verbs_net_pair.h"

namespace tutti {
namespace {

using net_contract::NetBuffer;
using net_contract::NetLink;
using ::testing::HasSubstr;

class VerbsGpuMemoryTest : public ::testing::Test {
 protected:
  ~VerbsGpuMemoryTest() override {
    fakeverbs::Reset();
    EXPECT_EQ(fakeverbs::ObjectsAlive(), 0);
    fakeverbs::SetDevices({{}});
  }
  static int Count(const std::string& name, const std::byte* address, int opcode = 0) {
    int count = 0;
    for (const fakeverbs::Call& call : fakeverbs::Calls()) {
      count += call.name == name && call.opcode == opcode &&
               call.address == reinterpret_cast<uintptr_t>(address);
    }
    return count;
  }
  // Receives one message into `memory`, at an odd place, and flushes it.
  static void ReceiveInto(NetLink& link, const GpuMemory& gpu, NetMemory* memory) {
    std::byte* const place = gpu.address() + 4099;
    const NetReceive receive = {place, 50'000, 0, memory};
    NetRequest* const receiving = *link.receiver->Irecv({&receive, 1});
    ASSERT_NE(receiving, nullptr);
    NetBuffer from = link.SendBuffer(50'000);
    from.Fill(3);
    NetRequest* const sending = link.SendSoon(from);
    ASSERT_NE(sending, nullptr);
    ASSERT_TRUE(link.Drive([&] { return link.Received(receiving); }));
    ASSERT_TRUE(link.Drive([&] { return link.Sent(sending); }));
    EXPECT_EQ(std::memcmp(gpu.bytes() + 4099, from.data(), 50'000), 0);
    NetRequest* const flush = *link.receiver->Iflush({&receive, 1});
    ASSERT_NE(flush, nullptr);
    ASSERT_TRUE(link.Drive([&] { return link.Received(flush); }));
  }
};

TEST_F(VerbsGpuMemoryTest, ADmabufIsRegisteredAndReadBack) {
  VerbsNetPair pair({});
  NetLink link(pair);
  EXPECT_TRUE(link.to.takes_dmabuf);
  EXPECT_FALSE(link.to.takes_gpu_memory);
  EXPECT_TRUE(link.to.needs_flush);
  const GpuMemory gpu(1 << 20);
  const auto memory = link.receiver->Register(gpu.Dmabuf()).value();
  EXPECT_EQ(Count("reg_dmabuf_mr", gpu.address()), 1);
  ReceiveInto(link, gpu, memory.get());
  EXPECT_EQ(Count("post_send", gpu.address() + 4099, IBV_WR_RDMA_READ), 1);
  // By address it takes none.
  const auto refused = link.receiver->Register(gpu.ByAddress());
  EXPECT_EQ(refused.status().code(), Code::kInvalidUsage);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("nvidia_peermem"));
}

TEST_F(VerbsGpuMemoryTest, ASenderReadsFromADmabuf) {
  VerbsNetPair pair({});
  NetLink link(pair);
  const GpuMemory gpu(1 << 20);
  const auto memory = link.sender->Register(gpu.Dmabuf()).value();
  NetBuffer to = link.ReceiveBuffer(1000);
  NetRequest* const receiving = link.Receive(to);
  NetRequest* sending = nullptr;
  ASSERT_TRUE(link.Drive([&] {
    return (sending = link.Send({gpu.address() + 77, 1000, 0, 0, memory.get()})) != nullptr;
  }));
  ASSERT_TRUE(link.Drive([&] { return link.Received(receiving); }));
  ASSERT_TRUE(link.Drive([&] { return link.Sent(sending); }));
  EXPECT_EQ(std::memcmp(to.data(), gpu.bytes() + 77, 1000), 0);
}

// The processor must not touch a GPU's memory, and it is the processor that copies data into a
// request.
TEST_F(VerbsGpuMemoryTest, ASenderCopiesNothingFromADmabuf) {
  for (const bool notices : {false, true}) {
    Settings settings;
    settings.ib_use_inline = true;
    settings.ib_send_notices = notices;
    VerbsNetPair pair(settings);
    NetLink link(pair);
    const GpuMemory gpu(4096);
    const auto memory = link.sender->Register(gpu.Dmabuf()).value();
    std::memset(gpu.bytes(), 5, 4096);
    NetBuffer to = link.ReceiveBuffer(16);
    NetRequest* const receiving = link.Receive(to);
    const size_t before = fakeverbs::Calls().size();
    NetRequest* sending = nullptr;
    ASSERT_TRUE(link.Drive([&] {
      return (sending = link.Send({gpu.address() + 77, 16, 0, 0, memory.get()})) != nullptr;
    }));
    ASSERT_TRUE(link.Drive([&] { return link.Received(receiving); }));
    ASSERT_TRUE(link.Drive([&] { return link.Sent(sending); }));
    EXPECT_EQ(std::memcmp(to.data(), gpu.bytes() + 77, 16), 0);
    int messages = 0;
    const std::vector<fakeverbs::Call> calls = fakeverbs::Calls();
    for (size_t i = before; i < calls.size(); ++i) {
      if (calls[i].name != "post_send" || calls[i].bytes != 16) continue;
      if (calls[i].address != reinterpret_cast<uintptr_t>(to.data())) continue;
      ++messages;
      EXPECT_EQ(calls[i].flags & IBV_SEND_INLINE, 0u);
    }
    EXPECT_EQ(messages, 1);
  }
}

TEST_F(VerbsGpuMemoryTest, FlushesManyAtOnceUntilThereIsNoRoom) {
  VerbsNetPair pair({});
  NetLink link(pair);
  const GpuMemory gpu(1 << 20);
  const auto memory = link.receiver->Register(gpu.Dmabuf()).value();
  const NetReceive buffer = {gpu.address(), 100, 0, memory.get()};
  std::vector<NetRequest*> flushes;
  while (flushes.size() < 1000) {
    NetRequest* const flush = *link.receiver->Iflush({&buffer, 1});
    if (!flush) break;
    flushes.push_back(flush);
  }
  EXPECT_EQ(flushes.size(), kNetWindow);
  for (NetRequest* const flush : flushes) {
    ASSERT_TRUE(link.Drive([&] { return link.Received(flush); }));
  }
  EXPECT_NE(*link.receiver->Iflush({&buffer, 1}), nullptr);
}

// Each NIC that may have written reads back.
TEST_F(VerbsGpuMemoryTest, ADeviceOfTwoNicsIsReadBackByBoth) {
  fakeverbs::DeviceSpec second;
  second.name = "fake1";
  second.ports = {{"10.77.0.2"}};
  fakeverbs::SetDevices({{}, second});
  Settings settings;
  settings.net_force_merge = "fake0,fake1";
  VerbsNetPair pair(settings);
  NetLink link(pair);
  EXPECT_TRUE(link.to.takes_dmabuf);
  const GpuMemory gpu(1 << 20);
  const auto memory = link.receiver->Register(gpu.Dmabuf()).value();
  EXPECT_EQ(Count("reg_dmabuf_mr", gpu.address()), 2);
  ReceiveInto(link, gpu, memory.get());
  EXPECT_EQ(Count("post_send", gpu.address() + 4099, IBV_WR_RDMA_READ), 2);
}

// A read that is lost is done again over a loop-back that is made again, and so is one that is
// asked for while there is none.
TEST_F(VerbsGpuMemoryTest, AFlushSurvivesALostLoopback) {
  VerbsNetPair pair({});
  NetLink link(pair);
  const GpuMemory gpu(1 << 20);
  const auto memory = link.receiver->Register(gpu.Dmabuf()).value();
  ReceiveInto(link, gpu, memory.get());
  fakeverbs::FailSend({.opcode = IBV_WR_RDMA_READ});
  const NetReceive buffer = {gpu.address(), 100, 0, memory.get()};
  NetRequest* const first = *link.receiver->Iflush({&buffer, 1});
  ASSERT_NE(first, nullptr);
  ASSERT_TRUE(link.Drive([&] { return link.receiver->Care() == NetCare::kSoon; }));
  NetRequest* const second = *link.receiver->Iflush({&buffer, 1});
  ASSERT_NE(second, nullptr);
  ASSERT_TRUE(link.Drive([&] { return link.Received(first); }));
  ASSERT_TRUE(link.Drive([&] { return link.Received(second); }));
  ReceiveInto(link, gpu, memory.get());
}

// The sender has sent all and leaves before its last message has been read back, and a grant that
// the receiver writes meanwhile finds nobody.
TEST_F(VerbsGpuMemoryTest, AFlushOutlivesTheSender) {
  VerbsNetPair pair({});
  NetLink link(pair);
  const GpuMemory gpu(1 << 20);
  const auto memory = link.receiver->Register(gpu.Dmabuf()).value();
  ReceiveInto(link, gpu, memory.get());
  fakeverbs::HoldAnswers(true);
  const NetReceive buffer = {gpu.address(), 100, 0, memory.get()};
  NetRequest* const flush = *link.receiver->Iflush({&buffer, 1});
  ASSERT_NE(flush, nullptr);
  fakeverbs::FailSend({.opcode = IBV_WR_RDMA_WRITE});
  ASSERT_NE(*link.receiver->Irecv({&buffer, 1}), nullptr);
  link.sender.reset();
  for (int i = 0; i < 1000; ++i) {
    const Result<bool> moved = link.receiver->Progress();
    ASSERT_TRUE(moved.ok()) << moved.status().message();
    ASSERT_FALSE(*link.receiver->Test(*flush));
  }
  fakeverbs::HoldAnswers(false);
  bool flushed = false;
  while (!flushed) {
    const Result<bool> moved = link.receiver->Progress();
    ASSERT_TRUE(moved.ok()) << moved.status().message();
    flushed = *link.receiver->Test(*flush);
  }
  EXPECT_THAT(std::string(NetLink::AwaitFailure(*link.receiver).message()), HasSubstr("closed"));
}

TEST_F(VerbsGpuMemoryTest, HostMemoryIsNotReadBack) {
  VerbsNetPair pair({});
  NetLink link(pair);
  NetBuffer to = link.ReceiveBuffer(100);
  const NetReceive buffer = {to.data(), 100, 0, to.memory()};
  NetRequest* const flush = *link.receiver->Iflush({&buffer, 1});
  EXPECT_TRUE(link.Received(flush));
  EXPECT_EQ(Count("post_send", to.data(), IBV_WR_RDMA_READ), 0);
}

TEST_F(VerbsGpuMemoryTest, TheReadCanBeLeftOut) {
  Settings settings;
  settings.gdr_flush_disable = true;
  VerbsNetPair pair(settings);
  NetLink link(pair);
  EXPECT_FALSE(link.to.needs_flush);
  const GpuMemory gpu(1 << 20);
  const auto memory = link.receiver->Register(gpu.Dmabuf()).value();
  ReceiveInto(link, gpu, memory.get());
  EXPECT_EQ(Count("post_send", gpu.address() + 4099, IBV_WR_RDMA_READ), 0);
}

TEST_F(VerbsGpuMemoryTest, PeerMemoryIsRegisteredByAddress) {
  const PeerMemoryModule module;
  VerbsNetPair pair({}, module.path());
  NetLink link(pair);
  EXPECT_TRUE(link.to.takes_gpu_memory);
  const GpuMemory gpu(1 << 20);
  ASSERT_TRUE(link.receiver->Register(gpu.ByAddress()).ok());
  EXPECT_EQ(Count("reg_mr_iova2", gpu.address()), 1);
  EXPECT_EQ(Count("reg_dmabuf_mr", gpu.address()), 0);
}

TEST_F(VerbsGpuMemoryTest, WithoutEitherWayThereIsNone) {
  Settings off;
  off.dmabuf = false;
  fakeverbs::DeviceSpec old;
  old.dmabuf = false;
  for (const bool by_setting : {true, false}) {
    if (!by_setting) fakeverbs::SetDevices({old});
    VerbsNetPair pair(by_setting ? off : Settings{});
    NetLink link(pair);
    EXPECT_FALSE(link.to.takes_dmabuf);
    EXPECT_FALSE(link.to.needs_flush);
    const GpuMemory gpu(4096);
    const auto refused = link.receiver->Register(gpu.Dmabuf());
    EXPECT_EQ(refused.status().code(), Code::kInvalidUsage);
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("NCCL_DMABUF_ENABLE"));
  }
}

TEST_F(VerbsGpuMemoryTest, RefusalsAreSentences) {
  VerbsNetPair pair({});
  NetLink link(pair);
  const GpuMemory gpu(1 << 20);
  fakeverbs::RefuseCalls("reg_dmabuf_mr", ENOMEM);
  EXPECT_THAT(std::string(link.receiver->Register(gpu.Dmabuf()).status().message()),
              HasSubstr("ulimit -l"));
  fakeverbs::RefuseCalls("create_qp", EMFILE, /*times=*/3);
  EXPECT_THAT(std::string(link.receiver->Register(gpu.Dmabuf()).status().message()),
              HasSubstr("queue pair"));
  const auto memory = link.receiver->Register(gpu.Dmabuf()).value();
  fakeverbs::FailSend({.opcode = IBV_WR_RDMA_READ, .status = IBV_WC_REM_OP_ERR});
  const NetReceive buffer = {gpu.address(), 100, 0, memory.get()};
  ASSERT_NE(*link.receiver->Iflush({&buffer, 1}), nullptr);
  EXPECT_THAT(std::string(NetLink::AwaitFailure(*link.receiver).message()),
              HasSubstr("reading back GPU memory"));
}

}  // namespace
}  // namespace tutti
