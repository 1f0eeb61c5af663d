// The table of handles, their gates, and the state that a handle keeps without a communicator.

#include "comm/handle.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/handle_table.h"

namespace tutti {
namespace {

using Phase = HandleGate::Phase;

// Tables are never destroyed.
HandleTable& NewTable() {
  static auto* const tables = new std::vector<HandleTable*>;
  return *tables->emplace_back(new HandleTable);
}

ncclComm* MakeOpen(HandleTable& table) {
  ncclComm* const comm = table.Make();
  HandleTable::GateOf(comm).Open();
  return comm;
}
void End(HandleTable& table, ncclComm* comm) {
  ASSERT_TRUE(HandleTable::GateOf(comm).Close());
  table.Remove(comm);
}
const ncclComm* Beyond(const ncclComm* comm, ptrdiff_t bytes) {
  return reinterpret_cast<const ncclComm*>(reinterpret_cast<const char*>(comm) + bytes);
}

TEST(HandleTableTest, FindsItsHandlesAndNoOtherPointer) {
  HandleTable& table = NewTable();
  int on_stack = 0;
  EXPECT_EQ(table.Find(nullptr), nullptr);
  EXPECT_EQ(table.Find(reinterpret_cast<ncclComm*>(&on_stack)), nullptr);
  // More handles than the first two chunks have slots.
  std::vector<ncclComm*> comms;
  for (int i = 0; i < 300; ++i) comms.push_back(MakeOpen(table));
  EXPECT_EQ(std::set<ncclComm*>(comms.begin(), comms.end()).size(), comms.size());
  std::set<HandleGate*> gates;
  for (ncclComm* const comm : comms) {
    HandleGate* const gate = table.Find(comm);
    EXPECT_EQ(gate, &HandleTable::GateOf(comm));
    gates.insert(gate);
    for (const ptrdiff_t off : {-8, 1, 8, 64}) EXPECT_EQ(table.Find(Beyond(comm, off)), nullptr);
  }
  EXPECT_EQ(gates.size(), comms.size());
  EXPECT_EQ(NewTable().Find(comms[0]), nullptr);
  for (ncclComm* const comm : comms) End(table, comm);
}

TEST(HandleTableTest, AGateLetsInOnlyWhileItsHandleLives) {
  HandleTable& table = NewTable();
  ncclComm* const comm = table.Make();
  HandleGate& gate = *table.Find(comm);
  EXPECT_EQ(gate.Enter(), Phase::kMaking);
  EXPECT_FALSE(gate.anyone_inside()) << "a refused caller does not stay inside";
  gate.Open();
  EXPECT_EQ(gate.Enter(), Phase::kLive);
  gate.EnterAgain();
  gate.Leave();
  EXPECT_TRUE(gate.anyone_inside());
  EXPECT_TRUE(gate.Close());
  EXPECT_FALSE(gate.Close()) << "one caller alone frees the handle";
  EXPECT_EQ(gate.Enter(), Phase::kEnding);
  EXPECT_TRUE(gate.anyone_inside());
  gate.Leave();
  EXPECT_FALSE(gate.anyone_inside());
  table.Remove(comm);
  EXPECT_EQ(table.Find(comm), &gate);
  EXPECT_EQ(gate.Enter(), Phase::kFree);
  EXPECT_FALSE(gate.Close());
}

TEST(HandleTableTest, RemoveWaitsUntilNobodyIsInside) {
  HandleTable& table = NewTable();
  ncclComm* const comm = MakeOpen(table);
  HandleGate& gate = *table.Find(comm);
  ASSERT_EQ(gate.Enter(), Phase::kLive);
  ASSERT_TRUE(gate.Close());
  std::atomic<bool> left = false;
  std::future<bool> removed = std::async(std::launch::async, [&] {
    table.Remove(comm);
    return left.load();
  });
  // The handle still answers to the caller that is inside.
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(comm->Error().message(), "");
    std::this_thread::yield();
  }
  left = true;
  gate.Leave();
  EXPECT_TRUE(removed.get());
}

// A stale pointer stays an error until many other handles have been freed. The table nevertheless
// does not grow without end.
TEST(HandleTableTest, AFreedSlotRestsAndIsUsedAgain) {
  HandleTable& table = NewTable();
  ncclComm* const stale = MakeOpen(table);
  End(table, stale);
  std::set<ncclComm*> slots;
  for (int i = 0; i < 256; ++i) {
    ncclComm* const comm = MakeOpen(table);
    EXPECT_NE(comm, stale);
    slots.insert(comm);
    End(table, comm);
    EXPECT_EQ(HandleTable::GateOf(stale).Enter(), Phase::kFree) << i;
  }
  for (int i = 0; i < 2000; ++i) {
    ncclComm* const comm = MakeOpen(table);
    slots.insert(comm);
    End(table, comm);
  }
  EXPECT_EQ(slots.count(stale), 1u);
  EXPECT_LE(slots.size(), 260u);
}

TEST(HandleUseTest, IsInsideOnlyOfLiveHandles) {
  ncclComm* const comm = Handles().Make();
  EXPECT_FALSE(HandleUse(comm).inside());
  EXPECT_EQ(HandleUse(comm).phase(), Phase::kMaking);
  HandleTable::GateOf(comm).Open();
  {
    HandleUse use(comm);
    ASSERT_TRUE(use.inside());
    HandleUse moved(std::move(use));
    EXPECT_TRUE(moved.inside());
    EXPECT_FALSE(use.inside());  // NOLINT(bugprone-use-after-move): the move empties it
    EXPECT_TRUE(HandleTable::GateOf(comm).anyone_inside());
    moved.Leave();
    EXPECT_FALSE(HandleTable::GateOf(comm).anyone_inside());
  }
  HandleUse last(comm), other(comm);
  EXPECT_TRUE(last.CloseAndLeave());
  EXPECT_FALSE(other.CloseAndLeave()) << "the first closer frees the handle";
  Handles().Remove(comm);
  EXPECT_EQ(HandleUse(comm).phase(), Phase::kFree);
  EXPECT_EQ(HandleUse(nullptr).phase(), Phase::kFree);
}

class HandleTest : public ::testing::Test {
 protected:
  HandleTest() : owned_(Handles().Make()), comm_(*owned_) { HandleTable::GateOf(&comm_).Open(); }
  HandleGate& gate() { return HandleTable::GateOf(&comm_); }

