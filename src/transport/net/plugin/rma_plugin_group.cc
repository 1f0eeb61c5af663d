#include "transport/net/plugin/rma_plugin_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "transport/net/plugin/plugin_context.h"

namespace tutti {

Result<std::shared_ptr<RmaPluginContext>> RmaPluginContext::Create(
    std::shared_ptr<RmaLibrary> library, uint64_t number) {
  void* context = nullptr;
  const ncclResult_t result = library->functions().Init(number, &context);
  const std::string name = fmt::format("plugin {}", library->functions().name());
  if (result != ncclSuccess) return FailureOfPlugin(name, "init", result);
  std::shared_ptr<RmaPluginContext> made(new RmaPluginContext(std::move(library), context));
  TUTTI_TRY(made->ReadProperties());
  return made;
}

RmaPluginContext::RmaPluginContext(std::shared_ptr<RmaLibrary> library, void* context)
    : library_(std::move(library)),
      context_(context),
      name_(fmt::format("plugin {}", library_->functions().name())) {}

Status RmaPluginContext::ReadProperties() {
  const MutexLock lock(set_up_);
  return Check("getGinProperties", library_->GetGinProperties(&properties_));
}

RmaPluginContext::~RmaPluginContext() {
  // No other thread has the context any more. The result of finalize could only be ignored.
  const MutexLock lock(set_up_);
  functions().Finalize(context_);
}

Status RmaPluginContext::Check(std::string_view what, ncclResult_t result) const {
  return result == ncclSuccess ? Status::Ok() : FailureOfPlugin(name_, what, result);
}

NetRemoteKey RmaPluginMemory::remote_key() const {
  NetRemoteKey key = {};
  std::memcpy(key.data(), &handle_, sizeof(handle_));
  return key;
}

// The handle is that of the memory of all ranks, hence the key of this rank serves for any rank.
RmaFunctions::Place RmaPluginMemory::PlaceOf(const NetRemote& remote) {
  RmaFunctions::Place place = {remote.offset, nullptr};
  std::memcpy(&place.memory, remote.key.data(), sizeof(place.memory));
  return place;
}

// A registration of all ranks. The group outlives it.
class RmaPluginGroup::Registered final : public RmaPluginMemory {
 public:
  Registered(const NetRegion& region, void* handle, RmaPluginGroup& group)
      : RmaPluginMemory(region, handle, 0), group_(group) {}
  ~Registered() override { group_.Deregister(handle()); }

