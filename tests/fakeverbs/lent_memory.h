#pragma once

// For tests: memory of a GPU as a NIC sees it, where there is no GPU. A memory file stands for a
// DMA-BUF; the GPU's address is one that nobody may touch, so that only who goes by the file
// reaches the bytes.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/unique_fd.h"
#include "transport/net/memory.h"

namespace tutti {

class GpuMemory {
 public:
  explicit GpuMemory(size_t bytes) : bytes_(bytes), file_(memfd_create("gpu", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(file_.get(), static_cast<off_t>(bytes)), 0);
    seen_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    address_ = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  ~GpuMemory() {
    munmap(seen_, bytes_);
    munmap(address_, bytes_);
  }
  std::byte* address() const { return static_cast<std::byte*>(address_); }
  std::byte* bytes() const { return static_cast<std::byte*>(seen_); }
  NetRegion Dmabuf() const { return {address(), bytes_, NetMemoryKind::kGpu, file_.get(), 0}; }
  NetRegion ByAddress() const { return {address(), bytes_, NetMemoryKind::kGpu}; }

 private:
  const size_t bytes_;
  const UniqueFd file_;
  void* seen_ = nullptr;
  void* address_ = nullptr;
};

// A folder that says, as the kernel does, that the module is loaded.
class PeerMemoryModule {
 public:
  PeerMemoryModule() {
    std::string name = (std::filesystem::temp_directory_path() / "sysfs-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
    std::filesystem::create_directories(path_ / "module/nvidia_peermem");
    std::ofstream(path_ / "module/nvidia_peermem/version") << "1.0";
  }
  ~PeerMemoryModule() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace tutti
