#pragma once

// Symmetric memory: the windows of a communicator, and the flat address space (flat_space.h) in
// which the ranks of an LSA team load and store one another's memory.
//
//   window     what the user registers: a part of memory on every rank; the parts may differ in
//              size (window.h)
//   memory     the allocations that a window's parts lie in, one of each rank. They are mapped as a
//              whole, once for all windows in them, at one offset of the flat space.
//   piece      The memory of a GPU may consist of several allocations of cuMemCreate that are mapped
//              one behind the other; each is a piece (flat_space.h). The pieces lie in the flat space
//              as they do in the rank's own addresses. The ranks may have unequal numbers of them,
//              and of unequal lengths.
//
// Nobody decides alone. All ranks register together: one exchange carries what each brings (or why
// it cannot), every rank concludes the same from it, maps the memory of its team, and in a second
// exchange the ranks agree that all could. So a registration succeeds on all ranks or on none, and
// no rank touches another's memory before it is there. Where a rank's memory has several pieces,
// all-gathers between the two tell of those behind the first, some at a time.
//
// A rank deregisters alone, in any order and at any time. Its own mappings go with the last window
// in a memory; the offset is used again only when every rank has said, in the exchange of a later
// registration, that it has taken its mappings away. Offsets are therefore taken and given back in
// the same order on all ranks (offset_space.h), whatever the order of their calls.
//
// One object per communicator, owned by it. Register is called by one thread at a time; everything
// else may be called by any thread beside it.

#include <string.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "operations/agreement.h"
#include "operations/peer_info.h"
#include "window/flat_space.h"
#include "window/lsa_team.h"
#include "window/offset_space.h"
#include "window/record_memory.h"
#include "window/window.h"
#include "window/window_directory.h"
#include "window/window_table.h"

namespace tutti {

class SymmetricMemory {
 public:
  struct Parts {
    Bootstrap* bootstrap = nullptr;  // This and what is pointed to outlive the object.
    std::span<const PeerInfo> peers;
    LsaTeam team;
    std::unique_ptr<FlatSpace> space = nullptr;
    // Where `space` is null, it says why there can be no windows. It is the same on all ranks.
    Status why_no_space = {};
    std::unique_ptr<RecordMemory> records = nullptr;
    WindowDirectory* directory = nullptr;
  };
  explicit SymmetricMemory(Parts parts);
  // Ends the windows that are left.
  ~SymmetricMemory();
  SymmetricMemory(const SymmetricMemory&) = delete;
  SymmetricMemory& operator=(const SymmetricMemory&) = delete;

  const LsaTeam& team() const { return team_; }
  size_t num_ranks() const { return peers_.size(); }
  // Returns whether there can be windows; the same on all ranks.
  bool has_flat_space() const { return space_ != nullptr; }

  // Holds what this rank brings to a registration.
  struct Request {
    std::byte* buffer = nullptr;  // null: the library allocates the memory
    uint64_t bytes = 0;
    int flags = 0;
    uint64_t alike = 0;  // anything else that all ranks must have alike
    // What `alike` was made from, for people: "name value,name value". It is cut off at 512 bytes.
    std::string said = {};
    Status wrong = {};  // Where it is not ok, it says why this rank cannot register anything.
  };
  // Says how a registration came out, the same on all ranks: a window; or else the reason of the
  // first rank that refused; or else, where nobody did wrong, why there is no window (the memory of
  // some rank cannot be mapped by others).
  struct Outcome {
    std::shared_ptr<const Window> window = nullptr;
    Status refusal = {};
    Status why_none = {};
  };
  // All ranks call it together, within the limits of `ranks`. Fails when the ranks cannot talk;
  // what is left then is of no use.
  Result<Outcome> Register(const Request& request, const JointRanks& ranks);

