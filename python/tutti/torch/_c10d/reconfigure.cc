// SPDX-License-Identifier: Apache-2.0
#include "reconfigure.h"

#ifdef C10D_BACKEND_HAS_RECONFIGURE

#include <c10/util/StringUtil.h>
#include <torch/library.h>

#include <algorithm>
#include <random>
#include <sstream>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <variant>

#include "agreement.h"

namespace tutti_c10d {
namespace {

constexpr const char* kHandleBegins = "tutti:";

// Returns the handle of a rank in the group with this name.
std::string HandleOf(const std::string& group, int rank) {
  return c10::str(kHandleBegins, group, ":", rank);
}

std::string RandomName() {
  std::random_device random;
  std::ostringstream name;
  name << std::hex << (uint64_t{random()} << 32 | random());
  return name.str();
}

// Returns the members by rank. The caller of a set leaves the order to the backend.
std::vector<std::string> Ordered(const c10d::ReconfigureOptions& opts) {
  std::vector<std::string> handles;
  std::visit([&](const auto& given) { handles.assign(given.begin(), given.end()); }, opts.handles);
  auto sorted = handles;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  TORCH_CHECK(twice == sorted.end(), "the handle ", *twice, " is given twice to reconfigure");
  return std::holds_alternative<std::vector<std::string>>(opts.handles) ? handles : sorted;
}

// Returns the text of an error without the places in the code.
std::string WordsOf(const std::exception& error) {
  const auto* const known = dynamic_cast<const c10::Error*>(&error);
  return known != nullptr ? known->what_without_backtrace() : error.what();
}

// Marks an object as in use by this thread, as long as the mark lives.
class Use {
 public:
  explicit Use(std::atomic<bool>& used) : used_(used) {
    TORCH_CHECK(!used.exchange(true), "another thread of this process reconfigures the group");
  }
  ~Use() { used_ = false; }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  std::atomic<bool>& used_;
};

}  // namespace

ReconfigurableBackend::ReconfigurableBackend(c10::intrusive_ptr<c10d::Store> store, int rank,
                                             int size, GroupOptions options)
    : Backend(rank, size),
      store_(std::move(store)),
      library_(Library::Open(options.library)),
      options_(std::move(options)),
      handle_(HandleOf(RandomName(), rank)) {}

ReconfigurableBackend::GroupPtr ReconfigurableBackend::Present() const {
  const MutexLock lock(mutex_);
  return group_;
}

ReconfigurableBackend::GroupPtr ReconfigurableBackend::Group() const {
  GroupPtr group = Present();
  if (!group)
    C10_THROW_ERROR(DistBackendError,
                    "the group has no members yet, or was aborted or destroyed; reconfigure gives "
                    "it members");
  return group;
}

ReconfigurableBackend::GroupPtr ReconfigurableBackend::Exchange(GroupPtr group) {
  const MutexLock lock(mutex_);
  std::swap(group_, group);
  return group;
}

c10d::ReconfigureHandle ReconfigurableBackend::get_reconfigure_handle() const {
  const MutexLock lock(mutex_);
  return handle_;
}

Limit ReconfigurableBackend::LimitOf(const c10d::ReconfigureOptions& opts) const {
  constexpr const char* kSetting = "TUTTI_INIT_TIMEOUT_S";
  if (opts.timeout) {
    TORCH_CHECK(opts.timeout->count() > 0, "the timeout of reconfigure must be positive");
    return {*opts.timeout, "the timeout of reconfigure"};
  }
  const MutexLock lock(mutex_);
  if (options_.timeout != kBackendDefaultTimeout)
    return {options_.timeout, "the timeout of the group"};
  return {library_->SecondsOf(kSetting), kSetting};
}

// Returns the attempt that the options describe.
Attempt ReconfigurableBackend::AttemptOf(const c10d::ReconfigureOptions& opts) {
  Attempt attempt;
  attempt.uuid = opts.uuid;
  attempt.handles = Ordered(opts);
  attempt.limit = LimitOf(opts);
  TORCH_CHECK(!attempt.handles.empty(), "reconfigure needs the handle of at least one member");
  for (const std::string& handle : attempt.handles)
    TORCH_CHECK(handle.rfind(kHandleBegins, 0) == 0, "\"", handle,
                "\" is no handle of the tutti backend");
  const std::string own = get_reconfigure_handle();
  const auto found = std::find(attempt.handles.begin(), attempt.handles.end(), own);
  TORCH_CHECK(found != attempt.handles.end(), "the handle of this rank, ", own,
              ", is not among the handles given to reconfigure; a rank has a new handle after each "
              "change of its group");
  attempt.rank = static_cast<int>(found - attempt.handles.begin());
  TORCH_CHECK(uuids_.insert(opts.uuid).second, "reconfigure with uuid ", opts.uuid,
              ": the uuid was already used by this rank; each reconfigure needs a new uuid");
  return attempt;
}

// Makes the group together with the other members. Throws where a member fails.
ReconfigurableBackend::GroupPtr ReconfigurableBackend::Made(const Attempt& attempt) {
  const auto store =
      c10::make_intrusive<c10d::PrefixStore>(c10::str("reconfigure/", attempt.uuid), store_);
  Agreement agreement(*store, attempt);
  agreement.CheckUnused();
  GroupOptions options;
  {
    const MutexLock lock(mutex_);
    options = options_;
  }
  GroupPtr made;
  try {
    agreement.Meet();
    const Arranged arranged{agreement.Rest(), [&] { agreement.Check(); }};
    made = c10::make_intrusive<TuttiBackend>(store, attempt.rank,
                                             static_cast<int>(attempt.handles.size()),
                                             std::move(options), &arranged);
    made->setGroupUid(getGroupUid());
    made->setGroupDesc(getGroupDesc());
    agreement.Conclude([&] { made->CheckHealthy(); });
  } catch (const std::exception& error) {
    agreement.Fail(WordsOf(error));
    if (!made) throw;
  }
  return made;
}

void ReconfigurableBackend::Take(GroupPtr group, const Attempt& attempt) {
  constexpr size_t kDigits = 16;
  {
    const MutexLock lock(mutex_);
    rank_ = attempt.rank;
    size_ = static_cast<int>(attempt.handles.size());
    handle_ = HandleOf(c10::str(attempt.uuid, "-", DigestOf(attempt.handles).substr(0, kDigits)),
                       attempt.rank);
    std::swap(group_, group);
  }
  if (group) group->Leave();
}

WorkPtr ReconfigurableBackend::reconfigure(const c10d::ReconfigureOptions& opts) {
  const Use use(reconfiguring_);
  const Attempt attempt = AttemptOf(opts);
  Take(Made(attempt), attempt);
  auto work = c10::make_intrusive<TuttiWork>(c10d::OpType::UNKNOWN, "tutti:reconfigure", Tensors(),
                                             Tensors(), 0);
  work->End();
  return work;
}

c10::intrusive_ptr<c10d::Backend::Options> ReconfigurableBackend::getBackendOptions() {
  const MutexLock lock(mutex_);
  auto options = c10::make_intrusive<Options>("tutti", options_.timeout);
  options->enable_reconfigure = true;
  return options;
}

void ReconfigurableBackend::setTimeout(std::chrono::milliseconds timeout) {
  const MutexLock lock(mutex_);
  options_.timeout = timeout;
  if (group_) group_->setTimeout(timeout);
}

void ReconfigurableBackend::eagerConnectSingleDevice(at::Device device) {
  if (const GroupPtr group = Present()) group->eagerConnectSingleDevice(device);
}

uint64_t ReconfigurableBackend::getSequenceNumberForGroup() {
  const GroupPtr group = Present();
  return group ? group->getSequenceNumberForGroup() : 0;
}

c10d::ErrorType ReconfigurableBackend::getError() {
  const GroupPtr group = Present();
  return group ? group->getError() : c10d::ErrorType::SUCCESS;
}

void ReconfigurableBackend::shutdown() {
  if (const GroupPtr group = Exchange({})) group->shutdown();
}

void ReconfigurableBackend::abort() {
  if (const GroupPtr group = Exchange({})) group->abort();
}

// As AddBackend, for a group whose members change.
void AddReconfigurableBackend(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                              const std::string& library, double timeout_s) {
  GroupOptions options;
  options.library = library;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1e3));
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                    c10::make_intrusive<ReconfigurableBackend>(group->getStore(), group->getRank(),
                                                               group->getSize(), options));
}

}  // namespace tutti_c10d

TORCH_LIBRARY_FRAGMENT(tutti_c10d, library) {
  library.def("add_reconfigurable_backend", &tutti_c10d::AddReconfigurableBackend);
}

#endif  // C10D_BACKEND_HAS_RECONFIGURE
