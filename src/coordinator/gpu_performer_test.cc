// Tensors on GPUs, with stand-ins for GPUs: a host stream stands in for a GPU's stream, and the
// host's memory for its memory. Queued work runs later, on another thread, as with CUDA.

#include "coordinator/gpu_performer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <future>
#include <iterator>
#include <mutex>
#include <set>
#include <thread>

#include "config/settings.h"
#include "coordinator/coordinator.h"
#include "coordinator/operations_plugin.h"
#include "testing/ranks.h"
#include "tutti/tutti.h"

namespace tutti::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void Queue(void* stream, std::function<void()> work) {
  auto* const kept = new std::function<void()>(std::move(work));
  const tuttiHostFn_t run = [](void* arg) {
    const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(arg));
    (*owned)();
  };
  ASSERT_EQ(tuttiStreamLaunchHostFunc(static_cast<tuttiStream_t>(stream), run, kept), ncclSuccess);
}

class FakeMark final : public GpuMark {
 public:
  explicit FakeMark(tuttiEvent_t made) : event(made) {}
  const tuttiEvent_t event;
};

constexpr int kHostDevice = -1;
constexpr int kNoDevice = 4096;  // a device without a communicator
// A device with a communicator but without code of the library.
constexpr int kDeviceWithoutCode = -2;

class FakeGpu final : public Gpu {
 public:
  FakeGpu(int device, int rank_device) : device_(device), rank_device_(rank_device) {
    EXPECT_EQ(tuttiStreamCreate(&stream_), ncclSuccess);
  }
  ~FakeGpu() override {
    EXPECT_EQ(tuttiStreamDestroy(stream_), ncclSuccess);
    for (const tuttiEvent_t event : events_) tuttiEventDestroy(event);
    EXPECT_TRUE(blocks_.empty()) << "memory of the GPU was not freed";
  }

  int device() const override { return device_; }
  int rank_device() const override {
    if (rank_device_ != kDeviceWithoutCode) return rank_device_;
    return asked_++ == 0 ? kHostDevice : kNoDevice;
  }
  void* stream() const override { return stream_; }
  std::unique_ptr<GpuScope> MakeCurrent() override { return std::make_unique<GpuScope>(); }

  Result<std::shared_ptr<GpuMark>> Mark(void* stream) override {
    tuttiEvent_t event = nullptr;
    EXPECT_EQ(tuttiEventCreate(&event), ncclSuccess);
    EXPECT_EQ(tuttiEventRecord(event, static_cast<tuttiStream_t>(stream)), ncclSuccess);
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
    return std::shared_ptr<GpuMark>(std::make_shared<FakeMark>(event));
  }
  Result<bool> Passed(const GpuMark& mark) override {
    return tuttiEventQuery(static_cast<const FakeMark&>(mark).event) == ncclSuccess;
  }
  Status Await(void* stream, const GpuMark& mark) override {
    EXPECT_EQ(tuttiStreamWaitEvent(static_cast<tuttiStream_t>(stream),
                                   static_cast<const FakeMark&>(mark).event),
              ncclSuccess);
    return Status::Ok();
  }
  Status Copy(void* to, const void* from, size_t bytes) override {
    ++copies;
    if (OnGpu(from)) {
      Queue(stream_, [=] { std::memcpy(to, from, bytes); });
      return Status::Ok();
    }
    const auto* const begin = static_cast<const std::byte*>(from);
    Queue(stream_, [to, held = std::vector<std::byte>(begin, begin + bytes)] {
      std::memcpy(to, held.data(), held.size());
    });
    return Status::Ok();
  }
  Result<void*> Allocate(size_t bytes) override {
    void* const memory = ::operator new(bytes + 1);
    Own(memory, bytes + 1);
    const std::lock_guard lock(mutex_);
    blocks_.insert(memory);
    return memory;
  }
  void Free(void* memory, void* stream) override {
    {
      const std::lock_guard lock(mutex_);
      EXPECT_EQ(blocks_.erase(memory), 1u);
    }
    Queue(stream, [memory] { ::operator delete(memory); });
  }
  Status Synchronize() override {
    ++waits;
    return FromNccl(tuttiStreamSynchronize(stream_));
  }

