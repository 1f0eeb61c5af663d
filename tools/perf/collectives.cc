#include "perf/collectives.h"

#include <algorithm>
#include <cctype>
#include <cstring>

namespace tutti::tools {
namespace {

// Blocks of unequal size, in a pattern that repeats every three ranks: 1, 2, 3, 1, 2, 3, …
size_t WeightBefore(int rank) {
  const auto whole = static_cast<size_t>(rank / 3);
  const auto rest = static_cast<size_t>(rank % 3);
  return whole * 6 + rest * (rest + 1) / 2;
}

std::string Normalized(std::string_view name) {
  std::string plain;
  for (const char letter : name) {
    if (letter != '_' && letter != '-')
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  if (plain.size() > 4 && plain.ends_with("perf")) plain.resize(plain.size() - 4);
  return plain;
}

// Turns the first failure among the calls of a group into the result of the group.
class Group {
 public:
  explicit Group(const NcclLibrary& library) : library_(library), result_(library->GroupStart()) {}
  void Add(ncclResult_t result) {
    if (result_ == ncclSuccess) result_ = result;
  }
  ncclResult_t End() {
    const ncclResult_t end = library_->GroupEnd();
    return result_ == ncclSuccess ? end : result_;
  }

 private:
  const NcclLibrary& library_;
  ncclResult_t result_;
};

}  // namespace

const std::vector<CollectiveInfo>& AllCollectives() {
  static const std::vector<CollectiveInfo> all = {
      {Collective::kAllReduce, "all_reduce", "AllReduce", true, false, true},
      {Collective::kAllGather, "all_gather", "AllGather", false, false, true},
      {Collective::kReduceScatter, "reduce_scatter", "ReduceScatter", true, false, true},
      {Collective::kBroadcast, "broadcast", "Broadcast", false, true, true},
      {Collective::kReduce, "reduce", "Reduce", true, true, true},
      {Collective::kAlltoAll, "alltoall", "AlltoAll", false, false, false},
      {Collective::kGather, "gather", "Gather", false, true, true},
      {Collective::kScatter, "scatter", "Scatter", false, true, true},
      {Collective::kSendRecv, "sendrecv", "", false, false, false},
      {Collective::kHypercube, "hypercube", "", false, false, true},
      {Collective::kAllGatherV, "all_gather_v", "", false, false, true},
      {Collective::kReduceScatterV, "reduce_scatter_v", "", true, false, true},
      {Collective::kAlltoAllV, "alltoall_v", "", false, false, false},
      {Collective::kGatherV, "gather_v", "", false, true, true},
      {Collective::kScatterV, "scatter_v", "", false, true, true},
  };
  return all;
}

Result<CollectiveInfo> ParseCollective(std::string_view name) {
  std::string known;
  for (const CollectiveInfo& info : AllCollectives()) {
    if (Normalized(info.name) == Normalized(name)) return info;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", info.name);
  }
  return InvalidArgument("'{}' is no collective; there are {}", name, known);
}

double BusFactor(Collective collective, int num_ranks) {
  const double n = num_ranks;
  switch (collective) {
    case Collective::kAllReduce:
      return 2 * (n - 1) / n;
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kSendRecv:
      return 1;
    default:
      return (n - 1) / n;
  }
}

size_t BlockStart(size_t count, int rank, int num_ranks) {
  // In 128 bits, because counts beyond 2^31 times the weights of many ranks would not fit.
  const auto scaled = static_cast<unsigned __int128>(count) * WeightBefore(rank);
  return static_cast<size_t>(scaled / WeightBefore(num_ranks));
}

size_t BlockCount(size_t count, int rank, int num_ranks) {
  return BlockStart(count, rank + 1, num_ranks) - BlockStart(count, rank, num_ranks);
}

size_t PairCount(size_t count, int a, int b) { return (a + b) % 2 == 0 ? count : (count + 1) / 2; }

Shape ShapeFor(Collective collective, size_t bytes, size_t element_size, int num_ranks) {
  const auto n = static_cast<size_t>(num_ranks);
  Shape shape;
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kSendRecv:
    case Collective::kAllGatherV:
    case Collective::kReduceScatterV:
    case Collective::kGatherV:
    case Collective::kScatterV: {
      shape.count = bytes == 0 ? 0 : std::max<size_t>(bytes / element_size, 1);
      shape.send_count = shape.recv_count = shape.count;
      break;
    }
    default: {
      shape.count = bytes == 0 ? 0 : std::max<size_t>(bytes / element_size / n, 1);
      shape.send_count = shape.recv_count = shape.count * n;
      break;
    }
  }
  if (collective == Collective::kAllGather || collective == Collective::kGather ||
      collective == Collective::kHypercube) {
    shape.send_count = shape.count;
  }
  if (collective == Collective::kReduceScatter || collective == Collective::kScatter)
    shape.recv_count = shape.count;
  shape.bytes = std::max(shape.send_count, shape.recv_count) * element_size;
  if (collective == Collective::kAlltoAllV) {
    shape.bytes = SendCount(collective, shape, 0, num_ranks) * element_size;
  }
  return shape;
}

size_t SendCount(Collective collective, const Shape& shape, int rank, int num_ranks) {
  if (collective == Collective::kAllGatherV || collective == Collective::kGatherV)
    return BlockCount(shape.count, rank, num_ranks);
  if (collective != Collective::kAlltoAllV) return shape.send_count;
  size_t total = 0;
  for (int peer = 0; peer < num_ranks; ++peer) total += PairCount(shape.count, rank, peer);
  return total;
}

std::vector<Region> ExpectedRegions(Collective collective, const Shape& shape, int rank, int root,
                                    int num_ranks) {
  const size_t count = shape.count;
  const auto r = static_cast<size_t>(rank);
  std::vector<Region> regions;
  switch (collective) {
    case Collective::kAllReduce:
      return {{0, count, Region::kReduced, 0}};
    case Collective::kReduce:
      if (rank == root) regions.push_back({0, count, Region::kReduced, 0});
      return regions;
    case Collective::kReduceScatter:
      return {{0, count, Region::kReduced, r * count}};
    case Collective::kReduceScatterV:
      return {{0, BlockCount(count, rank, num_ranks), Region::kReduced,
               BlockStart(count, rank, num_ranks)}};
    case Collective::kBroadcast:
      return {{0, count, root, 0}};
    case Collective::kScatter:
      return {{0, count, root, r * count}};
    case Collective::kScatterV:
      return {{0, BlockCount(count, rank, num_ranks), root, BlockStart(count, rank, num_ranks)}};
    case Collective::kSendRecv:
      return {{0, count, (rank + num_ranks - 1) % num_ranks, 0}};
    case Collective::kGather:
    case Collective::kGatherV:
      if (rank != root) return {};
      break;
    default:
      break;
  }
  size_t begin = 0;
  for (int source = 0; source < num_ranks; ++source) {
    Region region{begin, count, source, 0};
    if (collective == Collective::kAllGatherV || collective == Collective::kGatherV)
      region.count = BlockCount(count, source, num_ranks);
    if (collective == Collective::kAlltoAll) region.source_begin = r * count;
    if (collective == Collective::kAlltoAllV) {
      region.count = PairCount(count, source, rank);
      for (int peer = 0; peer < rank; ++peer) region.source_begin += PairCount(count, source, peer);
    }
    begin += region.count;
    regions.push_back(region);
  }
  return regions;
}

InPlaceOffsets InPlaceFor(Collective collective, const Shape& shape, int rank, int num_ranks) {
  const size_t block = static_cast<size_t>(rank) * shape.count;
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kHypercube:
      return {true, block};
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return {false, block};
    case Collective::kAllGatherV:
    case Collective::kGatherV:
      return {true, BlockStart(shape.count, rank, num_ranks)};
    case Collective::kReduceScatterV:
    case Collective::kScatterV:
      return {false, BlockStart(shape.count, rank, num_ranks)};
    default:
      return {true, 0};
  }
}

