#include "ras/server.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "bootstrap/testing/idle_bootstrap.h"
#include "bootstrap/testing/thread_ranks.h"
#include "bootstrap/wire.h"
#include "observe/board.h"
#include "ras/report.h"
#include "sys/tcp.h"
#include "watch/watch.h"

namespace tutti::ras {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kMs = 1'000'000;
// The kinds of messages and letters on the wire (watch.h, server.cc).
constexpr uint8_t kLetter = 8;
constexpr std::byte kQuestion{1}, kAnswer{2};

// A letter of rank 1 to rank 0 on the wire (watch_letters.cc).
constexpr size_t kLetterHeaderBytes = 9;
Bytes OfRank1(const Bytes& letter) {
  WireWriter writer;
  writer.U8(kLetter);
  writer.U32(1);
  writer.U32(0);
  Bytes message = std::move(writer).Take();
  message.insert(message.end(), letter.begin(), letter.end());
  return message;
}

// The bootstrap of rank 0 of two ranks. Keeps what is sent to rank 1, and may answer for it.
class FarBootstrap final : public testing::IdleBootstrap {
 public:
  int rank() const override { return 0; }
  int num_ranks() const override { return 2; }
  void SetEvents(Events to) override { events = std::move(to); }
  std::vector<int> LinkedRanks() const override { return {1}; }
  void SendControl(int, std::span<const std::byte> message) override {
    const std::lock_guard lock(mutex);
    sent.emplace_back(message.begin() + kLetterHeaderBytes, message.end());
    if (answer) {
      Bytes letter = sent.back();
      letter[0] = kAnswer;
      letter.insert(letter.end(), answer->begin(), answer->end());
      events.control(1, OfRank1(letter));
    }
  }

  std::mutex mutex;
  std::vector<Bytes> sent;      // letters
  std::optional<Bytes> answer;  // the report of rank 1
  Events events;
};

// A server whose process has rank 0 of communicator 1. Rank 1 is on another host.
class RasServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "ras.XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    settings_.observe_dir = pattern;
    settings_.ras_addr = address_.ToString();
    watch_.Start();
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(settings_.observe_dir);
  }

  void StartServer() {
    record_ = observe::OwnedRecord();
    board_ = observe::Board::Create(settings_);
    observe::Identity identity;
    identity.id = 1;
    identity.num_ranks = 2;
    record_ = board_->Claim(identity);
    record_->state.Store({.phase = observe::Phase::kInOperation});
    auto names = std::make_unique<observe::RankNames>();
    names->Add(HostName(), getpid());
    names->Add("far", 77);
    record_->names.Store(*names);
    server_ = Server::Create(settings_, *board_, letters_);
    ASSERT_NE(server_, nullptr);
  }

  UniqueFd Connected() const {
    Result<UniqueFd> fd = Connect(address_, Limits());
    EXPECT_TRUE(fd.ok()) << fd.status().message();
    return fd.ok() ? std::move(fd).value() : UniqueFd();
  }
  static WaitLimits Limits() { return {.deadline = Deadline::AfterSeconds(30)}; }

  // Sends bytes and returns all that comes until the server ends the connection.
  std::string Talk(std::string_view bytes) const {
    const UniqueFd fd = Connected();
    if (!SendAll(fd.get(), AsBytes(bytes), Limits()).ok()) return "(not sent)";
    return ReadAll(fd.get());
  }
  static std::string ReadAll(int fd) {
    std::string all;
    std::array<std::byte, 65536> part;
    while (WaitReady(fd, POLLIN, Limits(), "the test").ok()) {
      const Result<int64_t> got = TryRecv(fd, part);
      if (!got.ok() || *got == kEndOfStream) return all;
      all += AsText(std::span(part).first(static_cast<size_t>(*got)));
    }
    return all + "(late)";
  }
  // Returns the report of the process of rank 1.
  static Report FarReport() {
    Report far;
    far.heard = {{"far", 77}};
    CommunicatorState& state = far.communicators[1];
    state.num_ranks = 2;
    state.ranks[1].process = {"far", 77};
    return far;
  }

  Settings settings_;
  const SocketAddress address_ =
      *ParseSocketAddress(fmt::format("127.0.0.1:{}", testing::FreePort()));
  FarBootstrap bootstrap_;
  WaitBoard letters_;
  Watch watch_{bootstrap_, {.rank_names = {"rank 0", "rank 1"}, .board = &letters_}};
  std::unique_ptr<observe::Board> board_;
  observe::OwnedRecord record_;
  std::unique_ptr<Server> server_;
};

TEST_F(RasServerTest, AnswersWithTheRanksOfAllHosts) {
  bootstrap_.answer = Encode(FarReport());
  StartServer();
  const std::string answer = Talk("CLIENT PROTOCOL 2\nSET FORMAT json\nSTATUS\n");
  EXPECT_THAT(answer, StartsWith("SERVER PROTOCOL 2\nOK\n{\n"));
  EXPECT_THAT(answer, HasSubstr(fmt::format("\"pid\": {},", getpid())));
  EXPECT_THAT(answer, HasSubstr("\"pid\": 77,"));
  EXPECT_THAT(answer, HasSubstr("\"ranks_count\": 2,"));
  EXPECT_THAT(answer, EndsWith("\"timeouts_count\": 0\n  }\n}\n"));
  EXPECT_THAT(Talk("verbose status\r\n"), HasSubstr("2         2   RUNNING      OK\n"));
}

