#include "observe/board.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "base/clock.h"
#include "observe/jobs.h"
#include "observe/reader.h"

namespace tutti::observe {
namespace {

using ::testing::HasSubstr;

// A folder of the test's own.
class BoardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "boards.XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    settings_.observe_dir = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(settings_.observe_dir); }

  Reading Read() const { return ReadBoards({settings_.observe_dir}); }
  // Returns the communicators of the only board.
  std::vector<CommunicatorSnapshot> ReadAll() const {
    const Reading reading = Read();
    return reading.processes.size() == 1 ? reading.processes[0].board.communicators
                                         : std::vector<CommunicatorSnapshot>();
  }
  size_t NumFiles() const {
    return static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator(settings_.observe_dir), {}));
  }

  Settings settings_;
};

Identity IdentityOf(uint64_t id, int rank, int num_ranks) {
  Identity identity;
  identity.id = id;
  identity.rank = rank;
  identity.num_ranks = num_ranks;
  identity.name = ToShortText<64>("world");
  return identity;
}

OpSignature AllReduceOf(uint64_t sequence, uint64_t count) {
  OpSignature signature;
  signature.sequence = sequence;
  signature.count = count;
  signature.type = DataType::kFloat32;
  return signature;
}

TEST_F(BoardTest, ShowsACommunicatorToReadersUntilItsEnd) {
  const std::unique_ptr<Board> board = Board::Create(settings_);
  {
    const OwnedRecord record = board->Claim(IdentityOf(7, 1, 4));
    record->state.Store({.since_ns = 5, .phase = Phase::kInOperation});
    for (uint64_t i = 1; i <= 70; ++i) record->operations.collectives.Add(AllReduceOf(i, 10 * i));
    record->operations.under_way = OperationRecord::kCollective;
    record->operations.messages_begun = 3;
    record->step.Store({.since_ns = 6, .what = ToShortText<88>("in ncclCommSplit")});
    record->awaited.Store(
        {.since_ns = 8, .seen_ns = 9, .collective = 70, .num_ranks = 1, .ranks = {2}});
    record->slow.Store({.since_ns = 4,
                        .per_collective_ns = 5,
                        .cost_ppm = 250'000,
                        .num_ranks = 3,
                        .ranks = {3, 4, 1}});
    record->waited_ns = 11;
    auto names = std::make_unique<RankNames>();
    for (int rank = 0; rank < 4; ++rank) names->Add("node", 100 + rank);
    record->names.Store(*names);

    const std::vector<CommunicatorSnapshot> all = ReadAll();
    ASSERT_EQ(all.size(), 1u);
    const CommunicatorSnapshot& one = all[0];
    EXPECT_EQ(one.id, 7u);
    EXPECT_EQ(one.name, "world");
    EXPECT_EQ(one.rank, 1);
    EXPECT_EQ(one.num_ranks, 4);
    EXPECT_EQ(one.phase, Phase::kInOperation);
    EXPECT_EQ(one.begun, 70u);
    EXPECT_EQ(one.done(), 69u);
    EXPECT_EQ(one.messages_done(), 3u);
    ASSERT_EQ(one.recent.size(), 64u);
    EXPECT_EQ(one.recent[0], AllReduceOf(7, 70));
    EXPECT_EQ(one.recent[63], AllReduceOf(70, 700));
    EXPECT_EQ(one.step, "in ncclCommSplit");
    ASSERT_TRUE(one.wait);
    EXPECT_EQ(one.wait->ranks, std::vector<int>{2});
    ASSERT_TRUE(one.slow);
    EXPECT_EQ(one.slow->ranks, (std::vector<int>{3, 1}));  // There is no rank 4.
    EXPECT_EQ(one.slow->per_collective_ns, 5);
    EXPECT_EQ(one.slow->share, 0.25);
    EXPECT_EQ(one.waited_ns, 11);
    EXPECT_EQ(NameOf(2, one.names), "rank 2 (host node, pid 102)");
  }
  EXPECT_TRUE(ReadAll().empty());
  EXPECT_EQ(Read().processes[0].life, Life::kRunning);
}

