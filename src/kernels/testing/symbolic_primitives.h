#pragma once

// The primitives of kernels/ in a world of symbolic memory. Each object serves one rank and records
// steps in the rank's program. Steps keep what they need by value, hence the objects may end before
// the steps are made.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/direct.h"
#include "kernels/mesh.h"
#include "kernels/primitives.h"
#include "kernels/pull.h"
#include "kernels/rank_order.h"
#include "kernels/recursive_halving.h"
#include "kernels/symmetric.h"
#include "kernels/testing/symbolic_world.h"
#include "kernels/two_level.h"

namespace tutti::testing {

// Describes a step over FIFOs: the received chunks and the input are added in this order, and the
// sum goes to the output and to all receivers.
struct Passage {
  std::vector<int> from = {}, to = {};
  bool reads = false, writes = false, final = false;
};
inline void Pass(World& world, int rank, Passage how, size_t in, size_t out, size_t n) {
  if (n == 0) return;
  world.Do(rank, [&world, rank, how = std::move(how), in, out, n] {
    for (const int peer : how.from)
      if (world.LinkOf(peer, rank).chunks.empty()) return false;
    for (const int peer : how.to)
      if (!world.HasRoom(world.LinkOf(rank, peer))) return false;
    std::vector<Term> sum(n, kNothing);
    bool first = true;
    const auto add = [&](size_t i, Term term) { sum[i] = first ? term : world.Sum(sum[i], term); };
    for (const int peer : how.from) {
      const std::vector<Term> chunk = world.Receive(world.LinkOf(peer, rank), n);
      for (size_t i = 0; i < n; ++i) add(i, chunk[i]);
      first = false;
    }
    for (size_t i = 0; i < n; ++i) {
      if (how.reads) add(i, world.ReadInput(rank, in + i));
      if (how.final && sum[i] != kNothing) sum[i] = world.terms().Finished(sum[i]);
      if (how.writes) world.WriteOutput(rank, out + i, sum[i]);
    }
    for (const int peer : how.to) world.Send(world.LinkOf(rank, peer), sum);
    return true;
  });
}

// FifoPrimitives and ForwardingPrimitives.
class SymbolicFifos {
 public:
  SymbolicFifos(World& world, int rank, std::vector<int> from, std::vector<int> to)
      : world_(world), rank_(rank), from_(std::move(from)), to_(std::move(to)) {}

  void Send(size_t in, size_t n) { Move({.to = to_, .reads = true}, in, 0, n); }
  void CopySend(size_t in, size_t out, size_t n) {
    Move({.to = to_, .reads = true, .writes = true}, in, out, n);
  }
  void Recv(size_t out, size_t n) { Move({.from = from_, .writes = true}, 0, out, n); }
  void RecvCopySend(size_t out, size_t n) {
    Move({.from = from_, .to = to_, .writes = true}, 0, out, n);
  }
  void RecvReduceSend(size_t in, size_t n) {
    Move({.from = from_, .to = to_, .reads = true}, in, 0, n);
  }
  void RecvReduceCopyFinal(size_t in, size_t out, size_t n) {
    Move({.from = from_, .reads = true, .writes = true, .final = true}, in, out, n);
  }
  void RecvReduceCopySendFinal(size_t in, size_t out, size_t n) {
    Move({.from = from_, .to = to_, .reads = true, .writes = true, .final = true}, in, out, n);
  }
  void RecvSend(size_t n) { Move({.from = from_, .to = to_}, 0, 0, n); }
  void RecvReduceSendFinal(size_t in, size_t n) {
    Move({.from = from_, .to = to_, .reads = true, .final = true}, in, 0, n);
  }

 private:
  void Move(Passage how, size_t in, size_t out, size_t n) {
    Pass(world_, rank_, std::move(how), in, out, n);
  }
  World& world_;
  const int rank_;
  const std::vector<int> from_, to_;
};
static_assert(kernels::ForwardingPrimitives<SymbolicFifos>);

// TwoLevelPrimitives: a ring in the host and a ring of the rail.
class SymbolicRails {
 public:
  struct Neighbours {
    int host_before, host_after, rail_before, rail_after;
  };
  SymbolicRails(World& world, int rank, Neighbours peers)
      : world_(world), rank_(rank), peers_(peers) {}

