// Letters between the processes of a communicator's ranks. A letter makes no links, because a link
// that cannot be made would cost the job a rank. A letter goes from rank to rank over links that
// exist. Ranks are linked at distance 2^k in both directions, and each step goes nearer to the
// receiver, so a letter needs at most about log2(ranks) steps and never comes back.
//
// Body of Message::kLetter and Message::kPace: u32 the sender, u32 the receiver, the letter.

#include <algorithm>
#include <cstdlib>

#include "bootstrap/wire.h"
#include "watch/slow_rank_judge.h"
#include "watch/wait_board.h"
#include "watch/watch.h"

namespace tutti {
namespace {

constexpr size_t kHeaderBytes = 8;

// Returns the number of ranks between two ranks, the shorter way around.
int Distance(int a, int b, int num_ranks) {
  const int apart = std::abs(a - b);
  return std::min(apart, num_ranks - apart);
}

}  // namespace

// Where the nearest rank has left or is lost, the letter takes the next one.
bool Watch::PassLetter(Message kind, int from, int to, std::span<const std::byte> letter) const {
  const auto distance = [&](int rank) { return Distance(rank, to, bootstrap_.num_ranks()); };
  std::vector<int> ways = bootstrap_.LinkedRanks();
  std::erase_if(ways, [&](int rank) { return distance(rank) >= distance(bootstrap_.rank()); });
  std::ranges::sort(ways, {}, distance);
  WireWriter header;
  header.U32(static_cast<uint32_t>(from));
  header.U32(static_cast<uint32_t>(to));
  Bytes message = StartMessage(kind);
  const Bytes wire = std::move(header).Take();
  message.insert(message.end(), wire.begin(), wire.end());
  message.insert(message.end(), letter.begin(), letter.end());
  return std::ranges::any_of(
      ways, [&](int rank) { return bootstrap_.SendControlIfLinked(rank, message); });
}

void Watch::OnLetter(Message kind, std::span<const std::byte> body) const {
  if (body.size() < kHeaderBytes) return;
  WireReader header(body.first(kHeaderBytes));
  const auto num_ranks = static_cast<uint32_t>(bootstrap_.num_ranks());
  const uint32_t from = header.U32(), to = header.U32();
  if (from >= num_ranks || to >= num_ranks) return;
  const auto letter = body.subspan(kHeaderBytes);
  if (static_cast<int>(to) != bootstrap_.rank())
    PassLetter(kind, static_cast<int>(from), static_cast<int>(to), letter);
  else if (kind == Message::kPace)
    OnPace(static_cast<int>(from), letter);
  else if (options_.board != nullptr)
    options_.board->OnLetter(*this, static_cast<int>(from), letter);
}

void Watch::OnPace(int from, std::span<const std::byte> letter) const {
  if (PaceListener* const listener = pace_listener_.load()) listener->OnPace(from, letter);
}

void Watch::SetPaceListener(PaceListener* listener, EventLoop& loop) {
  if (pace_listener_.exchange(listener) == nullptr) return;
  loop.RunSync([] {});  // A message that was being handled is over now.
}

void Watch::NoteWaited(Collective collective, int64_t waited_ns) {
  if (!AllWaitForAll(collective)) return;
  std::atomic<int64_t>& total = record_->waited_ns;
  total.store(total.load(std::memory_order_relaxed) + waited_ns, std::memory_order_relaxed);
  if (PaceListener* const listener = pace_listener_.load()) listener->OnWaited();
}

}  // namespace tutti