TEST_F(BoardTest, APlaceIsUsedAgainWithoutAnythingOfItsFormerUser) {
  const std::unique_ptr<Board> board = Board::Create(settings_);
  {
    const OwnedRecord record = board->Claim(IdentityOf(7, 1, 4));
    record->operations.collectives.Add(AllReduceOf(1, 1));
    record->operations.messages_begun = 3;
    record->operations.begun[0] = 4;
    record->state.Store(
        {.since_ns = 5, .phase = Phase::kStopped, .reason = ToShortText<496>("why")});
    record->step.Store({.since_ns = 6, .what = ToShortText<88>("in ncclCommSplit")});
    record->awaited.Store({.since_ns = 8, .num_ranks = 1});
    record->slow.Store({.since_ns = 9, .num_ranks = 1});
    record->waited_ns = 10;
  }
  const OwnedRecord record = board->Claim(IdentityOf(8, 0, 2));
  const std::vector<CommunicatorSnapshot> all = ReadAll();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].id, 8u);
  EXPECT_EQ(all[0].begun, 0u);
  EXPECT_EQ(all[0].messages_begun, 0u);
  EXPECT_EQ(all[0].begun_of[0], 0u);
  EXPECT_EQ(all[0].phase, Phase::kBeingMade);
  EXPECT_EQ(all[0].step + all[0].reason, "");
  EXPECT_FALSE(all[0].wait);
  EXPECT_FALSE(all[0].slow);
  EXPECT_EQ(all[0].waited_ns, 0);
}

TEST_F(BoardTest, CountsTheCommunicatorsForWhichThereIsNoPlace) {
  const std::unique_ptr<Board> board = Board::Create(settings_);
  std::vector<OwnedRecord> records;
  for (size_t i = 0; i < Board::kMostPlaces + 3; ++i)
    records.push_back(board->Claim(IdentityOf(i + 1, 0, 1)));
  Reading reading = Read();
  EXPECT_EQ(reading.processes[0].board.communicators.size(), Board::kMostPlaces);
  EXPECT_EQ(reading.processes[0].board.num_hidden, 3u);
  records.clear();
  EXPECT_EQ(Read().processes[0].board.num_hidden, 0u);
}

TEST_F(BoardTest, TheFileHasBlocksOnlyForPlacesInUseAndIsRemoved) {
  std::unique_ptr<Board> board = Board::Create(settings_);
  const auto blocks = [&] {
    struct stat file = {};
    EXPECT_EQ(stat(board->path().c_str(), &file), 0);
    return static_cast<size_t>(file.st_blocks) * 512;
  };
  EXPECT_LE(blocks(), 2 * BoardHeader::kBytes);
  const OwnedRecord record = board->Claim(IdentityOf(1, 0, 1));
  EXPECT_GE(blocks(), sizeof(CommunicatorRecord));
  EXPECT_LE(blocks(), 2 * sizeof(CommunicatorRecord));
  board->RemoveFile();
  EXPECT_EQ(NumFiles(), 0u);
}

TEST_F(BoardTest, WorksWithoutAFileWhereNoneCanBeMade) {
  const std::string good = settings_.observe_dir;
  std::ofstream(good + "/file") << "text";
  std::filesystem::create_directory(good + "/open");
  std::filesystem::permissions(good + "/open", std::filesystem::perms::all);
  std::filesystem::create_directory(good + "/mine");
  std::filesystem::permissions(good + "/mine", std::filesystem::perms::owner_all);
  std::filesystem::create_directory_symlink(good + "/mine", good + "/link");
  for (const std::string folder : {"/file", "/open", "/link", "/no/such/folder", "/file/below"}) {
    settings_.observe_dir = good + folder;
    const std::unique_ptr<Board> board = Board::Create(settings_);
    EXPECT_EQ(board->path(), "") << folder;
    const OwnedRecord record = board->Claim(IdentityOf(1, 0, 1));
    record->operations.collectives.Add(AllReduceOf(1, 1));
    EXPECT_TRUE(Decode(*record.operator->())) << folder;
  }
  EXPECT_TRUE(std::filesystem::is_empty(good + "/mine"));
  settings_.observe_dir = good;
  settings_.observe = false;
  EXPECT_EQ(Board::Create(settings_)->path(), "");
}

TEST_F(BoardTest, WorksWithoutAFileUnderALimitOfFileSizes) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 100'000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_EQ(Board::Create(settings_)->path(), "");
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
}

TEST_F(BoardTest, RemovesTheBoardsOfEndedProcessesButTheNewestWithCommunicators) {
  // A board with a communicator, to be copied under the names of processes that have ended.
  const std::unique_ptr<Board> board = Board::Create(settings_);
  const OwnedRecord record = board->Claim(IdentityOf(1, 0, 1));
  ProcessKey key = ProcessKey::OfThisProcess();
  const std::string folder = settings_.observe_dir + "/";
  const auto now = std::filesystem::file_time_type::clock::now();
  for (uint64_t i = 1; i <= Board::kMostEnded + 5; ++i) {
    const ProcessKey ended = {key.pid, key.start_ticks + i, key.pid_space};
    std::filesystem::copy_file(board->path(), folder + ended.FileName());
    std::filesystem::last_write_time(folder + ended.FileName(), now + std::chrono::seconds(i));
  }
  EXPECT_EQ(LifeOf({key.pid, key.start_ticks + 1, key.pid_space}), Life::kEnded);
  EXPECT_EQ(LifeOf({key.pid, key.start_ticks, key.pid_space + 1}), Life::kUnknown);
  const std::unique_ptr<Board> other = Board::Create(settings_);
  EXPECT_EQ(NumFiles(), Board::kMostEnded + 1);
  EXPECT_FALSE(std::filesystem::exists(
      folder + ProcessKey{key.pid, key.start_ticks + 5, key.pid_space}.FileName()));
  EXPECT_TRUE(std::filesystem::exists(
      folder + ProcessKey{key.pid, key.start_ticks + 6, key.pid_space}.FileName()));
}