  void Move(uint32_t what, size_t in, size_t out, size_t n) {
    Passage how = {.reads = (what & kernels::kReads) != 0,
                   .writes = (what & kernels::kWrites) != 0,
                   .final = (what & kernels::kIsFinal) != 0};
    if ((what & kernels::kFromHost) != 0) how.from.push_back(peers_.host_before);
    if ((what & kernels::kFromRail) != 0) how.from.push_back(peers_.rail_before);
    if ((what & kernels::kToHost) != 0) how.to.push_back(peers_.host_after);
    if ((what & kernels::kToRail) != 0) how.to.push_back(peers_.rail_after);
    Pass(world_, rank_, std::move(how), in, out, n);
  }

 private:
  World& world_;
  const int rank_;
  const Neighbours peers_;
};
static_assert(kernels::TwoLevelPrimitives<SymbolicRails>);

// ExchangePrimitives on elements [at, …) of the buffers. `rank_of` gives the rank of a participant.
class SymbolicExchange {
 public:
  using RankOf = std::function<int(int)>;
  SymbolicExchange(World& world, int rank)
      : SymbolicExchange(
            world, rank, 0, [](int number) { return number; }, true) {}
  // With `loads` false the running result is in the output already.
  SymbolicExchange(World& world, int rank, size_t at, RankOf rank_of, bool loads)
      : world_(world), rank_(rank), at_(at), rank_of_(std::move(rank_of)), loads_(loads) {}

  void LoadInput(size_t n) {
    if (!loads_) return;
    EachOutput(n, [&world = world_, rank = rank_](size_t i) { return world.ReadInput(rank, i); });
  }
  void SendOutput(int peer, size_t n) {
    world_.Do(rank_, [&world = world_, rank = rank_, to = rank_of_(peer), at = at_, n] {
      Link& link = world.LinkOf(rank, to);
      if (!world.HasRoom(link)) return false;
      std::vector<Term> chunk;
      for (size_t i = at; i < at + n; ++i) chunk.push_back(world.ReadOutput(rank, i));
      world.Send(link, std::move(chunk));
      return true;
    });
  }
  void RecvReduceOutput(int peer, bool mine_first, size_t n) {
    Receive(peer, n, [&world = world_, mine_first](Term mine, Term theirs) {
      return mine_first ? world.Sum(mine, theirs) : world.Sum(theirs, mine);
    });
  }
  void ExchangeReduceOutput(int peer, bool mine_first, size_t n) {
    SendOutput(peer, n);
    RecvReduceOutput(peer, mine_first, n);
  }
  void RecvOutput(int peer, size_t n) {
    Receive(peer, n, [](Term, Term theirs) { return theirs; });
  }
  void FinishOutput(size_t n) {
    EachOutput(n, [&world = world_, rank = rank_](size_t i) {
      return world.terms().Finished(world.ReadOutput(rank, i));
    });
  }

 private:
  template <class F>
  void EachOutput(size_t n, F f) {
    world_.Do(rank_, [&world = world_, rank = rank_, at = at_, n, f] {
      for (size_t i = at; i < at + n; ++i) world.WriteOutput(rank, i, f(i));
      return true;
    });
  }
  template <class F>
  void Receive(int peer, size_t n, F combine) {
    world_.Do(rank_, [&world = world_, rank = rank_, from = rank_of_(peer), at = at_, n, combine] {
      Link& link = world.LinkOf(from, rank);
      if (link.chunks.empty()) return false;
      const std::vector<Term> chunk = world.Receive(link, n);
      for (size_t i = 0; i < n; ++i)
        world.WriteOutput(rank, at + i, combine(world.ReadOutput(rank, at + i), chunk[i]));
      return true;
    });
  }

