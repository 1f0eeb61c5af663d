// The state of the stand-in, what tests say about it, and what the other files share.

#include <arpa/inet.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>

#include "queue_pairs.h"

namespace fakeverbs {
namespace {

constexpr size_t kMostCalls = 1 << 20;

std::vector<std::string> Split(const std::string& text, char mark) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, mark);) parts.push_back(part);
  return parts;
}

std::vector<DeviceSpec> DefaultDevices() {
  const char* const text = getenv("FAKE_VERBS");
  if (!text) return {{}};
  std::vector<DeviceSpec> devices;
  for (const std::string& part : Split(text, ',')) {
    const std::vector<std::string> sides = Split(part, '=');
    DeviceSpec device;
    device.name = sides[0];
    if (sides.size() > 1 && sides[1] == "iwarp") {
      device.iwarp = true;
      const std::string address = InterfaceAddress();
      if (!address.empty()) device.ports = {{address}};
    } else if (sides.size() > 1) {
      device.ports.clear();
      for (const std::string& address : Split(sides[1], '/')) device.ports.push_back({address});
    }
    devices.push_back(device);
  }
  return devices;
}

void Install(State& s, const std::vector<DeviceSpec>& specs) {
  for (const auto& device : s.devices) {
    if (device->open > 0)
      Violation("the devices are changed while " + device->spec.name + " is open");
  }
  s.devices.clear();
  const uint32_t first_pair = std::random_device()();
  for (const DeviceSpec& spec : specs) {
    auto device = std::make_unique<Device>();
    device->spec = spec;
    device->device.node_type = spec.iwarp ? IBV_NODE_RNIC : IBV_NODE_CA;
    device->device.transport_type = spec.iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
    snprintf(device->device.name, sizeof(device->device.name), "%s", spec.name.c_str());
    snprintf(device->device.ibdev_path, sizeof(device->device.ibdev_path), "%s",
             spec.sysfs.empty() ? "/nowhere" : spec.sysfs.c_str());
    device->index = static_cast<uint32_t>(s.devices.size());
    device->next_pair = first_pair;
    s.devices.push_back(std::move(device));
  }
}

State* state = nullptr;
std::mutex making;

// The parent's NIC has no thread in the child.
void ForgetInChild() {
  if (state && state->manager) CloseManagerInChild(*state->manager);
  state = nullptr;
  new (&making) std::mutex;
}

Device& Named(State& s, const std::string& name) {
  for (const auto& device : s.devices) {
    if (device->spec.name == name) return *device;
  }
  Violation("a test names the device " + name + ", which there is not");
}

void RaiseOnDevice(State& s, const Device& device, const ibv_async_event& event) {
  for (const auto& entry : s.contexts) {
    if (entry.second->device == &device) Raise(*entry.second, event);
  }
}

uint64_t NumberIn(const char* variable) {
  const char* const text = getenv(variable);
  return text ? strtoull(text, nullptr, 10) : 0;
}

}  // namespace

State::State() {
  std::random_device any;
  next_key = any();
  Install(*this, DefaultDevices());
  delivery = DefaultDelivery();
  random.seed(delivery.seed);
  // "reg_dmabuf_mr": all calls of this function fail for lack of memory.
  if (const char* const call = getenv("FAKE_VERBS_REFUSE"))
    refusals.push_back({call, ENOMEM, std::numeric_limits<int>::max(), 0});
  fail_one_in = NumberIn("FAKE_VERBS_FAIL_ONE_IN");
  late_on_gpu = NumberIn("FAKE_VERBS_LATE_ON_GPU") != 0;
  down_after = NumberIn("FAKE_VERBS_DOWN_AFTER");
  fatal_after = NumberIn("FAKE_VERBS_FATAL_AFTER");
}

State& TheState() {
  const Lock lock(making);
  if (!state) {
    [[maybe_unused]] static const int forks = pthread_atfork(nullptr, nullptr, ForgetInChild);
    state = new State;  // it ends with the process: the NIC's thread uses it until then
  }
  return *state;
}

void Violation(const std::string& what) {
  fprintf(stderr, "stand-in for libibverbs: %s\n", what.c_str());
  abort();
}

void RaiseFatalEvent(State& s, const Device& device) {
  ibv_async_event event = {};
  event.event_type = IBV_EVENT_DEVICE_FATAL;
  RaiseOnDevice(s, device, event);
}

void SetPortState(Device& device, int port, bool active) {
  device.spec.ports.at(static_cast<size_t>(port - 1)).active = active;
  ibv_async_event event = {};
  event.event_type = active ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR;
  event.element.port_num = port;
  RaiseOnDevice(TheState(), device, event);
}

int Refusal(const char* call) {
  for (CallRefusal& refusal : TheState().refusals) {
    if (refusal.call != call || refusal.times == 0) continue;
    if (refusal.skip-- > 0) continue;
    refusal.skip = 0;
    --refusal.times;
    return refusal.error;
  }
  return 0;
}

