#include "gpu/relay_plan.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/rounding.h"
#include "plan/cost_table.h"

namespace tutti {
namespace {

using cuda::CopyPiece;

// Parts of a slot begin at lines of the processor's cache.
constexpr size_t kLineBytes = 64;

const std::byte* At(const void* buffer, size_t bytes) {
  return static_cast<const std::byte*>(buffer) + bytes;
}
std::byte* At(void* buffer, size_t bytes) { return static_cast<std::byte*>(buffer) + bytes; }

bool IsVariable(const Task& task) {
  return task.collective == Collective::kAllGatherV ||
         task.collective == Collective::kReduceScatterV;
}

// Returns how many times a chunk's elements of one part stand in a slot.
size_t PartsInSlot(Collective collective, size_t n) {
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kAllGatherV:
      return n;
    case Collective::kReduceScatter:
    case Collective::kReduceScatterV:
    case Collective::kGather:
    case Collective::kScatter:
      return n + 1;
    case Collective::kAlltoAll:
      return 2 * n;
    default:
      return 1;
  }
}

void Add(std::vector<CopyPiece>& pieces, std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0 && to != from) pieces.push_back({to, from, bytes});
}

}  // namespace

RelayPlan::RelayPlan(const Task& task, const Place& place) : place_(place), task_(task) {
  if (task.collective == Collective::kBarrier) return;
  // The scalar of a PreMulSum has a line at the end, and the second area of a slot begins at one.
  const size_t parts = PartsInSlot(task.collective, static_cast<size_t>(place.num_ranks));
  chunk_elems_ =
      std::max<size_t>(1, (place.slot_bytes - 3 * kLineBytes) / task.elem_bytes() / parts);
  if (chunk_elems_ > kLineBytes) chunk_elems_ = chunk_elems_ / kLineBytes * kLineBytes;
  const size_t count = IsVariable(task) ? *std::max_element(task.parts->recv_counts.begin(),
                                                            task.parts->recv_counts.end())
                                        : task.count;
  // Smaller chunks give all channels something to do, down to the fewest bytes worth a chunk.
  const size_t fewest = DivUp(kFewestRelayBytes, task.elem_bytes() * parts);
  const size_t share = RoundUp(DivUp(count, place.channels), kLineBytes);
  chunk_elems_ = std::min(chunk_elems_, std::max(fewest, share));
  num_chunks_ = std::max<size_t>(1, DivUp(count, chunk_elems_));
}

RelayPlan::RelayPlan(std::span<const IssuedTask> tasks, const Place& place)
    : place_(place), batches_(place.channels) {
  for (const IssuedTask& entry : tasks)
    if (entry.task.collective == Collective::kSendRecv && entry.task.root != place.rank &&
        entry.task.count > 0)
      sends_and_receives_.push_back(entry.task);
  std::map<std::pair<int, bool>, size_t> seen;
  std::vector<std::vector<Transfer>> transfers(place.channels);
  for (size_t i = 0; i < sends_and_receives_.size(); ++i) {
    const Task& task = sends_and_receives_[i];
    const int ahead = task.is_send ? task.root - place.rank : place.rank - task.root;
    const auto distance = static_cast<size_t>((ahead + place.num_ranks) % place.num_ranks);
    const size_t message = seen[{task.root, task.is_send}]++;
    const size_t elems = kRelayMessageBytes / task.elem_bytes();
    for (size_t begin = 0; begin < task.count; begin += elems) {
      const size_t piece = begin / elems;
      transfers[(message + distance + piece) % place.channels].push_back(
          {message, distance, piece, i, begin, std::min(elems, task.count - begin)});
    }
  }
  for (size_t channel = 0; channel < place.channels; ++channel) {
    std::stable_sort(transfers[channel].begin(), transfers[channel].end(),
                     [](const Transfer& a, const Transfer& b) {
                       return std::tie(a.message, a.distance, a.piece) <
                              std::tie(b.message, b.distance, b.piece);
                     });
    batches_[channel] = FillSlots(transfers[channel]);
  }
}