  World& world_;
  const int rank_;
  const size_t at_;
  const RankOf rank_of_;
  const bool loads_;
};
static_assert(ExchangePrimitives<SymbolicExchange>);

// BlockPrimitives and InputBlockPrimitives. The work area is the output.
class SymbolicBlocks {
 public:
  SymbolicBlocks(World& world, int rank) : world_(world), rank_(rank) {}

  template <class Send, class Recv>
  void Exchange(int to, const Send& send, int from, const Recv& recv) {
    Run(to, List(send), from, List(recv), How::kCopy, false);
  }
  template <class Send, class Recv>
  void ExchangeReduce(int to, const Send& send, int from, const Recv& recv, bool final) {
    Run(to, List(send), from, List(recv), final ? How::kAddAndFinish : How::kAdd, false);
  }
  template <class Run>
  void LoadBlocks(const Run& run) {
    world_.Do(rank_, [&world = world_, rank = rank_, blocks = List(run)] {
      for (const size_t i : blocks) world.WriteOutput(rank, i, world.ReadInput(rank, i));
      return true;
    });
  }
  template <class Send, class Recv>
  void InputExchangeReduce(int to, const Send& send, int from, const Recv& recv, bool first) {
    Run(to, List(send), from, List(recv), first ? How::kAddInput : How::kAdd, true);
  }

 private:
  enum class How { kCopy, kAdd, kAddInput, kAddAndFinish };
  using Places = std::vector<size_t>;  // The elements of a message.
  template <class Run>
  static Places List(const Run& run) {
    Places places;
    for (int b = 0; b < run.count(); ++b)
      for (size_t i = 0; i < run[b].size; ++i) places.push_back(run[b].at + i);
    return places;
  }
  // The message leaves and the message to this rank arrives in any order, slice by slice. The two
  // messages must therefore have no element in common.
  void Run(int to, Places sent, int from, Places received, How how, bool of_input) {
    for (const size_t i : sent)
      if (std::find(received.begin(), received.end(), i) != received.end())
        world_.Fail("rank " + std::to_string(rank_) + " sends and receives element " +
                    std::to_string(i) + " at once");
    struct State {
      bool sent, received;
    };
    const auto state = std::make_shared<State>(State{sent.empty(), received.empty()});
    world_.Do(rank_, [&world = world_, rank = rank_, state, to, from, sent = std::move(sent),
                      received = std::move(received), how, of_input] {
      if (!state->sent && world.HasRoom(world.LinkOf(rank, to))) {
        std::vector<Term> chunk;
        for (const size_t i : sent)
          chunk.push_back(of_input ? world.ReadInput(rank, i) : world.ReadOutput(rank, i));
        world.Send(world.LinkOf(rank, to), std::move(chunk));
        state->sent = true;
      }
      if (!state->received && !world.LinkOf(from, rank).chunks.empty()) {
        const std::vector<Term> chunk = world.Receive(world.LinkOf(from, rank), received.size());
        for (size_t i = 0; i < received.size(); ++i) Store(world, rank, received[i], chunk[i], how);
        state->received = true;
      }
      return state->sent && state->received;
    });
  }
  static void Store(World& world, int rank, size_t at, Term got, How how) {
    if (how == How::kAddInput) {
      got = world.Sum(world.ReadInput(rank, at), got);
    } else if (how != How::kCopy) {
      got = world.Sum(world.ReadOutput(rank, at), got);
    }
    if (how == How::kAddAndFinish && got != kNothing) got = world.terms().Finished(got);
    world.WriteOutput(rank, at, got);
  }

  World& world_;
  const int rank_;
};
static_assert(InputBlockPrimitives<SymbolicBlocks>);

// The stages of all ranks, for DirectPrimitives. A slot holds `slot_elems` elements. A rank refills
// a slot only when all ranks have ended the round of kSlots rounds before.
class SymbolicStages {
 public:
  static constexpr uint64_t kSlots = 4;

  SymbolicStages(World& of, size_t elems)
      : world(of), slot_elems(elems), ranks(static_cast<size_t>(of.num_ranks())) {}