  // Says that this memory belongs to the GPU.
  void Own(const void* memory, size_t bytes) {
    const std::lock_guard lock(mutex_);
    own_.emplace_back(static_cast<const std::byte*>(memory), bytes);
  }

  int copies = 0;
  int waits = 0;

 private:
  bool OnGpu(const void* memory) {
    const std::lock_guard lock(mutex_);
    const auto* const at = static_cast<const std::byte*>(memory);
    for (const auto& [begin, bytes] : own_) {
      if (at >= begin && at < begin + bytes) return true;
    }
    return false;
  }
  const int device_;
  const int rank_device_;
  mutable int asked_ = 0;  // the number of calls for the rank's device
  tuttiStream_t stream_ = nullptr;
  std::mutex mutex_;
  std::vector<tuttiEvent_t> events_;
  std::set<void*> blocks_;
  std::vector<std::pair<const std::byte*, size_t>> own_;
};

// One rank with a GPU and a stream of the user's.
class GpuRank {
 public:
  GpuRank(int rank, int num_ranks, const UniqueId& id, int rank_device,
          const FindPluginFor& find_plugin = FindViablePlugin)
      : rank_(rank) {
    Coordinator::Options options;
    options.rank = rank;
    options.num_ranks = num_ranks;
    options.id = id;
    options.settings = *ReadProcessSettings();
    options.find_plugin = find_plugin;
    options.open_gpu = [this, rank_device](int device) -> Result<std::shared_ptr<Gpu>> {
      if (device > 7) return InvalidUsage("there is no GPU {}", device);
      gpu_ = std::make_shared<FakeGpu>(device, rank_device);
      return std::shared_ptr<Gpu>(gpu_);
    };
    auto made = Coordinator::Create(options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    coordinator_ = std::move(*made);
    set_ = *coordinator_->FindSet(0);
    EXPECT_EQ(tuttiStreamCreate(&stream_), ncclSuccess);
  }
  ~GpuRank() {
    tickets_.clear();
    EXPECT_EQ(tuttiStreamSynchronize(stream_), ncclSuccess);
    set_.reset();
    coordinator_.reset();
    gpu_.reset();
    EXPECT_EQ(tuttiStreamDestroy(stream_), ncclSuccess);
  }

  int rank() const { return rank_; }
  tuttiStream_t stream() const { return stream_; }
  FakeGpu& gpu() { return *gpu_; }

  struct Operation {
    Operation(std::string called, OpKind kind) : name(std::move(called)) { fields.kind = kind; }
    std::string name;
    RequestFields fields;
    std::vector<int64_t> shape;
    std::vector<int64_t> splits;
    const void* input = nullptr;
    void* output = nullptr;
    int device = 1;
  };
  Ticket* Enqueue(const Operation& operation, Status* status = nullptr) {
    const RequestFields& fields = operation.fields;
    tuttiTensor_t tensor = MakeTensor(operation.name.c_str(), fields.kind);
    tensor.type = static_cast<tuttiElementType_t>(fields.type);
    tensor.op = static_cast<tuttiReduceOp_t>(fields.op);
    tensor.compression = static_cast<tuttiCompression_t>(fields.compression);
    tensor.prescale = fields.prescale;
    tensor.postscale = fields.postscale;
    tensor.root = fields.root;
    tensor.device = operation.device;
    tensor.stream = stream_;
    tensor.shape = operation.shape.data();
    tensor.ndim = static_cast<int>(operation.shape.size());
    tensor.splits = operation.splits.data();
    tensor.nsplits = static_cast<int>(operation.splits.size());
    tensor.input = operation.input;
    tensor.output = operation.output;
    tickets_.push_back(TicketHold::Make());
    TicketHold shared = tickets_.back().Share();
    const Status entered = set_->Enqueue({&tensor, 1}, nullptr, {&shared, 1});
    if (status != nullptr)
      *status = entered;
    else
      EXPECT_TRUE(entered.ok()) << entered.message();
    return &*tickets_.back();
  }
  TicketHold Join() {
    TicketHold ticket = TicketHold::Make();
    EXPECT_TRUE(set_->Join(ticket.Share()).ok());
    return ticket;
  }
  void Wait(Ticket& ticket) {
    EXPECT_TRUE(set_->Wait(ticket));
    EXPECT_TRUE(ticket.status.ok()) << ticket.status.message();
  }
  // Orders the user's stream behind the operation, as tuttiCoordinatorStreamWait does.
  void StreamWait(Ticket& ticket) {
    ASSERT_TRUE(ticket.gpu);
    ticket.gpu->stream = stream_;
    EXPECT_TRUE(ticket.gpu->gpu->Await(stream_, *ticket.gpu->done).ok());
  }
  void Finish(Ticket& ticket) {
    Wait(ticket);
    StreamWait(ticket);
    EXPECT_EQ(tuttiStreamSynchronize(stream_), ncclSuccess);
  }
  template <typename T>
  std::vector<T> Take(Ticket& ticket) {
    Finish(ticket);
    size_t count = 1;
    for (const int64_t dimension : ticket.output_shape) count *= static_cast<size_t>(dimension);
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), ticket.output, count * sizeof(T));
    return values;
  }

 private:
  const int rank_;
  std::shared_ptr<FakeGpu> gpu_;
  std::unique_ptr<Coordinator> coordinator_;
  std::shared_ptr<ProcessSet> set_;
  tuttiStream_t stream_ = nullptr;
  std::vector<TicketHold> tickets_;
};

