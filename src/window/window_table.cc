#include "window/window_table.h"

#include <algorithm>

namespace tutti {

WindowTable::~WindowTable() {
  for (const Block& block : blocks_) memory_.Free(block.there);
}

Status WindowTable::Add(const ncclDevCommWindowTableEntry& entry) {
  for (;;) {
    for (const Block& block : blocks_) {
      auto* const free =
          std::find_if(std::begin(block.here->entries), std::end(block.here->entries),
                       [](const ncclDevCommWindowTableEntry& e) { return e.size == 0; });
      if (free == std::end(block.here->entries)) continue;
      *free = entry;
      return WriteEntry(block, static_cast<size_t>(free - block.here->entries));
    }
    TUTTI_TRY(AddBlock());
  }
}

Status WindowTable::Remove(ncclWindow_t window) {
  for (const Block& block : blocks_) {
    for (size_t i = 0; i < NCCL_DEV_COMM_WINDOW_TABLE_ENTRIES; ++i) {
      if (block.here->entries[i].window != window) continue;
      block.here->entries[i] = {};
      return WriteEntry(block, i);
    }
  }
  return Status::Ok();
}

Status WindowTable::AddBlock() {
  TUTTI_ASSIGN(void* const memory, memory_.Allocate(sizeof(ncclDevCommWindowTable)));
  auto* const there = static_cast<ncclDevCommWindowTable*>(memory);
  blocks_.push_back({there, std::make_unique<ncclDevCommWindowTable>()});
  if (blocks_.size() == 1) return Status::Ok();
  const Block& last = blocks_[blocks_.size() - 2];
  last.here->next = there;
  return memory_.Write(&last.there->next, std::as_bytes(std::span(&last.here->next, 1)));
}

Status WindowTable::WriteEntry(const Block& block, size_t index) {
  return memory_.Write(&block.there->entries[index],
                       std::as_bytes(std::span(&block.here->entries[index], 1)));
}

}  // namespace tutti
