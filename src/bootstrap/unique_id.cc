#include "bootstrap/unique_id.h"

#include <unistd.h>

#include <algorithm>

#include "bootstrap/wire.h"

namespace tutti {
namespace {

constexpr std::string_view kMagic = "TUTTIID1";
constexpr size_t kUsedBytes = 76;

}  // namespace

// All ranks know the port and the user; the address may have several names.
std::string UniqueId::LocalName() const {
  if ((flags & kNoKey) == 0 || !root.IsLoopback()) return {};
  return fmt::format("tutti-root-{}-{}", getuid(), root.port);
}

void UniqueId::Encode(char (&out)[128]) const {
  WireWriter writer;
  writer.Raw(std::as_bytes(std::span(kMagic)));
  writer.Raw(std::as_bytes(std::span(key)));
  writer.Address(root);
  writer.U32(flags);
  writer.U64(id);
  const Bytes bytes = std::move(writer).Take();
  static_assert(kUsedBytes == 8 + 32 + 24 + 4 + 8);
  std::memset(out, 0, sizeof(out));
  std::memcpy(out, bytes.data(), std::min(bytes.size(), sizeof(out)));
}

// Tells a zeroed id and another library's id apart from a damaged id, because the advice differs.
Result<UniqueId> UniqueId::Decode(const char (&in)[128]) {
  const auto all = std::as_bytes(std::span(in));
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  if (std::all_of(all.begin(), all.end(), is_zero)) {
    return InvalidArgument(
        "the unique id is all zeros: ncclGetUniqueId was not called, or its result did not reach "
        "this rank");
  }
  WireReader reader(all);
  const auto magic = reader.Raw(kMagic.size());
  if (std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) {
    return InvalidArgument(
        "the unique id was not made by this library: all ranks of a job must use the same one");
  }
  UniqueId result;
  const auto key = reader.Raw(result.key.size());
  std::memcpy(result.key.data(), key.data(), key.size());
  result.root = reader.Address();
  result.flags = reader.U32();
  result.id = reader.U64();
  const auto tail = all.subspan(kUsedBytes);
  if (reader.failed() || result.root.port == 0 || (result.flags & ~7u) != 0 ||
      !std::all_of(tail.begin(), tail.end(), is_zero)) {
    return InvalidArgument("the unique id is damaged: it must be handed on as 128 unchanged bytes");
  }
  return result;
}

}  // namespace tutti
