#include "perf/rank.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/hex.h"
#include "library.h"
#include "perf/barrier.h"
#include "perf/buffers.h"
#include "perf/channel.h"
#include "perf/collectives.h"
#include "perf/gpu.h"
#include "perf/pattern.h"

namespace tutti::tools {
namespace {

// Fills a receive buffer before an operation overwrites the buffer.
constexpr int kPoison = 0xa5;
constexpr size_t kStagedBytes = 4 << 20;

// A barrier through the driver, for ranks on several hosts.
class DriverBarrier : public Barrier {
 public:
  explicit DriverBarrier(Channel* channel) : channel_(channel) {}
  Status Wait() override {
    TUTTI_TRY(channel_->Send({{"barrier", true}}));
    return channel_->Receive(Deadline::Never()).status();
  }

 private:
  Channel* const channel_;
};

// Keeps this thread on one of the cores of its affinity.
void BindTo(int index) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  if (cores.empty()) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cores[static_cast<size_t>(index) % cores.size()], &one);
  sched_setaffinity(0, sizeof(one), &one);
}

class Rank {
 public:
  explicit Rank(UniqueFd driver) : channel_(std::move(driver)) {}
  ~Rank() {
    // Only after a failure: a rank that quits has destroyed its communicator.
    if (comm_ && library_) library()->CommAbort(comm_);
  }

  // Returns false when the driver has ended the connection or has said quit.
  bool ServeOne() {
    Result<Json> request = channel_.Receive(Deadline::Never());
    if (!request.ok()) return false;
    const std::string command = request->value("command", "");
    Result<Json> answer = Dispatch(command, *request);
    if (!answer.ok()) {
      const Status& status = answer.status();
      answer = Json{{"error", status.message()}, {"code", static_cast<int>(status.code())}};
    }
    return channel_.Send(*answer).ok() && command != "quit";
  }

 private:
  Result<Json> Dispatch(const std::string& command, const Json& request) {
    if (command == "hello") return Hello(request);
    if (command == "id") return MakeId();
    if (command == "page") return FindPage(request);
    if (command == "init") return Init(request);
    if (command == "prepare") return Prepare(request);
    if (command == "check")
      return CheckResults(request.value("in_place", false), request.value("graph", 0) > 0);
    if (command == "measure") return Measure(request);
    if (command == "plan") return DescribePlan();
    if (command == "predict") return Predict();
    if (command == "quit") return Quit();
    return InvalidUsage("the driver sent the unknown command '{}'", command);
  }

  Result<Json> Hello(const Json& request) {
    rank_ = request.value("rank", 0);
    num_ranks_ = request.value("size", 1);
    blocking_ = request.value("blocking", false);
    if (request.value("bind", false)) BindTo(request.value("bind_index", rank_));
    TUTTI_ASSIGN(library_, NcclLibrary::Load(request.value("library", "")));
    if (request.value("gpu", false)) {
      TUTTI_ASSIGN(gpu_, Gpu::Open(rank_));
      stream_ = reinterpret_cast<cudaStream_t>(gpu_->stream());
    }
    const std::string alloc = request.value("alloc", "malloc");
    const MemoryFrom from = alloc == "window"   ? MemoryFrom::kWindow
                            : alloc == "nccl"   ? MemoryFrom::kNccl
                            : alloc == "pinned" ? MemoryFrom::kPinned
                                                : MemoryFrom::kMalloc;
    if (from == MemoryFrom::kPinned && !gpu_)
      return InvalidUsage("--alloc pinned is for --device gpu");
    buffers_ = std::make_unique<Buffers>(library(), from, gpu_.get());
    if (request.value("stream", "null") == "host") {
      if (!library()->tuttiStreamCreate || !library()->tuttiStreamSynchronize ||
          !library()->tuttiStreamDestroy) {
        return InvalidUsage("{} has no host streams; use --stream null", library().path());
      }
      TUTTI_TRY(library().Check(library()->tuttiStreamCreate(&stream_), "tuttiStreamCreate"));
    }
    return Json{{"version", library().Version()}, {"path", library().path()}, {"pid", getpid()}};
  }

  Result<Json> MakeId() {
    ncclUniqueId id;
    TUTTI_TRY(library().Check(library()->GetUniqueId(&id), "ncclGetUniqueId"));
    return Json{{"id", launch::ToHex({id.internal, sizeof(id.internal)})}};
  }

  Result<Json> FindPage(const Json& request) {
    page_ = {request.value("pid", 0), request.value("fd", -1), request.value("token", uint64_t{0})};
    return Json{{"found", OpenBarrierPage(page_, num_ranks_, true).ok()}};
  }