RelayPlan::Batches RelayPlan::FillSlots(const std::vector<Transfer>& transfers) const {
  Batches batches;
  size_t used = 0;
  for (size_t i = 0; i < transfers.size();) {
    size_t end = i, bytes = 0;
    while (end < transfers.size() && transfers[end].SamePlace(transfers[i])) {
      bytes += RoundUp(transfers[end].count * sends_and_receives_[transfers[end].task].elem_bytes(),
                       kLineBytes);
      ++end;
    }
    if (batches.empty() || used + bytes > place_.slot_bytes) {
      batches.emplace_back();
      used = 0;
    }
    used += bytes;
    for (; i < end; ++i) batches.back().push_back(transfers[i]);
  }
  return batches;
}

RelayChunk RelayPlan::Messages(const std::vector<Transfer>& transfers, std::byte* slot) const {
  RelayChunk chunk;
  std::byte* at = slot;
  for (const Transfer& transfer : transfers) {
    Task task = sends_and_receives_[transfer.task];
    const size_t elem = task.elem_bytes(), bytes = transfer.count * elem;
    if (task.is_send)
      Add(chunk.in, at, At(task.send, transfer.begin * elem), bytes);
    else
      Add(chunk.out, At(task.recv, transfer.begin * elem), at, bytes);
    task.send = task.is_send ? at : nullptr;
    task.recv = task.is_send ? nullptr : at;
    task.count = transfer.count;
    task.whole_count = sends_and_receives_[transfer.task].count;
    chunk.tasks.push_back(std::move(task));
    at += RoundUp(bytes, kLineBytes);
  }
  return chunk;
}

size_t RelayPlan::num_chunks(size_t channel) const {
  if (!batches_.empty()) return batches_[channel].size();
  return channel < num_chunks_ ? (num_chunks_ - channel - 1) / place_.channels + 1 : 0;
}

RelayChunk RelayPlan::Chunk(size_t channel, size_t number, std::byte* slot) const {
  if (!batches_.empty()) return Messages(batches_[channel][number], slot);
  RelayChunk chunk;
  chunk.tasks.push_back(task_);
  Task& task = chunk.tasks[0];
  if (task.collective == Collective::kBarrier) return chunk;
  task.scattered = nullptr;
  if (task.op.live_scalar != nullptr) {
    std::byte* const scalar = slot + place_.slot_bytes - kLineBytes;
    Add(chunk.in, scalar, At(task.op.live_scalar, 0), task.elem_bytes());
    task.op.live_scalar = scalar;
  }
  const size_t begin = (number * place_.channels + channel) * chunk_elems_;
  if (IsVariable(task_)) {
    AddVariable(chunk, begin, chunk_elems_, slot);
    return chunk;
  }
  const size_t count = std::min(chunk_elems_, task_.count - begin);
  task.count = count;
  task.whole_count = task_.count;
  if (PartsInSlot(task_.collective, 2) == 1)
    AddWhole(chunk, begin, count, slot);
  else
    AddParts(chunk, begin, count, slot);
  return chunk;
}

// Adds the copies of an AllReduce, Reduce or Broadcast, which runs in place in the slot.
void RelayPlan::AddWhole(RelayChunk& chunk, size_t begin, size_t count, std::byte* slot) const {
  const size_t elem = task_.elem_bytes();
  const bool is_root = task_.root == place_.rank;
  Task& task = chunk.tasks[0];
  task.send = task.recv = slot;
  if (task_.scattered) {
    task_.scattered->ForEachStretch(
        begin, count, [&](size_t i, size_t at, size_t n, size_t before) {
          Add(chunk.in, slot + before * elem, task_.scattered->inputs[i] + at * elem, n * elem);
          Add(chunk.out, task_.scattered->outputs[i] + at * elem, slot + before * elem, n * elem);
        });
    return;
  }
  const size_t at = begin * elem, bytes = count * elem;
  const bool sends = task_.collective != Collective::kBroadcast || is_root;
  const bool receives = task_.collective == Collective::kAllReduce ||
                        (task_.collective == Collective::kReduce) == is_root;
  const bool in_place = task_.collective == Collective::kBroadcast && task_.send == task_.recv;
  if (sends) Add(chunk.in, slot, At(task_.send, at), bytes);
  if (receives || (sends && task_.collective == Collective::kBroadcast && !in_place))
    Add(chunk.out, At(task_.recv, at), slot, bytes);
}

