#include "fakecard/fake_mlx5.h"

#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "fakecard/fake_mlx5_state.h"
#include "fakeverbs/state.h"

using namespace fakemlx5;  // NOLINT: all of it is for these functions

namespace {

using tutti::testing::FakeCard;
using Lock = std::lock_guard<std::timed_mutex>;

// An mlx5dv_devx_umem_in, of which older headers lack the last member.
struct UmemIn {
  void* addr;
  size_t size;
  uint32_t access;
  uint64_t pgsz_bitmap;
  uint64_t comp_mask;
  int dmabuf_fd;
};
constexpr uint64_t kOfDmabuf = 1;

struct Address {
  ibv_ah handle = {};  // first
  mlx5_wqe_av value = {};
};

// Notes a call. Returns the errno value with which it is to fail, or 0.
int Begin(const std::string& call) {
  TheLibrary().calls.push_back(call);
  const fakeverbs::Lock lock(fakeverbs::TheState().mutex);
  return fakeverbs::Refusal(call.c_str());
}

template <typename T>
T* Refuse(int error) {
  errno = error;
  return nullptr;
}

// What the card finds by a key, of a domain that it knows by its number.
std::byte* FindMemory(int domain, uint32_t key, uint64_t address, uint64_t bytes,
                      FakeCard::End end) {
  const ibv_pd* const pd = DomainOf(static_cast<uint32_t>(domain));
  const fakeverbs::Lock lock(fakeverbs::TheState().mutex);
  return fakeverbs::Locate(key, reinterpret_cast<const fakeverbs::Domain*>(pd), address, bytes,
                           static_cast<unsigned>(AccessOf(end)));
}

void Use(mlx5dv_devx_obj& object, int users) {
  for (Umem* const umem : object.umems) umem->users += users;
  object.uar->users += users;
}

}  // namespace

namespace fakemlx5 {

Library& TheLibrary() {
  static auto* const library = new Library;
  return *library;
}

void Complain(const std::string& what) {
  auto& all = TheLibrary().complaints;
  if (all.size() < 20) all.push_back(what);
}

const ibv_pd* DomainOf(uint32_t number) {
  const std::lock_guard lock(TheLibrary().domains_mutex);
  const auto found = TheLibrary().domains.find(number);
  if (found == TheLibrary().domains.end()) return nullptr;
  fakeverbs::State& verbs = fakeverbs::TheState();
  const fakeverbs::Lock lock_of_verbs(verbs.mutex);
  const bool alive = verbs.domains.contains(reinterpret_cast<fakeverbs::Domain*>(found->second));
  return alive ? found->second : nullptr;
}

void Reset() {
  Library& l = TheLibrary();
  const Lock lock(l.mutex);
  l.calls.clear();
  l.complaints.clear();
  l.failing.reset();
}

std::vector<std::string> Calls() {
  const Lock lock(TheLibrary().mutex);
  return TheLibrary().calls;
}

std::vector<std::string> Complaints() {
  Library& l = TheLibrary();
  const Lock lock(l.mutex);
  std::vector<std::string> all = l.complaints;
  if (l.card != nullptr)
    for (const std::string& complaint : l.card->complaints()) all.push_back(complaint);
  return all;
}

int ObjectsAlive() {
  Library& l = TheLibrary();
  const Lock lock(l.mutex);
  return static_cast<int>(l.umems.size() + l.uars.size() + l.completion_queues.size() +
                          l.pairs.size()) +
         l.addresses;
}

void PutRegistersInto(void* memory, size_t bytes) {
  const Lock lock(TheLibrary().mutex);
  TheLibrary().registers = static_cast<std::byte*>(memory);
  TheLibrary().registers_left = memory == nullptr ? 0 : bytes;
}

void FarReach::Copy(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0 && (far_.is_far(to) || far_.is_far(from)))
    far_.copy(to, from, bytes);
  else
    CardReach::Copy(to, from, bytes);
}
uint32_t FarReach::Load(const std::byte* word) {
  if (!far_.is_far(word)) return CardReach::Load(word);
  uint32_t value = 0;
  far_.copy(&value, word, sizeof(value));
  return value;
}
void FarReach::Store(std::byte* word, uint32_t value) {
  if (!far_.is_far(word)) return CardReach::Store(word, value);
  far_.copy(word, &value, sizeof(value));
}
// Nobody but the card adds to words.
uint64_t FarReach::FetchAdd(std::byte* word, uint64_t added) {
  if (!far_.is_far(word)) return CardReach::FetchAdd(word, added);
  uint64_t before = 0;
  far_.copy(&before, word, sizeof(before));
  const uint64_t after = before + added;
  far_.copy(word, &after, sizeof(after));
  return before;
}

void ReachFarMemory(const FarMemory& far) {
  const Lock lock(TheLibrary().mutex);
  TheLibrary().reach = far.copy == nullptr ? nullptr : std::make_unique<FarReach>(far);
}

