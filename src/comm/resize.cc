#include "comm/resize.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

namespace tutti {
namespace {

// What a child's id begins with, so that no split and shrink of one parent make the same id.
constexpr uint64_t kSplitId = 1;
constexpr uint64_t kShrinkId = 2;

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15u + (hash << 6) + (hash >> 2);
  return hash * 0xBF58476D1CE4E5B9u;
}

using Made = Result<std::unique_ptr<Communicator>>;

// Runs `make`, in which the ranks of `parent` wait for one another. Who waits for this rank
// meanwhile is told `doing`; and when the others do not come, the failure says what they do.
template <class Make>
Made MakeTogether(Communicator& parent, std::string doing, Make&& make) {
  Watch& watch = parent.watch();
  const Watch::Step step(watch, std::move(doing));
  Made made = make();
  if (made.ok() || made.status().code() != Code::kTimeout) return made;
  return watch.Explain(made.status(), parent.bootstrap().LinkedRanks());
}

Made Split(Communicator& parent, int color, int key, const std::string& name,
           const std::atomic<bool>* abort_flag) {
  struct ColorAndKey {
    int32_t color;
    int32_t key;
  };
  std::vector<ColorAndKey> choices(static_cast<size_t>(parent.num_ranks()));
  choices[static_cast<size_t>(parent.rank())] = {color, key};
  const uint64_t number = parent.NextChildNumber();
  TUTTI_TRY(parent.bootstrap().AllGather(choices.data(), sizeof(ColorAndKey), parent.InitDeadline(),
                                         abort_flag));
  if (color < 0) return std::unique_ptr<Communicator>();
  std::vector<int> members;
  for (int r = 0; r < parent.num_ranks(); ++r)
    if (choices[static_cast<size_t>(r)].color == color) members.push_back(r);
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return choices[static_cast<size_t>(a)].key < choices[static_cast<size_t>(b)].key;
  });
  const uint64_t id =
      Mix(Mix(Mix(parent.bootstrap().id(), kSplitId), number), static_cast<uint64_t>(color));
  return Communicator::InitChild(parent, id, std::move(members), name, abort_flag);
}

Made Shrink(Communicator& parent, const std::vector<int>& excluded, const std::string& name,
            const std::atomic<bool>* abort_flag) {
  std::vector<int> members;
  uint64_t id = Mix(Mix(parent.bootstrap().id(), kShrinkId), parent.NextShrinkNumber(excluded));
  for (int r = 0; r < parent.num_ranks(); ++r) {
    if (std::binary_search(excluded.begin(), excluded.end(), r))
      id = Mix(id, static_cast<uint64_t>(r) + 1);
    else
      members.push_back(r);
  }
  return Communicator::InitChild(parent, id, std::move(members), name, abort_flag);
}

Made Grow(Communicator& parent, const GrowRequest& request, const std::string& name,
          const std::atomic<bool>* abort_flag) {
  struct Offer {
    char id[128];
    int32_t num_ranks;
    uint8_t has_id;
    uint8_t reserved[3];
  };
  std::vector<Offer> offers(static_cast<size_t>(parent.num_ranks()));
  Offer& mine = offers[static_cast<size_t>(parent.rank())];
  mine.num_ranks = request.num_ranks;
  mine.has_id = request.id.has_value();
  if (request.id) request.id->Encode(mine.id);
  TUTTI_TRY(parent.bootstrap().AllGather(offers.data(), sizeof(Offer), parent.InitDeadline(),
                                         abort_flag));

  const Offer* root = nullptr;
  for (const Offer& offer : offers) {
    if (offer.num_ranks != mine.num_ranks)
      return InvalidUsage("the ranks grow to different numbers: {} and {}", mine.num_ranks,
                          offer.num_ranks);
    if (offer.has_id == 0) continue;
    if (root != nullptr) return InvalidUsage("two ranks passed an id to ncclCommGrow; one may");
    root = &offer;
  }
  if (root == nullptr)
    return InvalidUsage("no rank passed the id of ncclCommGetUniqueId to ncclCommGrow");
  Communicator::InitOptions options;
  TUTTI_ASSIGN(UniqueId id, UniqueId::Decode(root->id));
  options.ids.push_back(id);
  options.rank = parent.rank();
  options.num_ranks = request.num_ranks;
  options.name = name;
  options.abort_flag = abort_flag;
  options.cuda_device = parent.cuda_device();
  return Communicator::Init(parent.process(), parent.settings(), options);
}

}  // namespace

Result<std::unique_ptr<Communicator>> SplitCommunicator(Communicator& parent, int color, int key,
                                                        const std::string& name,
                                                        const std::atomic<bool>* abort_flag) {
  return MakeTogether(parent, "in ncclCommSplit",
                      [&] { return Split(parent, color, key, name, abort_flag); });
}

Result<std::unique_ptr<Communicator>> ShrinkCommunicator(Communicator& parent,
                                                         const std::vector<int>& excluded,
                                                         const std::string& name,
                                                         const std::atomic<bool>* abort_flag) {
  return MakeTogether(parent,
                      fmt::format("in ncclCommShrink without rank{} {}",
                                  excluded.size() > 1 ? "s" : "", fmt::join(excluded, ", ")),
                      [&] { return Shrink(parent, excluded, name, abort_flag); });
}

Result<std::unique_ptr<Communicator>> GrowCommunicator(Communicator& parent,
                                                       const GrowRequest& request,
                                                       const std::string& name,
                                                       const std::atomic<bool>* abort_flag) {
  return MakeTogether(parent, fmt::format("in ncclCommGrow to {} ranks", request.num_ranks),
                      [&] { return Grow(parent, request, name, abort_flag); });
}

}  // namespace tutti
