#pragma once

// Symmetric memory: the windows of a communicator, and the flat address space (flat_space.h) in
// which the ranks of an LSA team load and store one another's memory.
//
//   window     a registered part of memory on every rank; the parts may differ in size (window.h)
//   memory     the allocations in which a window's parts lie, one of each rank. They are mapped as a
//              whole, once for all windows in the memory, at one offset of the flat space.
//   piece      The memory of a GPU may consist of several allocations of cuMemCreate, each mapped
//              behind the last; each is a piece (flat_space.h). The pieces lie in the flat space as
//              they do in the rank's own addresses. The ranks may have unequal numbers of pieces, of
//              unequal lengths.
//
// Nobody decides alone. All ranks register together. One exchange carries each rank's part, or why
// the rank has none. Every rank concludes the same from the exchange and maps the memory of its
// team. In a second exchange the ranks agree that all of them could. A registration therefore
// succeeds on all ranks or on none, and no rank touches the memory of another rank too early. Where
// a rank's memory has several pieces, all-gathers between the two exchanges carry the pieces behind
// the first, some at a time.
//
// A rank deregisters alone, in any order and at any time. The rank's own mappings go with the last
// window in a memory. The offset is used again only when every rank has said, in the exchange of a
// later registration, that its mappings are gone. Offsets are therefore taken and given back in the
// same order on all ranks (offset_space.h), whatever the order of their calls.
//
// Each communicator owns one object. Register is called by one thread at a time; any thread may
// call all else at the same time.

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
    // The bootstrap, the peers and the directory outlive the object.
    Bootstrap* bootstrap = nullptr;
    std::span<const PeerInfo> peers;
    LsaTeam team;
    std::unique_ptr<FlatSpace> space = nullptr;
    // Says why there can be no windows where `space` is null. The same on all ranks.
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
    uint64_t alike = 0;  // A hash of all further requests that the ranks must have alike.
    // The text of `alike` for people: "name value,name value". Cut off at 512 bytes.
    std::string said = {};
    Status wrong = {};  // Not ok: the reason why this rank cannot register anything.
  };
  // The outcome of a registration, the same on all ranks. It is a window; or the reason of the
  // first rank that refused; or, where no rank did wrong, the reason why there is no window,
  // because the memory of some rank cannot be mapped by others.
  struct Outcome {
    std::shared_ptr<const Window> window = nullptr;
    Status refusal = {};
    Status why_none = {};
  };
  // All ranks call it together, within the limits of `ranks`. Fails when the ranks cannot talk; the
  // object is of no use then.
  Result<Outcome> Register(const Request& request, const JointRanks& ranks);

  // Ends a window on this rank. Nothing may be using the window. InvalidArgument where the window
  // is none of this communicator.
  Status Deregister(ncclWindow_t handle);
  // Returns the window; InvalidArgument where the window is none of this communicator.
  Result<std::shared_ptr<const Window>> Find(ncclWindow_t handle) const;
  // Returns the window whose own part holds these bytes, or null.
  std::shared_ptr<const Window> FindOwn(std::span<const std::byte> bytes) const;
  // Does the same as Find, without a lock where possible, for operations of kernels. REQUIRES: the
  // window is not deregistered while the caller uses it.
  Result<const Window*> Lookup(ncclWindow_t handle) const;

  // Returns the address at which this rank reaches `bytes` bytes of its own part of some window.
  // `slice_offset` is an offset in a slice of the flat space, which means the same on all ranks.
  // InvalidArgument where no window holds the bytes.
  Result<std::byte*> OwnAt(uint64_t slice_offset, uint64_t bytes) const;

  // Tells kernels the name by which they put to a window over the network. At first the name is the
  // window's handle.
  Status SetGinName(const Window& window, ncclGinWindow_t name);
  // Returns the record from which kernels know a window of this communicator.
  ncclWindow_vidmem RecordOf(const Window& window) const;
  // Returns the first block of the list of windows, for kernels; null before the first window.
  ncclDevCommWindowTable* table() const;

 private:
  // In one exchange a rank shows the lowest numbers of the memories that it has given up. If ranks
  // show different numbers, offsets come back later.
  static constexpr size_t kGivenUpShown = 16;
  // The number of places from which Lookup takes a window without a lock. A handle has one place; a
  // handle whose place is taken is looked up with the lock.
  static constexpr size_t kQuickWindows = 256;
  // The number of pieces in one exchange. Each piece keeps a descriptor open until after the next
  // exchange. A rank therefore has twice as many descriptors. A process may have several ranks and
  // no more than 1024 descriptors.
  static constexpr uint64_t kPiecesAtOnce = 16;
  struct QuickWindow {
    std::atomic<ncclWindow_t> handle = nullptr;
    std::atomic<const Window*> window = nullptr;
  };

  // A rank's part in a registration. Plain bytes; CheckOffers checks all but `given_up`.
  struct Offer {
    StatusWire unmappable;  // Not ok: the reason why no other rank can map the memory.
    int64_t allocates = 0;  // 1: the library allocates the memory
    int64_t flags = 0;
    uint64_t alike = 0;
    std::array<char, 512> said = {};  // Zeros follow the text.
    uint64_t bytes = 0;
    uint64_t offset = 0;  // The window begins there in the allocation.
    int64_t memory = 0;   // The number of the memory as which the allocation is mapped; 0: none.
    uint64_t needed_stride = 0;
    uint64_t longest_stride = 0;
    uint64_t allocation_bytes = 0;
    uint64_t num_pieces = 0;
    RemoteHandle allocation;                           // The first piece.
    std::array<int64_t, kGivenUpShown> given_up = {};  // Ascending; the rest is 0.

    std::string_view SaidText() const { return {said.data(), strnlen(said.data(), said.size())}; }
  };

  // Some of a rank's further pieces.
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
    Extent extent;         // The same on all ranks.
    // The lengths of the mapped pieces of each place of the team, one behind the other.
    std::vector<std::vector<uint64_t>> mapped;
    int num_users = 0;  // Windows, and a registration under way.
  };
  // Holds this rank's part of a registration under way.
  struct Part {
    FlatSpace::Allocation allocation;
    bool is_ours = false;  // The library has allocated it, and no memory has it yet.
    int number = 0;        // The memory that this registration uses; 0: none.
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
  std::map<int, Memory> memories_ TUTTI_GUARDED_BY(mutex_);  // By number.
  // The parts of offsets_ of memories that not all ranks have given up. The same on all ranks.
  std::map<int, Extent> extents_ TUTTI_GUARDED_BY(mutex_);
  std::set<int64_t> given_up_
      TUTTI_GUARDED_BY(mutex_);  // The numbers in extents_ that this rank has given up.
  int num_memories_ TUTTI_GUARDED_BY(mutex_) = 0;  // The number so far, the same on all ranks.
  mutable std::array<QuickWindow, kQuickWindows> quick_;  // Changed with mutex_ held.
};

}  // namespace tutti
