#include "ras/report.h"

#include <algorithm>
#include <utility>

#include "observe/folder.h"
#include "observe/jobs.h"

namespace tutti::ras {
namespace {

using observe::CommunicatorSnapshot;
using observe::Life;

constexpr uint32_t kMostRanks = 1 << 24;
constexpr size_t kHostBytes = 64;

RankState StateOf(const CommunicatorSnapshot& one, ProcessName process) {
  const bool is_made = one.phase != observe::Phase::kBeingMade;
  return {.process = std::move(process),
          .device = one.cuda_device,
          .init_state = static_cast<int>(is_made ? Code::kOk : Code::kInProgress),
          .async_error = one.code,
          .begun = one.begun_of};
}

CommunicatorState StateOf(const observe::CommunicatorView& view,
                          const std::map<int, ProcessName>& processes) {
  CommunicatorState state = {.num_ranks = view.num_ranks, .ranks = {}, .names = {}, .dead = {}};
  for (size_t rank = 0; rank < view.names.size(); ++rank)
    if (const observe::RankName& name = view.names[rank]; name.pid != 0 && !name.host.empty())
      state.names[static_cast<int>(rank)] = {name.host, name.pid};
  for (const observe::RankView& one : view.ranks) {
    if (!one.snapshot) continue;  // The process may be in another container of this host.
    if (one.life == Life::kEnded) {
      state.dead.insert(one.rank);
    } else {
      const ProcessName& process = processes.at(one.process.pid);
      state.names[one.rank] = process;
      state.ranks[one.rank] = StateOf(*one.snapshot, process);
    }
  }
  return state;
}

void WriteProcess(const ProcessName& process, WireWriter& writer) {
  writer.Text(process.host, kHostBytes);
  writer.U32(static_cast<uint32_t>(process.pid));
}

ProcessName ReadProcess(WireReader& reader) {
  std::string host = reader.Text();
  return {std::move(host), static_cast<int>(reader.U32())};
}

// Form: process, device, the two states in a byte each, a bit for each kind of collective that the
// rank has called, and the counts of these kinds.
void WriteRank(const RankState& one, WireWriter& writer) {
  WriteProcess(one.process, writer);
  writer.U32(static_cast<uint32_t>(one.device));
  writer.U8(static_cast<uint8_t>(one.init_state));
  writer.U8(static_cast<uint8_t>(one.async_error));
  uint32_t called = 0;
  for (size_t i = 0; i < one.begun.size(); ++i) called |= one.begun[i] != 0 ? 1u << i : 0;
  writer.U32(called);
  for (const uint64_t count : one.begun)
    if (count != 0) writer.U64(count);
}

RankState ReadRank(WireReader& reader) {
  RankState one = {.process = ReadProcess(reader)};
  one.device = static_cast<int>(reader.U32());
  one.init_state = reader.U8();
  one.async_error = reader.U8();
  const uint32_t called = reader.U32();
  for (size_t i = 0; i < one.begun.size(); ++i)
    if ((called >> i & 1) != 0) one.begun[i] = reader.U64();
  return one;
}

void WriteCommunicator(const CommunicatorState& state, WireWriter& writer) {
  writer.U32(static_cast<uint32_t>(state.num_ranks));
  writer.U32(static_cast<uint32_t>(state.ranks.size()));
  for (const auto& [rank, one] : state.ranks) {
    writer.U32(static_cast<uint32_t>(rank));
    WriteRank(one, writer);
  }
  writer.U32(static_cast<uint32_t>(state.dead.size()));
  for (const int rank : state.dead) {
    const auto name = state.names.find(rank);
    writer.U32(static_cast<uint32_t>(rank));
    WriteProcess(name == state.names.end() ? ProcessName() : name->second, writer);
  }
}

// Returns nothing where the bytes are no communicator.
std::optional<CommunicatorState> ReadCommunicator(WireReader& reader) {
  CommunicatorState state;
  const uint32_t num_ranks = reader.U32();
  if (num_ranks == 0 || num_ranks > kMostRanks) return {};
  state.num_ranks = static_cast<int>(num_ranks);
  for (uint32_t left = reader.U32(); left > 0 && !reader.failed(); --left) {
    const uint32_t rank = reader.U32();
    if (rank >= num_ranks) return {};
    RankState& one = state.ranks[static_cast<int>(rank)] = ReadRank(reader);
    state.names[static_cast<int>(rank)] = one.process;
  }
  for (uint32_t left = reader.U32(); left > 0 && !reader.failed(); --left) {
    const uint32_t rank = reader.U32();
    if (rank >= num_ranks) return {};
    state.dead.insert(static_cast<int>(rank));
    state.names[static_cast<int>(rank)] = ReadProcess(reader);
  }
  return state;
}

}  // namespace

std::vector<MissingRank> Report::MissingOf(const CommunicatorState& one) const {
  std::vector<MissingRank> missing;
  for (int rank = 0; rank < one.num_ranks && missing.size() < kMostMissing; ++rank) {
    if (one.ranks.contains(rank)) continue;
    MissingRank gone = {.rank = rank, .process = {}};
    if (const auto name = one.names.find(rank); name != one.names.end())
      gone.process = name->second;
    gone.dead = one.dead.contains(rank);
    gone.heard = !gone.dead && heard.contains(gone.process);
    missing.push_back(std::move(gone));
  }
  return missing;
}

Report ReportOf(observe::Reading reading, std::string_view ras_address, int own_pid) {
  std::erase_if(reading.processes, [&](const observe::ProcessSnapshot& one) {
    return one.board.ras_address != ras_address;
  });
  Report report;
  for (const observe::JobView& job : FindJobs(reading, observe::HasProcess)) {
    if (!job.HasProcess(own_pid)) continue;
    std::map<int, ProcessName> processes;
    for (const observe::ProcessSnapshot& process : job.processes) {
      const ProcessName name = {process.board.host, process.key.pid};
      processes[name.pid] = name;
      if (process.life != Life::kEnded) report.heard.insert(name);
    }
    for (const observe::CommunicatorView& view : job.communicators)
      report.communicators[view.id] = StateOf(view, processes);
  }
  return report;
}

void Merge(const Report& told, Report& into) {
  into.heard.insert(told.heard.begin(), told.heard.end());
  for (const auto& [id, theirs] : told.communicators) {
    CommunicatorState& ours = into.communicators[id];
    ours.num_ranks = std::max(ours.num_ranks, theirs.num_ranks);
    ours.ranks.insert(theirs.ranks.begin(), theirs.ranks.end());
    ours.names.insert(theirs.names.begin(), theirs.names.end());
    ours.dead.insert(theirs.dead.begin(), theirs.dead.end());
  }
}

Bytes Encode(const Report& report) {
  WireWriter writer;
  writer.U32(static_cast<uint32_t>(report.heard.size()));
  for (const ProcessName& process : report.heard) WriteProcess(process, writer);
  uint32_t count = 0;
  Bytes communicators;
  for (const auto& [id, state] : report.communicators) {
    WireWriter one;
    one.U64(id);
    WriteCommunicator(state, one);
    const size_t size = writer.size() + sizeof(count) + communicators.size() + one.size();
    if (size > kMostWireBytes || count == kMostCommunicators) break;
    const Bytes bytes = std::move(one).Take();
    communicators.insert(communicators.end(), bytes.begin(), bytes.end());
    ++count;
  }
  writer.U32(count);
  writer.Raw(communicators);
  return std::move(writer).Take();
}

std::optional<Report> Decode(std::span<const std::byte> bytes) {
  if (bytes.size() > kMostWireBytes) return {};
  WireReader reader(bytes);
  Report report;
  for (uint32_t left = reader.U32(); left > 0 && !reader.failed(); --left)
    report.heard.insert(ReadProcess(reader));
  for (uint32_t left = reader.U32(); left > 0 && !reader.failed(); --left) {
    const uint64_t id = reader.U64();
    std::optional<CommunicatorState> state = ReadCommunicator(reader);
    if (!state || report.communicators.size() == kMostCommunicators) return {};
    report.communicators[id] = *std::move(state);
  }
  if (reader.failed() || !reader.AtEnd()) return {};
  return report;
}

}  // namespace tutti::ras
