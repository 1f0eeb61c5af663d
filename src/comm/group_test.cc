// The joint calls of groups: their order, their threads, and the fate of their handles. No job
// makes a communicator.

#include "comm/group.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "comm/handle.h"
#include "comm/handle_table.h"

namespace tutti {
namespace {

OwnedHandle MakeHandle(bool blocking = true) {
  OwnedHandle handle(Handles().Make());
  handle->blocking = blocking;
  HandleTable::GateOf(handle.get()).Open();
  return handle;
}
// Waits until no work on a non-blocking handle is left.
void AwaitRest(ncclComm& comm) {
  while (comm.in_progress()) std::this_thread::yield();
}

// A meeting of a number of threads.
class Meeting {
 public:
  explicit Meeting(int expected) : missing_(expected) {}
  void Meet() {
    MutexLock lock(mutex_);
    if (--missing_ == 0) changed_.NotifyAll();
    while (missing_ > 0) changed_.Wait(lock);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int missing_ TUTTI_GUARDED_BY(mutex_);
};

TEST(GroupTest, EndNeedsAStart) {
  Group group;
  EXPECT_EQ(group.End().code(), Code::kInvalidUsage);
  EXPECT_EQ(group.Simulate().status().code(), Code::kInvalidUsage);
  group.Start();
  EXPECT_TRUE(group.active());
  EXPECT_TRUE(group.End().ok());
  EXPECT_FALSE(group.active());
  EXPECT_EQ(group.End().code(), Code::kInvalidUsage);
}

TEST(GroupTest, OnlyTheOutermostEndLaunches) {
  const OwnedHandle comm = MakeHandle();
  Group group;
  int runs = 0;
  group.Start();
  group.Start();
  EXPECT_TRUE(group.AddJoint(*comm, [&] { return ++runs, Status::Ok(); }).ok());
  EXPECT_TRUE(group.End().ok());
  EXPECT_EQ(runs, 0);
  EXPECT_TRUE(group.End().ok());
  EXPECT_EQ(runs, 1);
  group.Start();
  EXPECT_TRUE(group.End().ok());
  EXPECT_EQ(runs, 1) << "the next group is a new one";
}

TEST(GroupTest, ANotedMistakeRefusesTheWholeGroupOnce) {
  const OwnedHandle made = MakeHandle(), joined = MakeHandle();
  Group group;
  bool ran = false;
  group.Start();
  const auto job = [&] { return ran = true, Status::Ok(); };
  EXPECT_TRUE(group.AddInit(*made, nullptr, job).ok());
  EXPECT_TRUE(group.AddJoint(*joined, job).ok());
  group.NoteError(InvalidArgument("the first mistake"));
  group.NoteError(InvalidUsage("the second mistake"));
  EXPECT_EQ(group.End().message(), "the first mistake");
  EXPECT_FALSE(ran);
  // The communicator that was to be made has come to nothing. An existing one is as good as before.
  EXPECT_EQ(made->Error().message(), "the first mistake");
  EXPECT_TRUE(joined->Error().ok());
  group.Start();
  EXPECT_TRUE(group.End().ok());
}

TEST(GroupTest, ASimulationLaunchesNothing) {
  const OwnedHandle comm = MakeHandle();
  Group group;
  bool ran = false;
  group.Start();
  EXPECT_TRUE(group.AddInit(*comm, nullptr, [&] { return ran = true, Status::Ok(); }).ok());
  const Result<double> us = group.Simulate();
  EXPECT_EQ(us.status().code(), Code::kInvalidUsage);
  EXPECT_FALSE(ran);
  EXPECT_FALSE(group.active());
  EXPECT_EQ(comm->Error().code(), Code::kInvalidUsage);
  group.Start();
  group.Start();
  ASSERT_TRUE(group.Simulate().ok());
  EXPECT_TRUE(group.active()) << "an inner level has ended";
  EXPECT_EQ(*group.Simulate(), 0);
}

// One thread drives several ranks: the jobs over different bootstraps need one another.
TEST(InitGroupTest, JobsOverDifferentBootstrapsRunAtTheSameTime) {
  const std::vector<OwnedHandle> comms = [] {
    std::vector<OwnedHandle> made;
    for (int i = 0; i < 4; ++i) made.push_back(MakeHandle(/*blocking=*/i != 3));
    return made;
  }();
  Meeting meeting(4);
  InitGroup group;
  for (const OwnedHandle& comm : comms)
    group.Add({comm.get(), nullptr, [&] { return meeting.Meet(), Status::Ok(); }});
  EXPECT_TRUE(group.makes());
  EXPECT_EQ(group.Launch().code(), Code::kInProgress) << "the non-blocking job is not awaited";
  AwaitRest(*comms[3]);
  EXPECT_TRUE(group.empty());
}

// Jobs over the same bootstrap run in the order of the calls, on a single thread. Jobs behind a
// failed job run as well, because the other ranks run these jobs.
TEST(InitGroupTest, JobsOverOneBootstrapFormAChain) {
  const OwnedHandle parent = MakeHandle();
  const std::vector<OwnedHandle> children = [] {
    std::vector<OwnedHandle> made;
    for (int i = 0; i < 5; ++i) made.push_back(MakeHandle());
    return made;
  }();
  std::vector<size_t> order;
  std::vector<std::thread::id> threads;
  InitGroup group;
  for (size_t i = 0; i < children.size(); ++i)
    group.Add({children[i].get(), parent.get(), [&, i] {
                 order.push_back(i);
                 threads.push_back(std::this_thread::get_id());
                 EXPECT_TRUE(parent->in_progress());
                 EXPECT_TRUE(children[i]->in_progress());
                 return i == 1 || i == 3 ? InvalidUsage("job {}", i) : Status::Ok();
               }});
  EXPECT_EQ(group.Launch().message(), "job 1") << "the first failure counts";
  EXPECT_EQ(order, (std::vector<size_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(std::vector<std::thread::id>(5, threads[0]), threads);
  EXPECT_NE(threads[0], std::this_thread::get_id());
  for (size_t i = 0; i < children.size(); ++i)
    EXPECT_EQ(children[i]->Error().ok(), i != 1 && i != 3) << i;
  EXPECT_FALSE(parent->in_progress());
  EXPECT_TRUE(parent->Error().ok());
}

TEST(InitGroupTest, ADestroyedHandleRefusesTheGroupBeforeAnyJobBegins) {
  const OwnedHandle live = MakeHandle();
  ncclComm* gone = MakeHandle().get();  // The handle is destroyed at the end of the statement.
  for (const bool as_parent : {false, true}) {
    bool ran = false;
    InitGroup group;
    group.Add({live.get(), nullptr, [&] { return ran = true, Status::Ok(); }});
    if (as_parent)
      group.Add({live.get(), gone, [&] { return ran = true, Status::Ok(); }});
    else
      group.Add({gone, nullptr, [&] { return ran = true, Status::Ok(); }});
    EXPECT_EQ(group.Launch().code(), Code::kInvalidUsage);
    EXPECT_FALSE(ran);
    EXPECT_NE(live->Error().message().find("destroyed"), std::string::npos);
    EXPECT_TRUE(group.empty());
  }
}

TEST(InitGroupTest, AJobAloneRunsOnItsCallerUnlessItsHandleIsNonBlocking) {
  const OwnedHandle blocking = MakeHandle(), other = MakeHandle(/*blocking=*/false);
  std::thread::id where;
  const auto job = [&] { return where = std::this_thread::get_id(), SystemError("it failed"); };
  EXPECT_EQ(InitGroup::LaunchAlone({blocking.get(), nullptr, job}).message(), "it failed");
  EXPECT_EQ(where, std::this_thread::get_id());
  EXPECT_EQ(blocking->Error().message(), "it failed");
  EXPECT_EQ(InitGroup::LaunchAlone({other.get(), nullptr, job}).code(), Code::kInProgress);
  AwaitRest(*other);
  EXPECT_NE(where, std::this_thread::get_id());
  EXPECT_EQ(other->Error().message(), "it failed");
}

// While a joint call of an existing communicator runs, its operations for device streams are
// refused by the number of joint jobs.
TEST(InitGroupTest, JointCallsAreCountedWhileTheyRun) {
  const OwnedHandle comm = MakeHandle(/*blocking=*/false);
  std::promise<void> let_go;
  std::future<void> gone = let_go.get_future();
  Group group;
  EXPECT_EQ(group.AddJoint(*comm, [&] { return gone.wait(), Status::Ok(); }).code(),
            Code::kInProgress);
  EXPECT_EQ(comm->joint_jobs.load(), 1);
  EXPECT_EQ(group.AddInit(*comm, nullptr, [] { return Status::Ok(); }).code(), Code::kInProgress);
  EXPECT_EQ(comm->joint_jobs.load(), 1) << "a making is no joint call";
  let_go.set_value();
  AwaitRest(*comm);
  EXPECT_EQ(comm->joint_jobs.load(), 0);
}

// An exception of a job, such as the lack of memory, is a failure of the job.
TEST(InitGroupTest, AnExceptionIsAFailure) {
  const OwnedHandle comm = MakeHandle();
  EXPECT_EQ(
      InitGroup::LaunchAlone({comm.get(), nullptr, []() -> Status { throw std::bad_alloc(); }})
          .code(),
      Code::kSystemError);
  EXPECT_EQ(comm->Error().code(), Code::kSystemError);
}

}  // namespace
}  // namespace tutti