Operation::Operation(const Arguments& arguments)
    : a_(arguments), element_size_(ElementSize(arguments.type)) {
  for (int peer = 0; peer < a_.num_ranks; ++peer) {
    counts_.push_back(a_.collective == Collective::kAlltoAllV
                          ? PairCount(a_.shape.count, a_.rank, peer)
                          : BlockCount(a_.shape.count, peer, a_.num_ranks));
  }
}

Status Operation::Supported() const {
  const NcclFunctions& functions = a_.library->functions();
  const bool missing =
      (a_.collective == Collective::kAllGatherV && !functions.tuttiAllGatherV) ||
      (a_.collective == Collective::kReduceScatterV && !functions.tuttiReduceScatterV) ||
      (a_.collective == Collective::kAlltoAllV && !functions.tuttiAlltoAllV) ||
      (a_.collective == Collective::kGatherV && !functions.tuttiGatherV) ||
      (a_.collective == Collective::kScatterV && !functions.tuttiScatterV);
  if (missing)
    return InvalidUsage("{} has no collectives with a size per rank", a_.library->path());
  if (a_.collective == Collective::kHypercube && (a_.num_ranks & (a_.num_ranks - 1)) != 0) {
    return InvalidUsage("hypercube needs a number of ranks that is a power of two, not {}",
                        a_.num_ranks);
  }
  return {};
}