  struct Slot {
    uint64_t round = ~uint64_t{0};
    bool is_published = false;
    std::vector<Term> terms;
  };
  struct Rank {
    std::array<Slot, kSlots> slots;
    std::vector<bool> ended;  // By round.
  };
  Slot& SlotOf(int rank, uint64_t round) {
    return ranks[static_cast<size_t>(rank)].slots[round % kSlots];
  }
  bool IsFree(uint64_t round) const {
    return round < kSlots || std::all_of(ranks.begin(), ranks.end(), [&](const Rank& rank) {
             for (uint64_t r = 0; r <= round - kSlots; ++r)
               if (r >= rank.ended.size() || !rank.ended[r]) return false;
             return true;
           });
  }
  // Returns the slot of a round for its owner to fill.
  Slot& Fill(int rank, uint64_t round) {
    Slot& slot = SlotOf(rank, round);
    if (slot.round != round) slot = {round, false, std::vector<Term>(slot_elems, kNothing)};
    if (slot.is_published) world.Fail("rank " + std::to_string(rank) + " fills a published slot");
    return slot;
  }
  Term Read(int rank, uint64_t round, size_t at) {
    const Slot& slot = SlotOf(rank, round);
    if (slot.round == round && slot.is_published && at < slot.terms.size() &&
        slot.terms[at] != kNothing)
      return slot.terms[at];
    world.Fail("element " + std::to_string(at) + " of the slot of rank " + std::to_string(rank) +
               " is not there");
    return kNothing;
  }

  World& world;
  const size_t slot_elems;
  std::vector<Rank> ranks;
};

class SymbolicDirect {
 public:
  // `next_round` is the number of the rank's next round; operations may follow one another.
  SymbolicDirect(SymbolicStages& stages, int rank, uint64_t& next_round)
      : stages_(stages), world_(stages.world), rank_(rank), next_round_(next_round) {}

  int rank() const { return rank_; }
  int num_ranks() const { return world_.num_ranks(); }
  uint64_t NextRound() { return next_round_++; }
  void Stage(uint64_t round, size_t at, size_t in, size_t n) { Put(round, at, in, n, false); }
  void StageOutput(uint64_t round, size_t at, size_t out, size_t n) {
    Put(round, at, out, n, true);
  }
  void Publish(uint64_t round, size_t) {
    world_.Do(rank_, [&stages = stages_, rank = rank_, round] {
      if (!stages.IsFree(round)) return false;
      stages.Fill(rank, round).is_published = true;
      return true;
    });
  }
  void Wait(uint64_t round, int peer) {
    world_.Do(rank_, [&stages = stages_, round, peer] {
      const SymbolicStages::Slot& slot = stages.SlotOf(peer, round);
      return slot.round == round && slot.is_published;
    });
  }
  void ReduceSlots(uint64_t round, size_t at, size_t out, size_t n) {
    Reduce(round, at, ~size_t{0}, out, n);
  }
  void ReducePart(uint64_t round, size_t at, size_t in, size_t out, size_t n) {
    Reduce(round, at, in, out, n);
  }
  void CopyFromSlot(uint64_t round, int peer, size_t at, size_t out, size_t n) {
    world_.Do(rank_, [&stages = stages_, rank = rank_, round, peer, at, out, n] {
      for (size_t i = 0; i < n; ++i)
        stages.world.WriteOutput(rank, out + i, stages.Read(peer, round, at + i));
      return true;
    });
  }
  void CopyLocal(size_t in, size_t out, size_t n) {
    world_.Do(rank_, [&world = world_, rank = rank_, in, out, n] {
      for (size_t i = 0; i < n; ++i)
        world.WriteOutput(rank, out + i, world.ReadInput(rank, in + i));
      return true;
    });
  }
  void EndRound(uint64_t round) {
    world_.Do(rank_, [&stages = stages_, rank = rank_, round] {
      std::vector<bool>& ended = stages.ranks[static_cast<size_t>(rank)].ended;
      if (ended.size() <= round) ended.resize(round + 1);
      ended[round] = true;
      return true;
    });
  }

