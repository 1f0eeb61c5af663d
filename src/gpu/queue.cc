#include "gpu/queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "plan/lower.h"

namespace tutti {
namespace {

// CU_EVENT_WAIT_EXTERNAL, CU_EVENT_RECORD_EXTERNAL: at each run of the graph under capture, a node
// of the graph waits for, or records, an event outside of the graph.
constexpr unsigned kExternal = 1;
// CUDA_ERROR_INVALID_HANDLE, CU_STREAM_CAPTURE_STATUS_ACTIVE.
constexpr int kInvalidHandle = 400;
constexpr int kCaptured = 1;
// CU_USER_OBJECT_NO_DESTRUCTOR_SYNC (which must be given), CU_GRAPH_USER_OBJECT_MOVE.
constexpr unsigned kNoSync = 1;
constexpr unsigned kMove = 1;
// A wait for the GPU polls so many times without a pause, and afterwards with a nap between polls.
constexpr int kFreePolls = 100;
constexpr auto kNap = std::chrono::microseconds(50);

}  // namespace

Result<std::unique_ptr<GpuQueue>> GpuQueue::Create(const cuda::Device& device, int rank,
                                                   int num_ranks, const Settings& settings) {
  std::unique_ptr<GpuQueue> queue(new GpuQueue(device, rank, num_ranks, settings));
  const cuda::ManagingScope scope(device.driver(), device.context());
  TUTTI_ASSIGN(queue->abort_word_, device.pinned().Take(sizeof(uint32_t)));
  *reinterpret_cast<uint32_t*>(queue->abort_word_.data()) = 0;
  TUTTI_ASSIGN(queue->launched_.event, cuda::MakeEvent(device));
  TUTTI_ASSIGN(queue->captured_.event, cuda::MakeEvent(device));
  return queue;
}

void GpuQueue::Abort() {
  std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(abort_word_.data()))
      .store(1, std::memory_order_seq_cst);
}

// Waits for the whole context only where no event tells the end. A kernel of another communicator
// may wait for a rank that waits for this rank. There is no deadline, because the operations stand
// behind work of the user's streams; Abort ends operations that wait for a lost rank.
Status GpuQueue::Drain() {
  const auto& driver = device_.driver();
  const cuda::ManagingScope scope(driver, device_.context());
  // Graphs run wherever their user launches them, and may record no event.
  if ((!mixes_graphs_ && HasGraphs()) || lost_track_)
    return driver.Check(driver.ContextSynchronize(), "waiting for the GPU");
  for (int polls = 0;; ++polls) {
    const int result = driver.EventQuery(launched_.event.get());
    if (result != cuda::kNotReady) return driver.Check(result, "waiting for the GPU");
    if (polls > kFreePolls) std::this_thread::sleep_for(kNap);
  }
}

QueueState GpuQueue::State() const {
  const auto& driver = device_.driver();
  const cuda::ManagingScope scope(driver, device_.context());
  const int result = driver.EventQuery(launched_.event.get());
  return result == cuda::kNotReady    ? QueueState::kUnderWay
         : result != 0 || lost_track_ ? QueueState::kUnknown
                                      : QueueState::kDone;
}

Result<GpuQueue::Place> GpuQueue::Look(cuda::Stream stream) const {
  const auto& driver = device_.driver();
  Place place;
  place.stream = stream;
  int status = 0;
  const int result =
      driver.StreamGetCaptureInfo(stream, &status, &place.capture, &place.graph, nullptr, nullptr);
  if (result == kInvalidHandle)
    return InvalidArgument("{} is no CUDA stream of this process, or one that has been destroyed",
                           fmt::ptr(stream));
  // Other errors of the stream show when a kernel is launched on it.
  place.captured = result == 0 && status == kCaptured;
  // Asking a stream under capture for its number would end the capture. The address is enough
  // during a capture, because the stream cannot be destroyed before the capture ends.
  uint64_t id = 0;
  if (!place.captured && driver.StreamGetId != nullptr && driver.StreamGetId(stream, &id) == 0)
    place.id = id;
  return place;
}

