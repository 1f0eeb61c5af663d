// The stand-in's graphs.

#include "fake_state.h"

using namespace fake;  // NOLINT: all of it is for these functions

extern "C" {

int cuGraphAddEventRecordNode(void** node, void* graph, void* const* behind, size_t num_behind,
                              void* event) {
  auto& nodes = static_cast<FakeGraph*>(graph)->nodes;
  FakeNode added = {.records = EventOf(event), .beside = true};
  for (size_t i = 0; i < num_behind; ++i)
    added.behind.insert(reinterpret_cast<size_t>(behind[i]) - 1);
  nodes.push_back(std::move(added));
  *node = reinterpret_cast<void*>(nodes.size());
  return kSuccess;
}
int cuGraphAddDependencies(void* graph, void* const* from, void* const* to, size_t number) {
  auto& nodes = static_cast<FakeGraph*>(graph)->nodes;
  for (size_t i = 0; i < number; ++i)
    nodes[reinterpret_cast<size_t>(to[i]) - 1].behind.insert(reinterpret_cast<size_t>(from[i]) - 1);
  return kSuccess;
}
int cuGraphRemoveDependencies(void* graph, void* const* from, void* const* to, size_t number) {
  auto& nodes = static_cast<FakeGraph*>(graph)->nodes;
  for (size_t i = 0; i < number; ++i)
    if (nodes[reinterpret_cast<size_t>(to[i]) - 1].behind.erase(reinterpret_cast<size_t>(from[i]) -
                                                                1) == 0)
      return kInvalidValue;
  return kSuccess;
}
int cuUserObjectCreate(void** handle, void* object, void (*let_go)(void*), unsigned, unsigned) {
  *handle = new ObjectHandle(std::make_shared<FakeObject>(object, let_go));
  return kSuccess;
}
int cuUserObjectRelease(void* handle, unsigned) {
  delete static_cast<ObjectHandle*>(handle);
  return kSuccess;
}
int cuGraphRetainUserObject(void* graph, void* handle, unsigned, unsigned) {
  static_cast<FakeGraph*>(graph)->objects.push_back(*static_cast<ObjectHandle*>(handle));
  return cuUserObjectRelease(handle, 1);  // The reference is moved.
}
int cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long) {
  *exec = new FakeGraph(*static_cast<FakeGraph*>(graph));
  return kSuccess;
}
int cuGraphLaunch(void* exec, void* stream) {
  const FakeGraph& graph = *static_cast<FakeGraph*>(exec);
  FakeStream& on = StreamOf(stream);
  const auto records_behind = [&](size_t last) {
    for (const FakeNode& node : graph.nodes)
      if (node.beside && !node.behind.empty() && *node.behind.rbegin() == last)
        on.Queue(Record(node.records));
  };
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const FakeNode& node = graph.nodes[i];
    if (node.beside) continue;
    if (node.waits_for != nullptr) on.Queue(WaitFor(node.waits_for));
    if (node.records != nullptr) on.Queue(Record(node.records));
    if (node.work) on.Queue([work = node.work, objects = graph.objects] { work(); });
    records_behind(i);
  }
  return kSuccess;
}
int cuGraphExecDestroy(void* exec) {
  delete static_cast<FakeGraph*>(exec);
  return kSuccess;
}
int cuGraphDestroy(void* graph) {
  delete static_cast<FakeGraph*>(graph);
  return kSuccess;
}

// Functions for tests, which a driver does not have.
int tuttiFakeObjects() { return FakeObject::alive; }
// Returns the number of nodes of a graph; `on_the_way` gets the number of nodes that captured work
// waits for.
int tuttiFakeNodes(void* graph, int* on_the_way) {
  const auto& nodes = static_cast<FakeGraph*>(graph)->nodes;
  *on_the_way = 0;
  for (const FakeNode& node : nodes) *on_the_way += node.beside ? 0 : 1;
  return static_cast<int>(nodes.size());
}

}  // extern "C"
