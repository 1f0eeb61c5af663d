#include "perf/barrier.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <thread>

#include "base/clock.h"
#include "base/wait.h"

namespace tutti::tools {
namespace {

struct Page {
  uint64_t token;
  alignas(64) std::atomic<uint32_t> arrived;
  alignas(64) std::atomic<uint32_t> generation;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Longer than ranks of one batch drift apart: ranks with a core each never pay for a wake-up.
constexpr int64_t kSpinNs = 2'000'000;

class PageBarrier : public Barrier {
 public:
  PageBarrier(Page* page, int num_ranks, bool patient)
      : page_(page), num_ranks_(static_cast<uint32_t>(num_ranks)), patient_(patient) {}
  ~PageBarrier() override { munmap(page_, sizeof(Page)); }

  Status Wait() override {
    const uint32_t generation = page_->generation.load(std::memory_order_acquire);
    if (page_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == num_ranks_) {
      page_->arrived.store(0, std::memory_order_relaxed);
      page_->generation.store(generation + 1, std::memory_order_release);
      syscall(SYS_futex, &page_->generation, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
      return {};
    }
    const auto waiting = [&] {
      return page_->generation.load(std::memory_order_acquire) == generation;
    };
    const Deadline spin = Deadline::After(patient_ ? 0 : kSpinNs);
    while (waiting() && !spin.Passed()) {
      for (int i = 0; i < 64 && waiting(); ++i) CpuPause();
    }
    while (waiting()) {
      // Sleep for a bounded time, lest a lost wake-up end in a wait for ever.
      const timespec second{1, 0};
      syscall(SYS_futex, &page_->generation, FUTEX_WAIT, generation, &second, nullptr, 0);
    }
    return {};
  }

 private:
  Page* const page_;
  const uint32_t num_ranks_;
  const bool patient_;
};

Result<Page*> MapPage(int fd) {
  void* const memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return ErrnoError(errno, "mapping the barrier page");
  return static_cast<Page*>(memory);
}

}  // namespace

Result<BarrierPageOwner> BarrierPageOwner::Create() {
  BarrierPageOwner owner;
  owner.fd_ = UniqueFd(memfd_create("tutti-perf-barrier", MFD_CLOEXEC));
  if (!owner.fd_.valid() || ftruncate(owner.fd_.get(), sizeof(Page)) != 0) {
    return ErrnoError(errno, "creating the barrier page");
  }
  uint64_t token = 0;
  if (getrandom(&token, sizeof(token), 0) != sizeof(token))
    return ErrnoError(errno, "drawing a random number");
  TUTTI_ASSIGN(Page* const page, MapPage(owner.fd_.get()));
  page->token = token;
  munmap(page, sizeof(Page));
  owner.page_ = {getpid(), owner.fd_.get(), token};
  return owner;
}

Result<std::unique_ptr<Barrier>> OpenBarrierPage(const BarrierPage& page, int num_ranks,
                                                 bool patient) {
  const std::string path = fmt::format("/proc/{}/fd/{}", page.pid, page.fd);
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid() || lseek(fd.get(), 0, SEEK_END) != static_cast<off_t>(sizeof(Page))) {
    return InvalidUsage("the barrier page is not on this host");
  }
  TUTTI_ASSIGN(Page* const memory, MapPage(fd.get()));
  if (memory->token != page.token) {
    munmap(memory, sizeof(Page));
    return InvalidUsage("another process has the number of the driver here");
  }
  return std::unique_ptr<Barrier>(std::make_unique<PageBarrier>(memory, num_ranks, patient));
}

}  // namespace tutti::tools
