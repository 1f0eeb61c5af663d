#include "window/record_memory.h"

#include <cstdlib>
#include <cstring>

namespace tutti {
namespace {

class HostRecordMemory final : public RecordMemory {
 public:
  Result<void*> Allocate(size_t bytes) override {
    void* const memory = std::calloc(1, bytes);
    if (memory == nullptr) return SystemError("no memory for {} bytes of records", bytes);
    return memory;
  }
  Status Write(void* to, std::span<const std::byte> bytes) override {
    std::memcpy(to, bytes.data(), bytes.size());
    return Status::Ok();
  }
  void Free(void* memory) override { std::free(memory); }
};

}  // namespace

std::unique_ptr<RecordMemory> MakeHostRecordMemory() {
  return std::make_unique<HostRecordMemory>();
}

}  // namespace tutti
