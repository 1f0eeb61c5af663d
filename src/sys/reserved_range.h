#pragma once

// A range of addresses that is set aside, and shared memory that is mapped into the range at chosen
// offsets. A range costs address space and page tables, but no memory.
//
// A ReservedRange is a value with a single owner, used by one thread at a time.

#include <cstddef>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti {

class ReservedRange {
 public:
  // Sets `bytes` aside, from a multiple of kHugePageBytes on. An access to an unmapped part is a
  // fault. Fails with a SystemError that names the limit in the way.
  static Result<ReservedRange> Create(size_t bytes);

  ReservedRange() = default;  // Has no addresses: data() is null.
  ReservedRange(ReservedRange&& other) noexcept { *this = std::move(other); }
  ReservedRange& operator=(ReservedRange&& other) noexcept;
  ~ReservedRange() { Release(); }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  explicit operator bool() const { return data_ != nullptr; }

  // Maps the region of a SharedMemory made for `expected_bytes` (as given to its Create), `offset`
  // bytes from the start, and replaces earlier mappings at this place. `fd` may come from anyone:
  // its type, size and seals are checked first. `offset` is a multiple of the page size. The
  // mapping stays when `fd` is closed. InvalidArgument where the region does not fit.
  Status MapShared(size_t offset, const UniqueFd& fd, size_t expected_bytes);
  // Takes the mapping of `bytes` bytes at `offset` away; the addresses stay set aside.
  void Clear(size_t offset, size_t bytes);

 private:
  ReservedRange(std::byte* data, size_t size) : data_(data), size_(size) {}
  void Release();

  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tutti
