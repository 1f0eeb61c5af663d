// Operations over Gloo: TCP between all ranks, which find one another through the job's own
// rendezvous. HOROVOD_GLOO_IFACE names the interface; without it the interface of the host's name
// is used. HOROVOD_GLOO_TIMEOUT_SECONDS bounds the time of connecting once all ranks have come.

#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <limits.h>
#include <netdb.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <utility>
#include <vector>

#include "coordinator/operations_plugin.h"
#include "plugins/averaging.h"
#include "plugins/stepped_operations.h"

namespace tutti::coordinator {
namespace {

// A round waits for the slowest rank, which may compute for a long time. Gloo's connections and the
// coordinator's own connections notice a lost rank.
constexpr std::chrono::hours kTimeout(24);
constexpr uint64_t kSlot = uint64_t{1} << 40;  // apart from the slots of Gloo's collectives

// Runs f, and turns Gloo's exceptions into messages.
template <class F>
Status Guarded(const char* what, F f) {
  try {
    f();
    return Status::Ok();
  } catch (const std::exception& e) {
    return RemoteError("Gloo's {} failed: {}", what, e.what());
  }
}

// The store by which Gloo's ranks exchange addresses. Every rank sets the same keys in the same
// order, each with the rank's number at its end, and then reads the keys of its peers.
class GatheringStore final : public gloo::rendezvous::Store {
 public:
  explicit GatheringStore(const OperationsGroup& group) : group_(group) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    auto& values = values_[key.substr(0, DigitsOf(key))];
    const uint64_t size = data.size();
    std::vector<uint64_t> sizes(group_.members.size());
    Require(group_.gather(&size, sizeof(size), sizes.data()));
    const size_t longest = *std::max_element(sizes.begin(), sizes.end());
    std::vector<char> mine(longest), all(longest * sizes.size());
    std::copy(data.begin(), data.end(), mine.begin());
    Require(group_.gather(mine.data(), longest, all.data()));
    for (size_t i = 0; i < sizes.size(); ++i) {
      const char* const begin = all.data() + i * longest;
      values.emplace_back(begin, begin + sizes[i]);
    }
  }
  std::vector<char> get(const std::string& key) override {
    const size_t digits = DigitsOf(key);
    return values_.at(key.substr(0, digits)).at(std::stoul(key.substr(digits)));
  }
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}

 private:
  static size_t DigitsOf(const std::string& key) { return key.find_last_not_of("0123456789") + 1; }
  static void Require(const Status& status) {
    if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  }
  const OperationsGroup& group_;
  std::map<std::string, std::vector<std::vector<char>>> values_;
};

class GlooOperations final : public SteppedOperations {
 public:
  GlooOperations(std::shared_ptr<gloo::rendezvous::Context> context, const OperationsGroup& group)
      : SteppedOperations(group), context_(std::move(context)) {}

  std::string_view name() const override { return "gloo"; }

  Status Allreduce(const void* input, void* output, size_t count, ncclDataType_t type,
                   ncclRedOp_t op) override {
    PrepareInput(input, output, count, type, op, num_ranks_);
    TUTTI_TRY(Reduce(output, count, type, op));
    FinishOutput(output, count, type, op, num_ranks_);
    return Status::Ok();
  }

  Status Broadcast(const void* input, void* output, size_t bytes, int root) override {
    if (bytes == 0) return Status::Ok();
    if (rank_ == root && input != output) CopyBytes(output, input, bytes);
    if (num_ranks_ == 1) return Status::Ok();
    return Guarded("broadcast", [&] {
      gloo::BroadcastOptions options(context_);
      options.setOutput(static_cast<uint8_t*>(output), bytes);
      options.setRoot(root);
      options.setTimeout(kTimeout);
      gloo::broadcast(options);
    });
  }

  Status Barrier() override {
    if (num_ranks_ == 1) return Status::Ok();
    return Guarded("barrier", [&] {
      gloo::BarrierOptions options(context_);
      options.setTimeout(kTimeout);
      gloo::barrier(options);
    });
  }

  Status SendReceive(const void* input, size_t input_bytes, int to, void* output,
                     size_t output_bytes, int from) override {
    if (to == rank_ && from == rank_) {
      if (input_bytes > 0) CopyBytes(output, input, input_bytes);
      return Status::Ok();
    }
    return Guarded("send and receive", [&] {
      std::unique_ptr<gloo::transport::UnboundBuffer> in, out;
      if (from >= 0 && output_bytes > 0) {
        out = context_->createUnboundBuffer(output, output_bytes);
        out->recv(from, kSlot);
      }
      if (to >= 0 && input_bytes > 0) {
        in = context_->createUnboundBuffer(const_cast<void*>(input), input_bytes);
        in->send(to, kSlot);
      }
      if (in) in->waitSend(kTimeout);
      if (out) out->waitRecv(kTimeout);
    });
  }

