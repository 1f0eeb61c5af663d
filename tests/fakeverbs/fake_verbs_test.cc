// The stand-in does what NICs do, as far as the network over verbs relies on it.

#include "fake_verbs.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "testing/threads.h"

#undef ibv_reg_mr

namespace fakeverbs {
namespace {

constexpr int kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                           IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// Holds what one end tells the other.
struct Name {
  uint32_t pair = 0;
  uint32_t key = 0;
  uint64_t address = 0;
  ibv_gid gid = {};
};

// A queue pair with some memory.
class End {
 public:
  explicit End(int access = kAllAccess) {
    ibv_device** const list = ibv_get_device_list(nullptr);
    context_ = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    domain_ = ibv_alloc_pd(context_);
    channel_ = ibv_create_comp_channel(context_);
    queue_ = ibv_create_cq(context_, 64, nullptr, channel_, 0);
    region_ = ibv_reg_mr(domain_, bytes.data(), bytes.size(), access);
    ibv_qp_init_attr wish = {};
    wish.send_cq = wish.recv_cq = queue_;
    wish.qp_type = IBV_QPT_RC;
    wish.cap = {4, 4, 1, 1, 64};
    pair_ = ibv_create_qp(domain_, &wish);
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = kAllAccess;
    EXPECT_EQ(ibv_modify_qp(pair_, &attributes,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
              0);
  }
  ~End() {
    if (pair_) ibv_destroy_qp(pair_);
    ibv_dereg_mr(region_);
    ibv_destroy_cq(queue_);
    ibv_destroy_comp_channel(channel_);
    ibv_dealloc_pd(domain_);
    ibv_close_device(context_);
  }
  Name Here() const {
    ibv_gid_entry gid = {};
    EXPECT_EQ(_ibv_query_gid_table(context_, &gid, 1, 0, sizeof(gid)), 1);
    return {pair_->qp_num, region_->rkey, reinterpret_cast<uintptr_t>(bytes.data()), gid.gid};
  }
  void Join(const Name& there, uint32_t expected = 7) {
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.dest_qp_num = there.pair;
    attributes.rq_psn = expected;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.grh.dgid = there.gid;
    const int ready = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    ASSERT_EQ(ibv_modify_qp(pair_, &attributes, ready), 0);
    attributes.qp_state = IBV_QPS_RTS;
    attributes.sq_psn = 7;
    const int sends = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    ASSERT_EQ(ibv_modify_qp(pair_, &attributes, sends), 0);
  }
  // Posts a request on the first `count` bytes of this end's memory.
  int Post(ibv_wr_opcode opcode, const Name& there, uint32_t count, uint64_t offset = 0,
           unsigned flags = IBV_SEND_SIGNALED) {
    ibv_sge element = {reinterpret_cast<uintptr_t>(bytes.data()), count, region_->lkey};
    ibv_send_wr work = {};
    work.wr_id = 5;
    work.sg_list = &element;
    work.num_sge = count > 0 ? 1 : 0;
    work.opcode = opcode;
    work.send_flags = flags;
    work.imm_data = 99;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      work.wr.atomic = {there.address + offset, 3, 0, there.key};
    } else {
      work.wr.rdma = {there.address + offset, there.key};
    }
    ibv_send_wr* refused = nullptr;
    return ibv_post_send(pair_, &work, &refused);
  }
  int PostReceive(uint32_t count = 0) {
    ibv_sge element = {reinterpret_cast<uintptr_t>(bytes.data()), count, region_->lkey};
    ibv_recv_wr work = {};
    work.wr_id = 6;
    work.sg_list = &element;
    work.num_sge = count > 0 ? 1 : 0;
    ibv_recv_wr* refused = nullptr;
    return ibv_post_recv(pair_, &work, &refused);
  }
  // Waits for the next completion.
  ibv_wc Await() {
    ibv_wc completion = {};
    while (ibv_poll_cq(queue_, 1, &completion) == 0) std::this_thread::yield();
    return completion;
  }
  ibv_wc_status Do(ibv_wr_opcode opcode, const Name& there, uint32_t count, uint64_t offset = 0) {
    EXPECT_EQ(Post(opcode, there, count, offset), 0);
    return Await().status;
  }
  ibv_comp_channel* channel() { return channel_; }
  ibv_cq* queue() { return queue_; }
  ibv_context* context() { return context_; }
  void DestroyPair() {
    ibv_destroy_qp(pair_);
    pair_ = nullptr;
  }

