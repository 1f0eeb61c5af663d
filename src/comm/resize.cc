#include "comm/resize.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "comm/joint_call.h"

namespace tutti {
namespace {

// These numbers go into the id of a child. A split and a shrink of one parent therefore never make
// the same id.
constexpr uint64_t kSplitId = 1;
constexpr uint64_t kShrinkId = 2;

// All members of a child compute its id from common knowledge, without an exchange.
uint64_t Mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15u + (hash << 6) + (hash >> 2);
  return hash * 0xBF58476D1CE4E5B9u;
}

using Made = Result<std::unique_ptr<Communicator>>;

// Learns the color and key of every rank, and makes the child of the ranks with this rank's color.
// A rank without a color only takes part in the exchange.
Made Split(Communicator& parent, int color, int key, const std::string& name,
           std::atomic<bool>& abort_flag, JointCall& call) {
  JointStep<SplitChoice> step(call.ranks());
  step.mine() = {color, key};
  const uint64_t number = parent.NextChildNumber();
  TUTTI_TRY(call.Exchange(step));
  if (color < 0) return std::unique_ptr<Communicator>();
  const uint64_t id =
      Mix(Mix(Mix(parent.bootstrap().id(), kSplitId), number), static_cast<uint64_t>(color));
  return Communicator::InitChild(parent, id, SplitMembers(step.offers(), color), name, &abort_flag,
                                 [&] { return call.reason(); });
}

// Makes the child of all remaining ranks. The ranks exchange nothing over the parent, which may
// have stopped. Ranks with different excluded ranks do not meet, because the id depends on the
// excluded ranks.
Made Shrink(Communicator& parent, const std::vector<int>& excluded, const std::string& name,
            std::atomic<bool>& abort_flag) {
  std::vector<int> members;
  uint64_t id = Mix(Mix(parent.bootstrap().id(), kShrinkId), parent.NextShrinkNumber(excluded));
  for (int r = 0; r < parent.num_ranks(); ++r) {
    if (std::binary_search(excluded.begin(), excluded.end(), r))
      id = Mix(id, static_cast<uint64_t>(r) + 1);
    else
      members.push_back(r);
  }
  return Communicator::InitChild(parent, id, std::move(members), name, &abort_flag, {});
}

// Makes a communicator of the parent's ranks and of new ranks. All of them meet at the root of an
// id that one rank brings. The exchange shares the id, and shows whether all ranks ask for an equal
// size.
Made Grow(Communicator& parent, const GrowRequest& request, const std::string& name,
          std::atomic<bool>& abort_flag, JointCall& call) {
  JointStep<GrowOffer> step(call.ranks());
  GrowOffer& mine = step.mine();
  mine.num_ranks = request.num_ranks;
  mine.has_id = request.id.has_value();
  if (request.id) request.id->Encode(mine.id);
  if (Status met = call.Exchange(step); !met.ok()) {
    // The new ranks wait at the root of the id for ranks of the parent, which do not come.
    met = call.Explain(std::move(met));
    if (request.id)
      Bootstrap::Decline(
          parent.settings(),
          {.rank = parent.rank(), .num_ranks = request.num_ranks, .ids = {*request.id}}, met);
    return met;
  }

  TUTTI_ASSIGN(const GrowOffer* const root, FindGrowRoot(step.offers()));
  Communicator::InitOptions options;
  TUTTI_ASSIGN(UniqueId id, UniqueId::Decode(root->id));
  options.ids.push_back(id);
  options.rank = parent.rank();
  options.num_ranks = request.num_ranks;
  options.name = name;
  options.abort_flag = &abort_flag;
  options.abort_reason = [&] { return call.reason(); };
  options.cuda_device = parent.device().cuda_ordinal();
  return Communicator::Init(parent.process(), parent.settings(), options);
}

}  // namespace

std::vector<int> SplitMembers(std::span<const SplitChoice> choices, int color) {
  std::vector<int> members;
  for (size_t r = 0; r < choices.size(); ++r)
    if (choices[r].color == color) members.push_back(static_cast<int>(r));
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return choices[static_cast<size_t>(a)].key < choices[static_cast<size_t>(b)].key;
  });
  return members;
}

Result<const GrowOffer*> FindGrowRoot(std::span<const GrowOffer> offers) {
  const GrowOffer* root = nullptr;
  for (const GrowOffer& offer : offers) {
    if (offer.num_ranks != offers[0].num_ranks)
      return InvalidUsage("the ranks grow to different numbers: {} and {}", offers[0].num_ranks,
                          offer.num_ranks);
    if (offer.has_id == 0) continue;
    if (root != nullptr) return InvalidUsage("two ranks passed an id to ncclCommGrow; one may");
    root = &offer;
  }
  if (root == nullptr)
    return InvalidUsage("no rank passed the id of ncclCommGetUniqueId to ncclCommGrow");
  return root;
}

Status CheckQuorum(const std::vector<int>& excluded, int num_ranks) {
  const int rest = num_ranks - static_cast<int>(excluded.size());
  const bool has_first = excluded.empty() || excluded.front() != 0;
  if (2 * rest > num_ranks || (2 * rest == num_ranks && has_first)) return Status::Ok();
  return RemoteError(
      "only {} of {} ranks remain, {}, so this part of the job does not go on (TUTTI_QUORUM)", rest,
      num_ranks, 2 * rest == num_ranks ? "and rank 0 is not one of them" : "fewer than half");
}

Result<std::unique_ptr<Communicator>> SplitCommunicator(Communicator& parent, int color, int key,
                                                        const std::string& name,
                                                        std::atomic<bool>& abort_flag) {
  JointCall call(parent, "in ncclCommSplit", abort_flag);
  Made made = Split(parent, color, key, name, abort_flag, call);
  if (!made.ok()) return call.Explain(made.status());
  return made;
}

Result<std::unique_ptr<Communicator>> ShrinkCommunicator(Communicator& parent,
                                                         std::vector<int> excluded, bool and_lost,
                                                         const std::string& name,
                                                         std::atomic<bool>& abort_flag) {
  if (and_lost) {
    for (const int rank : parent.watch().LostRanks()) {
      if (rank == parent.rank()) return parent.watch().StopReason();
      excluded.push_back(rank);
    }
    std::sort(excluded.begin(), excluded.end());
    excluded.erase(std::unique(excluded.begin(), excluded.end()), excluded.end());
  }
  if (and_lost && parent.settings().quorum) TUTTI_TRY(CheckQuorum(excluded, parent.num_ranks()));
  // The excluded ranks have no part in the call, and therefore the parent's bootstrap has none
  // either. The child notices the loss of a rank of its own.
  const Watch::Step step(parent.watch(),
                         fmt::format("in ncclCommShrink without rank{} {}",
                                     excluded.size() > 1 ? "s" : "", fmt::join(excluded, ", ")));
  return Shrink(parent, excluded, name, abort_flag);
}

Result<std::unique_ptr<Communicator>> GrowCommunicator(Communicator& parent,
                                                       const GrowRequest& request,
                                                       const std::string& name,
                                                       std::atomic<bool>& abort_flag) {
  JointCall call(parent, fmt::format("in ncclCommGrow to {} ranks", request.num_ranks), abort_flag);
  Made made = Grow(parent, request, name, abort_flag, call);
  if (!made.ok()) return call.Explain(made.status());
  return made;
}

}  // namespace tutti