 private:
  void Put(uint64_t round, size_t at, size_t from, size_t n, bool of_output) {
    if (n == 0) return;
    world_.Do(rank_, [&stages = stages_, rank = rank_, round, at, from, n, of_output] {
      World& world = stages.world;
      if (!stages.IsFree(round)) return false;
      SymbolicStages::Slot& slot = stages.Fill(rank, round);
      if (at + n > slot.terms.size()) {
        world.Fail("elements up to " + std::to_string(at + n) + " are staged in a slot of " +
                   std::to_string(slot.terms.size()));
        return true;
      }
      for (size_t i = 0; i < n; ++i)
        slot.terms[at + i] =
            of_output ? world.ReadOutput(rank, from + i) : world.ReadInput(rank, from + i);
      return true;
    });
  }
  // Adds in the order of the ranks. The own element comes from the input, or from the own slot
  // where `in` is not a place.
  void Reduce(uint64_t round, size_t at, size_t in, size_t out, size_t n) {
    world_.Do(rank_, [&stages = stages_, rank = rank_, round, at, in, out, n] {
      World& world = stages.world;
      for (size_t i = 0; i < n; ++i) {
        Term sum = kNothing;
        for (int r = 0; r < world.num_ranks(); ++r) {
          const Term term = r == rank && in != ~size_t{0} ? world.ReadInput(rank, in + i)
                                                          : stages.Read(r, round, at + i);
          sum = r == 0 ? term : world.Sum(sum, term);
        }
        if (sum != kNothing) sum = world.terms().Finished(sum);
        world.WriteOutput(rank, out + i, sum);
      }
      return true;
    });
  }

  SymbolicStages& stages_;
  World& world_;
  const int rank_;
  uint64_t& next_round_;
};
static_assert(DirectPrimitives<SymbolicDirect>);

// Reads elements [from, from + i) of all inputs, in the order of the ranks.
inline Term SumOfInputs(World& world, size_t at) {
  Term sum = world.ReadInput(0, at);
  for (int r = 1; r < world.num_ranks(); ++r) sum = world.Sum(sum, world.ReadInput(r, at));
  return sum == kNothing ? kNothing : world.terms().Finished(sum);
}

class SymbolicPull {
 public:
  SymbolicPull(World& world, int rank) : world_(world), rank_(rank) {}

  int rank() const { return rank_; }
  int num_ranks() const { return world_.num_ranks(); }
  void CopyInput(int peer, size_t from, size_t out, size_t n) {
    Each(n, [=, &world = world_, rank = rank_](size_t i) {
      world.WriteOutput(rank, out + i, world.ReadInput(peer, from + i));
    });
  }
  void CopyOutput(int peer, size_t from, size_t out, size_t n) {
    Each(n, [=, &world = world_, rank = rank_](size_t i) {
      world.WriteOutput(rank, out + i, world.ReadOutput(peer, from + i));
    });
  }
  void ReduceInputs(size_t from, size_t out, size_t n) {
    Each(n, [=, &world = world_, rank = rank_](size_t i) {
      world.WriteOutput(rank, out + i, SumOfInputs(world, from + i));
    });
  }
  void Barrier() { world_.Meet(rank_); }

 private:
  template <class F>
  void Each(size_t n, F f) {
    world_.Do(rank_, [n, f] {
      for (size_t i = 0; i < n; ++i) f(i);
      return true;
    });
  }
  World& world_;
  const int rank_;
};
static_assert(kernels::PullPrimitives<SymbolicPull>);

class SymbolicRegistered {
 public:
  SymbolicRegistered(World& world, int rank) : world_(world), rank_(rank) {}

