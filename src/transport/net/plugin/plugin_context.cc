#include "transport/net/plugin/plugin_context.h"

namespace tutti {
namespace {

// Describes a plugin's result in a message that names the plugin as the actor.
const char* TextOf(ncclResult_t result) {
  switch (result) {
    case ncclUnhandledCudaError:
      return "a call of CUDA failed";
    case ncclSystemError:
      return "a call of the system failed";
    case ncclInternalError:
      return "it reports an internal error";
    case ncclInvalidArgument:
      return "it refuses an argument";
    case ncclInvalidUsage:
      return "it cannot be used so";
    case ncclRemoteError:
      return "the peer has gone, or the network failed";
    default:
      return "it gave a result that is none of NCCL's";
  }
}

}  // namespace

Result<std::shared_ptr<PluginContext>> PluginContext::Create(std::shared_ptr<PluginLibrary> library,
                                                             uint64_t comm_id,
                                                             std::shared_ptr<NetEvents> events) {
  std::shared_ptr<PluginContext> made(new PluginContext(std::move(library), std::move(events)));
  const MutexLock lock(made->mutex_);
  const ncclResult_t result = made->library_->functions().Init(comm_id, &made->context_);
  if (result != ncclSuccess) return made->Failure("init", result);
  made->initialized_ = true;
  return made;
}

// A context whose init failed must not be finalised.
PluginContext::~PluginContext() {
  // No other thread has the context any more. The result of finalize could only be ignored.
  const MutexLock lock(mutex_);
  if (initialized_) library_->functions().Finalize(context_);
}

Status PluginContext::Failure(std::string_view what, ncclResult_t result) const {
  return FailureOfPlugin(fmt::format("network plugin {}", name()), what, result);
}

// Results outside NCCL's range come from a faulty plugin and count as internal errors.
Status FailureOfPlugin(std::string_view plugin, std::string_view what, ncclResult_t result) {
  const bool known = result > ncclSuccess && result <= ncclRemoteError;
  return Status(known ? static_cast<Code>(result) : Code::kInternalError,
                fmt::format("{}: {} failed: {} (result {})", plugin, what, TextOf(result),
                            static_cast<int>(result)));
}

}  // namespace tutti