  // Ends a window on this rank. Nothing may be using it. InvalidArgument where it is none of this
  // communicator.
  Status Deregister(ncclWindow_t handle);
  // Returns the window; InvalidArgument where it is none of this communicator.
  Result<std::shared_ptr<const Window>> Find(ncclWindow_t handle) const;
  // Returns the window whose own part holds these bytes; null where none does.
  std::shared_ptr<const Window> FindOwn(std::span<const std::byte> bytes) const;
  // Does the same as Find without a lock where that is possible, for operations of kernels.
  // REQUIRES: the window is not deregistered while the caller uses it.
  Result<const Window*> Lookup(ncclWindow_t handle) const;

  // Returns where this rank reaches `bytes` bytes of its own part of some window, at an offset in
  // its slice of the flat space; such an offset means the same on all ranks. InvalidArgument where
  // no window holds them.
  Result<std::byte*> OwnAt(uint64_t slice_offset, uint64_t bytes) const;

  // Tells kernels another name of a window, by which they put to it over the network; its own
  // handle at first.
  Status SetGinName(const Window& window, ncclGinWindow_t name);
  // Returns what kernels are told of a window of this communicator.
  ncclWindow_vidmem RecordOf(const Window& window) const;
  // Returns the first block of the list of windows, for kernels; null before the first window.
  ncclDevCommWindowTable* table() const;

 private:
  // The numbers of memories that a rank shows as given up in one exchange, the lowest. If ranks
  // show different ones, offsets come back later.
  static constexpr size_t kGivenUpShown = 16;
  // The windows that Lookup finds without a lock. A handle has one place; one that finds it taken
  // goes without.
  static constexpr size_t kQuickWindows = 256;
  // How many pieces ranks tell one another of at a time. Each of them keeps a descriptor open until
  // the exchange after that, so that a rank has twice as many, and a process may have several ranks
  // and no more than 1024 descriptors.
  static constexpr uint64_t kPiecesAtOnce = 16;
  struct QuickWindow {
    std::atomic<ncclWindow_t> handle = nullptr;
    std::atomic<const Window*> window = nullptr;
  };

  // A rank says this of its part in a registration. Plain bytes; all but `given_up` is checked by
  // CheckOffers.
  struct Offer {
    StatusWire unmappable;  // Where it is not ok, it says why no other rank can map the memory.
    int64_t allocates = 0;  // 1: the library allocates the memory
    int64_t flags = 0;
    uint64_t alike = 0;
    std::array<char, 512> said = {};  // Zeros follow the text.
    uint64_t bytes = 0;
    uint64_t offset = 0;  // The window begins there in the allocation.
    int64_t memory = 0;   // the number of the memory that the allocation is mapped as; 0: none
    uint64_t needed_stride = 0;
    uint64_t longest_stride = 0;
    uint64_t allocation_bytes = 0;
    uint64_t num_pieces = 0;
    RemoteHandle allocation;                           // its first piece
    std::array<int64_t, kGivenUpShown> given_up = {};  // ascending; the rest is 0

    std::string_view SaidText() const { return {said.data(), strnlen(said.data(), said.size())}; }
  };

  // A rank says this of some of its further pieces.
  struct PieceOffer {
    struct Piece {
      uint64_t offer_id = 0;
      uint64_t bytes = 0;
    };
    std::array<Piece, kPiecesAtOnce> pieces = {};
  };

  // A run of offsets.
  struct Extent {
    uint64_t at = 0;
    uint64_t bytes = 0;
  };
  struct Memory {
    FlatSpace::Allocation own;
    bool is_ours = false;  // The library allocated it.
    Extent extent;         // All ranks have the same.
    // The pieces that are mapped of each place of the team, one behind the other: their lengths.
    std::vector<std::vector<uint64_t>> mapped;
    int num_users = 0;  // windows, and a registration under way
  };
  // Holds this rank's part of a registration under way.
  struct Part {
    FlatSpace::Allocation allocation;
    bool is_ours = false;  // The library has allocated it, and no memory has it yet.
    int number = 0;        // the memory that this registration is a user of; 0: none
    bool is_new = false;   // The memory was made for this registration.
    std::vector<RemoteHandle> exported;
  };