// ---------------------------------------------------------------------------------------------------------------------
// Bad boards

class BadBoardTest : public BoardTest {
 protected:
  static constexpr size_t kWhole =
      BoardHeader::kBytes + Board::kMostPlaces * sizeof(CommunicatorRecord);

  // Makes the bytes, with zeroes behind them, the board of this process, and returns the complaint.
  std::string TroubleOf(const std::string& bytes, size_t file_bytes = kWhole) {
    const std::string path = settings_.observe_dir + "/" + ProcessKey::OfThisProcess().FileName();
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    std::filesystem::resize_file(path, file_bytes);
    const Reading reading = Read();
    return reading.processes.empty() ? "" : reading.processes[0].trouble;
  }
  // Returns the header and the first place, which is in use.
  std::string GoodBoard() {
    const std::unique_ptr<Board> board = Board::Create(settings_);
    const OwnedRecord record = board->Claim(IdentityOf(7, 1, 4));
    record->state.Store({.since_ns = 5, .phase = Phase::kInOperation});
    for (uint64_t i = 1; i <= 70; ++i) record->operations.collectives.Add(AllReduceOf(i, 10 * i));
    record->names.Store({});
    std::string bytes(BoardHeader::kBytes + sizeof(CommunicatorRecord), '\0');
    std::ifstream(board->path(), std::ios::binary).read(bytes.data(), std::ssize(bytes));
    return bytes;
  }
};

TEST_F(BadBoardTest, OfAnotherVersionOrCutYieldsASentence) {
  const std::string good = GoodBoard();
  EXPECT_EQ(TroubleOf(good), "");
  EXPECT_EQ(ReadAll().size(), 1u);
  for (const size_t size : {size_t{0}, size_t{100}, good.size(), kWhole - 1})
    EXPECT_THAT(TroubleOf(good, size), HasSubstr("cut")) << size;
  EXPECT_THAT(TroubleOf(std::string(good.size(), 'x')), HasSubstr("no board"));
  std::string newer = good;
  newer[offsetof(BoardHeader, version)] = 9;
  EXPECT_THAT(TroubleOf(newer), HasSubstr("version 9"));
}

TEST_F(BadBoardTest, OfRandomBytesDoesNotHarmTheReader) {
  const std::string good = GoodBoard();
  std::mt19937 random(4);
  size_t decoded = 0;
  for (int round = 0; round < 300; ++round) {
    std::string bad = good;
    const size_t changes = size_t{1} << (random() % 12);
    for (size_t i = 0; i < changes; ++i)
      bad[BoardHeader::kBytes + random() % sizeof(CommunicatorRecord)] =
          static_cast<char>(random());
    TroubleOf(bad);
    const Reading reading = Read();
    for (const JobView& job : FindJobs(reading, [](int) { return false; }))
      for (const CommunicatorView& view : job.communicators)
        for (const RankView& one : view.ranks)
          if (one.snapshot) decoded += ActivityOf(*one.snapshot).empty() ? 0 : 1;
  }
  EXPECT_GT(decoded, 30u);
}

// ---------------------------------------------------------------------------------------------------------------------
// Values that change

TEST_F(BoardTest, AReaderOfTheFileSeesNoHalfOfAValue) {
  const std::unique_ptr<Board> board = Board::Create(settings_);
  const OwnedRecord record = board->Claim(IdentityOf(7, 0, 2));
  std::atomic<bool> over = false;
  std::thread writer([&] {
    for (int64_t i = 1; !over; ++i) {
      // All letters of a reason are alike, and the time says which.
      const std::string reason(400, static_cast<char>('a' + i % 26));
      record->state.Store(
          {.since_ns = i, .phase = Phase::kStopped, .reason = ToShortText<496>(reason)});
    }
  });
  size_t seen = 0;
  for (int i = 0; i < 500; ++i) {
    for (const CommunicatorSnapshot& one : ReadAll()) {
      if (one.reason.empty()) continue;
      ++seen;
      ASSERT_EQ(one.reason, std::string(400, static_cast<char>('a' + one.phase_since_ns % 26)));
    }
  }
  over = true;
  writer.join();
  EXPECT_GT(seen, 0u);
}

}  // namespace
}  // namespace tutti::observe
