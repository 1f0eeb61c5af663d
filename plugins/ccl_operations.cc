// Operations over oneCCL, Intel's library: between processes, over libfabric or Intel's MPI, by
// oneCCL's own settings (CCL_ATL_TRANSPORT, CCL_OFI_LIBRARY_PATH, CCL_KVS_IFACE). oneCCL's ranks
// are processes: two coordinators of one job in one process cannot both use oneCCL.

#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <oneapi/ccl.hpp>
#include <utility>
#include <vector>

#include "coordinator/operations_plugin.h"
#include "plugins/averaging.h"
#include "plugins/stepped_operations.h"

namespace tutti::coordinator {
namespace {

// Runs f, and turns oneCCL's exceptions into messages.
template <class F>
Status Guarded(const char* what, F f) {
  try {
    f();
    return Status::Ok();
  } catch (const std::exception& e) {
    return RemoteError("oneCCL's {} failed: {}", what, e.what());
  }
}

// oneCCL passes no data of the caller to a reduction, hence each type and operator has a function.
constexpr int kTypes = 12;
constexpr std::array kOperators = {ncclSum, ncclProd, ncclMax, ncclMin};

template <size_t kCase>
void ReduceCase(const void* in, size_t count, void* inout, size_t* out_count, ccl::datatype,
                const ccl::fn_context*) {
  static const ReduceFn kernel =
      KernelOf(static_cast<ncclDataType_t>(kCase % kTypes), kOperators[kCase / kTypes]);
  const void* const sources[] = {inout, in};
  kernel(inout, sources, 2, count, {});
  if (out_count != nullptr) *out_count = count;
}

template <size_t... kCases>
constexpr std::array<ccl::reduction_fn, sizeof...(kCases)> AllCases(
    std::index_sequence<kCases...>) {
  return {&ReduceCase<kCases>...};
}

ccl::reduction_fn ReductionOf(ncclDataType_t type, ncclRedOp_t op) {
  static constexpr auto kAll = AllCases(std::make_index_sequence<kTypes * kOperators.size()>());
  size_t number = 0;  // sums, and the sums of averages
  for (size_t i = 0; i < kOperators.size(); ++i)
    if (kOperators[i] == op) number = i;
  return kAll[number * kTypes + static_cast<size_t>(type)];
}

// Returns a type of the same size. The reduction function knows the real type.
ccl::datatype WireType(ncclDataType_t type) {
  switch (WireSize(type)) {
    case 1:
      return ccl::datatype::uint8;
    case 2:
      return ccl::datatype::uint16;
    case 4:
      return ccl::datatype::uint32;
    default:
      return ccl::datatype::uint64;
  }
}

class CclOperations final : public SteppedOperations {
 public:
  CclOperations(const OperationsGroup& group, ccl::communicator comm)
      : SteppedOperations(group), comm_(std::move(comm)) {}

  std::string_view name() const override { return "ccl"; }

  // The custom function makes the sums, since oneCCL lacks some of Tutti's types and its rounding.
  Status Allreduce(const void* input, void* output, size_t count, ncclDataType_t type,
                   ncclRedOp_t op) override {
    PrepareInput(input, output, count, type, op, num_ranks_);
    if (count > 0 && num_ranks_ > 1) {
      TUTTI_TRY(Guarded("allreduce", [&] {
        auto attributes = ccl::create_operation_attr<ccl::allreduce_attr>();
        attributes.set<ccl::allreduce_attr_id::reduction_fn>(ReductionOf(type, op));
        ccl::allreduce(output, output, count, WireType(type), ccl::reduction::custom, comm_,
                       attributes)
            .wait();
      }));
    }
    FinishOutput(output, count, type, op, num_ranks_);
    return Status::Ok();
  }

  Status Broadcast(const void* input, void* output, size_t bytes, int root) override {
    if (bytes == 0) return Status::Ok();
    if (rank_ == root && input != output) CopyBytes(output, input, bytes);
    if (num_ranks_ == 1) return Status::Ok();
    return Guarded("broadcast", [&] {
      ccl::broadcast(output, bytes, ccl::datatype::uint8, root, comm_).wait();
    });
  }

  Status Barrier() override {
    if (num_ranks_ == 1) return Status::Ok();
    return Guarded("barrier", [&] { ccl::barrier(comm_).wait(); });
  }

  Status SendReceive(const void* input, size_t input_bytes, int to, void* output,
                     size_t output_bytes, int from) override {
    if (to == rank_ && from == rank_) {
      if (input_bytes > 0) CopyBytes(output, input, input_bytes);
      return Status::Ok();
    }
    return Guarded("send and receive", [&] {
      std::vector<ccl::event> events;
      if (from >= 0 && output_bytes > 0)
        events.push_back(ccl::recv(output, output_bytes, ccl::datatype::uint8, from, comm_));
      if (to >= 0 && input_bytes > 0)
        events.push_back(
            ccl::send(const_cast<void*>(input), input_bytes, ccl::datatype::uint8, to, comm_));
      for (ccl::event& event : events) event.wait();
    });
  }

 private:
  const ccl::communicator comm_;
};

class CclModule final : public OperationsPlugin {
 public:
  std::string_view name() const override { return "ccl"; }

  // ccl::init looks for a transport, and fails where none can be loaded.
  Status Viable(int, int) override {
    const Status begun = Guarded("start", [] { ccl::init(); });
    if (begun.ok()) return begun;
    return InvalidUsage(
        "{}; it needs libfabric.so, or CCL_OFI_LIBRARY_PATH to name it (Debian's is "
        "libfabric.so.1), or Intel's MPI",
        begun.message());
  }

  // All ranks meet at the first rank's key-value store.
  Result<std::unique_ptr<Operations>> Open(const OperationsGroup& group) override {
    TUTTI_TRY(Viable(group.rank, group.size()));
    ccl::kvs::address_type address = {};
    std::shared_ptr<ccl::kvs> store;
    const auto make = [&] {
      if (group.rank == 0) {
        store = ccl::create_main_kvs();
        address = store->get_address();
      }
    };
    const Status made = Guarded("key-value store", make);
    std::vector<ccl::kvs::address_type> all(group.members.size());
    TUTTI_TRY(group.gather(&address, sizeof(address), all.data()));
    TUTTI_TRY(made);
    if (all[0] == ccl::kvs::address_type{})
      return RemoteError("oneCCL has no key-value store on the first rank");
    std::unique_ptr<Operations> operations;
    TUTTI_TRY(Guarded("rendezvous", [&] {
      if (!store) store = ccl::create_kvs(all[0]);
      operations = std::make_unique<CclOperations>(
          group, ccl::create_communicator(group.size(), group.rank, store));
    }));
    return operations;
  }
};

}  // namespace
}  // namespace tutti::coordinator

extern "C" __attribute__((visibility("default"))) tutti::coordinator::OperationsPlugin*
tuttiOperationsPlugin(int version) {
  if (version != tutti::coordinator::kPluginVersion) return nullptr;
  return new tutti::coordinator::CclModule;
}
