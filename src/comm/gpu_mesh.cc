#include "comm/gpu_mesh.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/reduce.h"

namespace tutti {
namespace {

constexpr size_t kMostSlotBytes = 64 << 10;
constexpr size_t kFewestSlotBytes = 4 << 10;
// For cuMemHostAlloc: usable by all contexts, and mapped.
constexpr unsigned kPinnedForAll = 3;
constexpr unsigned kEventWithoutTiming = 2;
// Numbers of cuPointerGetAttribute.
constexpr int kPointerMemoryType = 2;
constexpr int kPointerOrdinal = 9;
constexpr unsigned kHostMemory = 1;

// What a rank tells the others about its window.
struct WindowOffer {
  uint64_t offer = 0;  // of the descriptor; 0: it has failed
  uint64_t bytes = 0;
  char failure[240] = {};
};

// Whether a rank could map all windows.
struct WindowAnswer {
  uint8_t ok = 0;
  char failure[255] = {};
};

template <size_t kSize>
void KeepText(char (&target)[kSize], std::string_view text) {
  text.copy(target, kSize - 1);
}
template <size_t kSize>
std::string_view TextOf(const char (&field)[kSize]) {
  return {field, strnlen(field, kSize)};
}

}  // namespace

Result<std::unique_ptr<GpuMesh>> GpuMesh::Create(const Options& options) {
  std::unique_ptr<GpuMesh> mesh(new GpuMesh);
  mesh->device_ = options.device;
  mesh->check_pointers_ = options.settings->check_pointers;
  TUTTI_TRY(mesh->CheckReach(options));
  const auto& driver = options.device->driver();
  const cuda::ContextScope scope(driver, options.device->context());
  void* word = nullptr;
  TUTTI_TRY(driver.Check(driver.MemHostAlloc(&word, sizeof(uint32_t), kPinnedForAll),
                         "allocating pinned memory"));
  mesh->abort_word_ = static_cast<uint32_t*>(word);
  *mesh->abort_word_ = 0;
  TUTTI_TRY(
      driver.Check(driver.EventCreate(&mesh->order_, kEventWithoutTiming), "making a CUDA event"));

  const int n = options.bootstrap->num_ranks();
  auto& layout = mesh->args_.layout;
  layout.num_ranks = n;
  layout.slot_bytes =
      std::clamp(static_cast<size_t>(options.settings->gpu_window) / layout.Slots() / 1024 * 1024,
                 kFewestSlotBytes, kMostSlotBytes);
  mesh->messages_ = {layout.TotalBytes(), n};
  mesh->context_.num_ranks = n;
  mesh->context_.slot_bytes = layout.slot_bytes;
  mesh->context_.line_slot_bytes = cuda::kLines * cuda::kLineData;
  mesh->context_.max_blocks =
      static_cast<uint32_t>(std::min<int64_t>(options.settings->max_ctas, cuda::kMaxBlocks));
  TUTTI_TRY(ApplyMeshTuning(options.settings->gpu_tune, mesh->context_));
  mesh->args_.rank = options.bootstrap->rank();
  mesh->args_.num_ranks = n;
  mesh->args_.abort_word = mesh->abort_word_;
  if (n > 1) TUTTI_TRY(mesh->ShareWindow(options));
  return mesh;
}

GpuMesh::~GpuMesh() {
  if (device_ == nullptr) return;
  const auto& driver = device_->driver();
  const cuda::ContextScope scope(driver, device_->context());
  if (order_ != nullptr) driver.EventDestroy(order_);
  mapped_.clear();
  memory_ = {};
  if (abort_word_ != nullptr) driver.MemFreeHost(abort_word_);
}

// What cannot work, said alike on all ranks, before anything is allocated.
Status GpuMesh::CheckReach(const Options& options) const {
  const auto& peers = options.peers;
  if (peers.size() > static_cast<size_t>(cuda::kMaxMeshRanks))
    return InvalidUsage("a communicator of GPUs has at most {} ranks so far, not {}",
                        cuda::kMaxMeshRanks, peers.size());
  for (size_t r = 1; r < peers.size(); ++r) {
    if (peers[r].host_hash != peers[0].host_hash)
      return InvalidUsage(
          "{} and {} are on different hosts: GPUs are joined within one host only so far",
          RankName(0, peers[0]), RankName(static_cast<int>(r), peers[r]));
  }
  if (options.settings->p2p_disable && peers.size() > 1)
    return InvalidUsage(
        "NCCL_P2P_DISABLE is set, and GPUs have no other way to one another so far");
  return Status::Ok();
}

// Every rank makes its window and offers it; every rank maps all others; and all learn whether all
// could.
Status GpuMesh::ShareWindow(const Options& options) {
  Bootstrap& bootstrap = *options.bootstrap;
  const auto n = static_cast<size_t>(bootstrap.num_ranks());
  const auto me = static_cast<size_t>(bootstrap.rank());
  UniqueFd fd;
  std::vector<WindowOffer> offers(n);
  Result<cuda::MappedMemory> made = cuda::MappedMemory::Create(*device_, messages_.EndsAt(), &fd);
  if (made.ok()) {
    memory_ = std::move(made).value();
    offers[me].offer = options.fd_server->Offer(fd.get(), options.key);
    offers[me].bytes = memory_.size();
  } else {
    KeepText(offers[me].failure, made.status().message());
  }
  const auto withdraw = [&](Status status) {
    if (offers[me].offer != 0) options.fd_server->Withdraw(offers[me].offer);
    return status;
  };
  const Status gathered = bootstrap.AllGather(offers.data(), sizeof(WindowOffer), options.deadline);
  if (!gathered.ok()) return withdraw(gathered);

  std::vector<WindowAnswer> answers(n);
  const auto map_all = [&]() -> Status {
    mapped_.resize(n);
    for (size_t r = 0; r < n; ++r) {
      args_.windows[r] = memory_.data();
      if (r == me) continue;
      const std::string name = RankName(static_cast<int>(r), options.peers[r]);
      if (offers[r].offer == 0)
        return RemoteError("{} could not make its window: {}", name, TextOf(offers[r].failure));
      if (offers[r].bytes != memory_.size())
        return RemoteError("{} offers a window of {} bytes, but {} were agreed on", name,
                           offers[r].bytes, memory_.size());
      TUTTI_ASSIGN(const UniqueFd theirs,
                   FetchFd(TextOf(options.peers[r].fd_server), offers[r].offer, options.key,
                           options.deadline, options.abort_flag));
      Result<cuda::MappedMemory> window =
          cuda::MappedMemory::Import(*device_, theirs, offers[r].bytes);
      if (!window.ok())
        return std::move(window).status().Annotate(
            fmt::format("mapping the window of {} on {} (are the GPUs joined by NVLink, or by PCIe "
                        "with peer access?)",
                        name, device_->name()));
      mapped_[r] = std::move(window).value();
      args_.windows[r] = mapped_[r].data();
    }
    return Status::Ok();
  };
  const Status mapped = made.ok() ? map_all() : made.status();
  answers[me].ok = mapped.ok();
  KeepText(answers[me].failure, mapped.message());
  const Status answered =
      bootstrap.AllGather(answers.data(), sizeof(WindowAnswer), options.deadline);
  TUTTI_TRY(withdraw(answered));
  TUTTI_TRY(mapped);
  for (size_t r = 0; r < n; ++r)
    if (answers[r].ok == 0)
      return RemoteError("{} cannot work with the others' GPUs: {}",
                         RankName(static_cast<int>(r), options.peers[r]),
                         TextOf(answers[r].failure));
  return Status::Ok();
}

void GpuMesh::Abort() {
  std::atomic_ref<uint32_t>(*abort_word_).store(1, std::memory_order_seq_cst);
}

Status GpuMesh::Drain() {
  const auto& driver = device_->driver();
  const cuda::ContextScope scope(driver, device_->context());
  return driver.Check(driver.ContextSynchronize(), "waiting for the GPU");
}

Status GpuMesh::OrderBehindLast(cuda::Stream stream) {
  const bool follows = launched_ && stream != last_stream_;
  const cuda::Stream last = last_stream_;
  launched_ = true;
  last_stream_ = stream;
  if (!follows) return Status::Ok();
  const auto& driver = device_->driver();
  int now_captured = 0, then_captured = 0;
  driver.StreamIsCapturing(stream, &now_captured);
  // The stream may be gone; then its work cannot be named any more and the GPU is waited for.
  const bool gone = driver.StreamIsCapturing(last, &then_captured) != 0;
  if (now_captured != 0 && then_captured == 0)
    return Status::Ok();  // a graph's place is its user's
  if (gone || driver.EventRecord(order_, last) != 0)
    return driver.Check(driver.ContextSynchronize(), "waiting for the GPU");
  return driver.Check(driver.StreamWaitEvent(stream, order_, 0),
                      "ordering two streams of a communicator");
}

Status GpuMesh::CheckPointer(const void* pointer, const char* what) const {
  const auto& driver = device_->driver();
  const auto address = static_cast<cuda::DeviceAddress>(reinterpret_cast<uintptr_t>(pointer));
  unsigned type = 0;
  int ordinal = -1;
  if (driver.PointerGetAttribute(&type, kPointerMemoryType, address) != 0)
    return InvalidArgument(
        "the {} buffer at {} is memory of the host that CUDA does not know; a rank with a GPU "
        "needs "
        "device memory or pinned host memory",
        what, fmt::ptr(pointer));
  if (type == kHostMemory) return Status::Ok();
  if (driver.PointerGetAttribute(&ordinal, kPointerOrdinal, address) == 0 &&
      ordinal != device_->ordinal())
    return InvalidArgument("the {} buffer at {} is on CUDA device {}, but this rank's is {}", what,
                           fmt::ptr(pointer), ordinal, device_->ordinal());
  return Status::Ok();
}

Status GpuMesh::CheckTask(const Task& task) const {
  switch (task.collective) {
    case Collective::kAllGatherV:
    case Collective::kReduceScatterV:
    case Collective::kAlltoAllV:
    case Collective::kBarrier:
      return InvalidUsage("{} is not implemented on GPUs", Name(task.collective));
    default:
      break;
  }
  if (!check_pointers_ || task.count == 0) return Status::Ok();
  if (task.send != nullptr) TUTTI_TRY(CheckPointer(task.send, "send"));
  if (task.recv != nullptr) TUTTI_TRY(CheckPointer(task.recv, "receive"));
  return Status::Ok();
}

Status GpuMesh::Launch(std::span<const DeviceTask> tasks) {
  for (const DeviceTask& entry : tasks) TUTTI_TRY(CheckTask(entry.task));
  const cuda::ContextScope scope(device_->driver(), device_->context());
  const std::lock_guard lock(launch_mutex_);
  for (const DeviceTask& entry : tasks) {
    const auto stream = static_cast<cuda::Stream>(entry.stream);
    if (entry.task.count == 0 || entry.task.collective == Collective::kSendRecv) continue;
    TUTTI_TRY(OrderBehindLast(stream));
    TUTTI_TRY(args_.num_ranks == 1 ? LaunchAlone(entry.task, stream)
                                   : LaunchCollective(entry.task, stream));
  }
  return LaunchMessages(tasks);
}

cuda::ReduceArgs GpuMesh::ReduceArgsOf(const Task& task) const {
  cuda::ReduceArgs args;
  if (!task.is_reduction()) return args;
  args.kind = task.op.kind;
  args.scale = task.op.pre_multiply;
  args.scalar = task.op.scalar;
  args.live_scalar = task.op.live_scalar;
  if (task.op.average) args.divisor = static_cast<uint32_t>(args_.num_ranks);
  return args;
}

Status GpuMesh::LaunchCollective(const Task& task, cuda::Stream stream) {
  // Kernels that move bytes know no types.
  const bool moves = !task.is_reduction();
  const size_t elem = moves ? 1 : task.elem_bytes();
  const size_t count = moves ? task.count * task.elem_bytes() : task.count;
  const MeshChoice choice = ChooseMesh(context_, task.collective, count, elem);
  cuda::MeshArgs args = args_;
  args.input = static_cast<const std::byte*>(task.send);
  args.output = static_cast<std::byte*>(task.recv);
  args.count = count;
  args.stride = count;
  args.block_elems = choice.block_elems;
  args.chunk_elems = choice.chunk_elems;
  args.root = task.root;
  args.algorithm = choice.algorithm;
  args.flagged = choice.flagged;
  args.reduce = ReduceArgsOf(task);
  return device_->Launch(args, task.type, choice.blocks, choice.threads, stream);
}

// The n-th send to itself meets the n-th receive.
Status GpuMesh::CopyOwnMessages(std::span<const DeviceTask> tasks, cuda::Stream stream) {
  const auto own = [&](const Task& task, bool sends) {
    return task.collective == Collective::kSendRecv && task.root == args_.rank &&
           task.is_send == sends && task.count > 0;
  };
  auto receive = tasks.begin();
  for (const DeviceTask& entry : tasks) {
    if (!own(entry.task, true)) continue;
    while (receive != tasks.end() && !own(receive->task, false)) ++receive;
    if (receive == tasks.end())
      return InvalidUsage("rank {} sends to itself without receiving in the same group",
                          args_.rank);
    Task copy = entry.task;
    copy.recv = receive->task.recv;
    if (copy.count * copy.elem_bytes() != receive->task.count * receive->task.elem_bytes())
      return InvalidUsage("rank {} sends itself {} bytes and receives {}", args_.rank,
                          copy.count * copy.elem_bytes(),
                          receive->task.count * receive->task.elem_bytes());
    TUTTI_TRY(LaunchAlone(copy, stream));
    ++receive;
  }
  while (receive != tasks.end() && !own(receive->task, false)) ++receive;
  if (receive != tasks.end())
    return InvalidUsage("rank {} receives from itself without sending in the same group",
                        args_.rank);
  return Status::Ok();
}

// A kernel holds so many messages of each pair and direction that all pairs have room; what is
// beyond goes into further kernels. Both ends of a pair cut alike.
Status GpuMesh::LaunchMessages(std::span<const DeviceTask> tasks) {
  const auto first = std::find_if(tasks.begin(), tasks.end(), [](const DeviceTask& entry) {
    return entry.task.collective == Collective::kSendRecv;
  });
  if (first == tasks.end()) return Status::Ok();
  const auto stream = static_cast<cuda::Stream>(first->stream);
  // On several streams, the first carries the kernels, after the others and before what they do
  // next.
  for (const DeviceTask& entry : tasks)
    if (entry.task.collective == Collective::kSendRecv)
      TUTTI_TRY(OrderBehindLast(static_cast<cuda::Stream>(entry.stream)));
  TUTTI_TRY(OrderBehindLast(stream));
  TUTTI_TRY(CopyOwnMessages(tasks, stream));
  const auto n = static_cast<size_t>(args_.num_ranks);
  if (n == 1) return Status::Ok();

  const size_t in_kernel = cuda::kMostMessages / (2 * (n - 1));
  size_t longest = 0;
  std::vector<std::pair<size_t, cuda::Message>> messages;  // with their number in their pair
  std::vector<size_t> seen(2 * n);
  for (const DeviceTask& entry : tasks) {
    const Task& task = entry.task;
    if (task.collective != Collective::kSendRecv || task.root == args_.rank || task.count == 0)
      continue;
    size_t& number = seen[static_cast<size_t>(task.root) * 2 + (task.is_send ? 1 : 0)];
    cuda::Message message;
    message.buffer =
        static_cast<std::byte*>(task.is_send ? const_cast<void*>(task.send) : task.recv);
    message.bytes = task.count * task.elem_bytes();
    message.peer = static_cast<int16_t>(task.root);
    message.is_send = task.is_send;
    messages.emplace_back(number++, message);
    longest = std::max(longest, number);
  }
  cuda::MessageArgs args;
  std::copy(std::begin(args_.windows), std::end(args_.windows), std::begin(args.windows));
  args.abort_word = args_.abort_word;
  args.layout = messages_;
  args.rank = args_.rank;
  args.num_ranks = args_.num_ranks;
  for (size_t begin = 0; begin < longest; begin += in_kernel) {
    args.num_messages = 0;
    for (const auto& [number, message] : messages)
      if (number >= begin && number < begin + in_kernel)
        args.messages[args.num_messages++] = message;
    if (args.num_messages > 0) TUTTI_TRY(device_->Launch(args, stream));
  }
  // What the caller queues next on the other streams comes after the messages.
  for (const DeviceTask& entry : tasks)
    if (entry.task.collective == Collective::kSendRecv)
      TUTTI_TRY(OrderBehindLast(static_cast<cuda::Stream>(entry.stream)));
  return Status::Ok();
}

// One rank: the result is the input, scaled as asked.
Status GpuMesh::LaunchAlone(const Task& task, cuda::Stream stream) {
  if (task.op.pre_multiply && task.is_reduction())
    return InvalidUsage("a scaled sum over one GPU is not implemented");
  if (task.send == task.recv) return Status::Ok();
  const auto& driver = device_->driver();
  return driver.Check(driver.MemcpyAsync(reinterpret_cast<cuda::DeviceAddress>(task.recv),
                                         reinterpret_cast<cuda::DeviceAddress>(task.send),
                                         task.count * task.elem_bytes(), stream),
                      "copying on the GPU");
}

std::string GpuMesh::Describe(const Task& task) const {
  if (task.count == 0 || args_.num_ranks == 1) return "one rank copies its input";
  if (const Status status = CheckTask(task); !status.ok()) return std::string(status.message());
  const bool moves = !task.is_reduction();
  const size_t elem = moves ? 1 : task.elem_bytes();
  return tutti::Describe(ChooseMesh(context_, task.collective,
                                    moves ? task.count * task.elem_bytes() : task.count, elem));
}

}  // namespace tutti
