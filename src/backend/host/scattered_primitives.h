#pragma once

// DirectPrimitives over many buffers that count as one vector. An AllReduce of a thousand small
// vectors stages each vector from its own buffer and writes each result to its own buffer, without
// a copy to a joint buffer.

#include <cstddef>
#include <cstdint>

#include "backend/host/stage_primitives.h"
#include "plan/scattered_buffers.h"

namespace tutti {

class HostScatteredPrimitives : public HostStagePrimitives {
 public:
  HostScatteredPrimitives(StageGroup& group, WaitContext& wait, const HostWork& work,
                          const ScatteredBuffers& buffers)
      : HostStagePrimitives(group, wait, work), buffers_(buffers) {}

  void Stage(uint64_t round, size_t at, size_t in, size_t n) {
    buffers_.ForEachStretch(in, n, [&](size_t i, size_t from, size_t size, size_t before) {
      StageFrom(round, at + before, Input(i, from), size);
    });
  }
  void StageOutput(uint64_t round, size_t at, size_t out, size_t n) {
    buffers_.ForEachStretch(out, n, [&](size_t i, size_t from, size_t size, size_t before) {
      StageOutputFrom(round, at + before, Output(i, from), size);
    });
  }
  void ReduceSlots(uint64_t round, size_t at, size_t out, size_t n) {
    buffers_.ForEachStretch(out, n, [&](size_t i, size_t from, size_t size, size_t before) {
      ReduceSlotsTo(round, at + before, Output(i, from), size);
    });
  }
  void ReducePart(uint64_t round, size_t at, size_t in, size_t, size_t n) {
    buffers_.ForEachStretch(in, n, [&](size_t i, size_t from, size_t size, size_t before) {
      ReducePartTo(round, at + before, Input(i, from), Output(i, from), size);
    });
  }
  void CopyFromSlot(uint64_t round, int peer, size_t at, size_t out, size_t n) {
    buffers_.ForEachStretch(out, n, [&](size_t i, size_t from, size_t size, size_t before) {
      CopySlotTo(round, peer, at + before, Output(i, from), size);
    });
  }
  void CopyLocal(size_t in, size_t, size_t n) {
    buffers_.ForEachStretch(in, n, [&](size_t i, size_t from, size_t size, size_t) {
      if (Input(i, from) != Output(i, from))
        CopyBytes(Output(i, from), Input(i, from), size * elem_bytes());
    });
  }

 private:
  const std::byte* Input(size_t i, size_t at) const {
    return buffers_.inputs[i] + at * elem_bytes();
  }
  std::byte* Output(size_t i, size_t at) const { return buffers_.outputs[i] + at * elem_bytes(); }

  const ScatteredBuffers& buffers_;
};

}  // namespace tutti