// Adds the copies of a collective whose buffers have a part for each rank.
void RelayPlan::AddParts(RelayChunk& chunk, size_t begin, size_t count, std::byte* slot) const {
  const size_t elem = task_.elem_bytes(), bytes = count * elem;
  const auto n = static_cast<size_t>(place_.num_ranks), me = static_cast<size_t>(place_.rank);
  const bool is_root = task_.root == place_.rank;
  const auto user = [&](size_t part) { return (part * task_.count + begin) * elem; };
  const auto all_in = [&](std::byte* to) {
    for (size_t r = 0; r < n; ++r) Add(chunk.in, to + r * bytes, At(task_.send, user(r)), bytes);
  };
  const auto all_out = [&](const std::byte* from) {
    for (size_t r = 0; r < n; ++r) Add(chunk.out, At(task_.recv, user(r)), from + r * bytes, bytes);
  };
  Task& task = chunk.tasks[0];
  std::byte* const second = slot + RoundUp(n * bytes, kLineBytes);
  task.send = slot;
  task.recv = second;
  switch (task_.collective) {
    case Collective::kAllGather:
      task.send = slot + me * bytes;
      task.recv = slot;
      Add(chunk.in, slot + me * bytes, At(task_.send, begin * elem), bytes);
      all_out(slot);
      return;
    case Collective::kReduceScatter:
      all_in(slot);
      Add(chunk.out, At(task_.recv, begin * elem), second, bytes);
      return;
    case Collective::kGather:
      task.send = second;
      task.recv = slot;
      Add(chunk.in, second, At(task_.send, begin * elem), bytes);
      if (is_root) all_out(slot);
      return;
    case Collective::kScatter:
      if (is_root) all_in(slot);
      Add(chunk.out, At(task_.recv, begin * elem), second, bytes);
      return;
    default:  // AlltoAll
      all_in(slot);
      all_out(second);
      return;
  }
}

// Adds the copies of an AllGatherV or ReduceScatterV. The chunk has elements [begin, begin + count)
// of each part, as far as the part reaches, packed one part behind another.
void RelayPlan::AddVariable(RelayChunk& chunk, size_t begin, size_t count, std::byte* slot) const {
  const size_t elem = task_.elem_bytes();
  const VariableParts& parts = *task_.parts;
  const auto n = static_cast<size_t>(place_.num_ranks), me = static_cast<size_t>(place_.rank);
  auto cut = std::make_shared<VariableParts>();
  size_t total = 0;
  for (size_t r = 0; r < n; ++r) {
    const size_t all = parts.recv_counts[r];
    const size_t here = begin < all ? std::min(count, all - begin) : 0;
    cut->recv_counts.push_back(here);
    cut->recv_offsets.push_back(total);
    total += here;
  }
  const bool gathers = task_.collective == Collective::kAllGatherV;
  for (size_t r = 0; r < n; ++r) {
    const size_t user = (parts.recv_offsets[r] + begin) * elem;
    std::byte* const here = slot + cut->recv_offsets[r] * elem;
    if (gathers)
      Add(chunk.out, At(task_.recv, user), here, cut->recv_counts[r] * elem);
    else
      Add(chunk.in, here, At(task_.send, user), cut->recv_counts[r] * elem);
  }
  Task& task = chunk.tasks[0];
  std::byte* const own = slot + cut->recv_offsets[me] * elem;
  std::byte* const second = slot + RoundUp(total * elem, kLineBytes);
  task.count = total;
  task.send = gathers ? own : slot;
  task.recv = gathers ? slot : second;
  const size_t bytes = cut->recv_counts[me] * elem;
  if (gathers)
    Add(chunk.in, own, At(task_.send, begin * elem), bytes);
  else
    Add(chunk.out, At(task_.recv, begin * elem), second, bytes);
  task.parts = std::move(cut);
}

}  // namespace tutti