void RunGpuJob(int num_ranks, int rank_device, const std::function<void(GpuRank&)>& body,
               const FindPluginFor& find_plugin = FindViablePlugin) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  const Result<UniqueId> decoded = UniqueId::Decode(id.internal);
  ASSERT_TRUE(decoded.ok());
  testing::RunRankThreads(num_ranks, [&](int rank) {
    GpuRank self(rank, num_ranks, *decoded, rank_device, find_plugin);
    body(self);
  });
}

GpuRank::Operation Sum(std::string name, std::vector<float>& values) {
  GpuRank::Operation operation(std::move(name), OpKind::kAllreduce);
  operation.shape = {static_cast<int64_t>(values.size())};
  operation.input = operation.output = values.data();
  return operation;
}

TEST(GpuPerformerTest, NoThreadWaitsForTheGpu) {
  RunGpuJob(2, kHostDevice, [](GpuRank& self) {
    std::vector<float> first(100, 0), second(100, 0);
    self.Finish(*self.Enqueue(Sum("first", first)));  // makes the communicator
    self.gpu().Own(second.data(), second.size() * sizeof(float));
    std::promise<void> gate;
    Queue(self.stream(), [&, opened = std::make_shared<std::future<void>>(gate.get_future())] {
      opened->wait();
      second.assign(second.size(), 3);
    });
    const int waits = self.gpu().waits;
    Ticket& ticket = *self.Enqueue(Sum("second", second));
    self.Wait(ticket);
    self.StreamWait(ticket);
    EXPECT_EQ(tuttiStreamQuery(self.stream()), ncclInProgress);
    EXPECT_THAT(second, Each(0.0f));
    gate.set_value();
    EXPECT_EQ(tuttiStreamSynchronize(self.stream()), ncclSuccess);
    EXPECT_THAT(second, Each(6.0f));
    EXPECT_EQ(self.gpu().waits, waits);
  });
}

