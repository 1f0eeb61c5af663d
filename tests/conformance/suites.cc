#include "conformance/suites.h"

#include <algorithm>

namespace tutti::testing {
namespace {

using oracle::Op;

// Seeds differ from case to case, so that no case can pass on what the one before left behind.
std::vector<Case> WithSeeds(std::vector<Case> cases) {
  for (size_t i = 0; i < cases.size(); ++i) cases[i].seed = 7 * i + cases[i].count + 1;
  return cases;
}

void AddTypesAndOperators(Collective collective, int num_ranks, size_t count,
                          std::vector<Case>& cases) {
  int turn = 0;
  for (int type = 0; type < ncclNumTypes; ++type) {
    for (int op = 0; op < oracle::kNumOps; ++op) {
      Case c = {.collective = collective,
                .type = static_cast<ncclDataType_t>(type),
                .op = static_cast<Op>(op),
                .count = count};
      c.root = turn % num_ranks;
      c.in_place = ++turn % 2 == 0;
      cases.push_back(c);
      if (!oracle::IsFloat(c.type) || c.op == Op::kMin || c.op == Op::kMax) continue;
      c.rounds = true;
      c.in_place = !c.in_place;
      cases.push_back(c);
    }
  }
}

}  // namespace

std::vector<Collective> AllCollectives() {
  std::vector<Collective> all;
  for (int i = 0; i < kNumCollectives; ++i) all.push_back(static_cast<Collective>(i));
  return all;
}

std::vector<Case> EveryTypeAndOperator(int num_ranks, size_t count) {
  std::vector<Case> cases;
  for (const Collective collective : AllCollectives())
    if (Reduces(collective)) AddTypesAndOperators(collective, num_ranks, count, cases);
  return WithSeeds(std::move(cases));
}

std::vector<Case> EveryTypeAndOperatorOfAllReduce(size_t count) {
  std::vector<Case> cases;
  AddTypesAndOperators(Collective::kAllReduce, 1, count, cases);
  return WithSeeds(std::move(cases));
}

std::vector<Case> EveryTypeMoved(int num_ranks, size_t count) {
  std::vector<Case> cases;
  int turn = 0;
  for (const Collective collective : AllCollectives()) {
    if (Reduces(collective)) continue;
    for (int type = 0; type < ncclNumTypes; ++type, ++turn) {
      Case c = {
          .collective = collective, .type = static_cast<ncclDataType_t>(type), .count = count};
      c.root = turn % num_ranks;
      c.in_place = turn % 2 == 0;
      cases.push_back(c);
    }
  }
  return WithSeeds(std::move(cases));
}

std::vector<Case> EveryCount(int num_ranks, const std::vector<size_t>& counts) {
  constexpr ncclDataType_t kTypes[] = {ncclUint8, ncclFloat32, ncclBfloat16, ncclInt64};
  std::vector<Case> cases;
  size_t turn = 0;
  for (const Collective collective : AllCollectives()) {
    for (const size_t count : counts) {
      for (const bool in_place : {false, true}) {
        Case c = {.collective = collective, .type = kTypes[turn++ % 4], .count = count};
        c.root = num_ranks - 1;
        c.in_place = in_place;
        cases.push_back(c);
      }
    }
    ++turn;
  }
  return WithSeeds(std::move(cases));
}

std::vector<Case> EveryRoot(int num_ranks, size_t count) {
  std::vector<Case> cases;
  for (const Collective collective : AllCollectives()) {
    if (!HasRoot(collective)) continue;
    for (int root = 0; root < num_ranks; ++root) {
      Case c = {.collective = collective,
                .type = ncclFloat32,
                .op = Op::kSum,
                .count = count,
                .root = root};
      for (const bool in_place : {false, true}) {
        c.in_place = in_place;
        c.count += 7;
        cases.push_back(c);
      }
    }
  }
  return WithSeeds(std::move(cases));
}

std::vector<Case> EverySkew(int num_ranks, size_t count) {
  std::vector<Case> cases;
  for (const Collective collective : AllCollectives()) {
    for (const ncclDataType_t type : {ncclUint8, ncclFloat16, ncclFloat32, ncclFloat64}) {
      for (const size_t skew : {1u, 3u, 5u}) {
        Case c = {.collective = collective, .type = type, .op = Op::kSum, .count = count + skew};
        c.root = static_cast<int>(skew) % num_ranks;
        c.in_place = skew == 3;
        c.skew = skew;
        cases.push_back(c);
      }
    }
  }
  return WithSeeds(std::move(cases));
}

std::vector<Case> In(Memory memory, std::vector<Case> cases) {
  for (Case& c : cases) c.memory = memory;
  return cases;
}

std::vector<Case> Long(int num_ranks, size_t count) {
  std::vector<Case> cases;
  for (const Collective collective : AllCollectives()) {
    Case c = {.collective = collective, .type = ncclInt32, .op = Op::kSum, .count = count};
    c.root = num_ranks / 2;
    c.once = true;
    c.in_place = static_cast<int>(collective) % 2 == 0;
    cases.push_back(c);
  }
  // More than a megabyte, an odd number of elements, rounding at every step.
  cases.push_back({.type = ncclFloat32,
                   .count = std::max<size_t>(count, 300001),
                   .rounds = true,
                   .once = true});
  return WithSeeds(std::move(cases));
}

}  // namespace tutti::testing