  Status Prepare(const Request& request, Part& part, Offer& offer);
  Result<FlatSpace::Allocation> AllocationOf(const Request& request) const;
  void ShowGivenUp(Offer& offer) const TUTTI_REQUIRES(mutex_);
  void TakeBack(std::span<const Offer> offers) TUTTI_REQUIRES(mutex_);
  Status CheckOffers(std::span<const Offer> offers) const;
  Status CheckOffer(const Offer& offer) const;
  static std::string Difference(std::string_view one, std::string_view other);
  Status FirstUnmappable(std::span<const Offer> offers) const;
  void FixStride(std::span<const Offer> offers) TUTTI_REQUIRES(mutex_);
  Result<Outcome> Conclude(const Request& request, const JointRanks& ranks,
                           const Agreement& prepared, std::span<const Offer> offers, Part& part);
  Status TakeMemory(std::span<const Offer> offers, Part& part);
  static bool IsPartOf(const FlatSpace::Allocation& allocation, const Memory& memory);
  Status MapFirstPieces(int number, std::span<const Offer> offers, const JointRanks& ranks);
  Status MapFurtherPieces(std::span<const Offer> offers, Part& part, const JointRanks& ranks,
                          Status* mine);
  Status OfferPieces(Part& part, uint64_t first, PieceOffer& offer);
  Status MapPieces(int number, std::span<const Offer> offers, uint64_t first,
                   std::span<const PieceOffer> pieces, const JointRanks& ranks);
  Status MapPiece(int number, int place, const Offer& offer, const RemoteHandle& piece,
                  bool is_last, const JointRanks& ranks);
  void EndExports(std::span<const RemoteHandle> exported);
  Result<std::shared_ptr<const Window>> MakeWindow(const Request& request,
                                                   std::span<const Offer> offers, const Part& part);
  std::vector<std::byte> WholeRecordOf(const Window& window) const TUTTI_REQUIRES(mutex_);
  void DropPart(Part& part);
  void DropUser(int number) TUTTI_REQUIRES(mutex_);
  void DropRecord(const Window& window) TUTTI_REQUIRES(mutex_);
  void Drop(const Window& window) TUTTI_REQUIRES(mutex_);
  Result<size_t> IndexOf(ncclWindow_t handle) const TUTTI_REQUIRES(mutex_);
  QuickWindow& QuickPlace(ncclWindow_t handle) const;
  uint64_t SliceOf(int place) const { return static_cast<uint64_t>(place) * stride_; }

  Bootstrap& bootstrap_;
  const std::span<const PeerInfo> peers_;
  const LsaTeam team_;
  const std::unique_ptr<FlatSpace> space_;
  const Status why_no_space_;
  const std::unique_ptr<RecordMemory> records_;
  WindowDirectory& directory_;

  // Set by the first registration, and only read by later ones.
  uint64_t stride_ = 0;
  bool reserved_ = false;  // The flat space has its addresses.

  mutable Mutex mutex_;
  std::optional<OffsetSpace> offsets_ TUTTI_GUARDED_BY(mutex_);  // Offsets in a slice.
  WindowTable table_ TUTTI_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const Window>> windows_ TUTTI_GUARDED_BY(mutex_);
  std::map<int, Memory> memories_ TUTTI_GUARDED_BY(mutex_);  // The keys are their numbers.
  // Holds what memories have taken of offsets_ and not all ranks have given up. All ranks have the
  // same.
  std::map<int, Extent> extents_ TUTTI_GUARDED_BY(mutex_);
  std::set<int64_t> given_up_
      TUTTI_GUARDED_BY(mutex_);                    // This rank has given up these of extents_.
  int num_memories_ TUTTI_GUARDED_BY(mutex_) = 0;  // The number so far, the same on all ranks.
  mutable std::array<QuickWindow, kQuickWindows> quick_;  // changed with mutex_ held
};

}  // namespace tutti
