#pragma once

// Receives the reports of network plugins about their work (from version 10 of the interface on). A
// plugin gets a callback in init, and a handle with each send and receive. With the handle the
// plugin begins events of its own:
//
//   NetEvents::BeginStep ──▶ Step            a send or group of receives, until its request is done
//                              Begin ──▶ Event   begun, updated and ended by the plugin
//
// Threads: any. A plugin begins events of a step only within the calls for the step's request
// (isend, irecv, test). The plugin may update and end events from a thread of its own.

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tutti {

class NetEvents {
 public:
  // An event of a plugin. The event ends with the object.
  class Event {
   public:
    virtual ~Event() = default;
    virtual void Update(void* data) = 0;
  };
  // A step ends with the object. A step outlives its events' beginnings, not their ends.
  class Step {
   public:
    virtual ~Step() = default;
    // Begins an event of the kind `plugin`, which determines the layout at `data`. Null: unwanted.
    virtual std::unique_ptr<Event> Begin(int64_t plugin, void* data) = 0;
  };

  virtual ~NetEvents() = default;
  // Begins a step that sends or receives up to `bytes` bytes. Null: nobody wants the step.
  virtual std::unique_ptr<Step> BeginStep(bool is_send, size_t bytes) = 0;
};

}  // namespace tutti