void Note(const Call& call) {
  std::vector<Call>& calls = TheState().calls;
  if (calls.size() < kMostCalls) calls.push_back(call);
  char line[128];
  snprintf(line, sizeof(line), "%s: %zu bytes, flags 0x%x, opcode %d", call.name.c_str(),
           call.bytes, call.flags, call.opcode);
  Tell(line);
}

void Tell(const char* line) {
  static const char* const path = getenv("FAKE_VERBS_TELL");
  if (path == nullptr) return;
  FILE* const file = fopen(path, "a");
  if (file == nullptr) return;
  fprintf(file, "%s\n", line);
  fclose(file);
}

std::byte* Locate(uint32_t key, const Domain* domain, uint64_t address, uint64_t bytes,
                  unsigned access) {
  State& s = TheState();
  const auto found = s.regions.find(key);
  if (found == s.regions.end()) return nullptr;
  const Region& region = *found->second;
  if (region.domain != domain || (region.access & access) != access) return nullptr;
  if (address < region.begin || bytes > region.mr.length ||
      address - region.begin > region.mr.length - bytes) {
    return nullptr;
  }
  return region.base + (address - region.begin);
}

void Complete(Cq& queue, const Completion& completion) {
  if (queue.completions.size() >= queue.room) {
    Violation("a completion queue of " + std::to_string(queue.room) + " overflows");
  }
  queue.completions.push_back(completion);
  RaiseIfArmed(queue);
}

bool RaiseIfArmed(Cq& queue) {
  if (!queue.armed || !queue.cq.channel) return false;
  queue.armed = false;
  ++queue.events;
  auto& channel = *reinterpret_cast<Channel*>(queue.cq.channel);
  channel.events.push_back(&queue);
  const uint64_t one = 1;
  if (write(channel.channel.fd, &one, sizeof(one)) != sizeof(one)) Violation("an event is lost");
  return true;
}

void Raise(Context& context, const ibv_async_event& event) {
  context.events.push_back(event);
  const uint64_t one = 1;
  if (write(context.context.async_fd, &one, sizeof(one)) != sizeof(one)) {
    Violation("an asynchronous event is lost");
  }
}

const PortSpec& PortOf(const Qp& pair) {
  return pair.context->device->spec.ports[pair.port - size_t{1}];
}

void SetDevices(std::vector<DeviceSpec> devices) {
  State& s = TheState();
  const Lock lock(s.mutex);
  Install(s, devices);
}

void Reset() {
  {
    State& s = TheState();
    const Lock lock(s.mutex);
    s.refusals.clear();
    s.send_faults.clear();
    s.calls.clear();
    s.hold_sends = s.hold_answers = false;
    ResetManager();
    DeliverAllOfEveryPair();
    s.delivery = DefaultDelivery();
  }
  WakeNic();
}

void WatchRegions(RegionWatcher* watcher) {
  State& s = TheState();
  const Lock lock(s.mutex);
  s.watcher = watcher;
}

void RefuseCalls(const std::string& call, int error, int times, int skip) {
  State& s = TheState();
  const Lock lock(s.mutex);
  s.refusals.push_back({call, error, times, skip});
}

void FailSend(const SendFault& fault) {
  State& s = TheState();
  const Lock lock(s.mutex);
  s.send_faults.push_back(fault);
}

void HoldSends(bool hold) {
  {
    State& s = TheState();
    const Lock lock(s.mutex);
    s.hold_sends = hold;
  }
  WakeNic();
}

void HoldAnswers(bool hold) {
  {
    State& s = TheState();
    const Lock lock(s.mutex);
    s.hold_answers = hold;
  }
  WakeNic();
}

void SetPortActive(const std::string& device, int port, bool active) {
  State& s = TheState();
  const Lock lock(s.mutex);
  SetPortState(Named(s, device), port, active);
}

void RaiseDeviceEvent(const std::string& device, ibv_event_type type) {
  State& s = TheState();
  const Lock lock(s.mutex);
  ibv_async_event event = {};
  event.event_type = type;
  RaiseOnDevice(s, Named(s, device), event);
}

int RaiseCompletionEvents() {
  State& s = TheState();
  const Lock lock(s.mutex);
  int raised = 0;
  for (const auto& [key, queue] : s.queues) raised += RaiseIfArmed(*queue) ? 1 : 0;
  return raised;
}

void RaiseQueuePairEvent(uint32_t number, ibv_event_type type) {
  State& s = TheState();
  const Lock lock(s.mutex);
  const auto pair = std::find_if(s.pairs.begin(), s.pairs.end(), [&](const auto& each) {
    return each.second->qp.qp_num == number;
  });
  if (pair == s.pairs.end()) Violation("a test names a queue pair that there is not");
  ibv_async_event event = {};
  event.event_type = type;
  event.element.qp = &pair->second->qp;
  Raise(*pair->second->context, event);
}

std::vector<Call> Calls() {
  State& s = TheState();
  const Lock lock(s.mutex);
  return s.calls;
}

int ObjectsAlive() {
  State& s = TheState();
  const Lock lock(s.mutex);
  return static_cast<int>(s.contexts.size() + s.domains.size() + s.regions.size() +
                          s.channels.size() + s.queues.size() + s.pairs.size()) +
         ManagedObjectsAlive();
}

}  // namespace fakeverbs
