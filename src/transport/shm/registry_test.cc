#include "transport/shm/registry.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace tutti {
namespace {

using ::testing::HasSubstr;

int CountFds() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

// A child process that goes through `steps` one by one, each on command.
class Child {
 public:
  explicit Child(std::vector<std::function<bool()>> steps) : num_steps_(steps.size()) {
    int down[2];
    int up[2];
    if (pipe(down) != 0 || pipe(up) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      close(down[1]);
      close(up[0]);
      char byte;
      for (const auto& step : steps) {
        if (read(down[0], &byte, 1) != 1) _exit(1);
        byte = step() ? 1 : 0;
        if (write(up[1], &byte, 1) != 1) _exit(1);
      }
      _exit(0);
    }
    close(down[0]);
    close(up[1]);
    down_ = UniqueFd(down[1]);
    up_ = UniqueFd(up[0]);
  }
  ~Child() {
    down_.Reset();
    waitpid(pid_, nullptr, 0);
  }
  // Returns false when the step failed or the child died during the step.
  bool Step() {
    EXPECT_LT(next_step_++, num_steps_);
    char byte = 0;
    return write(down_.get(), &byte, 1) == 1 && read(up_.get(), &byte, 1) == 1 && byte == 1;
  }

 private:
  size_t num_steps_;
  size_t next_step_ = 0;
  pid_t pid_;
  UniqueFd down_;
  UniqueFd up_;
};

std::byte* Allocate(HostMemory& memory, size_t bytes) {
  auto allocated = memory.Allocate(bytes);
  EXPECT_TRUE(allocated.ok()) << allocated.status().message();
  return static_cast<std::byte*>(allocated.value());
}

TEST(HostMemory, AllocatesZeroedAlignedMemory) {
  HostMemory memory;
  std::byte* small = Allocate(memory, 100);
  std::byte* large = Allocate(memory, 5 << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small) % 4096, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large) % kHugePageBytes, 0u);
  EXPECT_TRUE(
      std::all_of(large, large + (5 << 20), [](std::byte byte) { return byte == std::byte{0}; }));
  std::memset(large, 1, 5 << 20);
  EXPECT_EQ(memory.num_allocations(), 2u);
  EXPECT_TRUE(memory.Free(small).ok());
  EXPECT_TRUE(memory.Free(large).ok());
  EXPECT_EQ(memory.num_allocations(), 0u);
  EXPECT_EQ(memory.Allocate(0).status().code(), Code::kInvalidArgument);
}