  Result<Json> Init(const Json& request) {
    barrier_ = std::make_unique<DriverBarrier>(&channel_);
    if (request.value("pages", false)) {
      TUTTI_ASSIGN(barrier_, OpenBarrierPage(page_, num_ranks_, request.value("patient", false)));
    }
    TUTTI_ASSIGN(const std::string bytes, launch::FromHex(request.value("id", "")));
    ncclUniqueId id{};
    if (bytes.size() != sizeof(id.internal))
      return InvalidArgument("the unique id has {} bytes", bytes.size());
    std::copy(bytes.begin(), bytes.end(), id.internal);
    const int64_t start_ns = NowNs();
    TUTTI_TRY(library().Check(library()->CommInitRank(&comm_, num_ranks_, id, rank_),
                              "ncclCommInitRank"));
    return Json{{"ms", static_cast<double>(NowNs() - start_ns) / 1e6}};
  }

  Result<Json> Prepare(const Json& request) {
    Operation::Arguments arguments;
    TUTTI_ASSIGN(info_, ParseCollective(request.value("collective", "")));
    arguments.library = &library();
    arguments.collective = info_.collective;
    arguments.type = static_cast<ncclDataType_t>(request.value("type", 0));
    arguments.root = request.value("root", 0);
    arguments.rank = rank_;
    arguments.num_ranks = num_ranks_;
    arguments.comm = comm_;
    arguments.stream = stream_;
    element_size_ = ElementSize(arguments.type);
    shape_ =
        ShapeFor(info_.collective, request.value("bytes", size_t{0}), element_size_, num_ranks_);
    arguments.shape = shape_;
    root_ = arguments.root;
    TUTTI_TRY(
        ChooseOperator(arguments.type, static_cast<Reduction>(request.value("reduction", 0))));
    arguments.op = operator_;
    operation_.emplace(arguments);
    TUTTI_TRY(operation_->Supported());
    const size_t skew = request.value("misalign", size_t{0}) / element_size_ * element_size_;
    TUTTI_TRY(buffers_->Prepare(shape_.send_count * element_size_,
                                shape_.recv_count * element_size_, request.value("rotate", 1), skew,
                                comm_));
    return Json::object();
  }

  Status ChooseOperator(ncclDataType_t type, Reduction reduction) {
    if (pattern_ && type_ == type && reduction_ == reduction) return {};
    pattern_ = std::make_unique<Pattern>(type, reduction, num_ranks_);
    type_ = type;
    reduction_ = reduction;
    TUTTI_TRY(ReleaseOperator());
    operator_ = OperatorOf(reduction);
    if (reduction != Reduction::kMulSum) return {};
    if (!library()->RedOpCreatePreMulSum || !library()->RedOpDestroy) {
      return InvalidUsage("{} has no ncclRedOpCreatePreMulSum", library().path());
    }
    uint64_t scalar = pattern_->Scalar(rank_);
    TUTTI_TRY(library().Check(
        library()->RedOpCreatePreMulSum(&operator_, &scalar, type, ncclScalarHostImmediate, comm_),
        "ncclRedOpCreatePreMulSum", comm_));
    owns_operator_ = true;
    return {};
  }

  Status ReleaseOperator() {
    if (!owns_operator_) return {};
    owns_operator_ = false;
    return library().Check(library()->RedOpDestroy(operator_, comm_), "ncclRedOpDestroy", comm_);
  }

  struct Pointers {
    char* send;
    char* recv;
  };
  Pointers PointersFor(int set, bool in_place) const {
    Pointers pointers{buffers_->send(set), buffers_->recv(set)};
    if (!in_place) return pointers;
    const InPlaceOffsets place = InPlaceFor(info_.collective, shape_, rank_, num_ranks_);
    if (place.shared_is_recv) {
      pointers.send = pointers.recv + place.offset * element_size_;
    } else {
      pointers.recv = pointers.send + place.offset * element_size_;
    }
    return pointers;
  }

  Status Run(const Pointers& pointers) {
    const ncclResult_t result = operation_->Run(pointers.send, pointers.recv);
    if (result == ncclSuccess) [[likely]]
      return {};
    return library().Check(result, info_.name, comm_);
  }

  Status Synchronize() {
    if (gpu_) return gpu_->Synchronize();
    if (!stream_) return {};
    return library().Check(library()->tuttiStreamSynchronize(stream_), info_.name, comm_);
  }

  struct Wrong {
    size_t count = 0;
    std::string first;  // about the first wrong element
  };

