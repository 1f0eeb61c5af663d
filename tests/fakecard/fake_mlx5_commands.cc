// The commands of DevX, read word by word.

#include <endian.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "fakecard/fake_mlx5_state.h"
#include "fakeverbs/queue_pairs.h"
#include "fakeverbs/state.h"

namespace fakemlx5 {
namespace {

class Words {
 public:
  Words(const void* command, size_t bytes, const char* name)
      : bytes_(bytes), name_(name), words_(bytes / 4), seen_(bytes / 4) {
    for (size_t i = 0; i < words_.size(); ++i) {
      uint32_t word = 0;
      std::memcpy(&word, static_cast<const char*>(command) + i * 4, sizeof(word));
      words_[i] = be32toh(word);
    }
  }

  // Returns bits `high` to `low` of a word, 0 being its lowest.
  uint32_t Bits(size_t word, uint32_t high, uint32_t low) {
    const uint32_t mask = (high - low == 31 ? 0xffffffff : (1u << (high - low + 1)) - 1) << low;
    seen_[word] |= mask;
    return (words_[word] & mask) >> low;
  }
  uint32_t Word(size_t word) { return Bits(word, 31, 0); }
  uint64_t Long(size_t word) { return uint64_t{Word(word)} << 32 | Word(word + 1); }
  void Expect(size_t word, uint32_t high, uint32_t low, uint32_t wanted, const char* what) {
    const uint32_t found = Bits(word, high, low);
    if (found != wanted) Wrong(fmt::format("{} is {:#x} instead of {:#x}", what, found, wanted));
  }
  void Wrong(const std::string& what) {
    wrong_ = true;
    Complain(fmt::format("{}: {}", name_, what));
  }
  // Returns whether all was right, and nothing is set that was not looked at.
  bool AllRight(size_t wanted_bytes) {
    if (bytes_ != wanted_bytes) Wrong(fmt::format("{} bytes instead of {}", bytes_, wanted_bytes));
    for (size_t i = 0; i < words_.size(); ++i)
      if (const uint32_t rest = words_[i] & ~seen_[i])
        Wrong(fmt::format("word {} has bits {:#x} that have no name", i, rest));
    return !wrong_;
  }