TEST(HostMemory, FindsRangesThatLieInOneAllocation) {
  HostMemory memory;
  std::byte* base = Allocate(memory, 10'000);
  const auto whole = memory.Find(base, 10'000);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->base, base);
  EXPECT_EQ(whole->offset, 0u);
  EXPECT_EQ(whole->size, 10'000u);
  const auto tail = memory.Find(base + 9'999, 1);
  ASSERT_TRUE(tail);
  EXPECT_EQ(tail->id, whole->id);
  EXPECT_EQ(tail->offset, 9'999u);
  EXPECT_TRUE(memory.Find(base + 5, 0));
  EXPECT_FALSE(memory.Find(base + 9'999, 2));
  EXPECT_FALSE(memory.Find(base + 10'000, 0));
  EXPECT_FALSE(memory.Find(base - 1, 1));
  EXPECT_FALSE(memory.Find(base - 1, 10));
  EXPECT_FALSE(memory.Find(base + 1, ~size_t{0}));  // must not overflow
  EXPECT_FALSE(memory.Find(nullptr, 0));
  EXPECT_FALSE(memory.Find(&memory, 1));
  ASSERT_TRUE(memory.Free(base).ok());
  EXPECT_FALSE(memory.Find(base, 1));
}

TEST(HostMemory, FindAgreesWithAListOfAllocations) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  struct Known {
    std::byte* base;
    size_t bytes;
    uint64_t id;
  };
  HostMemory memory;
  std::vector<Known> known;
  std::set<uint64_t> ids;
  for (int round = 0; round < 600; ++round) {
    if (known.size() < 2 || random() % 5 < 3) {
      const size_t bytes = 1 + random() % 20'000;
      std::byte* base = Allocate(memory, bytes);
      const auto location = memory.Find(base, bytes);
      ASSERT_TRUE(location);
      ASSERT_TRUE(ids.insert(location->id).second) << "an id was used twice";
      known.push_back({base, bytes, location->id});
    } else {
      const size_t victim = random() % known.size();
      ASSERT_TRUE(memory.Free(known[victim].base).ok());
      ASSERT_FALSE(memory.Find(known[victim].base, 1));
      known.erase(known.begin() + static_cast<ptrdiff_t>(victim));
    }
    for (int probe = 0; probe < 20; ++probe) {
      const Known& one = known[random() % known.size()];
      const size_t offset = random() % (one.bytes + 100);
      const size_t bytes = 1 + random() % 300;
      const std::byte* pointer = one.base + offset;
      const auto location = memory.Find(pointer, bytes);
      // Just behind one allocation there may be another.
      const auto owner = std::find_if(known.begin(), known.end(), [&](const Known& other) {
        return pointer >= other.base && pointer + bytes <= other.base + other.bytes;
      });
      ASSERT_EQ(location.has_value(), owner != known.end());
      if (!location) continue;
      ASSERT_EQ(location->id, owner->id);
      ASSERT_EQ(location->base, owner->base);
      ASSERT_EQ(location->offset, static_cast<size_t>(pointer - owner->base));
      ASSERT_EQ(location->size, owner->bytes);
    }
  }
}

TEST(HostMemory, FreeTakesOnlyWhatAllocateGave) {
  HostMemory memory;
  std::byte* base = Allocate(memory, 4096);
  int on_stack = 0;
  EXPECT_EQ(memory.Free(&on_stack).code(), Code::kInvalidArgument);
  const Status inside = memory.Free(base + 64);
  EXPECT_EQ(inside.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(inside.message()), HasSubstr("64 bytes inside"));
  base[0] = std::byte{1};  // still there
  EXPECT_TRUE(memory.Free(base).ok());
  EXPECT_EQ(memory.Free(base).code(), Code::kInvalidArgument);
  EXPECT_TRUE(memory.Free(nullptr).ok());
}

TEST(HostMemory, FindIsSafeBesideAllocateAndFree) {
  HostMemory memory;
  std::byte* stable = Allocate(memory, 64 << 10);
  const uint64_t stable_id = memory.Find(stable, 1)->id;
  std::atomic<bool> stop{false};
  std::atomic<int> mistakes{0};
  std::vector<std::thread> threads;
  for (int reader = 0; reader < 2; ++reader) {
    threads.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        const auto location = memory.Find(stable + 1000, 10);
        if (!location || location->id != stable_id || location->offset != 1000) ++mistakes;
        if (memory.Find(&memory, 1)) ++mistakes;
      }
    });
  }
  for (int writer = 0; writer < 2; ++writer) {
    threads.emplace_back([&] {
      for (int round = 0; round < 40; ++round) {
        std::vector<std::byte*> mine;
        for (int i = 0; i < 12; ++i) mine.push_back(Allocate(memory, 4096));
        for (std::byte* one : mine) {
          const auto location = memory.Find(one, 4096);
          if (!location || location->base != one) ++mistakes;
        }
        for (std::byte* one : mine)
          if (!memory.Free(one).ok()) ++mistakes;
      }
    });
  }
  threads[2].join();
  threads[3].join();
  stop = true;
  threads[0].join();
  threads[1].join();
  EXPECT_EQ(mistakes, 0);
  EXPECT_EQ(memory.num_allocations(), 1u);
}

// The index disappears and returns between the readers' reads.
TEST(HostMemory, FindIsSafeBesideTheLastFree) {
  HostMemory memory;
  std::atomic<bool> stop{false};
  std::atomic<int> mistakes{0};
  std::thread reader([&] {
    while (!stop.load(std::memory_order_relaxed))
      if (memory.Find(&memory, 1)) ++mistakes;
  });
  for (int round = 0; round < 200; ++round)
    if (!memory.Free(Allocate(memory, 4096)).ok()) ++mistakes;
  stop = true;
  reader.join();
  EXPECT_EQ(mistakes, 0);
}

struct PeerMemoryTest : ::testing::Test {
  void SetUp() override {
    auto created_loop = EventLoop::Create("registry-test");
    ASSERT_TRUE(created_loop.ok());
    loop = std::move(created_loop).value();
    auto created = FdServer::Create(*loop);
    ASSERT_TRUE(created.ok());
    server = std::move(created).value();
    memory = std::make_unique<HostMemory>();
  }
  RemoteHandle Export(const void* pointer) {
    const auto location = memory->Find(pointer, 1);
    auto handle = memory->Export(location ? location->id : 0, *server);
    EXPECT_TRUE(handle.ok()) << handle.status().message();
    return handle.ok() ? *handle : RemoteHandle{};
  }

  // In this order: the last member is destroyed first.
  std::unique_ptr<EventLoop> loop;
  std::unique_ptr<FdServer> server;
  std::unique_ptr<HostMemory> memory;
};

TEST_F(PeerMemoryTest, MapsWhatAnotherProcessAllocated) {
  std::byte* base = Allocate(*memory, 3 << 20);
  base[12345] = std::byte{7};
  const RemoteHandle handle = Export(base);
  PeerMemory peers({});
  Child child({[&] {
    auto mapped = peers.Map(0, handle);
    if (!mapped.ok() || mapped->size() != 3 << 20 || (*mapped)[12345] != std::byte{7}) return false;
    (*mapped)[(3 << 20) - 1] = std::byte{8};
    return reinterpret_cast<uintptr_t>(mapped->data()) % kHugePageBytes == 0;
  }});
  EXPECT_TRUE(child.Step());
  EXPECT_EQ(base[(3 << 20) - 1], std::byte{8});
}

TEST_F(PeerMemoryTest, FreeingMappedMemoryIsSafe) {
  std::byte* base = Allocate(*memory, 1 << 20);
  std::memset(base, 3, 1 << 20);
  const RemoteHandle handle = Export(base);
  PeerMemory peers({});
  std::span<std::byte> mapped;
  Child child({[&] {
                 auto result = peers.Map(0, handle);
                 if (!result.ok()) return false;
                 mapped = *result;
                 return mapped[5] == std::byte{3};
               },
               // Freed meanwhile: the pages are given back, the addresses stay.
               [&] {
                 for (size_t i = 0; i < (1 << 20); i += 64)
                   if (mapped[i] != std::byte{0}) return false;
                 mapped[0] = std::byte{1};
                 return peers.Find(0, handle.allocation_id).data() == mapped.data();
               },
               [&] {
                 auto late = PeerMemory({}).Map(0, handle);
                 return !late.ok() && late.status().code() == Code::kRemoteError &&
                        late.status().message().find("freed") != std::string_view::npos;
               }});
  ASSERT_TRUE(child.Step());
  ASSERT_TRUE(memory->Free(base).ok());
  EXPECT_TRUE(child.Step());
  EXPECT_TRUE(child.Step());
}

TEST_F(PeerMemoryTest, NewMemoryAtAnOldAddressIsNotTakenForTheOld) {
  PeerMemory peers({});
  std::byte* first = Allocate(*memory, 8192);
  const RemoteHandle first_handle = Export(first);
  auto first_mapped = peers.Map(3, first_handle);
  ASSERT_TRUE(first_mapped.ok());
  ASSERT_TRUE(memory->Free(first).ok());
  std::byte* second = Allocate(*memory, 8192);
  std::memset(second, 9, 8192);
  const RemoteHandle second_handle = Export(second);
  EXPECT_NE(second_handle.allocation_id, first_handle.allocation_id);
  EXPECT_TRUE(peers.Find(3, second_handle.allocation_id).empty());
  auto second_mapped = peers.Map(3, second_handle);
  ASSERT_TRUE(second_mapped.ok());
  EXPECT_EQ((*second_mapped)[0], std::byte{9});
  EXPECT_EQ((*first_mapped)[0], std::byte{0});
}

TEST_F(PeerMemoryTest, MapsOnceAndKeepsNoDescriptor) {
  std::byte* base = Allocate(*memory, 8192);
  const RemoteHandle handle = Export(base);
  EXPECT_EQ(Export(base).offer_id, handle.offer_id);  // offered once
  PeerMemory peers({});
  EXPECT_TRUE(peers.Find(1, handle.allocation_id).empty());
  const int fds_before = CountFds();
  auto mapped = peers.Map(1, handle);
  ASSERT_TRUE(mapped.ok());
  // The server closes its end of the connection on its own thread.
  const Deadline deadline = Deadline::AfterSeconds(10);
  while (CountFds() > fds_before && !deadline.Passed()) usleep(1000);
  EXPECT_EQ(CountFds(), fds_before);
  EXPECT_EQ(peers.Map(1, handle)->data(), mapped->data());
  EXPECT_EQ(peers.Find(1, handle.allocation_id).data(), mapped->data());
  EXPECT_EQ(peers.Find(1, handle.allocation_id).size(), 8192u);
  // Another rank's numbers mean other memory.
  EXPECT_TRUE(peers.Find(2, handle.allocation_id).empty());
  EXPECT_EQ(peers.num_mappings(), 1u);
}

TEST_F(PeerMemoryTest, TrimDropsTheLeastRecentlyUsed) {
  PeerMemory::Options options;
  options.max_mappings = 2;
  PeerMemory peers(options);
  std::vector<RemoteHandle> handles;
  std::vector<std::byte*> mapped;
  for (int i = 0; i < 4; ++i) {
    std::byte* base = Allocate(*memory, 4096);
    base[0] = static_cast<std::byte>(i + 1);
    handles.push_back(Export(base));
    auto result = peers.Map(0, handles.back());
    ASSERT_TRUE(result.ok());
    mapped.push_back(result->data());
  }
  // More than the limit may be in use at once. Nothing moves before Trim.
  EXPECT_EQ(peers.num_mappings(), 4u);
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(mapped[static_cast<size_t>(i)][0], static_cast<std::byte>(i + 1));
  EXPECT_FALSE(peers.Find(0, handles[1].allocation_id).empty());  // now used most recently
  peers.Trim();
  EXPECT_EQ(peers.num_mappings(), 2u);
  EXPECT_TRUE(peers.Find(0, handles[0].allocation_id).empty());
  EXPECT_EQ(peers.Find(0, handles[1].allocation_id).data(), mapped[1]);
  EXPECT_TRUE(peers.Find(0, handles[2].allocation_id).empty());
  EXPECT_EQ(peers.Find(0, handles[3].allocation_id).data(), mapped[3]);
}

TEST_F(PeerMemoryTest, BadHandlesAreErrors) {
  PeerMemory peers({});
  EXPECT_EQ(peers.Map(0, RemoteHandle{}).status().code(), Code::kInvalidArgument);
  const RemoteHandle good = Export(Allocate(*memory, 4096));
  RemoteHandle bad = good;
  bad.size = 1 << 30;
  EXPECT_EQ(peers.Map(0, bad).status().code(), Code::kRemoteError);
  bad = good;
  bad.key[0] ^= 1;
  EXPECT_THAT(std::string(peers.Map(5, bad).status().message()), HasSubstr("rank 5"));
  bad = good;
  bad.server_name.fill('x');  // no end
  EXPECT_FALSE(peers.Map(0, bad).ok());
  EXPECT_EQ(peers.num_mappings(), 0u);
  EXPECT_TRUE(peers.Map(0, good).ok());
  EXPECT_EQ(memory->Export(12345, *server).status().code(), Code::kInvalidArgument);
}

// Each handle opens its own allocation only.
TEST_F(PeerMemoryTest, AHandlesKeyOpensNothingElse) {
  const RemoteHandle one = Export(Allocate(*memory, 4096));
  RemoteHandle mixed = Export(Allocate(*memory, 4096));
  mixed.key = one.key;
  PeerMemory peers({});
  EXPECT_FALSE(peers.Map(0, mixed).ok());
}

TEST_F(PeerMemoryTest, UnmappedPagesReturnToTheSystem) {
  std::byte* base = Allocate(*memory, 4 << 20);
  std::memset(base, 1, 4 << 20);
  const RemoteHandle handle = Export(base);
  auto fd = FetchFd(handle.server_name.data(), handle.offer_id, handle.key,
                    {Deadline::AfterSeconds(10), nullptr});
  ASSERT_TRUE(fd.ok());
  struct stat file;
  ASSERT_EQ(fstat(fd->get(), &file), 0);
  EXPECT_GE(file.st_blocks * 512, 4 << 20);
  ASSERT_TRUE(memory->Free(base).ok());
  ASSERT_EQ(fstat(fd->get(), &file), 0);
  EXPECT_EQ(file.st_blocks, 0);  // though a peer still holds the descriptor
}

}  // namespace
}  // namespace tutti
