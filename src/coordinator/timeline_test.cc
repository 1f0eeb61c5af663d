#include "coordinator/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "coordinator/coordinator.h"
#include "coordinator/testing/job.h"

namespace tutti::coordinator {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::SizeIs;
using namespace std::chrono_literals;

std::string NewPath(const std::string& name) {
  return fmt::format("{}timeline_{}_{}.json", ::testing::TempDir(), name, getpid());
}

json Read(const std::string& path) {
  std::ifstream stream(path);
  return json::parse(stream);  // throws for a file without valid JSON
}

// One agreement about one tensor.
struct Span {
  double begin_us = 0;
  double end_us = 0;
};

struct File {
  std::map<std::pair<std::string, int64_t>, Span> negotiated;  // The key is tensor and round.
  std::optional<double> to_rank0_us;                           // the last
  double error_us = 0;
  std::string host;

  explicit File(const std::string& path) {
    std::map<int, std::string> names;
    std::map<int, std::vector<std::pair<std::string, double>>> open;
    for (const json& event : Read(path)) {
      const int row = event["tid"];
      if (event["name"] == "thread_name") names[row] = event["args"]["name"];
      if (event["name"] == "clock") {
        host = event["args"]["host"];
        if (!event["args"].contains("to_rank0_us")) continue;
        to_rank0_us = event["args"]["to_rank0_us"].get<double>();
        error_us = event["args"]["error_us"];
      }
      if (event["ph"] == "B") open[row].emplace_back(event["name"], event["ts"]);
      if (event["ph"] != "E") continue;
      if (open[row].empty()) {
        ADD_FAILURE() << path << ": nothing is open in " << event;
        continue;
      }
      const auto [name, begin_us] = open[row].back();
      open[row].pop_back();
      if (name.rfind("NEGOTIATE_", 0) != 0 || !event.contains("args")) continue;
      negotiated[{names[row], event["args"]["round"]}] = {begin_us, event["ts"]};
    }
  }
};

std::unique_ptr<Tensor> PendingOf(const std::string& name) {
  auto pending = std::make_unique<Tensor>();
  pending->name = name;
  return pending;
}

Response ResponseTo(const std::string& name, bool cached) {
  Response response;
  Agreement agreement;
  agreement.name = name;
  response.agreed = std::make_shared<Agreement>(agreement);
  response.pending = PendingOf(name);
  response.cached = cached;
  return response;
}

std::string TextOf(const std::string& path) {
  std::ifstream stream(path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// An event is in the file, or a flush was asked for; once for all waiting events.
TEST(TimelineTest, NoEventWaitsForTheNext) {
  const std::string path = NewPath("soon");
  int asked = 0;
  Timeline timeline(0, WallClock::OfSystem(), [&] { ++asked; });
  ASSERT_TRUE(timeline.Open(path, true).ok());
  for (int i = 0; i < 20; ++i) {
    const int before = asked;
    const std::string name = fmt::format("tensor {}", i);
    timeline.Asked(0, name, OpKind::kAllreduce);
    const bool written = TextOf(path).find(name) != std::string::npos;
    EXPECT_TRUE(written || asked == before + 1) << i;
    timeline.End(0, name);
    EXPECT_LE(asked, before + 1);
    timeline.Flush();
    EXPECT_NE(TextOf(path).find(name), std::string::npos);
  }
  EXPECT_GT(asked, 0);
  timeline.Close();
}

TEST(TimelineTest, AnIdleRanksEventsReachTheFileByThemselves) {
  const std::string path = NewPath("idle");
  RunJob(1, [&](TestRank& self) {
    ASSERT_EQ(tuttiCoordinatorStartTimeline(self.get(), path.c_str(), 1), ncclSuccess);
    std::vector<float> value = {1};
    self.Sum("only", value);
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    std::string text;
    // The end of the operation comes last, after the last activity.
    while (text.find("\"ph\":\"E\"", text.find("QUEUE")) == std::string::npos) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << text;
      std::this_thread::sleep_for(1ms);
      text = TextOf(path);
    }
    EXPECT_THAT(text, ::testing::HasSubstr("CYCLE_START"));
  });
}

// A step from the cache shows the wait for other ranks like a negotiated step.
TEST(TimelineTest, WaitsAreShownWithAndWithoutTheCache) {
  const std::string path = NewPath("cached");
  int64_t now_ns = 5'000'000'000'000'000;
  Timeline timeline(3, {[&] { return now_ns; }, "here"});
  ASSERT_TRUE(timeline.Open(path, false).ok());
  for (int64_t round = 0; round < 2; ++round) {
    now_ns += 1'000'000;
    timeline.Asked(0, "w", OpKind::kAllreduce);
    timeline.Asked(0, "late", OpKind::kAllreduce);
    now_ns += 250'000 * (round + 1);
    RoundResult result;
    result.responses.push_back(ResponseTo("w", round == 1));
    timeline.Round(0, static_cast<uint64_t>(10 + round), result);
    now_ns += 10'000;
    timeline.End(0, "w");
    timeline.End(0, "late");  // failed before an agreement
  }
  timeline.Close();
  const File file(path);
  ASSERT_THAT(file.negotiated, SizeIs(2));
  for (int64_t round = 0; round < 2; ++round) {
    const Span span = file.negotiated.at({"w", 10 + round});
    EXPECT_NEAR(span.end_us - span.begin_us, 250.0 * static_cast<double>(round + 1), 1e-3);
  }
  EXPECT_EQ(file.host, "here");
  EXPECT_FALSE(file.to_rank0_us);
  unlink(path.c_str());
}

TEST(TimelineTest, TensorsOfSetsHaveRowsOfTheirOwn) {
  const std::string path = NewPath("sets");
  int64_t now_ns = 1'000'000'000;
  Timeline timeline(0, {[&] { return now_ns += 1000; }, "here"});
  ASSERT_TRUE(timeline.Open(path, false).ok());
  timeline.Asked(0, "w", OpKind::kAllreduce);
  timeline.Asked(2, "w", OpKind::kAllgather);
  RoundResult all;
  all.responses.push_back(ResponseTo("w", false));
  timeline.Round(2, 7, all);
  timeline.Round(0, 4, all);
  timeline.End(0, "w");
  timeline.End(2, "w");
  timeline.Close();
  const File file(path);
  EXPECT_THAT(file.negotiated, ElementsAre(Pair(Pair("w", 4), ::testing::_),
                                           Pair(Pair("w (process set 2)", 7), ::testing::_)));
  unlink(path.c_str());
}

// The array is valid wherever the pages of the file end, even for an event longer than a page.
TEST(TimelineTest, EveryWriteLeavesAnArray) {
  const std::string path = NewPath("pages");
  int64_t now_ns = 1'000'000'000;
  Timeline timeline(0, {[&] { return now_ns += 1000; }, "here"});
  ASSERT_TRUE(timeline.Open(path, false).ok());
  size_t expected = Read(path).size();
  for (size_t i = 0; i < 400; ++i) {
    const size_t length = i % 50 == 49 ? 5000 : i * 37 % 300;
    timeline.Asked(0, fmt::format("{}{}", i, std::string(length, 'x')), OpKind::kAllreduce);
    timeline.Flush();
    expected += 2;  // the name of the row, and the event
    ASSERT_THAT(Read(path), SizeIs(expected)) << i;
  }
  timeline.Close();
  EXPECT_THAT(Read(path), SizeIs(expected));
  unlink(path.c_str());
}

// A rank with a clock of its own.
class ClockedRank {
 public:
  ClockedRank(int rank, int num_ranks, const ncclUniqueId& id, WallClock clock) {
    Coordinator::Options options;
    options.rank = rank;
    options.num_ranks = num_ranks;
    options.id = *UniqueId::Decode(id.internal);
    options.settings = *ReadProcessSettings();
    options.clock = std::move(clock);
    auto made = Coordinator::Create(options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    coordinator_ = std::move(*made);
    set_ = *coordinator_->FindSet(0);
  }
  ~ClockedRank() { set_.reset(); }

  Coordinator& coordinator() { return *coordinator_; }
  // In place; until Wait `values` must stay where they are.
  void Ask(const std::string& name, std::vector<float>& values) {
    const int64_t shape[] = {static_cast<int64_t>(values.size())};
    tuttiTensor_t tensor = MakeTensor(name.c_str(), OpKind::kAllreduce);
    tensor.shape = shape;
    tensor.ndim = 1;
    tensor.input = tensor.output = values.data();
    tickets_.push_back(TicketHold::Make());
    TicketHold shared = tickets_.back().Share();
    EXPECT_TRUE(set_->Enqueue({&tensor, 1}, nullptr, {&shared, 1}).ok());
  }
  // Returns when all ranks have come.
  void Meet(std::vector<float>& values) {
    Ask("meeting", values);
    TicketHold ticket = std::move(tickets_.back());
    tickets_.pop_back();
    EXPECT_TRUE(set_->Wait(*ticket));
  }
  void Wait() {
    for (TicketHold& ticket : std::exchange(tickets_, {})) {
      EXPECT_TRUE(set_->Wait(*ticket));
      EXPECT_TRUE(ticket->status.ok()) << ticket->status.message();
    }
  }
  uint64_t cached() const { return set_->counters().cached; }

 private:
  std::unique_ptr<Coordinator> coordinator_;
  std::shared_ptr<ProcessSet> set_;
  std::vector<TicketHold> tickets_;
};

// Waits until the file tells the distance of the clock from rank 0's.
void AwaitDistance(const std::string& path) {
  const Deadline deadline = Deadline::AfterSeconds(20 * testing::TimeScale());
  const auto is_there = [&] {  // not parsed: the file grows meanwhile
    std::ifstream file(path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return text.find("\"to_rank0_us\"") != std::string::npos;
  };
  while (!is_there() && !deadline.Passed()) std::this_thread::sleep_for(5ms);
}

std::string PathOf(const std::string& path, int rank) {
  return rank == 0 ? path : fmt::format("{}.{}", path, rank);
}

constexpr int kSteps = 6;

// In each step the last rank asks for "w" 20 ms after all others have.
void RunSteps(ClockedRank& self, bool last) {
  std::vector<float> values(100, 1);
  std::vector<float> meeting(100, 1);
  for (int step = 0; step < kSteps; ++step) {
    if (!last) self.Ask("w", values);
    self.Meet(meeting);
    if (last) {
      std::this_thread::sleep_for(20ms);
      self.Ask("w", values);
    }
    self.Wait();
  }
}

// Rank r's clock is wrong by wrong_ns[r].
std::vector<File> RunWithClocks(const std::string& path, const std::vector<int64_t>& wrong_ns) {
  const int ranks = static_cast<int>(wrong_ns.size());
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  testing::RunRankThreads(ranks, [&](int rank) {
    WallClock clock = WallClock::OfSystem();
    const int64_t mine_ns = wrong_ns[static_cast<size_t>(rank)];
    clock.now_ns = [of_system = clock.now_ns, mine_ns] { return of_system() + mine_ns; };
    if (mine_ns != 0) clock.host = fmt::format("host of rank {}", rank);
    ClockedRank self(rank, ranks, id, clock);
    EXPECT_TRUE(self.coordinator().StartTimeline(path, false).ok());
    AwaitDistance(PathOf(path, rank));
    RunSteps(self, rank == ranks - 1);
    EXPECT_GE(self.cached(), kSteps - 1);
    self.coordinator().timeline().Close();
  });
  std::vector<File> files;
  for (int rank = 0; rank < ranks; ++rank) {
    files.emplace_back(PathOf(path, rank));
    EXPECT_THAT(files.back().negotiated, SizeIs(2 * kSteps)) << "rank " << rank;
    unlink(PathOf(path, rank).c_str());
  }
  return files;
}

// Returns by how much some rank ended its negotiation before another rank had asked for the tensor.
// A cause comes before its effect: with right clocks the breach is 0.
double WorstBreachUs(const std::vector<File>& files, const std::vector<double>& shift_us) {
  double worst_us = -INFINITY;
  for (const auto& [agreement, span] : files[0].negotiated) {
    double last_begin_us = -INFINITY;
    double first_end_us = INFINITY;
    for (size_t rank = 0; rank < files.size(); ++rank) {
      const Span& mine = files[rank].negotiated.at(agreement);
      last_begin_us = std::max(last_begin_us, mine.begin_us + shift_us[rank]);
      first_end_us = std::min(first_end_us, mine.end_us + shift_us[rank]);
    }
    worst_us = std::max(worst_us, last_begin_us - first_end_us);
  }
  return worst_us;
}

TEST(TimelineClocksTest, ClocksThatAreOffBySecondsAreBroughtTogether) {
  const std::vector<int64_t> wrong_ns = {0, 3'250'000'000, -7'125'000'000};
  const std::vector<File> files = RunWithClocks(NewPath("shifted"), wrong_ns);
  std::vector<double> shift_us;
  double error_us = 0.5;  // doubles of this size are a quarter of a microsecond apart
  for (size_t rank = 0; rank < files.size(); ++rank) {
    ASSERT_TRUE(files[rank].to_rank0_us) << "rank " << rank;
    EXPECT_NEAR(*files[rank].to_rank0_us, -static_cast<double>(wrong_ns[rank]) / 1e3,
                files[rank].error_us)
        << "rank " << rank;
    shift_us.push_back(*files[rank].to_rank0_us);
    error_us += files[rank].error_us;
  }
  EXPECT_GT(WorstBreachUs(files, {0, 0, 0}), 1e6) << "nothing had to be brought together";
  EXPECT_LT(WorstBreachUs(files, shift_us), error_us);
  // The files show the late rank, even in steps from the cache: the others waited 20 ms for the
  // rank.
  int steps = 0;
  for (const auto& [agreement, last] : files[2].negotiated) {
    if (agreement.first != "w") continue;
    ++steps;
    for (size_t rank = 0; rank < 2; ++rank) {
      const Span& mine = files[rank].negotiated.at(agreement);
      EXPECT_GT(last.begin_us + shift_us[2] - mine.begin_us - shift_us[rank], 20'000 - error_us);
      EXPECT_GT(mine.end_us - mine.begin_us, 20'000);
    }
  }
  EXPECT_EQ(steps, kSteps);
}

TEST(TimelineClocksTest, OneMachineHasOneClock) {
  const std::vector<File> files = RunWithClocks(NewPath("one"), {0, 0, 0});
  for (const File& file : files) {
    ASSERT_TRUE(file.to_rank0_us);
    EXPECT_LE(std::abs(*file.to_rank0_us), file.error_us);
    EXPECT_EQ(file.host, files[0].host);
  }
  EXPECT_LT(WorstBreachUs(files, {0, 0, 0}), 0.5);
}

TEST(TimelineClocksTest, OneRankMayStartALone) {
  const std::string path = NewPath("alone");
  RunJob(3, [&](TestRank& self) {
    std::vector<float> values(4, 1);
    self.Sum("before", values);
    if (self.rank() == 2) {
      ASSERT_EQ(tuttiCoordinatorStartTimeline(self.get(), path.c_str(), 0), ncclSuccess);
      AwaitDistance(path + ".2");
    }
    self.Sum("seen", values);
  });
  EXPECT_TRUE(File(path + ".2").to_rank0_us);
  EXPECT_EQ(File(path + ".2").negotiated.size(), 1u);
  EXPECT_NE(access(path.c_str(), F_OK), 0);
  unlink((path + ".2").c_str());
}

// A timeline waits for nobody: neither for a stopped rank 0 nor for a dead rank 0.
TEST(TimelineClocksTest, ARankZeroThatDoesNotAnswerHoldsNobody) {
  const std::string path = NewPath("silent");
  testing::RankProcesses job(2, [&](int rank, testing::Board& board) {
    TestRank self(rank, 2, ShareId(board, rank, 2));
    std::vector<float> values(4, 1);
    self.Sum("before", values);
    board.Set(rank, 1);
    while (rank == 0) pause();
    ASSERT_TRUE(board.Await(2, 1));  // rank 0 is stopped
    ASSERT_EQ(tuttiCoordinatorStartTimeline(self.get(), path.c_str(), 0), ncclSuccess);
    board.Set(3, 1);
    ASSERT_TRUE(board.Await(4, 1));  // rank 0 is dead
    self.TryEnqueue(TestRank::Describe("x", tuttiOpBarrier, tuttiUint8, {}, nullptr, nullptr));
    EXPECT_EQ(tuttiCoordinatorStopTimeline(self.get()), ncclSuccess);
  });
  ASSERT_TRUE(job.board().Await(0, 1));
  ASSERT_TRUE(job.board().Await(1, 1));
  job.Signal(0, SIGSTOP);
  job.board().Set(2, 1);
  ASSERT_TRUE(job.board().Await(3, 1));
  EXPECT_FALSE(File(path + ".1").to_rank0_us);
  job.Signal(0, SIGKILL);
  job.board().Set(4, 1);
  job.Wait(30);
  EXPECT_FALSE(File(path + ".1").to_rank0_us);
  unlink((path + ".1").c_str());
}

}  // namespace
}  // namespace tutti::coordinator