  // Runs one operation on fresh buffers and returns its errors. With `graph` the operation is
  // captured and two replays are checked, because a replay must not spoil the next replay.
  Result<Json> CheckResults(bool in_place, bool graph) {
    const Pointers pointers = PointersFor(0, in_place);
    if (graph) {
      // NCCL connects ranks at their first operation, and cannot connect them in a capture.
      TUTTI_TRY(Run(pointers));
      TUTTI_TRY(Synchronize());
      TUTTI_TRY(gpu_->Capture([&] { return Run(pointers); }));
    }
    Wrong wrong;
    for (int run = 0; run < (graph ? 2 : 1); ++run) {
      TUTTI_TRY(Poison(buffers_->send(0), shape_.send_count * element_size_));
      TUTTI_TRY(Poison(buffers_->recv(0), shape_.recv_count * element_size_));
      TUTTI_TRY(FillInput(pointers.send, FilledCount()));
      TUTTI_TRY(barrier_->Wait());
      TUTTI_TRY(graph ? gpu_->LaunchGraph() : Run(pointers));
      TUTTI_TRY(Synchronize());
      for (const Region& region :
           ExpectedRegions(info_.collective, shape_, rank_, root_, num_ranks_)) {
        TUTTI_TRY(CountWrong(pointers.recv, region, "receive", &wrong));
      }
      // Out of place, nothing may write to the send buffer.
      if (!in_place)
        TUTTI_TRY(CountWrong(pointers.send, {0, FilledCount(), rank_, 0}, "send", &wrong));
    }
    return Json{{"wrong", wrong.count}, {"first", wrong.first}};
  }

  size_t FilledCount() const { return SendCount(info_.collective, shape_, rank_, num_ranks_); }

  // Results in a GPU's memory are copied to the host piece by piece, for the copy to stay in the
  // processor's caches.
  Status CountWrong(const char* data, const Region& region, const char* buffer, Wrong* wrong) {
    const size_t piece = gpu_ ? StagedElems() : region.count;
    for (size_t done = 0; done < region.count; done += piece) {
      const size_t count = std::min(piece, region.count - done);
      const char* from = data + (region.begin + done) * element_size_;
      if (gpu_) {
        TUTTI_TRY(gpu_->Download(staged_.data(), from, count * element_size_));
        from = staged_.data();
      }
      size_t first = 0;
      std::string sentence;
      const size_t found = pattern_->CountWrong(
          from, region.source_rank, region.source_begin + done, count, &first, &sentence);
      if (found > 0 && wrong->count == 0)
        wrong->first =
            fmt::format("{} buffer, element {}: {}", buffer, region.begin + done + first, sentence);
      wrong->count += found;
    }
    return {};
  }

  // Allocates staged_ where needed, and returns the number of elements that fit.
  size_t StagedElems() {
    staged_.resize(kStagedBytes);
    return kStagedBytes / element_size_;
  }

  Status Poison(char* buffer, size_t bytes) {
    if (gpu_) return gpu_->Set(buffer, kPoison, bytes);
    std::memset(buffer, kPoison, bytes);
    return {};
  }
  Status FillInput(char* buffer, size_t count) {
    if (!gpu_) {
      pattern_->Fill(buffer, rank_, 0, count);
      return {};
    }
    const size_t piece = StagedElems();
    for (size_t done = 0; done < count; done += piece) {
      const size_t elems = std::min(piece, count - done);
      pattern_->Fill(staged_.data(), rank_, done, elems);
      TUTTI_TRY(gpu_->Upload(buffer + done * element_size_, staged_.data(), elems * element_size_));
    }
    return {};
  }

  // Runs `iterations` operations in graphs of `in_graph` each; returns the time of one operation.
  Result<Json> MeasureGraph(const std::vector<Pointers>& sets, int in_graph, int warmup,
                            int iterations) {
    const auto issue = [&]() -> Status {
      for (int i = 0; i < in_graph; ++i) TUTTI_TRY(Run(sets[static_cast<size_t>(i) % sets.size()]));
      return {};
    };
    TUTTI_TRY(gpu_->Capture(issue));
    if (warmup > 0) TUTTI_TRY(gpu_->LaunchGraph());
    TUTTI_TRY(Synchronize());
    const int launches = std::max(1, iterations / in_graph);
    TUTTI_TRY(barrier_->Wait());
    const int64_t start_ns = NowNs();
    for (int i = 0; i < launches; ++i) TUTTI_TRY(gpu_->LaunchGraph());
    TUTTI_TRY(Synchronize());
    const double each = static_cast<double>(NowNs() - start_ns) / (double(launches) * in_graph);
    return Json{{"ns", each * iterations}};
  }