 private:
  const size_t bytes_;
  const std::string name_;
  std::vector<uint32_t> words_, seen_;
  bool wrong_ = false;
};

constexpr size_t kLongBytes = 272, kShortBytes = 16;
// Words of the context of a queue pair begin here, those of its way 6 later.
constexpr size_t kQ = 6, kA = kQ + 6;

Umem* UmemOf(Words& words, uint32_t number, uint64_t offset, uint64_t bytes, const char* what) {
  const auto found = TheLibrary().umems.find(number);
  if (found == TheLibrary().umems.end()) {
    words.Wrong(fmt::format("{} is in umem {}, which is not there", what, number));
    return nullptr;
  }
  Umem* const umem = found->second.get();
  if (offset > umem->bytes || bytes > umem->bytes - offset) {
    words.Wrong(fmt::format("{} is not in its umem", what));
    return nullptr;
  }
  return umem;
}

Uar* UarOf(Words& words, uint32_t page) {
  const auto found = TheLibrary().uars.find(page);
  if (found != TheLibrary().uars.end()) return found->second.get();
  words.Wrong(fmt::format("there is no UAR page {}", page));
  return nullptr;
}

// Checks that the way leads to a port of some device.
void CheckRoute(Words& w) {
  uint8_t gid[16];
  for (size_t i = 0; i < 4; ++i) {
    const uint32_t word = htobe32(w.Word(kA + 4 + i));
    std::memcpy(gid + i * 4, &word, sizeof(word));
  }
  const uint32_t lid = w.Bits(kA + 1, 15, 0);
  const uint64_t mac = uint64_t{w.Bits(kA + 9, 15, 0)} << 32 | w.Word(kA + 10);
  bool known = false, infiniband = false;
  {
    const fakeverbs::Lock lock(fakeverbs::TheState().mutex);
    for (const auto& device : fakeverbs::TheState().devices)
      for (const fakeverbs::PortSpec& port : device->spec.ports) {
        infiniband |= device->spec.infiniband;
        const auto its = fakeverbs::GidOf(port);
        known |= device->spec.infiniband ? lid == fakeverbs::LidOf(port)
                                         : std::memcmp(its.data(), gid, sizeof(gid)) == 0;
      }
  }
  if (!known) w.Wrong("the way leads to no port");
  if (infiniband) return;
  uint64_t wanted = 0;
  for (const uint8_t byte : MacOf(gid)) wanted = wanted << 8 | byte;
  if (mac != wanted) w.Wrong(fmt::format("the Ethernet address is {:#x}", mac));
  w.Expect(kA + 2, 7, 0, 255, "hops");
  w.Expect(kA + 2, 23, 16, 0, "the index of the GID");
  w.Expect(kA + 8, 15, 0, 0xc000, "the UDP port");
}

}  // namespace

const char* NameOf(const void* in) {
  uint32_t first = 0;
  std::memcpy(&first, in, sizeof(first));
  switch (be32toh(first) >> 16) {
    case 0x400:
      return "devx_create_cq";
    case 0x500:
      return "devx_create_qp";
    case 0x502:
      return "devx_rst2init";
    case 0x503:
      return "devx_init2rtr";
    case 0x504:
      return "devx_rtr2rts";
    case 0x50b:
      return "devx_query_qp";
    default:
      return "devx_unknown";
  }
}

void Answer(void* out, size_t bytes, bool taken, uint32_t number) {
  uint32_t words[4] = {taken ? 0 : htobe32(0x03000000), taken ? 0 : htobe32(0x5f1c), 0, 0};
  words[2] = htobe32(number);
  std::memset(out, 0, bytes);
  std::memcpy(out, words, std::min(bytes, sizeof(words)));
}

std::array<uint8_t, 6> MacOf(const uint8_t* gid) {
  return {2, 0x5f, gid[12], gid[13], gid[14], gid[15]};
}

std::unique_ptr<mlx5dv_devx_obj> MakeCompletions(const void* in, size_t bytes) {
  Words w(in, bytes, "create_cq");
  auto made = std::make_unique<mlx5dv_devx_obj>();
  w.Expect(0, 31, 16, 0x400, "the opcode");
  w.Expect(4, 23, 21, 0, "the size of an entry");
  w.Expect(4, 17, 17, 1, "ignoring overruns");
  w.Expect(4, 25, 25, 1, "a record in a umem");
  w.Expect(9, 31, 0, kEventQueue, "the event queue");
  w.Expect(23, 31, 31, 1, "entries in a umem");
  made->size = 1u << w.Bits(7, 28, 24);
  made->uar = UarOf(w, w.Bits(7, 23, 0));
  const uint64_t record = w.Long(18), entries = w.Long(20);
  Umem* const of_record = UmemOf(w, w.Word(5), record, 8, "the record");
  Umem* const of_entries = UmemOf(w, w.Word(22), entries, made->size * 64, "an entry");
  if (record % 8 != 0 || entries % kPage != 0) w.Wrong("memory is not aligned");
  if (of_entries != nullptr) {
    made->completions = of_entries;
    made->completions_at = entries;
    std::vector<uint8_t> image(size_t{made->size} * 64);
    TheLibrary().Reach().Copy(reinterpret_cast<std::byte*>(image.data()),
                              of_entries->base + entries, image.size());
    for (uint32_t i = 0; i < made->size; ++i)
      if (image[i * 64 + 63] != 0xf1) w.Wrong(fmt::format("entry {} is valid", i));
  }
  made->umems = {of_record, of_entries};
  if (!w.AllRight(kLongBytes)) return nullptr;
  made->number = kFirstCompletions + ++TheLibrary().made;
  return made;
}

std::unique_ptr<mlx5dv_devx_obj> MakePair(const void* in, size_t bytes) {
  Library& l = TheLibrary();
  Words w(in, bytes, "create_qp");
  auto made = std::make_unique<mlx5dv_devx_obj>();
  made->is_pair = true;
  w.Expect(0, 31, 16, 0x500, "the opcode");
  w.Expect(kQ, 31, 28, 0, "the state");
  w.Expect(kQ, 23, 16, 0, "the service (RC)");
  w.Expect(kQ, 12, 11, 3, "migration");
  w.Expect(kQ + 2, 22, 19, 0, "the size of the receive queue");
  w.Expect(kQ + 2, 15, 15, 0, "having no send queue");
  w.Expect(kQ + 43, 26, 24, 3, "the kind of the receive queue");
  w.Expect(kQ + 52, 28, 28, 1, "a record in a umem");
  w.Expect(67, 31, 31, 1, "entries in a umem");
  made->size = 1u << w.Bits(kQ + 2, 14, 11);
  made->uar = UarOf(w, w.Bits(kQ + 3, 23, 0));
  const uint32_t domain = w.Bits(kQ + 1, 23, 0);
  if (DomainOf(domain) == nullptr) w.Wrong(fmt::format("there is no domain {}", domain));
  const uint32_t completions = w.Bits(kQ + 31, 23, 0);
  w.Expect(kQ + 39, 23, 0, completions, "the completion queue of receives");
  const auto queue = l.completion_queues.find(completions);
  if (queue == l.completion_queues.end())
    w.Wrong(fmt::format("there is no completion queue {}", completions));
  else if (queue->second->size != made->size)
    w.Wrong("the completion queue has another size");
  const uint64_t record = w.Long(kQ + 40), entries = w.Long(64);
  Umem* const of_record = UmemOf(w, w.Word(kQ + 57), record, 8, "the record");
  Umem* const of_entries = UmemOf(w, w.Word(66), entries, made->size * 64, "an entry");
  if (record % 8 != 0 || entries % kPage != 0) w.Wrong("memory is not aligned");
  made->umems = {of_record, of_entries};
  if (!w.AllRight(kLongBytes)) return nullptr;
  made->completes_in = queue->second.get();
  ++made->completes_in->users;
  made->number = l.card->AddQueue(domain, static_cast<uint16_t>(made->size),
                                  {.entries = of_entries,
                                   .completions = made->completes_in->completions,
                                   .record = of_record,
                                   .entries_at = entries,
                                   .completions_at = made->completes_in->completions_at,
                                   .record_at = record,
                                   .uar = made->uar,
                                   .completions_number = completions});
  if (l.failing) l.card->FailEntry(made->number, l.failing->first, l.failing->second);
  return made;
}

bool MovePair(mlx5dv_devx_obj& pair, const void* in, size_t bytes) {
  Words w(in, bytes, NameOf(in));
  const uint32_t opcode = w.Bits(0, 31, 16);
  w.Expect(2, 23, 0, pair.number, "the queue pair");
  w.Expect(kA + 9, 23, 16, 1, "the port");
  const auto follows = [&](PairState from, PairState to) {
    if (pair.state != from)
      w.Wrong(fmt::format("the state is {}", static_cast<uint32_t>(pair.state)));
    return to;
  };
  PairState next = pair.state;
  if (opcode == 0x502) {
    next = follows(PairState::kReset, PairState::kInit);
    w.Expect(kQ, 12, 11, 3, "migration");
    w.Expect(kQ + 36, 15, 13, 7, "what it serves");
    w.Expect(kQ + 36, 19, 16, 1, "the kind of atomic operations");
    w.Expect(kA, 15, 0, 0, "the partition key");
  } else if (opcode == 0x503) {
    next = follows(PairState::kInit, PairState::kReceives);
    w.Expect(kQ + 2, 31, 29, IBV_MTU_4096, "the MTU");
    w.Expect(kQ + 2, 28, 24, 30, "the longest message");
    w.Expect(kQ + 36, 23, 21, 4, "reads that it serves");
    w.Expect(kQ + 37, 28, 24, 12, "the timer");
    pair.remote = w.Bits(kQ + 5, 23, 0);
    if (!TheLibrary().pairs.contains(pair.remote))
      w.Wrong(fmt::format("there is no queue pair {:#x}", pair.remote));
    CheckRoute(w);
  } else if (opcode == 0x504) {
    next = follows(PairState::kReceives, PairState::kSends);
    w.Expect(kQ + 28, 23, 21, 4, "reads that it sends");
    w.Expect(kQ + 28, 18, 16, 7, "retries");
    w.Expect(kQ + 28, 15, 13, 7, "retries of receivers that are not ready");
    w.Expect(kA + 2, 31, 27, 20, "the time-out");
  } else {
    w.Wrong(fmt::format("there is no command {:#x}", opcode));
  }
  if (!w.AllRight(kLongBytes)) return false;
  pair.state = next;
  if (next == PairState::kSends) TheLibrary().card->Connect(pair.number, pair.remote);
  return true;
}

bool QueryPair(const mlx5dv_devx_obj& pair, const void* in, size_t bytes, void* out,
               size_t out_bytes) {
  Words w(in, bytes, "query_qp");
  w.Expect(0, 31, 16, 0x50b, "the opcode");
  w.Expect(2, 23, 0, pair.number, "the queue pair");
  if (out_bytes != kLongBytes) w.Wrong("there is no room for the answer");
  const bool taken = w.AllRight(kShortBytes);
  Answer(out, out_bytes, taken);
  if (!taken) return false;
  const PairState state = TheLibrary().card->IsDead(pair.number) ? PairState::kError : pair.state;
  const uint32_t word = htobe32(static_cast<uint32_t>(state) << 28);
  std::memcpy(static_cast<char*>(out) + kQ * 4, &word, sizeof(word));
  return true;
}

}  // namespace fakemlx5