const char* Operation::At(const void* base, size_t element) const {
  return static_cast<const char*>(base) + element * element_size_;
}
char* Operation::At(void* base, size_t element) const {
  return static_cast<char*>(base) + element * element_size_;
}

ncclResult_t Operation::Run(const void* send, void* recv) const {
  const NcclFunctions& f = a_.library->functions();
  const size_t count = a_.shape.count;
  const size_t own_count = counts_[static_cast<size_t>(a_.rank)];
  switch (a_.collective) {
    case Collective::kAllReduce:
      return f.AllReduce(send, recv, count, a_.type, a_.op, a_.comm, a_.stream);
    case Collective::kAllGather:
      return f.AllGather(send, recv, count, a_.type, a_.comm, a_.stream);
    case Collective::kReduceScatter:
      return f.ReduceScatter(send, recv, count, a_.type, a_.op, a_.comm, a_.stream);
    case Collective::kBroadcast:
      return f.Broadcast(send, recv, count, a_.type, a_.root, a_.comm, a_.stream);
    case Collective::kReduce:
      return f.Reduce(send, recv, count, a_.type, a_.op, a_.root, a_.comm, a_.stream);
    case Collective::kAlltoAll:
      return RunAlltoAll(send, recv);
    case Collective::kGather:
      return RunGather(send, recv);
    case Collective::kScatter:
      return RunScatter(send, recv);
    case Collective::kSendRecv:
      return RunSendRecv(send, recv);
    case Collective::kHypercube:
      return RunHypercube(send, recv);
    case Collective::kAllGatherV:
      return f.tuttiAllGatherV(send, own_count, recv, counts_.data(), nullptr, a_.type, a_.comm,
                               a_.stream);
    case Collective::kReduceScatterV:
      return f.tuttiReduceScatterV(send, recv, counts_.data(), a_.type, a_.op, a_.comm, a_.stream);
    case Collective::kAlltoAllV:
      return f.tuttiAlltoAllV(send, counts_.data(), nullptr, recv, counts_.data(), nullptr, a_.type,
                              a_.comm, a_.stream);
    case Collective::kGatherV:
      return f.tuttiGatherV(send, own_count, recv, counts_.data(), nullptr, a_.type, a_.root,
                            a_.comm, a_.stream);
    case Collective::kScatterV:
      return f.tuttiScatterV(send, counts_.data(), nullptr, recv, own_count, a_.type, a_.root,
                             a_.comm, a_.stream);
  }
  return ncclInternalError;
}

