// Runs every row of the algorithms of hosts (plan/algorithms.def) on threads, over connections that
// are plain memory. The results must be right, and each connection must carry just the predicted
// number of chunks. A proxy that waits for a chunk too many never ends, and a proxy that expects
// too few chunks leaves data behind.

#include "operations/executor.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "operations/testing/local_bootstrap.h"
#include "plan/crossings.h"
#include "sys/event_loop.h"
#include "testing/ranks.h"

namespace tutti {
namespace {

using testing::LocalBootstrap;
using testing::LocalJob;

constexpr size_t kSlotBytes = 512;
constexpr size_t kStageBytes = 1024;

size_t At(int rank) { return static_cast<size_t>(rank); }
std::vector<int> RanksTo(int n) {
  std::vector<int> ranks(At(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

struct Freed {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Freed>;
Memory Zeroed(size_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
  std::memset(memory.get(), 0, bytes);
  return memory;
}

// A network from one rank to another: both ends use the same FIFO. The chunks that each end was
// told of are counted.
struct Wire {
  Memory memory = Zeroed(FifoView::BytesFor(kSlotBytes));
  uint64_t told_sender = 0, told_receiver = 0;
  FifoView view() const { return {memory.get(), kSlotBytes}; }
};

class WireEnd final : public ProxyConnection {
 public:
  WireEnd(FifoView view, uint64_t& told) : view_(view), told_(told) {}
  FifoView fifo() const override { return view_; }
  void Begin(uint64_t chunks, uint32_t) override { told_ += chunks; }
  bool Poll() override { return false; }
  SleepAdvice PrepareToSleep(std::vector<pollfd>&) override { return SleepAdvice::kHandOver; }
  void HandOver() override {}
  uint64_t ChunksDone() const override { return told_; }
  Status Flush(int64_t, const std::atomic<bool>*) override { return Status::Ok(); }
  void Close(Status) override {}
  Status status() const override { return Status::Ok(); }
  std::string Describe() const override { return {}; }

 private:
  const FifoView view_;
  uint64_t& told_;
};

// The ranks of a test. leader[r] is the first rank of rank r's host.
class Ranks {
 public:
  explicit Ranks(std::vector<int> leader_of) : leader(std::move(leader_of)), job(size()) {
    const size_t n = leader.size();
    wires.resize(n * n);
    for (size_t r = 0; r < n; ++r) stages.push_back(Zeroed(StageView::BytesFor(kStageBytes)));
  }
  int size() const { return static_cast<int>(leader.size()); }
  Wire& WireOf(int from, int to) { return wires[At(from) * leader.size() + At(to)]; }
  bool one_host() const { return leader.back() == 0; }
  PlanContext Context() const {
    PlanContext context;
    context.num_ranks = size();
    context.hosts = HostLayoutOf(leader);
    context.host.one_host = one_host();
    context.host.slot_bytes = kSlotBytes;
    context.host.stage_bytes = one_host() ? kStageBytes : 0;
    return context;
  }

  const std::vector<int> leader;
  LocalJob job;
  std::vector<Wire> wires;
  std::vector<Memory> stages;
};

class Connector final : public NetConnector {
 public:
  Connector(Ranks& ranks, int rank) : ranks_(ranks), rank_(rank) {}
  Status Invite(const NetEnd&) override { return Status::Ok(); }
  Result<std::unique_ptr<ProxyConnection>> ConnectTo(const NetEnd& end, Deadline) override {
    Wire& wire = ranks_.WireOf(rank_, end.peer);
    return std::unique_ptr<ProxyConnection>(new WireEnd(wire.view(), wire.told_sender));
  }
  Result<std::unique_ptr<ProxyConnection>> AcceptFrom(const NetEnd& end) override {
    Wire& wire = ranks_.WireOf(end.peer, rank_);
    return std::unique_ptr<ProxyConnection>(new WireEnd(wire.view(), wire.told_receiver));
  }

 private:
  Ranks& ranks_;
  const int rank_;
};

// What one row is asked for.
struct Case {
  const AlgorithmRow* row;
  Collective collective;
  Protocol protocol;
  size_t count;
  std::string Text() const {
    std::ostringstream text;
    text << Name(row->algorithm) << " " << Name(protocol) << " " << Name(collective) << " of "
         << count << " in " << row->file;
    return text.str();
  }
};

// Returns all cases that a plan serves by the row of the case.
std::vector<Case> CasesOf(const PlanContext& context) {
  std::vector<Case> cases;
  for (const AlgorithmRow& row : RowsOf(RankKind::kHost))
    for (int c = 0; c < kNumCollectives; ++c)
      for (const Protocol protocol : {Protocol::kLL, Protocol::kSimple})
        for (const size_t count : {1, 10, 611}) {
          const auto collective = static_cast<Collective>(c);
          const bool once = collective == Collective::kBarrier;
          if (!row.Serves(collective) || !row.Has(protocol) || (once && count > 1)) continue;
          PlanContext allowed = context;
          allowed.allowed_algorithms[At(c)] = Bit(row.algorithm);
          allowed.allowed_protocols[At(c)] = Bit(protocol);
          const bool pulls = row.where == Where::kBuffers;
          const Plan plan =
              MakePlan(allowed, {.collective = collective,
                                 .count = once ? 0 : count,
                                 .type = DataType::kInt32,
                                 .buffers = pulls ? Buffers::kMapped : Buffers::kOwn});
          if (plan.row == &row && plan.protocol == protocol)
            cases.push_back({&row, collective, protocol, count});
        }
  return cases;
}

// The elements of all calls. Sums of all ranks do not overflow.
int32_t Element(int rank, size_t index) {
  return static_cast<int32_t>((At(rank) + 1) * 1000003 + index * 17) % 100000;
}
int32_t Sum(int num_ranks, size_t index) {
  int32_t sum = 0;
  for (int r = 0; r < num_ranks; ++r) sum += Element(r, index);
  return sum;
}

// A call of one rank and its expected output. Elements of -1 must stay as they are.
struct Call {
  CollectiveTask task;
  std::vector<int32_t> send, recv, expected;
};

void MakeParts(int n, size_t count, VariableParts& parts) {
  size_t at = 0;
  for (int r = 0; r < n; ++r) {
    parts.recvs.counts.push_back(r == 0 && n > 2 ? 0 : (count + At(r)) / 2);
    parts.recvs.offsets.push_back(at);
    at += parts.recvs.counts.back();
  }
}

Call MakeCall(const Case& c, int rank, int n) {
  const int root = n - 1;
  const size_t count = c.count, all = count * At(n);
  Call call;
  call.task = {.collective = c.collective, .count = count, .type = DataType::kInt32, .root = root};
  const auto resize = [&](size_t send, size_t recv) {
    for (size_t i = 0; i < send; ++i) call.send.push_back(Element(rank, i));
    call.recv.assign(recv, -1);
    call.expected = call.recv;
  };
  const auto expect = [&](size_t at, size_t length, const auto& value) {
    for (size_t i = 0; i < length; ++i) call.expected[at + i] = value(i);
  };
  auto parts = std::make_shared<VariableParts>();
  switch (c.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
      resize(count, count);
      if (c.collective == Collective::kAllReduce || rank == root)
        expect(0, count, [&](size_t i) { return Sum(n, i); });
      break;
    case Collective::kBroadcast:
      resize(count, count);
      expect(0, count, [&](size_t i) { return Element(root, i); });
      break;
    case Collective::kAllGather:
    case Collective::kGather:
      resize(count, all);
      for (int r = 0; r < n && (c.collective == Collective::kAllGather || rank == root); ++r)
        expect(At(r) * count, count, [&](size_t i) { return Element(r, i); });
      break;
    case Collective::kReduceScatter:
      resize(all, count);
      expect(0, count, [&](size_t i) { return Sum(n, At(rank) * count + i); });
      break;
    case Collective::kAlltoAll:
      resize(all, all);
      for (int r = 0; r < n; ++r)
        expect(At(r) * count, count, [&](size_t i) { return Element(r, At(rank) * count + i); });
      break;
    case Collective::kScatter:
      resize(all, count);
      expect(0, count, [&](size_t i) { return Element(root, At(rank) * count + i); });
      break;
    case Collective::kAllGatherV:
    case Collective::kReduceScatterV: {
      MakeParts(n, count, *parts);
      const size_t total = parts->recvs.offsets.back() + parts->recvs.counts.back();
      const size_t mine = parts->recvs.counts[At(rank)], at = parts->recvs.offsets[At(rank)];
      if (c.collective == Collective::kAllGatherV) {
        resize(mine, total);
        for (int r = 0; r < n; ++r)
          expect(parts->recvs.offsets[At(r)], parts->recvs.counts[At(r)],
                 [&](size_t i) { return Element(r, i); });
      } else {
        resize(total, mine);
        expect(0, mine, [&](size_t i) { return Sum(n, at + i); });
      }
      call.task.count = 0;
      call.task.parts = parts;
      break;
    }
    case Collective::kGatherV:
    case Collective::kScatterV: {
      // Only the root knows the parts of all ranks.
      const bool gathers = c.collective == Collective::kGatherV;
      VariableParts of_root;
      MakeParts(n, count, of_root);
      const RankParts& whole = of_root.recvs;
      const size_t mine = whole.counts[At(rank)], at = whole.offsets[At(rank)];
      const size_t held = rank == root ? whole.Total() : 0;
      RankParts& own = gathers ? parts->sends : parts->recvs;
      own = {std::vector<size_t>(At(n)), std::vector<size_t>(At(n))};
      (gathers ? parts->recvs : parts->sends) = rank == root ? whole : own;
      own.counts[At(root)] = mine;
      resize(gathers ? mine : held, gathers ? held : mine);
      for (int r = 0; r < n && gathers && rank == root; ++r)
        expect(whole.offsets[At(r)], whole.counts[At(r)], [&](size_t i) { return Element(r, i); });
      if (!gathers) expect(0, mine, [&](size_t i) { return Element(root, at + i); });
      call.task.count = 0;
      call.task.parts = parts;
      break;
    }
    case Collective::kAlltoAllV: {
      // Rank s sends rank r (s + r) mod 3 times the count.
      size_t sent = 0, received = 0;
      for (int r = 0; r < n; ++r) {
        const size_t length = At((rank + r) % 3) * count;
        parts->sends.counts.push_back(length);
        parts->recvs.counts.push_back(length);
        parts->sends.offsets.push_back(sent);
        parts->recvs.offsets.push_back(received);
        sent += length;
        received += length;
      }
      resize(sent, received);
      for (int r = 0; r < n; ++r) {
        size_t at = 0;  // Where rank r's data for this rank begin.
        for (int to = 0; to < rank; ++to) at += At((r + to) % 3) * count;
        expect(parts->recvs.offsets[At(r)], parts->recvs.counts[At(r)],
               [&](size_t i) { return Element(r, at + i); });
      }
      call.task.count = 0;
      call.task.parts = parts;
      break;
    }
    default:
      break;
  }
  call.task.send = call.send.data();
  call.task.recv = call.recv.data();
  return call;
}

// The chunks of a rank's connections, by peer.
struct Chunks {
  std::map<int, uint64_t> sent, received;
  friend bool operator==(const Chunks&, const Chunks&) = default;
};
void PrintTo(const Chunks& chunks, std::ostream* out) {
  for (const auto& [peer, n] : chunks.sent) *out << n << " to " << peer << ", ";
  for (const auto& [peer, n] : chunks.received) *out << n << " from " << peer << ", ";
}

// Reads the predicted chunks from a description of the plan.
Chunks Predicted(const std::string& text) {
  Chunks chunks;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    int peer = 0;
    const bool to = std::sscanf(line.c_str(), "  connection to rank %d:", &peer) == 1;
    if (!to && std::sscanf(line.c_str(), "  connection from rank %d:", &peer) != 1) continue;
    const uint64_t number = std::strtoull(line.c_str() + line.rfind(" in ") + 4, nullptr, 10);
    (to ? chunks.sent : chunks.received)[peer] += number;
  }
  return chunks;
}

// One rank, with connections and stages that outlive the plans.
class Rank {
 public:
  Rank(Ranks& ranks, int rank, HostMemory& memory, FdServer& fd_server)
      : ranks_(ranks),
        rank_(rank),
        bootstrap_(ranks.job, rank),
        watch_(bootstrap_, {.rank_names = std::vector<std::string>(ranks.leader.size(), "a rank")}),
        connections_(rank, std::vector<int>(ranks.leader.size(), -1), {},
                     std::make_unique<Connector>(ranks, rank), 0),
        stages_(StagesOf(ranks), RanksTo(ranks.size()), rank),
        pull_(memory, fd_server, false, std::vector<bool>(ranks.leader.size(), true),
              std::vector<int>(ranks.leader.size(), 0)),
        passed_(ranks.leader.size()) {}

  Executor MakeExecutor(const PlanContext& context, bool pulls) {
    std::vector<int> ring = RanksTo(ranks_.size());
    std::swap(ring[0], ring.back());
    return Executor({.rank = rank_,
                     .num_ranks = ranks_.size(),
                     .plan = context,
                     .ring = ring,
                     .leader = ranks_.leader,
                     .connections = &connections_,
                     .stages = ranks_.one_host() ? &stages_ : nullptr,
                     .pull = pulls ? &pull_ : nullptr,
                     .watch = &watch_,
                     .wait_policy = {.spin_ns = 0}});
  }

  // Returns the chunks that have passed since the last call, and checks that each end was told of
  // as many.
  Chunks TakePassed() {
    Chunks chunks;
    for (int peer = 0; peer < ranks_.size(); ++peer) {
      if (peer == rank_) continue;
      Wire& out = ranks_.WireOf(rank_, peer);
      Wire& in = ranks_.WireOf(peer, rank_);
      Passed& passed = passed_[At(peer)];
      if (out.told_sender > 0) {
        const uint64_t sent = connections_.SendTo(peer).fifo->published();
        EXPECT_EQ(sent, out.told_sender) << rank_ << " to " << peer;
        if (sent > passed.sent) chunks.sent[peer] = sent - std::exchange(passed.sent, sent);
      }
      const uint64_t received = in.view().control().head.load();
      EXPECT_EQ(received, in.told_receiver) << peer << " to " << rank_;
      if (received > passed.received)
        chunks.received[peer] = received - std::exchange(passed.received, received);
    }
    return chunks;
  }

 private:
  struct Passed {
    uint64_t sent = 0, received = 0;
  };
  static std::vector<StageView> StagesOf(const Ranks& ranks) {
    std::vector<StageView> stages;
    for (const Memory& memory : ranks.stages) stages.push_back({memory.get(), kStageBytes});
    return stages;
  }

  Ranks& ranks_;
  const int rank_;
  LocalBootstrap bootstrap_;
  Watch watch_;
  Connections connections_;
  StageGroup stages_;
  PullReach pull_;
  std::vector<Passed> passed_;
};

// Runs a case on one rank.
void RunCase(Rank& rank, const Ranks& ranks, int number, const Case& c) {
  PlanContext context = ranks.Context();
  context.allowed_algorithms[static_cast<size_t>(c.collective)] = Bit(c.row->algorithm);
  context.allowed_protocols[static_cast<size_t>(c.collective)] = Bit(c.protocol);
  Executor executor = rank.MakeExecutor(context, c.row->where == Where::kBuffers);
  if (c.collective == Collective::kSendRecv) {
    // Round the ring of rank numbers.
    const int n = ranks.size(), next = (number + 1) % n, before = (number + n - 1) % n;
    std::vector<int32_t> sent(c.count, number), received(c.count, -1);
    const auto bytes = [](std::vector<int32_t>& v) {
      return reinterpret_cast<std::byte*>(v.data());
    };
    const std::vector<MessageTask> messages = {
        {true, next, bytes(sent), c.count, DataType::kInt32},
        {false, before, bytes(received), c.count, DataType::kInt32}};
    ASSERT_EQ(executor.RunMessages(messages).message(), "");
    EXPECT_EQ(received, std::vector<int32_t>(c.count, before));
    const uint64_t chunks = MessageBatch::ChunksFor(c.count * sizeof(int32_t), kSlotBytes);
    EXPECT_EQ(rank.TakePassed(), (Chunks{{{next, chunks}}, {{before, chunks}}}));
    return;
  }
  Call call = MakeCall(c, number, ranks.size());
  ASSERT_EQ(executor.RunCollective(call.task).message(), "");
  EXPECT_EQ(call.recv, call.expected);
  const Chunks passed = rank.TakePassed();
  // The plan of a barrier without a stage adds up a byte, which Describe does not show.
  if (c.collective != Collective::kBarrier && c.row->where != Where::kBuffers) {
    EXPECT_EQ(passed, Predicted(executor.Describe(call.task)));
  }
  if (c.row->where != Where::kFifo) {
    EXPECT_EQ(passed, Chunks());
  }
}

class ExecutorTest : public ::testing::TestWithParam<std::vector<int>> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(loop_.ok());
    fd_server_ = FdServer::Create(**loop_);
    ASSERT_TRUE(fd_server_.ok());
  }
  Result<std::unique_ptr<EventLoop>> loop_ = EventLoop::Create("executor_test");
  Result<std::unique_ptr<FdServer>> fd_server_ = InternalError("not made");
  HostMemory memory_;
};

TEST_P(ExecutorTest, ConnectionsCarryWhatCountingPredicts) {
  Ranks ranks(GetParam());
  const std::vector<Case> cases = CasesOf(ranks.Context());
  ASSERT_FALSE(cases.empty());
  testing::RunRankThreads(ranks.size(), [&](int number) {
    Rank rank(ranks, number, memory_, **fd_server_);
    for (const Case& c : cases) {
      SCOPED_TRACE("rank " + std::to_string(number) + ": " + c.Text());
      RunCase(rank, ranks, number, c);
    }
    // No rank ends while another may read its stage.
    EXPECT_TRUE(LocalBootstrap(ranks.job, number).Barrier(Deadline::Never()).ok());
  });
}

const std::vector<std::vector<int>> kJobs = {
    {0, 0, 0}, {0, 0, 0, 0}, {0, 1}, {0, 1, 0}, {0, 0, 2, 2, 2}};
INSTANTIATE_TEST_SUITE_P(Jobs, ExecutorTest, ::testing::ValuesIn(kJobs));

// The test above has run each row by each of its protocols, on some job.
TEST(ExecutorRowsTest, JobsServeEveryRowByEveryProtocol) {
  std::set<std::pair<const AlgorithmRow*, Protocol>> served;
  for (const std::vector<int>& leader : kJobs)
    for (const Case& c : CasesOf(Ranks(leader).Context())) served.insert({c.row, c.protocol});
  for (const AlgorithmRow& row : RowsOf(RankKind::kHost))
    for (const Protocol protocol : {Protocol::kLL, Protocol::kSimple}) {
      EXPECT_EQ(served.count({&row, protocol}), row.Has(protocol) ? 1u : 0u)
          << Name(row.algorithm) << " " << Name(protocol) << " in " << row.file;
    }
}

}  // namespace
}  // namespace tutti