// Lets `stream` wait for the last launch, unless the last launch is on the same stream. A captured
// stream compares itself only with launches of the same capture.
Status GpuQueue::OrderBehindLast(cuda::Stream stream) {
  if (entered_ && entered_->stream == stream) return Status::Ok();
  TUTTI_TRY(Record());
  TUTTI_ASSIGN(const Place place, Look(stream));
  const Last& last = place.captured ? captured_ : launched_;
  // Graphs record the event, too, on streams that the queue does not know.
  const bool after_graphs = !place.captured && mixes_graphs_ && HasGraphs();
  // The event of a complete graph says nothing inside another graph.
  const bool follows =
      after_graphs || (last.place && (!place.captured || last.place->capture == place.capture));
  const bool same =
      last.place && !after_graphs &&
      (place.captured ? last.place->stream == stream : place.id && last.place->id == place.id);
  const auto& driver = device_.driver();
  if (follows && !same)
    TUTTI_TRY(driver.Check(driver.StreamWaitEvent(stream, last.event.get(), 0),
                           "ordering two streams of a communicator"));
  if (place.captured && !follows) TUTTI_TRY(BeginInGraph(place));
  entered_ = place;
  begun_ |= !place.captured;
  return Status::Ok();
}

// Makes the first operation of a graph wait, at each run of the graph, for all earlier launches
// outside of graphs or in other graphs.
Status GpuQueue::BeginInGraph(const Place& place) {
  TUTTI_TRY(KeepIn(place.graph, graphs_));
  if (!mixes_graphs_) return Status::Ok();
  const auto& driver = device_.driver();
  return driver.Check(driver.StreamWaitEvent(place.stream, launched_.event.get(), kExternal),
                      "ordering a graph behind the operations before it");
}

// Makes launches after the graph wait for the graph's last operation. Only the end of the capture
// shows the last operation. A single node therefore records the event and moves behind each new
// operation. No operation waits for this node.
Status GpuQueue::MarkInGraph(const Place& place) {
  const auto& driver = device_.driver();
  int status = 0;
  uint64_t capture = 0;
  cuda::Graph graph = nullptr;
  const cuda::GraphNode* nodes = nullptr;
  size_t num_nodes = 0;
  TUTTI_TRY(driver.Check(
      driver.StreamGetCaptureInfo(place.stream, &status, &capture, &graph, &nodes, &num_nodes),
      "asking for the last nodes of a graph"));
  const std::vector<cuda::GraphNode> behind(nodes, nodes + num_nodes);
  int result = 0;
  if (mark_.node == nullptr || mark_.capture != place.capture) {
    mark_ = {.capture = place.capture};
    result = driver.GraphAddEventRecordNode(&mark_.node, graph, behind.data(), behind.size(),
                                            launched_.event.get());
  } else {
    std::vector<cuda::GraphNode> to(std::max(behind.size(), mark_.behind.size()), mark_.node);
    result =
        driver.GraphRemoveDependencies(graph, mark_.behind.data(), to.data(), mark_.behind.size());
    if (result == 0)
      result = driver.GraphAddDependencies(graph, behind.data(), to.data(), behind.size());
  }
  if (result == 0) {
    mark_.behind = behind;
    return Status::Ok();
  }
  // The driver does not let a capture be edited, and a node is added that later operations wait
  // for.
  mark_ = {};
  return driver.Check(driver.EventRecordWithFlags(launched_.event.get(), place.stream, kExternal),
                      "recording an event in a graph");
}

Status GpuQueue::KeepIn(cuda::Graph graph, std::shared_ptr<const void> what) const {
  using Kept = std::shared_ptr<const void>;
  const auto& driver = device_.driver();
  auto kept = std::make_unique<Kept>(std::move(what));
  const auto let_go = [](void* object) { delete static_cast<Kept*>(object); };
  cuda::UserObject object = nullptr;
  TUTTI_TRY(driver.Check(driver.UserObjectCreate(&object, kept.get(), let_go, 1, kNoSync),
                         "making an object that a graph keeps"));
  kept.release();  // The object owns the pointer now.
  const Status status = driver.Check(driver.GraphRetainUserObject(graph, object, 1, kMove),
                                     "giving a graph what it needs");
  if (!status.ok()) driver.UserObjectRelease(object, 1);
  return status;
}