TEST(GpuPerformerTest, AdasumStaysOnTheGpu) {
  RunGpuJob(3, kHostDevice, [](GpuRank& self) {
    std::vector<float> first(10, 1), many(100'000, 2), few(3, 0);
    self.Finish(*self.Enqueue(Sum("first", first)));  // makes the communicator
    few[static_cast<size_t>(self.rank())] = 1;
    const int copies = self.gpu().copies;
    std::vector<Ticket*> tickets;
    for (auto* const values : {&many, &few}) {
      GpuRank::Operation operation = Sum(values == &many ? "many" : "few", *values);
      operation.fields.op = ReduceOp::kAdasum;
      operation.fields.postscale = 3;
      tickets.push_back(self.Enqueue(operation));
    }
    for (Ticket* const ticket : tickets) self.Finish(*ticket);
    EXPECT_THAT(many, Each(::testing::FloatNear(6, 1e-5f)));  // equal vectors are averaged
    EXPECT_THAT(few, Each(::testing::FloatNear(3, 1e-5f)));   // orthogonal vectors are added
    EXPECT_EQ(self.gpu().copies, copies);
    EXPECT_EQ(self.gpu().waits, 0);
  });
}

TEST(GpuPerformerTest, AdasumGoesThroughTheHostWhereThereIsNoCode) {
  ::testing::internal::CaptureStderr();
  RunGpuJob(2, kDeviceWithoutCode, [](GpuRank& self) {
    std::vector<float> sum(10, 1), values(10, 2);
    self.Finish(*self.Enqueue(Sum("sum", sum)));
    EXPECT_THAT(sum, Each(2.0f));
    EXPECT_EQ(self.gpu().waits, 0);
    GpuRank::Operation operation = Sum("adasum", values);
    operation.fields.op = ReduceOp::kAdasum;
    operation.fields.postscale = 3;  // Adasum alone leaves equal vectors unchanged
    self.Finish(*self.Enqueue(operation));
    EXPECT_THAT(values, Each(::testing::FloatNear(6, 1e-5f)));
    EXPECT_GT(self.gpu().waits, 0);
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("tuttiAdasumSumDots"));
}

size_t Occurrences(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST(GpuPerformerTest, TheTimelineShowsWhenTheGpuWorks) {
  const std::string path = fmt::format("{}gpu_timeline_{}.json", ::testing::TempDir(), getpid());
  const testing::Environment environment(
      testing::Environment::Settings{{"HOROVOD_TIMELINE", path}});
  RunGpuJob(1, kHostDevice, [&](GpuRank& self) {
    std::vector<float> values(100, 1);
    self.Finish(*self.Enqueue(Sum("only", values)));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    std::string text;
    // Every activity has ended, even in the GPU's row.
    while (text.find("only (GPU)") == std::string::npos ||
           Occurrences(text, "\"ph\":\"B\"") != Occurrences(text, "\"ph\":\"E\"")) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << text;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::ifstream stream(path);
      text.assign(std::istreambuf_iterator<char>(stream), {});
    }
    EXPECT_THAT(text, AllOf(HasSubstr("INIT_NCCL"), HasSubstr("WAIT_FOR_DATA")));
  });
}

TEST(GpuPerformerTest, ManyTensorsAreFused) {
  RunGpuJob(3, kHostDevice, [](GpuRank& self) {
    for (int step = 0; step < 3; ++step) {
      std::vector<std::vector<float>> tensors;
      std::vector<Ticket*> tickets;
      for (size_t i = 0; i < 50; ++i) tensors.emplace_back(10 + i, static_cast<float>(i));
      for (size_t i = 0; i < 50; ++i) {
        GpuRank::Operation operation = Sum("t" + std::to_string(i), tensors[i]);
        operation.fields.op = ReduceOp::kAverage;
        operation.fields.prescale = 0.5;
        operation.fields.postscale = 4;
        tickets.push_back(self.Enqueue(operation));
      }
      for (Ticket* const ticket : tickets) self.Finish(*ticket);
      for (size_t i = 0; i < 50; ++i) {
        EXPECT_THAT(tensors[i], Each(::testing::FloatNear(2 * static_cast<float>(i), 1e-4f)));
      }
    }
    EXPECT_EQ(self.gpu().waits, 0);
  });
}

// Each kind of operation on three ranks, one of which has its GPU elsewhere.
void CheckOperations(GpuRank& self) {
  const auto rank = static_cast<size_t>(self.rank());
  const auto value = static_cast<float>(rank + 1);
  std::vector<float> values(7, value);
  GpuRank::Operation op = Sum("least", values);
  op.fields.op = ReduceOp::kMin;
  op.fields.prescale = 3;
  self.Finish(*self.Enqueue(op));
  EXPECT_THAT(values, Each(3.0f));
  op = Sum("bytes", values);
  values.assign(7, value);
  op.fields.compression = Compression::kFloat16;
  self.Finish(*self.Enqueue(op));
  EXPECT_THAT(values, Each(6.0f));
  op = Sum("adasum", values);
  values.assign(7, 2);
  op.fields.op = ReduceOp::kAdasum;
  self.Finish(*self.Enqueue(op));
  EXPECT_THAT(values, Each(::testing::FloatNear(2, 1e-5f)));

  std::vector<int16_t> shorts(5, static_cast<int16_t>(rank));
  GpuRank::Operation sum16("sum16", OpKind::kAllreduce);
  sum16.fields.type = ElementType::kInt16;
  sum16.shape = {5};
  sum16.input = shorts.data();
  EXPECT_THAT(self.Take<int16_t>(*self.Enqueue(sum16)), Each(3));

  std::vector<int16_t> rows(2 * (rank + 1), static_cast<int16_t>(rank));
  GpuRank::Operation gather("gather", OpKind::kAllgather);
  gather.fields.type = ElementType::kInt16;
  gather.shape = {static_cast<int64_t>(rank + 1), 2};
  gather.input = rows.data();
  EXPECT_THAT(self.Take<int16_t>(*self.Enqueue(gather)),
              ElementsAre(0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2));

  std::vector<double> word = {static_cast<double>(rank)};
  GpuRank::Operation broadcast("word", OpKind::kBroadcast);
  broadcast.fields.type = ElementType::kFloat64;
  broadcast.fields.root = 2;
  broadcast.shape = {1};
  broadcast.input = broadcast.output = word.data();
  self.Finish(*self.Enqueue(broadcast));
  EXPECT_THAT(word, ElementsAre(2.0));

  // Rank r sends r + i rows to rank i.
  GpuRank::Operation alltoall("alltoall", OpKind::kAlltoall);
  alltoall.fields.type = ElementType::kInt32;
  for (size_t i = 0; i < 3; ++i) alltoall.splits.push_back(static_cast<int64_t>(rank + i));
  const size_t sent = 3 * rank + 3;
  std::vector<int32_t> numbers(sent, static_cast<int32_t>(rank));
  alltoall.shape = {static_cast<int64_t>(sent)};
  alltoall.input = numbers.data();
  std::vector<int32_t> expected;
  for (size_t i = 0; i < 3; ++i) expected.insert(expected.end(), rank + i, static_cast<int>(i));
  EXPECT_EQ(self.Take<int32_t>(*self.Enqueue(alltoall)), expected);

  for (const int64_t count : {int64_t{6}, int64_t{7}}) {
    std::vector<float> whole(static_cast<size_t>(count), 1);
    GpuRank::Operation scatter("scatter" + std::to_string(count), OpKind::kReducescatter);
    scatter.shape = {count};
    scatter.input = whole.data();
    const size_t mine = count == 7 && rank == 0 ? 3 : 2;
    EXPECT_EQ(self.Take<float>(*self.Enqueue(scatter)), std::vector<float>(mine, 3));
  }
}

TEST(GpuPerformerTest, EveryOperation) { RunGpuJob(3, kHostDevice, CheckOperations); }

TEST(GpuPerformerTest, GpusThatCannotBeJoinedGoThroughTheHost) {
  ::testing::internal::CaptureStderr();
  RunGpuJob(3, kNoDevice, CheckOperations);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("go through the host's memory; rank 0 says"));
}

// A plugin on the host's memory, which is the memory of the stand-ins for GPUs as well.
class MemoryPlugin final : public OperationsPlugin {
 public:
  explicit MemoryPlugin(bool takes_gpu_memory) : takes_gpu_memory_(takes_gpu_memory) {}
  std::string_view name() const override { return "memory"; }
  Status Viable(int, int) override { return Status::Ok(); }
  bool TakesGpuMemory() override { return takes_gpu_memory_; }
  Result<std::unique_ptr<Operations>> Open(const OperationsGroup& group) override {
    EXPECT_TRUE(group.gpu_memory);
    ncclUniqueId mine = {};
    if (group.rank == 0) TUTTI_TRY(FromNccl(ncclGetUniqueId(&mine)));
    std::vector<ncclUniqueId> all(group.members.size());
    TUTTI_TRY(group.gather(&mine, sizeof(mine), all.data()));
    ncclComm_t comm = nullptr;
    TUTTI_TRY(FromNccl(tuttiCommInitRankOn(&comm, group.size(), all[0], group.rank, -1)));
    communicators_.emplace_back(comm);
    return MakeNcclOperations(comm, group.rank);
  }

 private:
  const bool takes_gpu_memory_;
  std::vector<Communicator> communicators_;
};

// Runs a job whose "mpi" is a MemoryPlugin, on GPUs that nothing else can join.
void RunMpiJob(bool takes_gpu_memory, const std::function<void(GpuRank&)>& body) {
  const testing::Environment environment(
      testing::Environment::Settings{{"HOROVOD_GPU_OPERATIONS", "MPI"}});
  RunGpuJob(3, kNoDevice, body, [&](const std::string& name, int, int) {
    EXPECT_EQ(name, "mpi");
    return Result<std::shared_ptr<OperationsPlugin>>(
        std::make_shared<MemoryPlugin>(takes_gpu_memory));
  });
}

TEST(GpuPerformerTest, EveryOperationByAPlugin) {
  ::testing::internal::CaptureStderr();
  RunMpiJob(/*takes_gpu_memory=*/true, CheckOperations);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(GpuPerformerTest, APluginGetsTheMemoryItself) {
  RunMpiJob(/*takes_gpu_memory=*/true, [](GpuRank& self) {
    std::vector<float> first(100, 1), values(100, 0);
    self.Finish(*self.Enqueue(Sum("first", first)));
    EXPECT_EQ(self.gpu().copies, 0);
    self.gpu().Own(values.data(), values.size() * sizeof(float));
    // The plugin knows no streams, and the coordinator must wait for late work of the stream.
    Queue(self.stream(), [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      values.assign(values.size(), static_cast<float>(self.rank() + 1));
    });
    GpuRank::Operation average = Sum("average", values);
    average.fields.op = ReduceOp::kAverage;
    self.Finish(*self.Enqueue(average));
    EXPECT_THAT(values, Each(2.0f));
  });
}

TEST(GpuPerformerTest, APluginThatDoesNotTakeTheMemoryIsNotUsed) {
  ::testing::internal::CaptureStderr();
  RunMpiJob(/*takes_gpu_memory=*/false, CheckOperations);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("HOROVOD_GPU_OPERATIONS asks for mpi, which cannot be had: rank 0: "
                              "memory says that it does not take the memory of GPUs"),
                    HasSubstr("go through the host's memory")));
}