  alignas(8) std::array<unsigned char, 1 << 20> bytes = {};

 private:
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* queue_ = nullptr;
  ibv_mr* region_ = nullptr;
  ibv_qp* pair_ = nullptr;
};

class FakeVerbsTest : public ::testing::Test {
 protected:
  ~FakeVerbsTest() override {
    near_.reset();
    far_.reset();
    Reset();
    EXPECT_EQ(ObjectsAlive(), 0);
  }
  void Join(int far_access = kAllAccess) {
    far_ = std::make_unique<End>(far_access);
    near_->Join(far_->Here());
    far_->Join(near_->Here());
  }
  std::unique_ptr<End> near_ = std::make_unique<End>();
  std::unique_ptr<End> far_;
};

TEST_F(FakeVerbsTest, WritesReadsAndAdds) {
  Join();
  near_->bytes[0] = 42;
  near_->bytes.back() = 43;
  const Name there = far_->Here();
  EXPECT_EQ(near_->Do(IBV_WR_RDMA_WRITE, there, 1 << 20), IBV_WC_SUCCESS);
  EXPECT_EQ(far_->bytes[0], 42);
  EXPECT_EQ(far_->bytes.back(), 43);
  far_->bytes[500'000] = 44;
  EXPECT_EQ(near_->Do(IBV_WR_RDMA_READ, there, 1 << 20), IBV_WC_SUCCESS);
  EXPECT_EQ(near_->bytes[500'000], 44);
  EXPECT_EQ(near_->Do(IBV_WR_ATOMIC_FETCH_AND_ADD, there, 8), IBV_WC_SUCCESS);
  EXPECT_EQ(near_->bytes[0], 42) << "the value from before";
  EXPECT_EQ(near_->Do(IBV_WR_RDMA_READ, there, 8), IBV_WC_SUCCESS);
  EXPECT_EQ(near_->bytes[0], 45);
  EXPECT_EQ(far_->bytes[0], 45);
}

// What a processor adds while the NIC has read the word and not written it is lost, unless the
// device says that its operations are atomic with the processor's.
TEST_F(FakeVerbsTest, AdditionsOfProcessorsAreAtomicWithItsOwnOnDemandOnly) {
  for (const bool global : {false, true}) {
    near_.reset();
    far_.reset();
    DeviceSpec device;
    device.global_atomics = global;
    SetDevices({device});
    near_ = std::make_unique<End>();
    Join();
    const Name there = far_->Here();
    const std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(far_->bytes.data()));
    uint64_t sum = 0;
    const tutti::Deadline end = tutti::Deadline::AfterSeconds(global ? 1 : 60);
    while (!end.Passed() && word.load() == sum) {
      ASSERT_EQ(near_->Post(IBV_WR_ATOMIC_FETCH_AND_ADD, there, 8), 0);
      ibv_wc completion = {};
      for (sum += 3; ibv_poll_cq(near_->queue(), 1, &completion) == 0; ++sum) word.fetch_add(1);
      EXPECT_EQ(completion.status, IBV_WC_SUCCESS);
      EXPECT_EQ(near_->Do(IBV_WR_RDMA_READ, there, 8, 64), IBV_WC_SUCCESS);
    }
    EXPECT_EQ(word.load() == sum, global);
  }
  near_.reset();
  far_.reset();
  SetDevices({{}});
}

TEST_F(FakeVerbsTest, AnImmediateValueTakesAReceive) {
  Join();
  ASSERT_EQ(far_->PostReceive(), 0);
  EXPECT_EQ(near_->Do(IBV_WR_RDMA_WRITE_WITH_IMM, far_->Here(), 300'000), IBV_WC_SUCCESS);
  const ibv_wc came = far_->Await();
  EXPECT_EQ(came.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(came.wr_id, 6u);
  EXPECT_EQ(came.byte_len, 300'000u);
  EXPECT_EQ(came.imm_data, 99u);
  EXPECT_EQ(near_->Do(IBV_WR_RDMA_WRITE_WITH_IMM, far_->Here(), 8), IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST_F(FakeVerbsTest, SendsGoIntoReceives) {
  Join();
  near_->bytes[99] = 7;
  ASSERT_EQ(far_->PostReceive(100), 0);
  EXPECT_EQ(near_->Do(IBV_WR_SEND, far_->Here(), 100), IBV_WC_SUCCESS);
  EXPECT_EQ(far_->Await().byte_len, 100u);
  EXPECT_EQ(far_->bytes[99], 7);
  ASSERT_EQ(far_->PostReceive(99), 0);
  EXPECT_EQ(near_->Do(IBV_WR_SEND, far_->Here(), 100), IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(far_->Await().status, IBV_WC_LOC_LEN_ERR);
}

TEST_F(FakeVerbsTest, RefusesWhatWasNotGivenOut) {
  const auto expect_refused = [&](ibv_wr_opcode opcode, uint32_t count, uint64_t offset,
                                  uint32_t key_change, int access = kAllAccess) {
    near_ = std::make_unique<End>();
    Join(access);
    Name there = far_->Here();
    there.key += key_change;
    near_->bytes[0] = 1;
    EXPECT_EQ(near_->Do(opcode, there, count, offset), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(far_->bytes[0], 0);
    ibv_async_event event = {};
    ASSERT_EQ(ibv_get_async_event(far_->context(), &event), 0);
    EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
    ibv_ack_async_event(&event);
  };
  expect_refused(IBV_WR_RDMA_WRITE, 1 << 20, 1, 0);
  expect_refused(IBV_WR_RDMA_WRITE, 8, ~uint64_t{0} - 3, 0);
  expect_refused(IBV_WR_RDMA_WRITE, 8, 0, 1);
  expect_refused(IBV_WR_RDMA_READ, 8, 1 << 20, 0);
  expect_refused(IBV_WR_RDMA_READ, 8, 0, 0, IBV_ACCESS_LOCAL_WRITE);
  expect_refused(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, 0,
                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

// Another thread may be between the two calls for an event when a queue pair is destroyed.
TEST_F(FakeVerbsTest, AQueuePairIsThereUntilItsEventsAreAcknowledged) {
  Join(IBV_ACCESS_LOCAL_WRITE);
  EXPECT_EQ(near_->Do(IBV_WR_RDMA_WRITE, far_->Here(), 8), IBV_WC_REM_ACCESS_ERR);
  ibv_async_event event = {};
  ASSERT_EQ(ibv_get_async_event(far_->context(), &event), 0);
  std::atomic<pid_t> destroyer = 0;
  std::atomic<bool> destroyed = false;
  std::thread thread([&] {
    destroyer = tutti::testing::ThisThread();
    far_->DestroyPair();
    destroyed = true;
  });
  while (destroyer == 0) std::this_thread::yield();
  EXPECT_TRUE(tutti::testing::AwaitAsleep(destroyer));
  EXPECT_FALSE(destroyed);
  ibv_ack_async_event(&event);
  thread.join();
}

TEST_F(FakeVerbsTest, AFailureFlushesWhatIsBehindIt) {
  Join();
  ASSERT_EQ(near_->PostReceive(), 0);
  FailSend({.status = IBV_WC_REM_OP_ERR, .skip = 1});
  for (int i = 0; i < 3; ++i) ASSERT_EQ(near_->Post(IBV_WR_RDMA_WRITE, far_->Here(), 8), 0);
  EXPECT_EQ(near_->Await().status, IBV_WC_SUCCESS);
  EXPECT_EQ(near_->Await().status, IBV_WC_REM_OP_ERR);
  EXPECT_EQ(near_->Await().status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(near_->Await().status, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(FakeVerbsTest, ALostAnswerIsAFailureAfterTheBytes) {
  Join();
  near_->bytes[0] = 9;
  FailSend({.delivered = true});
  EXPECT_EQ(near_->Do(IBV_WR_RDMA_WRITE, far_->Here(), 8), IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(far_->bytes[0], 9);
}

TEST_F(FakeVerbsTest, NothingAnswersWhereNobodyListens) {
  Join();
  const Name there = far_->Here();
  far_->DestroyPair();
  EXPECT_EQ(near_->Do(IBV_WR_RDMA_WRITE, there, 8), IBV_WC_RETRY_EXC_ERR);
  near_ = std::make_unique<End>();
  far_ = std::make_unique<End>();
  near_->Join(far_->Here());
  far_->Join(near_->Here(), /*expected=*/8);
  EXPECT_EQ(near_->Do(IBV_WR_RDMA_WRITE, far_->Here(), 8), IBV_WC_RETRY_EXC_ERR);
}

TEST_F(FakeVerbsTest, AFullQueueTakesNoMoreUntilACompletionWasPolled) {
  Join();
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(near_->Post(IBV_WR_RDMA_WRITE, far_->Here(), 8, 0, i == 3 ? IBV_SEND_SIGNALED : 0),
              0);
  }
  EXPECT_EQ(near_->Post(IBV_WR_RDMA_WRITE, far_->Here(), 8), ENOMEM);
  EXPECT_EQ(near_->Await().status, IBV_WC_SUCCESS);
  EXPECT_EQ(near_->Post(IBV_WR_RDMA_WRITE, far_->Here(), 8), 0);
  near_->Await();
}

TEST_F(FakeVerbsTest, AnArmedQueueWakesASleeper) {
  Join();
  ASSERT_EQ(ibv_req_notify_cq(near_->queue(), 0), 0);
  ASSERT_EQ(near_->Post(IBV_WR_RDMA_WRITE, far_->Here(), 8), 0);
  pollfd wait = {near_->channel()->fd, POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, 60'000), 1);
  ibv_cq* queue = nullptr;
  void* user = nullptr;
  ASSERT_EQ(ibv_get_cq_event(near_->channel(), &queue, &user), 0);
  EXPECT_EQ(queue, near_->queue());
  ibv_ack_cq_events(queue, 1);
}

TEST_F(FakeVerbsTest, CallsAreRefusedAndRecorded) {
  Reset();
  RefuseCalls("alloc_pd", ENOMEM, 1, 1);
  ibv_pd* const first = ibv_alloc_pd(near_->context());
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(ibv_alloc_pd(near_->context()), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  ibv_dealloc_pd(first);
  ibv_dealloc_pd(ibv_alloc_pd(near_->context()));
  Join();
  bool registered = false;
  for (const Call& call : Calls()) {
    registered |= call.name == "reg_mr" && call.bytes == far_->bytes.size() &&
                  call.address == far_->Here().address && call.flags == kAllAccess;
  }
  EXPECT_TRUE(registered);
}

// Runs the other end in a process of its own, which begins when this one has no NIC yet, writes
// once and is killed.
TEST(FakeVerbsProcessesTest, ReachOneAnother) {
  int down[2];
  int up[2];
  ASSERT_EQ(pipe(down) + pipe(up), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto* const end = new End;
    Name there;
    const Name here = end->Here();
    bool ok = write(up[1], &here, sizeof(here)) == sizeof(here) &&
              read(down[0], &there, sizeof(there)) == sizeof(there);
    end->Join(there);
    ok = ok && write(up[1], &here, sizeof(here)) == sizeof(here) &&
         read(down[0], &there, sizeof(there)) == sizeof(there);
    end->bytes[300'000] = 77;
    ok = ok && end->Do(IBV_WR_RDMA_WRITE, there, 400'000) == IBV_WC_SUCCESS;
    ok = ok && write(up[1], &here, sizeof(here)) == sizeof(here);
    for (;;) pause();
  }
  auto end = std::make_unique<End>();
  Name there;
  const Name here = end->Here();
  ASSERT_EQ(read(up[0], &there, sizeof(there)), static_cast<ssize_t>(sizeof(there)));
  end->Join(there);
  ASSERT_EQ(write(down[1], &here, sizeof(here)), static_cast<ssize_t>(sizeof(here)));
  ASSERT_EQ(read(up[0], &there, sizeof(there)), static_cast<ssize_t>(sizeof(there)));
  ASSERT_EQ(write(down[1], &here, sizeof(here)), static_cast<ssize_t>(sizeof(here)));
  ASSERT_EQ(read(up[0], &there, sizeof(there)), static_cast<ssize_t>(sizeof(there)));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(end->Do(IBV_WR_RDMA_READ, there, 8), IBV_WC_RETRY_EXC_ERR);
  // Looked at after a completion, by which the thread sanitizer sees that it was written before.
  EXPECT_EQ(end->bytes[300'000], 77);
  for (const int fd : {down[0], down[1], up[0], up[1]}) close(fd);
}

}  // namespace
}  // namespace fakeverbs
