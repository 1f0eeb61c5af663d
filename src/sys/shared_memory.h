#pragma once

// Memory that several processes can map: an anonymous file (memfd) and this process's mapping of
// it.
//
// The file has no name in any file system: the size of /dev/shm does not matter, nothing is left
// behind when a process is killed, and nobody can open the file without its descriptor
// (sys/fd_server.h hands descriptors out). Pages are made, zeroed, at their first touch; a large
// region that is hardly used costs hardly anything. Pages count against the memory limit of the
// control group that first touches them.
//
// The size is sealed at creation. Without the seal a peer could shrink the file and have the kernel
// kill us with SIGBUS at the next access; Map therefore refuses a descriptor without the seals.
//
// Huge pages: the kernel gives shared memory huge pages only where
// /sys/kernel/mm/transparent_hugepage/shmem_enabled says `advise`, `within_size` or `always`; most
// systems say `never`, and then kAdvise changes nothing but the alignment.
//
// A SharedMemory is a value with a single owner; the mapping ends with the value, and the pages
// live until the last mapping and the last descriptor, in any process, are gone. Different objects
// may be used by different threads.

#include <cstddef>
#include <span>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"
#include "sys/huge_pages.h"

namespace tutti {

enum class HugePages { kNo, kAdvise };

class SharedMemory {
 public:
  // Makes memory of `bytes` zeroes, rounded up to whole pages. Regions of at least kHugePageBytes
  // start at a multiple of kHugePageBytes. Fails with InvalidArgument for 0 bytes, else with a
  // SystemError that names the limit in the way.
  static Result<SharedMemory> Create(size_t bytes, HugePages huge_pages);

  // Maps the region of another SharedMemory made for `expected_bytes` (as given to its Create).
  // `fd` may come from anyone: its type, size and seals are checked before it is mapped.
  static Result<SharedMemory> Map(UniqueFd fd, size_t expected_bytes,
                                  HugePages huge_pages = HugePages::kNo);

  // Checks that `fd` is the region of a SharedMemory made for `expected_bytes` (as given to its
  // Create), and that nobody can change its size. RemoteError where `fd` is another region.
  static Status CheckRegion(const UniqueFd& fd, size_t expected_bytes);

  SharedMemory() = default;  // Has no memory: data() is null.
  SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory() { Unmap(); }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }  // Returns the size asked for, not rounded.
  std::span<std::byte> bytes() const { return {data_, size_}; }
  int fd() const { return fd_.get(); }  // -1 after CloseFd
  explicit operator bool() const { return data_ != nullptr; }

  // Closes the descriptor and keeps the mapping: for users that hold many mappings and hand none
  // on.
  void CloseFd() { fd_.Reset(); }

  // Gives the pages back to the system while the mappings, here and elsewhere, stay valid and read
  // as zeroes. REQUIRES: the descriptor is open.
  Status DiscardPages();
  // Gives back `bytes` at `offset`, both whole pages. Needs no descriptor.
  Status DiscardPages(size_t offset, size_t bytes);

 private:
  SharedMemory(UniqueFd fd, std::byte* data, size_t size)
      : fd_(std::move(fd)), data_(data), size_(size) {}
  static Result<SharedMemory> MapChecked(UniqueFd fd, size_t bytes, HugePages huge_pages);
  void Unmap();

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tutti