 private:
  RmaPluginGroup& group_;
};

Result<std::unique_ptr<RmaPluginGroup>> RmaPluginGroup::Create(
    std::shared_ptr<RmaPluginContext> context, void* coll_comm, void* made, int num_ranks,
    int rank) {
  std::unique_ptr<RmaPluginGroup> group(
      new RmaPluginGroup(std::move(context), coll_comm, made, num_ranks, rank));
  TUTTI_TRY(group->MakeScratch());
  return group;
}

// The scratch memory holds the words that flushes add to, hence its writes must keep their order.
Status RmaPluginGroup::MakeScratch() {
  scratch_.resize((StageAt() + kStageBytes) / sizeof(uint64_t));
  NetRegion region = {reinterpret_cast<std::byte*>(scratch_.data()), StageAt() + kStageBytes};
  region.holds_signals = true;
  TUTTI_ASSIGN(scratch_memory_, Register(region));
  return Status::Ok();
}

RmaPluginGroup::~RmaPluginGroup() {
  scratch_memory_.reset();
  const MutexLock set_up(context_->set_up());
  CloseAll();
}

// The registration may wait for other ranks, hence data_ is not held meanwhile and operations go
// on. set_up() keeps the group from being closed during the call.
Result<std::unique_ptr<NetMemory>> RmaPluginGroup::Register(const NetRegion& region) {
  const MutexLock set_up(context_->set_up());
  void* coll_comm = nullptr;
  {
    const MutexLock lock(data_);
    TUTTI_TRY(failure_);
    coll_comm = coll_comm_;
  }
  const int type = region.kind == NetMemoryKind::kGpu ? TUTTI_GIN_PTR_CUDA : TUTTI_GIN_PTR_HOST;
  const uint64_t flags = region.holds_signals ? TUTTI_GIN_MR_STRICT_ORDER : 0;
  const bool dmabuf = region.dmabuf_fd >= 0;
  void* handle = nullptr;
  RmaFunctions& plugin = context_->functions();
  TUTTI_TRY(context_->Check(
      dmabuf ? "regMrSymDmaBuf" : "regMrSym",
      dmabuf ? plugin.RegisterDmabuf(coll_comm, region.address, region.bytes, type,
                                     region.dmabuf_offset, region.dmabuf_fd, flags, &handle)
             : plugin.Register(coll_comm, region.address, region.bytes, type, flags, &handle)));
  const MutexLock lock(data_);
  regions_.push_back({handle, region});
  return std::unique_ptr<NetMemory>(std::make_unique<Registered>(region, handle, *this));
}

// Ends a registration on this rank, unless CloseAll has ended it.
void RmaPluginGroup::Deregister(void* handle) {
  const MutexLock set_up(context_->set_up());
  void* coll_comm = nullptr;
  {
    const MutexLock lock(data_);
    const auto found = std::find_if(regions_.begin(), regions_.end(),
                                    [&](const Region& region) { return region.handle == handle; });
    if (found == regions_.end()) return;
    regions_.erase(found);
    coll_comm = coll_comm_;
  }
  // A failure is ignored, since nothing depends on the registration any more.
  context_->functions().Deregister(coll_comm, handle);
}

// A region that is registered only in part counts as unregistered. Its puts go through the stage.
std::unique_ptr<NetMemory> RmaPluginGroup::MemoryFor(const NetRegion& region) {
  const MutexLock lock(data_);
  for (const Region& known : regions_) {
    if (region.address < known.region.address) continue;
    const auto base = static_cast<uint64_t>(region.address - known.region.address);
    if (base > known.region.bytes || region.bytes > known.region.bytes - base) continue;
    return std::make_unique<RmaPluginMemory>(region, known.handle, base);
  }
  return std::make_unique<RmaPluginMemory>(region, nullptr, 0);
}

std::unique_ptr<NetRmaComm> RmaPluginGroup::MakeComm(int peer) {
  return std::make_unique<RmaPluginComm>(*this, peer);
}

// The failure stops all calls even if another thread holds set_up() and the group stays open.
void RmaPluginGroup::Close() {
  {
    const MutexLock lock(data_);
    if (failure_.ok()) failure_ = InternalError("this rank has left {}", context_->name());
  }
  if (!context_->set_up().TryLock()) return;
  CloseAll();
  context_->set_up().Unlock();
}

// Closes in the order that plugins are promised: memory, the context, the comm.
void RmaPluginGroup::CloseAll() {
  const MutexLock lock(data_);
  CloseLocked();
}

// A second call finds no comm and does nothing, since Close, Fail and the destructor may all come
// here.
void RmaPluginGroup::CloseLocked() {
  if (failure_.ok()) failure_ = InternalError("this rank has left {}", context_->name());
  if (coll_comm_ == nullptr) return;
  RmaFunctions& plugin = context_->functions();
  for (const Region& region : regions_) plugin.Deregister(coll_comm_, region.handle);
  regions_.clear();
  plugin.DestroyContext(made_);
  plugin.CloseColl(coll_comm_);
  coll_comm_ = made_ = nullptr;
}

// Makes the plugin move data, and asks it now and then for errors that no call has reported.
Status RmaPluginGroup::Drive() {
  TUTTI_TRY(Do("progress",
               [](RmaFunctions& plugin, void* made, void*) { return plugin.Progress(made); }));
  const int64_t now = NowNs();
  if (now - asked_ns_ < kAskForErrorNs) return Status::Ok();
  asked_ns_ = now;
  bool has_error = false;
  TUTTI_TRY(Do("queryLastError", [&](RmaFunctions& plugin, void* made, void*) {
    return plugin.QueryLastError(made, &has_error);
  }));
  if (has_error) Fail(RemoteError("{}: queryLastError reports an error", context_->name()));
  return failure_;
}

// data_ is held here and set_up() comes first in the order of the mutexes, hence only a try is
// allowed.
void RmaPluginGroup::Fail(const Status& why) {
  failure_ = why;
  if (!context_->set_up().TryLock()) return;
  CloseLocked();
  context_->set_up().Unlock();
}

RmaPluginComm::RmaPluginComm(RmaPluginGroup& group, int peer)
    : group_(group), peer_(peer), peer_name_(fmt::format("over {}", group.name())) {}

Result<std::unique_ptr<NetMemory>> RmaPluginComm::Register(const NetRegion& region) {
  return group_.MemoryFor(region);
}

Status RmaPluginComm::OnFailure(std::string_view what, ncclResult_t result) {
  breaking_ = group_.context_->Check(fmt::format("{} toward rank {}", what, peer_), result);
  breaking_ns_ = NowNs();
  return Break();
}

// Waits for operations under way, but no longer than kBreakNs, after which the whole group fails.
Status RmaPluginComm::Break() {
  const bool ended = EndRequests();
  if (!ended && NowNs() - breaking_ns_ < RmaPluginGroup::kBreakNs) return Status::Ok();
  if (!ended) group_.Fail(breaking_);
  return failure_ = breaking_;
}

// Tests an operation that is under way. A failed test also ends the operation: the operation is not
// tested again, and the plugin does not touch its memory any more.
ncclResult_t RmaPluginComm::TestRequest(Request& request, bool* ended) {
  int done = 0;
  const ncclResult_t result =
      group_.context_->functions().Test(group_.coll_comm_, request.request, &done);
  *ended = done != 0 || result != ncclSuccess;
  if (!*ended) return result;
  request.request = nullptr;
  if (request.staged) group_.stage_taken_ = false;
  request.staged = false;
  return result;
}

// Tests the operations of a comm that begins nothing any more. Returns whether all have ended.
bool RmaPluginComm::EndRequests() {
  bool all_ended = true;
  for (Request& request : requests_) {
    bool ended = true;
    if (request.request != nullptr)
      TestRequest(request, &ended);  // the result is not needed any more
    all_ended = all_ended && ended;
  }
  return all_ended;
}

void RmaPluginComm::Shutdown() {
  {
    const MutexLock lock(group_.data_);
    if (failure_.ok()) failure_ = InternalError("the connection to rank {} was shut", peer_);
    // Nothing moves after a failure of the group, and the group is closed in any case.
    if (group_.failure_.ok() && EndRequests()) return;
  }
  group_.Close();
}

RmaPluginComm::Request* RmaPluginComm::FreeRequest() {
  const auto free = std::find_if(requests_.begin(), requests_.end(), [](const Request& request) {
    return request.state == State::kFree;
  });
  return free == requests_.end() ? nullptr : &*free;
}

namespace {

// Returns the place where an operation reads or writes memory of this rank, without a handle if the
// memory is not registered.
RmaFunctions::Place LocalPlace(const NetLocal& local) {
  if (local.memory == nullptr) return {};
  const auto& memory = static_cast<const RmaPluginMemory&>(*local.memory);
  return {memory.base() + local.offset, memory.handle()};
}

}  // namespace

// Bytes from unregistered memory are copied to the stage, which serves one put at a time.
Result<NetRequest*> RmaPluginComm::Iput(NetLocal from, NetRemote to, size_t bytes,
                                        const NetSignal* signal) {
  const MutexLock lock(group_.data_);
  TUTTI_TRY(Failure());
  if (signal != nullptr && signal->strong && !group_.has_strong_signals())
    return InvalidUsage("{} has no strong signals", group_.name());
  Request* const request = FreeRequest();
  if (request == nullptr || breaks()) return nullptr;
  if (bytes == 0 && signal == nullptr) {
    request->state = State::kDone;
    return request;
  }
  RmaFunctions::Place source = bytes > 0 ? LocalPlace(from) : RmaFunctions::Place{};
  const RmaFunctions::Place target =
      bytes > 0 ? RmaPluginMemory::PlaceOf(to) : RmaFunctions::Place{};
  const bool staged = bytes > 0 && source.memory == nullptr;
  if (staged) {
    if (bytes > RmaPluginGroup::kStageBytes)
      return InvalidUsage("{} bytes that lie in no window, in one put", bytes);
    if (group_.stage_taken_) return nullptr;
    std::memcpy(reinterpret_cast<std::byte*>(group_.scratch_.data()) + group_.StageAt(),
                from.memory->region().address + from.offset, bytes);
    source = {group_.StageAt(), static_cast<RmaPluginMemory&>(*group_.scratch_memory_).handle()};
  }
  void* begun = nullptr;
  const auto peer = static_cast<uint32_t>(peer_);
  TUTTI_TRY(
      Do(signal != nullptr ? "iputSignal" : "iput", [&](RmaFunctions& plugin, void* made, void*) {
        if (signal == nullptr) return plugin.Iput(made, source, bytes, target, peer, &begun);
        return plugin.IputSignal(made, source, bytes, target, peer,
                                 RmaPluginMemory::PlaceOf(signal->word), signal->value,
                                 signal->strong, &begun);
      }));
  if (begun == nullptr || breaks()) return nullptr;
  group_.stage_taken_ = group_.stage_taken_ || staged;
  *request = {};
  request->state = State::kUnderWay;
  request->staged = staged;
  request->request = begun;
  return request;
}

Result<NetRequest*> RmaPluginComm::Iget(NetLocal to, NetRemote from, size_t bytes) {
  const MutexLock lock(group_.data_);
  TUTTI_TRY(Failure());
  Request* const request = FreeRequest();
  if (request == nullptr || breaks()) return nullptr;
  if (bytes == 0) {
    request->state = State::kDone;
    return request;
  }
  const RmaFunctions::Place target = LocalPlace(to);
  if (target.memory == nullptr) return InternalError("a get into memory of no window");
  void* begun = nullptr;
  TUTTI_TRY(Do("iget", [&](RmaFunctions& plugin, void* made, void*) {
    return plugin.Iget(made, RmaPluginMemory::PlaceOf(from), bytes, target,
                       static_cast<uint32_t>(peer_), &begun);
  }));
  if (begun == nullptr || breaks()) return nullptr;
  *request = {};
  request->state = State::kUnderWay;
  request->request = begun;
  return request;
}

Result<NetRequest*> RmaPluginComm::Iatomic(NetLocal, const NetAtomic&) {
  return InvalidUsage("{} has no atomic operations", group_.name());
}

// Flushes of one comm share a word at the target, hence at most one is under way.
Result<NetRequest*> RmaPluginComm::Iflush() {
  const MutexLock lock(group_.data_);
  TUTTI_TRY(Failure());
  if (!group_.has_strong_signals()) return InvalidUsage("{} has no strong signals", group_.name());
  Request* const request = FreeRequest();
  if (request == nullptr || flush_ != nullptr || breaks()) return nullptr;
  *request = {};
  request->state = State::kSignal;
  flush_ = request;
  ++num_flushes_;
  TUTTI_TRY(StepFlush(*request));
  return request;
}

// Begins the next operation of a flush, if there is room for it.
Status RmaPluginComm::StepFlush(Request& request) {
  void* const scratch = static_cast<RmaPluginMemory&>(*group_.scratch_memory_).handle();
  const RmaFunctions::Place word = {group_.ArrivedAt(group_.rank_), scratch};
  const auto peer = static_cast<uint32_t>(peer_);
  const bool signals = request.state == State::kSignal;
  TUTTI_TRY(Do(signals ? "iputSignal" : "iget", [&](RmaFunctions& plugin, void* made, void*) {
    if (signals)
      return plugin.IputSignal(made, {}, 0, {}, peer, word, 1, /*strong=*/true, &request.request);
    return plugin.Iget(made, word, sizeof(uint64_t), {group_.FetchedAt(peer_), scratch}, peer,
                       &request.request);
  }));
  if (request.request != nullptr) request.state = signals ? State::kSignalled : State::kFetched;
  return Status::Ok();
}

// Moves one unfinished request.
Status RmaPluginComm::Step(Request& request, bool* moved) {
  TUTTI_TRY(Failure());
  if (breaks()) return Status::Ok();
  if (request.state == State::kSignal || request.state == State::kFetch) return StepFlush(request);
  bool ended = false;
  const ncclResult_t result = TestRequest(request, &ended);
  if (result != ncclSuccess) return OnFailure("test", result);
  if (!ended) return Status::Ok();
  *moved = true;
  if (request.state == State::kSignalled) {
    request.state = State::kFetch;
    return StepFlush(request);
  }
  if (request.state == State::kFetched) {
    const uint64_t count = group_.scratch_[group_.FetchedAt(peer_) / sizeof(uint64_t)];
    if (count < num_flushes_) {
      request.state = State::kFetch;
      return Status::Ok();
    }
    flush_ = nullptr;
  }
  request.state = State::kDone;
  return Status::Ok();
}

// The plugin moves data for all ranks, even while this comm breaks.
Result<bool> RmaPluginComm::Progress() {
  const MutexLock lock(group_.data_);
  TUTTI_TRY(failure_);
  TUTTI_TRY(group_.Drive());
  if (breaks()) {
    TUTTI_TRY(Break());
    return false;
  }
  bool moved = false;
  for (Request& request : requests_) {
    if (request.state == State::kFree || request.state == State::kDone) continue;
    TUTTI_TRY(Step(request, &moved));
  }
  return moved;
}

Result<bool> RmaPluginComm::Test(NetRequest& request) {
  auto& own = static_cast<Request&>(request);
  const MutexLock lock(group_.data_);
  if (own.state == State::kFree) return InternalError("a request was tested that is not under way");
  if (own.state != State::kDone) {
    TUTTI_TRY(Failure());
    return false;
  }
  own.state = State::kFree;
  return true;
}

}  // namespace tutti