std::vector<std::string> DescribeQueues() {
  Library& l = TheLibrary();
  if (!l.mutex.try_lock_for(std::chrono::seconds(1))) return {"the stand-in is in a call"};
  std::vector<std::string> lines = {"there is no card"};
  if (l.card != nullptr) lines = l.card->Describe();
  l.mutex.unlock();
  return lines;
}

void FailEntries(uint64_t index, uint8_t syndrome) {
  const Lock lock(TheLibrary().mutex);
  TheLibrary().failing = {index, syndrome};
}

}  // namespace fakemlx5

extern "C" {

bool mlx5dv_is_supported(ibv_device*) { return true; }

ibv_context* mlx5dv_open_device(ibv_device* device, mlx5dv_context_attr* attributes) {
  {
    const Lock lock(TheLibrary().mutex);
    if (const int error = Begin("open_mlx5")) return Refuse<ibv_context>(error);
    if (attributes->flags != MLX5DV_CONTEXT_FLAGS_DEVX || attributes->comp_mask != 0)
      Complain("a device is opened in another way than for DevX");
  }
  return ibv_open_device(device);
}

int mlx5dv_init_obj(mlx5dv_obj* object, uint64_t kind) {
  Library& l = TheLibrary();
  const Lock lock(l.mutex);
  if (const int error = Begin("init_obj")) return error;
  if (kind == MLX5DV_OBJ_AH) {
    object->ah.out->av = &reinterpret_cast<Address*>(object->ah.in)->value;
    return 0;
  }
  if (kind != MLX5DV_OBJ_PD) return EOPNOTSUPP;
  const std::lock_guard lock_of_domains(l.domains_mutex);
  object->pd.out->pdn = kFirstDomain + static_cast<uint32_t>(l.domains.size());
  l.domains[object->pd.out->pdn] = object->pd.in;
  return 0;
}

int mlx5dv_devx_query_eqn(ibv_context*, uint32_t vector, uint32_t* number) {
  const Lock lock(TheLibrary().mutex);
  if (const int error = Begin("query_eqn")) return error;
  if (vector != 0) return EINVAL;
  *number = kEventQueue;
  return 0;
}

mlx5dv_devx_uar* mlx5dv_devx_alloc_uar(ibv_context*, uint32_t kind) {
  Library& l = TheLibrary();
  const Lock lock(l.mutex);
  if (const int error = Begin("alloc_uar")) return Refuse<mlx5dv_devx_uar>(error);
  // As cards without dedicated registers: one that is not cached is all that there is.
  if (kind != MLX5DV_UAR_ALLOC_TYPE_NC) return Refuse<mlx5dv_devx_uar>(EOPNOTSUPP);
  auto uar = std::make_unique<Uar>();
  uar->uar.page_id = kFirstUarPage + ++l.made;
  constexpr size_t kLine = 64;
  if (l.registers_left >= kLine) {
    uar->doorbell = reinterpret_cast<uint64_t*>(l.registers);
    l.registers += kLine;
    l.registers_left -= kLine;
  }
  uar->uar.reg_addr = uar->uar.base_addr = uar->doorbell;
  mlx5dv_devx_uar* const made = &uar->uar;
  l.uars[made->page_id] = std::move(uar);
  return made;
}

void mlx5dv_devx_free_uar(mlx5dv_devx_uar* uar) {
  const Lock lock(TheLibrary().mutex);
  if (reinterpret_cast<Uar*>(uar)->users > 0) fakeverbs::Violation("a UAR in use is freed");
  TheLibrary().uars.erase(uar->page_id);
}

mlx5dv_devx_umem* mlx5dv_devx_umem_reg_ex(ibv_context*, mlx5dv_devx_umem_in* given) {
  Library& l = TheLibrary();
  const Lock lock(l.mutex);
  UmemIn in;
  std::memcpy(&in, given, sizeof(in));
  const bool by_dmabuf = in.comp_mask == kOfDmabuf;
  const bool is_far = !by_dmabuf && l.reach != nullptr && l.reach->IsFar(in.addr);
  if (const int error = Begin(by_dmabuf ? "umem_reg_dmabuf" : is_far ? "umem_reg_far" : "umem_reg"))
    return Refuse<mlx5dv_devx_umem>(error);
  if (in.access != IBV_ACCESS_LOCAL_WRITE || reinterpret_cast<uintptr_t>(in.addr) % kPage != 0 ||
      in.size % kPage != 0)
    Complain("a umem that the card cannot write, or that is no whole pages");
  if (in.pgsz_bitmap != kPage) Complain("a umem whose objects may not begin at any page");
  if (!by_dmabuf && in.comp_mask != 0) Complain("a umem of an unknown kind");
  auto umem = std::make_unique<Umem>();
  umem->umem.umem_id = kFirstUmem + ++l.made;
  umem->base = static_cast<std::byte*>(in.addr);
  umem->bytes = in.size;
  if (by_dmabuf) {
    umem->mapping = mmap(nullptr, in.size, PROT_READ | PROT_WRITE, MAP_SHARED, in.dmabuf_fd,
                         static_cast<off_t>(reinterpret_cast<uintptr_t>(in.addr)));
    if (umem->mapping == MAP_FAILED) return Refuse<mlx5dv_devx_umem>(EINVAL);
    umem->mapping_bytes = in.size;
    umem->base = static_cast<std::byte*>(umem->mapping);
  }
  if (!GiveUmem(*umem, by_dmabuf ? in.dmabuf_fd : -1, reinterpret_cast<uintptr_t>(in.addr)))
    return Refuse<mlx5dv_devx_umem>(EOPNOTSUPP);
  mlx5dv_devx_umem* const made = &umem->umem;
  l.umems[made->umem_id] = std::move(umem);
  return made;
}

int mlx5dv_devx_umem_dereg(mlx5dv_devx_umem* umem) {
  const Lock lock(TheLibrary().mutex);
  const Umem& given = *reinterpret_cast<Umem*>(umem);
  if (given.users > 0) fakeverbs::Violation("a umem in use is given back");
  TakeUmemBack(given);
  if (given.mapping != nullptr) munmap(given.mapping, given.mapping_bytes);
  TheLibrary().umems.erase(umem->umem_id);
  return 0;
}

mlx5dv_devx_obj* mlx5dv_devx_obj_create(ibv_context*, const void* in, size_t bytes, void* out,
                                        size_t out_bytes) {
  Library& l = TheLibrary();
  const Lock lock(l.mutex);
  const std::string name = NameOf(in);
  const int error = Begin(name);
  if (l.card == nullptr) {
    l.card = MakeCard(FindMemory, l.reach.get());
  }
  const bool pair = name == "devx_create_qp";
  std::unique_ptr<mlx5dv_devx_obj> made;
  if (error == 0) made = pair ? MakePair(in, bytes) : MakeCompletions(in, bytes);
  Answer(out, out_bytes, made != nullptr, made == nullptr ? 0 : made->number);
  if (made == nullptr) return Refuse<mlx5dv_devx_obj>(error == 0 ? EREMOTEIO : error);
  Use(*made, 1);
  mlx5dv_devx_obj* const object = made.get();
  (pair ? l.pairs : l.completion_queues)[object->number] = std::move(made);
  return object;
}

int mlx5dv_devx_obj_modify(mlx5dv_devx_obj* object, const void* in, size_t bytes, void* out,
                           size_t out_bytes) {
  const Lock lock(TheLibrary().mutex);
  const char* const name = NameOf(in);
  const int error = Begin(name);
  const bool taken = error == 0 && object->is_pair && MovePair(*object, in, bytes);
  Answer(out, out_bytes, taken);
  if (error != 0) return error;
  return taken ? 0 : EREMOTEIO;
}

int mlx5dv_devx_obj_query(mlx5dv_devx_obj* object, const void* in, size_t bytes, void* out,
                          size_t out_bytes) {
  const Lock lock(TheLibrary().mutex);
  if (const int error = Begin("devx_query_qp")) return error;
  return QueryPair(*object, in, bytes, out, out_bytes) ? 0 : EREMOTEIO;
}

int mlx5dv_devx_obj_destroy(mlx5dv_devx_obj* object) {
  Library& l = TheLibrary();
  const Lock lock(l.mutex);
  if (object->users > 0) fakeverbs::Violation("a completion queue in use is destroyed");
  if (object->is_pair) {
    l.card->RemoveQueue(object->number);
    --object->completes_in->users;
  }
  Use(*object, -1);
  (object->is_pair ? l.pairs : l.completion_queues).erase(object->number);
  if (l.pairs.empty() && l.completion_queues.empty()) {
    for (const std::string& complaint : l.card->complaints()) Complain(complaint);
    l.card.reset();
  }
  return 0;
}

ibv_ah* ibv_create_ah(ibv_pd* domain, ibv_ah_attr* attributes) {
  Library& l = TheLibrary();
  const Lock lock(l.mutex);
  if (const int error = Begin("create_ah")) return Refuse<ibv_ah>(error);
  auto* const made = new Address;
  made->handle.pd = domain;
  const auto mac = MacOf(attributes->grh.dgid.raw);
  std::memcpy(made->value.rmac, mac.data(), mac.size());
  ++l.addresses;
  return &made->handle;
}

int ibv_destroy_ah(ibv_ah* handle) {
  const Lock lock(TheLibrary().mutex);
  --TheLibrary().addresses;
  delete reinterpret_cast<Address*>(handle);
  return 0;
}

}  // extern "C"