Status GpuQueue::Record() {
  if (!entered_) return Status::Ok();
  const Place place = *std::exchange(entered_, std::nullopt);
  Last& last = place.captured ? captured_ : launched_;
  const auto& driver = device_.driver();
  Status recorded = driver.Check(driver.EventRecord(last.event.get(), place.stream),
                                 "recording an event behind an operation");
  if (recorded.ok() && place.captured && mixes_graphs_) recorded = MarkInGraph(place);
  // An event that could not be recorded still stands behind an earlier operation. Waiting for such
  // an event would order nothing.
  last.place.reset();
  if (recorded.ok())
    last.place = place;
  else if (!place.captured)
    lost_track_ = true;
  return recorded;
}

// Makes every stream of a group wait for the group's last launch.
Status GpuQueue::HoldUp(std::span<const IssuedTask> tasks) {
  if (!entered_) return Status::Ok();
  const Place last = *entered_;
  std::vector<cuda::Stream> others;
  for (const IssuedTask& entry : tasks) {
    auto* const stream = static_cast<cuda::Stream>(entry.stream);
    if (stream != last.stream && std::find(others.begin(), others.end(), stream) == others.end())
      others.push_back(stream);
  }
  if (others.empty()) return Status::Ok();
  TUTTI_TRY(Record());
  const auto& driver = device_.driver();
  for (const cuda::Stream stream : others) {
    TUTTI_ASSIGN(const Place place, Look(stream));
    // The queue cannot order a captured stream and an uncaptured stream, nor streams of two
    // captures.
    if (place.captured != last.captured || place.capture != last.capture) continue;
    TUTTI_TRY(driver.Check(
        driver.StreamWaitEvent(stream, (last.captured ? captured_ : launched_).event.get(), 0),
        "ordering the streams of a group"));
  }
  return Status::Ok();
}

GpuQueue::Outcome GpuQueue::Leave(std::span<const IssuedTask> tasks) {
  Status recorded = HoldUp(tasks);
  if (recorded.ok()) recorded = Record();
  return {std::move(recorded), std::exchange(begun_, false)};
}

Status GpuQueue::OrderMessages(std::span<const IssuedTask> tasks) {
  for (const IssuedTask& entry : tasks)
    if (std::holds_alternative<MessageTask>(entry.task))
      TUTTI_TRY(OrderBehindLast(static_cast<cuda::Stream>(entry.stream)));
  return Status::Ok();
}

Status GpuQueue::Copy(void* to, const void* from, size_t bytes, cuda::Stream stream) const {
  if (to == from || bytes == 0) return Status::Ok();
  // The driver would copy from host memory to host memory on this thread, after all earlier work of
  // the stream, and the call would wait for this work.
  if (pointers_.IsOfHost(to) && pointers_.IsOfHost(from)) {
    const CopyPiece piece = {static_cast<std::byte*>(to), static_cast<const std::byte*>(from),
                             bytes};
    return device_.Copy({&piece, 1}, stream);
  }
  const auto& driver = device_.driver();
  return driver.Check(driver.MemcpyAsync(cuda::AddressOf(to), cuda::AddressOf(from), bytes, stream),
                      "copying on the GPU");
}

Status GpuQueue::CheckTasks(std::span<const IssuedTask> tasks) const {
  std::vector<MessageTask> own;
  for (const IssuedTask& entry : tasks) {
    TUTTI_TRY(pointers_.Check(entry.task));
    if (entry.stream != tasks[0].stream)
      TUTTI_TRY(Look(static_cast<cuda::Stream>(entry.stream)).status());
    if (const auto* const message = std::get_if<MessageTask>(&entry.task))
      if (message->peer == rank_) own.push_back(*message);
  }
  return OwnCopies(own, rank_, RankKind::kMesh).status();
}

}  // namespace tutti