  OwnedHandle owned_;
  ncclComm& comm_;
};

TEST_F(HandleTest, WorkKeepsTheHandleAndShowsAsInProgress) {
  using Hold = ncclComm::WorkHold;
  Hold shown(comm_, ncclComm::Shown::kInProgress);
  {
    Hold quiet(comm_, ncclComm::Shown::kNo);
    quiet.Hide();
    EXPECT_TRUE(comm_.in_progress());
    EXPECT_TRUE(gate().anyone_inside());
  }
  Hold moved(std::move(shown));
  EXPECT_TRUE(comm_.in_progress());
  moved.Hide();
  moved.Hide();
  EXPECT_FALSE(comm_.in_progress());
  EXPECT_TRUE(gate().anyone_inside()) << "hidden work still keeps the handle";
  Hold other(comm_, ncclComm::Shown::kInProgress);
  other = std::move(moved);
  EXPECT_FALSE(comm_.in_progress()) << "the overwritten hold has ended";
  EXPECT_TRUE(gate().anyone_inside());
  other = {};
  EXPECT_FALSE(gate().anyone_inside());
}

TEST_F(HandleTest, KeepsTheFirstFailure) {
  EXPECT_TRUE(comm_.Error().ok());
  comm_.Fail(Status::Ok());
  EXPECT_TRUE(comm_.Error().ok());
  comm_.Fail(InvalidUsage("the first"));
  comm_.Fail(SystemError("the second"));
  // A handle without a communicator is broken by each failure of its operations.
  comm_.NoteFailure(SystemError("the third"), /*in_background=*/true);
  comm_.ForgetOperationError();
  EXPECT_EQ(comm_.Error().code(), Code::kInvalidUsage);
  EXPECT_EQ(comm_.Error().message(), "the first");
}

TEST_F(HandleTest, AFailureWithoutACommunicatorStays) {
  comm_.NoteFailure(RemoteError("nobody came"), /*in_background=*/false);
  comm_.ForgetOperationError();
  EXPECT_EQ(comm_.Error().message(), "nobody came");
}

TEST_F(HandleTest, AnAbortReachesTheChildrenUnderConstruction) {
  OwnedHandle first(Handles().Make()), second(Handles().Make());
  ncclComm::WorkHold of_first = comm_.BeginChild(*first);
  ncclComm::WorkHold of_second = comm_.BeginChild(*second);
  EXPECT_TRUE(comm_.in_progress());
  comm_.ForgetChild(*first);
  of_first = {};
  comm_.RaiseAbort();
  EXPECT_TRUE(comm_.abort_flag);
  EXPECT_FALSE(first->abort_flag) << "a made child lives on";
  EXPECT_TRUE(second->abort_flag);
  comm_.ForgetChild(*second);
  of_second = {};
  EXPECT_FALSE(comm_.in_progress());
}

// Each task gets a thread of its own while the others are busy. A task that waits for a later task
// therefore ends.
TEST_F(HandleTest, TasksAsideRunAtTheSameTime) {
  for (int round = 0; round < 3; ++round) {
    std::promise<std::thread::id> second_thread;
    std::promise<bool> met;
    std::future<std::thread::id> second = second_thread.get_future();
    std::future<bool> ended = met.get_future();
    comm_.RunAside([&] { met.set_value(second.get() != std::this_thread::get_id()); });
    comm_.RunAside([&] { second_thread.set_value(std::this_thread::get_id()); });
    EXPECT_TRUE(ended.get());
  }
}

TEST_F(HandleTest, TheWorkersAreTwoStreamsInOrder) {
  EXPECT_NE(&comm_.worker(), &comm_.joint_worker());
  EXPECT_EQ(&comm_.worker(), &comm_.worker());
  std::vector<int> order;
  for (int i = 0; i < 10; ++i) comm_.worker().Enqueue([&order, i] { order.push_back(i); });
  comm_.worker().Synchronize();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

}  // namespace
}  // namespace tutti