 private:
  // Gloo only needs the size of an element, since Tutti's kernel does the arithmetic.
  template <typename Element>
  void ReduceAs(void* data, size_t count, ReduceFn kernel) {
    gloo::AllreduceOptions options(context_);
    options.setOutput(static_cast<Element*>(data), count);
    options.setReduceFunction([kernel](void* to, const void* a, const void* b, size_t n) {
      const void* const sources[] = {a, b};
      kernel(to, sources, 2, n, {});
    });
    options.setTimeout(kTimeout);
    gloo::allreduce(options);
  }
  Status Reduce(void* data, size_t count, ncclDataType_t type, ncclRedOp_t op) {
    if (count == 0 || num_ranks_ == 1) return Status::Ok();
    const ReduceFn kernel = KernelOf(type, op);
    return Guarded("allreduce", [&] {
      switch (WireSize(type)) {
        case 1:
          return ReduceAs<uint8_t>(data, count, kernel);
        case 2:
          return ReduceAs<uint16_t>(data, count, kernel);
        case 4:
          return ReduceAs<uint32_t>(data, count, kernel);
        default:
          return ReduceAs<uint64_t>(data, count, kernel);
      }
    });
  }

  const std::shared_ptr<gloo::rendezvous::Context> context_;
};

// Checks the host's name. Without an interface Gloo takes the address of this name, and reads
// through a null pointer where the name has no address.
Status CheckHostName() {
  std::array<char, HOST_NAME_MAX + 1> name = {};
  if (gethostname(name.data(), name.size() - 1) != 0) {
    return SystemError("the host's name cannot be had: {}", strerror(errno));
  }
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(name.data(), nullptr, &hints, &found);
  if (error != 0) {
    return InvalidUsage(
        "Gloo needs an address of this host, and its name, {}, has none ({}): enter it in "
        "/etc/hosts, or name an interface in HOROVOD_GLOO_IFACE",
        name.data(), gai_strerror(error));
  }
  freeaddrinfo(found);
  return Status::Ok();
}

// Returns the time in which ranks must connect once all have come. Gloo's operations have a limit
// too.
std::chrono::milliseconds ConnectTimeout() {
  constexpr long kDefaultSeconds = 120;
  const char* const given = getenv("HOROVOD_GLOO_TIMEOUT_SECONDS");
  const long seconds = given == nullptr ? 0 : strtol(given, nullptr, 10);
  return std::chrono::seconds(seconds > 0 ? seconds : kDefaultSeconds);
}

class GlooModule final : public OperationsPlugin {
 public:
  std::string_view name() const override { return "gloo"; }
  // The device is made once, since it owns a thread.
  Status Viable(int, int) override {
    if (device_) return Status::Ok();
    const char* const interface = getenv("HOROVOD_GLOO_IFACE");
    if (interface == nullptr) TUTTI_TRY(CheckHostName());
    return Guarded("device", [&] {
      gloo::transport::tcp::attr attributes;
      if (interface != nullptr) attributes.iface = interface;
      device_ = gloo::transport::tcp::CreateDevice(attributes);
    });
  }

  Result<std::unique_ptr<Operations>> Open(const OperationsGroup& group) override {
    TUTTI_TRY(Viable(group.rank, group.size()));
    auto context = std::make_shared<gloo::rendezvous::Context>(group.rank, group.size());
    context->setTimeout(ConnectTimeout());
    if (group.size() > 1) {
      TUTTI_TRY(Guarded("rendezvous", [&] {
        GatheringStore store(group);
        context->connectFullMesh(store, device_);
      }));
    }
    return std::unique_ptr<Operations>(std::make_unique<GlooOperations>(std::move(context), group));
  }

 private:
  std::shared_ptr<gloo::transport::Device> device_;
};

}  // namespace
}  // namespace tutti::coordinator

extern "C" __attribute__((visibility("default"))) tutti::coordinator::OperationsPlugin*
tuttiOperationsPlugin(int version) {
  if (version != tutti::coordinator::kPluginVersion) return nullptr;
  return new tutti::coordinator::GlooModule;
}
