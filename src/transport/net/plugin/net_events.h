#pragma once

// Takes what network plugins report of their work (from version 10 of the interface on). A plugin
// is given a callback in init, and a handle with each send and receive, by which it begins events
// of its own:
//
//   NetEvents::BeginStep ──▶ Step            a send or group of receives, until its request is done
//                              Begin ──▶ Event   begun, updated and ended by the plugin
//
// Threads: any. A plugin begins events of a step only within the calls for its request (isend,
// irecv, test); it may update and end them from a thread of its own.

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tutti {

class NetEvents {
 public:
  // Ends with the object.
  class Event {
   public:
    virtual ~Event() = default;
    virtual void Update(void* data) = 0;
  };
  // Ends with the object, which outlives the beginnings of its events, not their ends.
  class Step {
   public:
    virtual ~Step() = default;
    // Begins an event of the kind `plugin`, which says what lies at `data`. Null: nobody is told.
    virtual std::unique_ptr<Event> Begin(int64_t plugin, void* data) = 0;
  };

  virtual ~NetEvents() = default;
  // Begins a step that sends or receives up to `bytes` bytes. Null: nobody is told of it.
  virtual std::unique_ptr<Step> BeginStep(bool is_send, size_t bytes) = 0;
};

}  // namespace tutti