TEST(GpuPerformerTest, OneThatHasJoinedStandsInWithNeutralElements) {
  RunGpuJob(3, kHostDevice, [](GpuRank& self) {
    if (self.rank() == 1) {
      const TicketHold joined = self.Join();
      self.Wait(*joined);
      return;
    }
    std::vector<float> least(5, static_cast<float>(self.rank() + 2)), sum(3, 1);
    GpuRank::Operation operation = Sum("least", least);
    operation.fields.op = ReduceOp::kMin;
    Ticket* const first = self.Enqueue(operation);
    Ticket* const second = self.Enqueue(Sum("sum", sum));
    GpuRank::Operation gather("gather", OpKind::kAllgather);
    gather.shape = {3};
    gather.input = least.data();
    Ticket* const third = self.Enqueue(gather);
    self.Finish(*first);
    self.Finish(*second);
    EXPECT_THAT(least, Each(2.0f));
    EXPECT_THAT(sum, Each(2.0f));
    EXPECT_EQ(self.Take<float>(*third).size(), 6u);
    const TicketHold joined = self.Join();
    self.Wait(*joined);
  });
}

TEST(GpuPerformerTest, WhatIsWrongIsSaidAtOnce) {
  RunGpuJob(1, kHostDevice, [](GpuRank& self) {
    std::vector<float> values(2, 1);
    GpuRank::Operation operation = Sum("t", values);
    Status status;
    operation.device = 9;
    self.Enqueue(operation, &status);
    EXPECT_THAT(std::string(status.message()), HasSubstr("there is no GPU 9"));
    operation.device = 1;
    self.Finish(*self.Enqueue(operation));
    operation.device = 2;
    self.Enqueue(operation, &status);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("lie on GPU 1"));
  });
}

}  // namespace
}  // namespace tutti::coordinator