ncclResult_t Operation::RunAlltoAll(const void* send, void* recv) const {
  const NcclFunctions& f = a_.library->functions();
  if (f.AlltoAll) return f.AlltoAll(send, recv, a_.shape.count, a_.type, a_.comm, a_.stream);
  Group group(*a_.library);
  for (int peer = 0; peer < a_.num_ranks; ++peer) {
    const size_t at = static_cast<size_t>(peer) * a_.shape.count;
    group.Add(f.Send(At(send, at), a_.shape.count, a_.type, peer, a_.comm, a_.stream));
    group.Add(f.Recv(At(recv, at), a_.shape.count, a_.type, peer, a_.comm, a_.stream));
  }
  return group.End();
}

ncclResult_t Operation::RunGather(const void* send, void* recv) const {
  const NcclFunctions& f = a_.library->functions();
  if (f.Gather) return f.Gather(send, recv, a_.shape.count, a_.type, a_.root, a_.comm, a_.stream);
  Group group(*a_.library);
  group.Add(f.Send(send, a_.shape.count, a_.type, a_.root, a_.comm, a_.stream));
  for (int peer = 0; a_.rank == a_.root && peer < a_.num_ranks; ++peer) {
    char* const block = At(recv, static_cast<size_t>(peer) * a_.shape.count);
    group.Add(f.Recv(block, a_.shape.count, a_.type, peer, a_.comm, a_.stream));
  }
  return group.End();
}

ncclResult_t Operation::RunScatter(const void* send, void* recv) const {
  const NcclFunctions& f = a_.library->functions();
  if (f.Scatter) return f.Scatter(send, recv, a_.shape.count, a_.type, a_.root, a_.comm, a_.stream);
  Group group(*a_.library);
  for (int peer = 0; a_.rank == a_.root && peer < a_.num_ranks; ++peer) {
    const char* const block = At(send, static_cast<size_t>(peer) * a_.shape.count);
    group.Add(f.Send(block, a_.shape.count, a_.type, peer, a_.comm, a_.stream));
  }
  group.Add(f.Recv(recv, a_.shape.count, a_.type, a_.root, a_.comm, a_.stream));
  return group.End();
}

ncclResult_t Operation::RunSendRecv(const void* send, void* recv) const {
  const NcclFunctions& f = a_.library->functions();
  const int next = (a_.rank + 1) % a_.num_ranks;
  const int previous = (a_.rank + a_.num_ranks - 1) % a_.num_ranks;
  Group group(*a_.library);
  group.Add(f.Send(send, a_.shape.count, a_.type, next, a_.comm, a_.stream));
  group.Add(f.Recv(recv, a_.shape.count, a_.type, previous, a_.comm, a_.stream));
  return group.End();
}

// Doubles the block of every rank round by round. In the round of bit `bit` the ranks that share
// all higher bits hold each other's blocks [first, first + bit), and swap them with the rank whose
// number differs in the bit.
ncclResult_t Operation::RunHypercube(const void* send, void* recv) const {
  const NcclFunctions& f = a_.library->functions();
  const size_t count = a_.shape.count;
  char* const own = At(recv, static_cast<size_t>(a_.rank) * count);
  if (own != send && count > 0) std::memcpy(own, send, count * element_size_);
  for (int bit = 1; bit < a_.num_ranks; bit <<= 1) {
    const int partner = a_.rank ^ bit;
    const auto first = static_cast<size_t>(a_.rank & ~(bit - 1));
    const auto partner_first = static_cast<size_t>(partner & ~(bit - 1));
    const size_t amount = count * static_cast<size_t>(bit);
    Group group(*a_.library);
    group.Add(f.Send(At(static_cast<const void*>(recv), first * count), amount, a_.type, partner,
                     a_.comm, a_.stream));
    group.Add(
        f.Recv(At(recv, partner_first * count), amount, a_.type, partner, a_.comm, a_.stream));
    if (const ncclResult_t result = group.End(); result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

}  // namespace tutti::tools