  int rank() const { return rank_; }
  int num_ranks() const { return world_.num_ranks(); }
  void Meet() { world_.Meet(rank_); }
  void Reduce(size_t in, size_t out, size_t n, bool to_all) {
    world_.Do(rank_, [&world = world_, rank = rank_, in, out, n, to_all] {
      for (size_t i = 0; i < n; ++i) {
        const Term sum = SumOfInputs(world, in + i);
        for (int r = 0; r < world.num_ranks(); ++r)
          if (to_all || r == rank) world.WriteOutput(r, out + i, sum);
      }
      return true;
    });
  }
  void CopyToAll(size_t in, size_t out, size_t n) {
    world_.Do(rank_, [&world = world_, rank = rank_, in, out, n] {
      for (size_t i = 0; i < n; ++i)
        for (int r = 0; r < world.num_ranks(); ++r)
          world.WriteOutput(r, out + i, world.ReadInput(rank, in + i));
      return true;
    });
  }

 private:
  World& world_;
  const int rank_;
};
static_assert(kernels::SymmetricPrimitives<SymbolicRegistered>);

// The inboxes of all ranks, for the primitives of kernels/mesh.h. A rank writes into slots of its
// peers without asking; a slot that is overwritten before its reader came is a failure.
class SymbolicInboxes {
 public:
  SymbolicInboxes(World& of, size_t elems)
      : world(of),
        slot_elems(elems),
        published(static_cast<size_t>(of.num_ranks())),
        slots_(static_cast<size_t>(of.num_ranks() * of.num_ranks()) * kMeshSlots) {
    world.AtEnd([this] {
      return std::all_of(slots_.begin(), slots_.end(), [](const Slot& s) { return !s.is_unread; })
                 ? std::string()
                 : std::string("a slot with data is never read");
    });
  }
  void Put(int from, int to, uint64_t round, std::vector<Term> terms) {
    Slot& slot = SlotOf(from, to, round);
    const std::string who = "rank " + std::to_string(from);
    if (slot.is_unread) world.Fail(who + " overwrites a slot that has not been read");
    if (terms.size() > slot_elems) world.Fail(who + " writes beyond a slot");
    slot = {round, true, std::move(terms)};
  }
  // Returns the `n` elements of a slot, which must hold just as many.
  std::vector<Term> Take(int from, int to, uint64_t round, size_t n) {
    Slot& slot = SlotOf(from, to, round);
    if (!slot.is_unread || slot.round != round || slot.terms.size() != n)
      world.Fail("rank " + std::to_string(to) + " does not find " + std::to_string(n) +
                 " elements of rank " + std::to_string(from));
    slot.is_unread = false;
    std::vector<Term> terms = slot.terms;
    terms.resize(n, kNothing);
    return terms;
  }

  World& world;
  const size_t slot_elems;
  std::vector<uint64_t> published;  // By rank: the number of rounds that the rank has published.

 private:
  struct Slot {
    uint64_t round = 0;
    bool is_unread = false;
    std::vector<Term> terms = {};
  };
  Slot& SlotOf(int from, int to, uint64_t round) {
    const auto pair = static_cast<size_t>(from * world.num_ranks() + to);
    return slots_[pair * kMeshSlots + round % kMeshSlots];
  }
  std::vector<Slot> slots_;
};

class SymbolicMesh {
 public:
  SymbolicMesh(SymbolicInboxes& inboxes, int rank, uint64_t& next_round)
      : inboxes_(inboxes), world_(inboxes.world), rank_(rank), next_round_(next_round) {}