TEST_F(RasServerTest, AnswersTheQuestionsOfOtherProcesses) {
  StartServer();
  const UniqueFd client = Connected();
  Bytes question = {kQuestion};
  question.resize(9, std::byte{9});
  bootstrap_.events.control(1, OfRank1(question));
  // These three are cut, and are dropped.
  bootstrap_.events.control(1, {});
  bootstrap_.events.control(1, Bytes{std::byte{kLetter}, std::byte{1}});
  bootstrap_.events.control(1, OfRank1(Bytes{kAnswer}));
  Talk("STATUS\n");  // The thread has come by.
  const std::lock_guard lock(bootstrap_.mutex);
  ASSERT_GE(bootstrap_.sent.size(), 1u);
  const Bytes& answer = bootstrap_.sent[0];
  ASSERT_GE(answer.size(), 9u);
  EXPECT_EQ(answer[0], kAnswer);
  EXPECT_EQ(answer[8], std::byte{9});
  const std::optional<Report> report = Decode(std::span(answer).subspan(9));
  ASSERT_TRUE(report);
  EXPECT_EQ(report->communicators.at(1).ranks.at(0).process.pid, getpid());
}

TEST_F(RasServerTest, ASilentHostIsWaitedForOnce) {
  StartServer();
  const int64_t begin_ns = NowNs();
  EXPECT_THAT(Talk("STATUS\n"),
              HasSubstr("Missing communicator data from 1 rank\n  Rank 1 -- GPU"));
  const int64_t first_ns = NowNs() - begin_ns;
  EXPECT_GE(first_ns, 500 * kMs);
  EXPECT_THAT(Talk("STATUS\n"), HasSubstr("Encountered 1 communication timeout while"));
  EXPECT_LT(NowNs() - begin_ns - first_ns, first_ns);
}

TEST_F(RasServerTest, TheClientsTimeoutEndsTheWait) {
  settings_.ras_timeout_factor = 20;
  StartServer();
  EXPECT_THAT(Talk("TIMEOUT 1\nSTATUS\n"), HasSubstr("Encountered 1 communication timeout"));
}

TEST_F(RasServerTest, TheFactorMakesItWaitLonger) {
  settings_.ras_timeout_factor = 3;
  StartServer();
  const int64_t begin_ns = NowNs();
  EXPECT_THAT(Talk("STATUS\n"), HasSubstr("Encountered 1 communication timeout"));
  EXPECT_GE(NowNs() - begin_ns, 1500 * kMs);
}

TEST_F(RasServerTest, StrangersHinderNobody) {
  bootstrap_.answer = Encode(FarReport());
  StartServer();
  std::vector<UniqueFd> quiet;
  for (int i = 0; i < 60; ++i) quiet.push_back(Connected());
  EXPECT_EQ(Talk(std::string(5000, 'x')), "");  // No line is this long.
  EXPECT_THAT(Talk("GET / HTTP/1.1\r\n\r\nSTATUS\n"),
              StartsWith("ERROR: Unknown command GET / HTTP/1.1\nERROR: Unknown command \nNCCL"));
  // A client that only writes is let go, and its writing then fails.
  const UniqueFd writer = Connected();
  const std::string lines(10000, '\n');
  Status wrote;
  for (int i = 0; i < 10000 && wrote.ok(); ++i)
    wrote = SendAll(writer.get(), AsBytes(lines), Limits());
  EXPECT_FALSE(wrote.ok());
  EXPECT_THAT(Talk("STATUS\n"), HasSubstr("RUNNING      OK\n"));
}

TEST_F(RasServerTest, APortInUseDisturbsNobody) {
  SocketAddress same = address_;
  Result<UniqueFd> other = Listen(same);
  ASSERT_TRUE(other.ok());
  StartServer();
  bootstrap_.events.control(1, Bytes(10, std::byte{0}));
  server_.reset();
  other->Reset();
  settings_.ras_addr = "no such address";
  StartServer();
}

TEST_F(RasServerTest, TwoProcessesMayListen) {
  bootstrap_.answer = Encode(FarReport());
  StartServer();
  FarBootstrap bootstrap;
  bootstrap.answer = bootstrap_.answer;
  WaitBoard letters;
  Watch watch(bootstrap, {.rank_names = {"rank 0", "rank 1"}, .board = &letters});
  watch.Start();
  const std::unique_ptr<Server> second = Server::Create(settings_, *board_, letters);
  server_.reset();
  EXPECT_THAT(Talk("STATUS\n"), HasSubstr("RUNNING      OK\n"));
}

TEST_F(RasServerTest, ThereIsNoneWhereTheSettingSaysSo) {
  settings_.ras_enable = false;
  board_ = observe::Board::Create(settings_);
  EXPECT_EQ(Server::Create(settings_, *board_, letters_), nullptr);
  EXPECT_FALSE(Connect(address_, Limits()).ok());
}

TEST_F(RasServerTest, AMonitorHearsOfDeadRanks) {
  StartServer();
  const UniqueFd fd = Connected();
  ASSERT_TRUE(SendAll(fd.get(), AsBytes("MONITOR\n"), Limits()).ok());
  std::array<std::byte, 3> ok;
  ASSERT_TRUE(RecvAll(fd.get(), ok, Limits()).ok());
  EXPECT_EQ(AsText(ok), "OK\n");
  Talk("TIMEOUT 1\nSTATUS\n");  // The first look is over.
  const std::vector<LostRank> lost = {{1, "the test says so"}};
  bootstrap_.events.ranks_lost(lost);
  std::array<std::byte, 200> event;
  ASSERT_TRUE(WaitReady(fd.get(), POLLIN, Limits(), "the test").ok());
  const Result<int64_t> got = TryRecv(fd.get(), event);
  ASSERT_TRUE(got.ok());
  EXPECT_THAT(AsText(std::span(event).first(static_cast<size_t>(*got))),
              HasSubstr("] PEER_DEAD: Process 77 on node far managing GPU none\n"));
}

}  // namespace
}  // namespace tutti::ras
