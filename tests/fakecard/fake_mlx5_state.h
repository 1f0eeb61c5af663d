#pragma once

// Has what the files of the stand-in for libmlx5 share: the objects behind the structures of
// <infiniband/mlx5dv.h>, and what is done with commands.

#include <infiniband/mlx5dv.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fakecard/card_link.h"
#include "fakecard/fake_card.h"
#include "fakecard/fake_mlx5.h"

namespace fakemlx5 {

inline constexpr uint32_t kEventQueue = 5;
inline constexpr uint32_t kFirstDomain = 0x101;
inline constexpr uint32_t kFirstUmem = 0x11, kFirstUarPage = 0x21, kFirstCompletions = 0x900;
inline constexpr uint32_t kPage = 4096;

struct Umem {
  mlx5dv_devx_umem umem = {};  // first
  std::byte* base = nullptr;
  size_t bytes = 0;
  void* mapping = nullptr;  // of a DMA-BUF
  size_t mapping_bytes = 0;
  int users = 0;
};
struct Uar {
  mlx5dv_devx_uar uar = {};  // first
  alignas(64) uint64_t own_doorbell = 0;
  uint64_t* doorbell = &own_doorbell;
  int users = 0;
};

enum class PairState : uint32_t { kReset = 0, kInit = 1, kReceives = 2, kSends = 3, kError = 6 };

}  // namespace fakemlx5

// A completion queue, or a queue pair.
struct mlx5dv_devx_obj {
  bool is_pair = false;
  uint32_t number = 0;
  uint32_t size = 0;
  std::vector<fakemlx5::Umem*> umems;
  fakemlx5::Uar* uar = nullptr;
  fakemlx5::Umem* completions = nullptr;  // where they lie, and where in it
  uint64_t completions_at = 0;
  int users = 0;                            // of a completion queue
  mlx5dv_devx_obj* completes_in = nullptr;  // of a queue pair
  fakemlx5::PairState state = fakemlx5::PairState::kReset;
  uint32_t remote = 0;
};

namespace fakemlx5 {

// Reaches memory of the host, and far memory by copies.
class FarReach final : public tutti::testing::CardReach {
 public:
  explicit FarReach(const FarMemory& far) : far_(far) {}
  void Copy(std::byte* to, const std::byte* from, size_t bytes) override;
  uint32_t Load(const std::byte* word) override;
  void Store(std::byte* word, uint32_t value) override;
  uint64_t FetchAdd(std::byte* word, uint64_t added) override;
  bool IsFar(const void* at) const { return far_.is_far(at); }

 private:
  const FarMemory far_;
};

struct Library {
  // Taken before the card is, and before what the card's thread takes: the other one, and that of
  // the stand-in for libibverbs.
  std::timed_mutex mutex;
  std::mutex domains_mutex;
  std::map<uint32_t, ibv_pd*> domains;  // by their numbers, none of which is given twice
  std::map<uint32_t, std::unique_ptr<Umem>> umems;
  std::map<uint32_t, std::unique_ptr<Uar>> uars;
  std::map<uint32_t, std::unique_ptr<mlx5dv_devx_obj>> completion_queues, pairs;
  int addresses = 0;
  uint32_t made = 0;
  std::unique_ptr<FarReach> reach;
  // Returns the card's way to memory.
  tutti::testing::CardReach& Reach() {
    static tutti::testing::CardReach near;
    return reach != nullptr ? *reach : near;
  }
  std::byte* registers = nullptr;  // those that are left of PutRegistersInto
  size_t registers_left = 0;
  std::unique_ptr<CardLink> card;  // as long as there are queue pairs
  std::vector<std::string> calls, complaints;
  std::optional<std::pair<uint64_t, uint8_t>> failing;
};
Library& TheLibrary();

// Returns the rights to memory that an end of a transfer needs.
uint64_t AccessOf(tutti::testing::FakeCard::End end);

// All of these but DomainOf REQUIRE that the library's mutex is held.

void Complain(const std::string& what);
// Returns the domain of a number; null where there is none.
const ibv_pd* DomainOf(uint32_t number);
// Returns the Ethernet address that leads to a GID here.
std::array<uint8_t, 6> MacOf(const uint8_t* gid);

// Returns the name of a command, as in fake_mlx5.h.
const char* NameOf(const void* command);
// Do what a command asks for. Return null or false, and complain, where it is wrong.
std::unique_ptr<mlx5dv_devx_obj> MakeCompletions(const void* command, size_t bytes);
std::unique_ptr<mlx5dv_devx_obj> MakePair(const void* command, size_t bytes);
bool MovePair(mlx5dv_devx_obj& pair, const void* command, size_t bytes);
bool QueryPair(const mlx5dv_devx_obj& pair, const void* command, size_t bytes, void* out,
               size_t out_bytes);
// Writes the answer of a card that takes a command, with a number, or does not.
void Answer(void* out, size_t bytes, bool taken, uint32_t number = 0);

}  // namespace fakemlx5