  Result<Json> Measure(const Json& request) {
    const bool in_place = request.value("in_place", false);
    const int iterations = request.value("iterations", 1);
    const int warmup = request.value("warmup", 0);
    std::vector<Pointers> sets;
    for (int set = 0; set < buffers_->sets(); ++set) sets.push_back(PointersFor(set, in_place));
    if (const int in_graph = request.value("graph", 0); in_graph > 0)
      return MeasureGraph(sets, in_graph, warmup, iterations);
    size_t next = 0;
    const auto run_next = [&] {
      const Pointers& pointers = sets[next];
      next = next + 1 == sets.size() ? 0 : next + 1;
      Status status = Run(pointers);
      if (!status.ok() || !blocking_) return status;
      return Synchronize();
    };
    for (int i = 0; i < warmup; ++i) TUTTI_TRY(run_next());
    TUTTI_TRY(Synchronize());
    if (request.value("each", false)) {
      std::vector<int64_t> times;
      times.reserve(static_cast<size_t>(iterations));
      for (int i = 0; i < iterations; ++i) {
        TUTTI_TRY(barrier_->Wait());
        const int64_t start_ns = NowNs();
        TUTTI_TRY(run_next());
        TUTTI_TRY(Synchronize());
        times.push_back(NowNs() - start_ns);
      }
      return Json{{"ns", times}};
    }
    TUTTI_TRY(barrier_->Wait());
    const int64_t start_ns = NowNs();
    for (int i = 0; i < iterations; ++i) TUTTI_TRY(run_next());
    TUTTI_TRY(Synchronize());
    return Json{{"ns", NowNs() - start_ns}};
  }

  Result<Json> DescribePlan() {
    if (!library()->tuttiPlanDescribe || info_.plan_name.empty()) return Json{{"text", ""}};
    std::string text(65536, '\0');
    TUTTI_TRY(library().Check(
        library()->tuttiPlanDescribe(comm_, std::string(info_.plan_name).c_str(), shape_.count,
                                     type_, operator_, text.data(), text.size(), nullptr),
        "tuttiPlanDescribe", comm_));
    text.resize(std::char_traits<char>::length(text.c_str()));
    return Json{{"text", text}};
  }

  // Returns the time that the library's model predicts for one operation, null without a
  // prediction.
  Result<Json> Predict() {
    if (!library()->GroupSimulateEnd) return Json{{"us", nullptr}};
    const Pointers pointers = PointersFor(0, false);
    TUTTI_TRY(library().Check(library()->GroupStart(), "ncclGroupStart"));
    const ncclResult_t issued = operation_->Run(pointers.send, pointers.recv);
    ncclSimInfo_t simulation = NCCL_SIM_INFO_INITIALIZER;
    const ncclResult_t ended = library()->GroupSimulateEnd(&simulation);
    TUTTI_TRY(library().Check(issued, "predicting the operation", comm_));
    TUTTI_TRY(library().Check(ended, "ncclGroupSimulateEnd", comm_));
    if (!(simulation.estimatedTime >= 0)) return Json{{"us", nullptr}};
    return Json{{"us", simulation.estimatedTime}};
  }

  Result<Json> Quit() {
    if (!library_) return Json::object();
    TUTTI_TRY(ReleaseOperator());
    buffers_.reset();
    if (gpu_) gpu_->DropGraph();
    if (comm_) {
      const ncclComm_t comm = std::exchange(comm_, nullptr);
      TUTTI_TRY(library().Check(library()->CommDestroy(comm), "ncclCommDestroy"));
    }
    if (stream_ && !gpu_)
      TUTTI_TRY(library().Check(library()->tuttiStreamDestroy(stream_), "tuttiStreamDestroy"));
    return Json::object();
  }

  const NcclLibrary& library() const { return *library_; }

  Channel channel_;
  std::optional<NcclLibrary> library_;
  int rank_ = 0;
  int num_ranks_ = 1;
  bool blocking_ = false;
  BarrierPage page_;
  std::unique_ptr<Barrier> barrier_;
  std::unique_ptr<Gpu> gpu_;  // null for a host rank
  std::unique_ptr<Buffers> buffers_;
  std::unique_ptr<Pattern> pattern_;
  std::vector<char> staged_;  // data on the way from or to a GPU
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  CollectiveInfo info_{};
  Shape shape_;
  int root_ = 0;
  size_t element_size_ = 1;
  ncclDataType_t type_ = ncclInt8;
  Reduction reduction_ = Reduction::kNone;
  ncclRedOp_t operator_ = ncclSum;
  bool owns_operator_ = false;
  std::optional<Operation> operation_;
};

}  // namespace

void ServeRank(UniqueFd driver) {
  Rank rank(std::move(driver));
  while (rank.ServeOne()) {
  }
}

}  // namespace tutti::tools