  int rank() const { return rank_; }
  int num_ranks() const { return world_.num_ranks(); }
  uint64_t TakeRounds(uint64_t count) { return std::exchange(next_round_, next_round_ + count); }
  template <class Parts>
  void Push(uint64_t round, const Parts& parts) {
    for (int peer = 0; peer < num_ranks(); ++peer) {
      const MeshPart part = parts(peer);
      if (peer == rank_ || part.size == 0) continue;
      world_.Do(rank_, [&inboxes = inboxes_, rank = rank_, peer, part, round] {
        std::vector<Term> terms;
        for (size_t i = 0; i < part.size; ++i)
          terms.push_back(inboxes.world.ReadInput(rank, part.at + i));
        inboxes.Put(rank, peer, round, std::move(terms));
        return true;
      });
    }
  }
  void Publish(uint64_t round) {
    world_.Do(rank_, [&published = inboxes_.published[static_cast<size_t>(rank_)], round] {
      published = std::max(published, round + 1);
      return true;
    });
  }
  void Wait(uint64_t round) {
    world_.Do(rank_, [&published = inboxes_.published, round] {
      return std::all_of(published.begin(), published.end(),
                         [round](uint64_t rounds) { return rounds > round; });
    });
  }
  void Fetch(uint64_t round, const MeshParts& parts) {
    for (int peer = 0; peer < num_ranks(); ++peer) {
      const MeshPart part = parts(peer);
      if (peer == rank_ || part.size == 0) continue;
      world_.Do(rank_, [&inboxes = inboxes_, rank = rank_, peer, part, round] {
        const std::vector<Term> terms = inboxes.Take(peer, rank, round, part.size);
        for (size_t i = 0; i < part.size; ++i)
          inboxes.world.WriteOutput(rank, part.at + i, terms[i]);
        return true;
      });
    }
  }
  void Reduce(uint64_t round, size_t in, size_t out, size_t n) {
    Combine(round, in, out, n, round, Results::kKept);
  }
  void ReducePush(uint64_t round, size_t in, size_t out, size_t n, uint64_t to, int peer) {
    Combine(round, in, out, n, to, peer < 0 ? Results::kKeptAndPushed : Results::kPushed, peer);
  }
  void Forward(uint64_t round, int peer, size_t out, size_t n, uint64_t to) {
    if (n == 0 || peer == rank_) return;
    world_.Do(rank_, [&inboxes = inboxes_, rank = rank_, round, peer, out, n, to] {
      const std::vector<Term> terms = inboxes.Take(peer, rank, round, n);
      for (size_t i = 0; i < n; ++i) inboxes.world.WriteOutput(rank, out + i, terms[i]);
      for (int r = 0; r < inboxes.world.num_ranks(); ++r)
        if (r != rank && r != peer) inboxes.Put(rank, r, to, terms);
      return true;
    });
  }
  void CopyLocal(size_t in, size_t out, size_t n) {
    world_.Do(rank_, [&world = world_, rank = rank_, in, out, n] {
      for (size_t i = 0; i < n; ++i)
        world.WriteOutput(rank, out + i, world.ReadInput(rank, in + i));
      return true;
    });
  }

 private:
  enum class Results { kKept, kPushed, kKeptAndPushed };
  void Combine(uint64_t round, size_t in, size_t out, size_t n, uint64_t to, Results results,
               int target = -1) {
    if (n == 0) return;
    world_.Do(rank_, [&inboxes = inboxes_, rank = rank_, round, in, out, n, to, results, target] {
      World& world = inboxes.world;
      std::vector<Term> sums;
      for (int r = 0; r < world.num_ranks(); ++r) {
        std::vector<Term> terms;
        if (r != rank) terms = inboxes.Take(r, rank, round, n);
        for (size_t i = 0; i < n; ++i) {
          const Term term = r == rank ? world.ReadInput(rank, in + i) : terms[i];
          if (r == 0)
            sums.push_back(term);
          else
            sums[i] = world.Sum(sums[i], term);
        }
      }
      for (size_t i = 0; i < n; ++i) {
        if (sums[i] != kNothing) sums[i] = world.terms().Finished(sums[i]);
        if (results != Results::kPushed) world.WriteOutput(rank, out + i, sums[i]);
      }
      if (results == Results::kKept) return true;
      for (int r = 0; r < world.num_ranks(); ++r)
        if (r != rank && (target < 0 || r == target)) inboxes.Put(rank, r, to, sums);
      return true;
    });
  }

  SymbolicInboxes& inboxes_;
  World& world_;
  const int rank_;
  uint64_t& next_round_;
};
static_assert(MeshPrimitives<SymbolicMesh>);

}  // namespace tutti::testing
