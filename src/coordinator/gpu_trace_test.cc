#include "coordinator/gpu_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

namespace tutti::coordinator {
namespace {

using ::testing::ElementsAre;

struct Mark final : GpuMark {
  std::atomic<bool> passed = false;
};

// A GPU whose marks pass at the test's command.
class HandGpu final : public Gpu {
 public:
  int device() const override { return 0; }
  void* stream() const override { return nullptr; }
  std::unique_ptr<GpuScope> MakeCurrent() override { return nullptr; }
  Result<std::shared_ptr<GpuMark>> Mark(void*) override { return InternalError("not here"); }
  Result<bool> Passed(const GpuMark& mark) override {
    if (broken) return SystemError("the GPU is gone");
    return static_cast<const coordinator::Mark&>(mark).passed.load();
  }
  Status Await(void*, const GpuMark&) override { return Status::Ok(); }
  Status Copy(void*, const void*, size_t) override { return Status::Ok(); }
  Result<void*> Allocate(size_t) override { return InternalError("not here"); }
  void Free(void*, void*) override {}
  Status Synchronize() override { return Status::Ok(); }

  std::atomic<bool> broken = false;
};

class GpuTraceTest : public ::testing::Test {
 protected:
  GpuTrace::Hooks Hooks() {
    return {[] { return true; },
            [this](const std::string& row, std::string_view activity) {
              Note(row + ": " + std::string(activity));
            },
            [this](const std::string& row) { Note(row + " ends"); }};
  }
  void Note(std::string event) {
    const MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    noted_.NotifyAll();
  }
  // Waits for this number of events and returns them.
  std::vector<std::string> Await(size_t count) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    MutexLock lock(mutex_);
    while (events_.size() < count && noted_.WaitUntil(lock, until)) {
    }
    return std::exchange(events_, {});
  }
  GpuTrace::Batch BatchOf(std::vector<std::string> tensors) {
    GpuTrace::Batch batch = {gpu_, "ALLREDUCE", "tutti", std::move(tensors), {}, {}};
    for (size_t i = 0; i < batch.tensors.size(); ++i) batch.ready.push_back(NewMark());
    batch.done = NewMark();
    return batch;
  }
  static std::shared_ptr<GpuMark> NewMark() { return std::make_shared<coordinator::Mark>(); }
  static void Pass(const std::shared_ptr<GpuMark>& mark) {
    static_cast<coordinator::Mark&>(*mark).passed = true;
  }

  const std::shared_ptr<HandGpu> gpu_ = std::make_shared<HandGpu>();

 private:
  Mutex mutex_;
  CondVar noted_;
  std::vector<std::string> events_ TUTTI_GUARDED_BY(mutex_);
};

TEST_F(GpuTraceTest, ShowsWhatTheStreamWaitsForAndWhenItIsDone) {
  GpuTrace trace(Hooks());
  const auto batch = BatchOf({"a", "b"});
  trace.Add(batch);
  const auto next = BatchOf({"a"});
  trace.Add(next);
  EXPECT_THAT(Await(4), ElementsAre("a (GPU): ALLREDUCE", "a (GPU): WAIT_FOR_DATA",
                                    "b (GPU): ALLREDUCE", "b (GPU): WAIT_FOR_DATA"));
  Pass(batch.ready[1]);
  EXPECT_THAT(Await(1), ElementsAre("b (GPU): WAIT_FOR_OTHER_TENSOR_DATA"));
  Pass(batch.ready[0]);
  EXPECT_THAT(Await(2), ElementsAre("a (GPU): tutti", "b (GPU): tutti"));
  Pass(batch.done);
  // The next batch begins when the stream comes to the batch.
  EXPECT_THAT(Await(4), ElementsAre("a (GPU) ends", "b (GPU) ends", "a (GPU): ALLREDUCE",
                                    "a (GPU): WAIT_FOR_DATA"));
  Pass(next.ready[0]);
  Pass(next.done);
  EXPECT_THAT(Await(2), ElementsAre("a (GPU): tutti", "a (GPU) ends"));
}

TEST_F(GpuTraceTest, ClosesTheRowsOfAGpuThatFails) {
  GpuTrace trace(Hooks());
  trace.Add(BatchOf({"a"}));
  EXPECT_EQ(Await(2).size(), 2u);
  gpu_->broken = true;
  EXPECT_THAT(Await(1), ElementsAre("a (GPU) ends"));
}

TEST_F(GpuTraceTest, EndsWithoutTheGpu) {
  {
    GpuTrace trace(Hooks());
    trace.Add(BatchOf({"a"}));
    EXPECT_EQ(Await(2).size(), 2u);
  }  // The GPU never does it.
  EXPECT_THAT(Await(1), ElementsAre("a (GPU) ends"));
}

}  // namespace
}  // namespace tutti::coordinator
