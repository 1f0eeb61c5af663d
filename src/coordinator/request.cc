#include "coordinator/request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <bit>
#include <limits>

namespace tutti::coordinator {

std::string_view Name(OpKind kind) {
  constexpr std::array<std::string_view, kNumOpKinds> kNames = {
      "allreduce",     "allgather", "broadcast",       "alltoall",
      "reducescatter", "barrier",   "add_process_set", "remove_process_set"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view UpperName(OpKind kind) {
  constexpr std::array<std::string_view, kNumOpKinds> kNames = {
      "ALLREDUCE",     "ALLGATHER", "BROADCAST",       "ALLTOALL",
      "REDUCESCATTER", "BARRIER",   "ADD_PROCESS_SET", "REMOVE_PROCESS_SET"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view Name(ReduceOp op) {
  constexpr std::array<std::string_view, kNumReduceOps> kNames = {"average", "sum", "adasum",
                                                                  "min",     "max", "product"};
  return kNames[static_cast<size_t>(op)];
}

namespace {

// Returns the product, or the largest number where the product exceeds all memory, because shapes
// come from users and other ranks.
int64_t Times(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::numeric_limits<int64_t>::max();
  return product;
}

}  // namespace

int64_t Request::elements() const {
  int64_t count = 1;
  for (const int64_t dimension : shape) count = Times(count, dimension);
  return count;
}

int64_t Request::bytes() const { return Times(elements(), static_cast<int64_t>(SizeOf(type))); }

int64_t Request::row_elements() const {
  int64_t count = 1;
  for (size_t i = 1; i < shape.size(); ++i) count = Times(count, shape[i]);
  return count;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

void WriteText(WireWriter& writer, std::string_view text) {
  writer.U32(static_cast<uint32_t>(text.size()));
  writer.Raw(std::as_bytes(std::span(text)));
}

bool ReadBytes(WireReader& reader, size_t limit, std::string& bytes) {
  const uint32_t size = reader.U32();
  if (size > limit || size > reader.remaining()) return false;
  bytes = AsText(reader.Raw(size));
  return !reader.failed();
}

bool ReadName(WireReader& reader, std::string& name) {
  return ReadBytes(reader, kMaxNameBytes, name) && MayBeShown(name);
}

bool ReadSentence(WireReader& reader, size_t limit, std::string& sentence) {
  if (!ReadBytes(reader, limit, sentence)) return false;
  sentence = Printable(sentence);
  return true;
}

bool MayBeShown(std::string_view name) {
  char before = 0;
  for (const char c : name) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x20 || byte == 0x7f) return false;
    if (before == '\xc2' && byte >= 0x80 && byte < 0xa0) return false;
    before = c;
  }
  return true;
}

void WriteRequest(WireWriter& writer, const Request& request) {
  writer.U8(static_cast<uint8_t>(request.kind));
  writer.U8(static_cast<uint8_t>(request.type));
  writer.U8(static_cast<uint8_t>(request.op));
  writer.U8(static_cast<uint8_t>(request.compression));
  writer.U32(static_cast<uint32_t>(request.root));
  writer.U32(static_cast<uint32_t>(request.device));
  writer.U64(std::bit_cast<uint64_t>(request.prescale));
  writer.U64(std::bit_cast<uint64_t>(request.postscale));
  writer.U32(static_cast<uint32_t>(request.shape.size()));
  for (const int64_t dimension : request.shape) writer.U64(static_cast<uint64_t>(dimension));
  WriteText(writer, request.group);
  writer.U32(request.group_size);
}

namespace {

template <typename Enum>
bool ReadEnum(WireReader& reader, int count, Enum& value) {
  const uint8_t number = reader.U8();
  if (number >= count) return false;
  value = static_cast<Enum>(number);
  return true;
}

// The count is checked against the remaining bytes before anything is stored.
bool ReadShape(WireReader& reader, std::vector<int64_t>& shape) {
  const uint32_t dimensions = reader.U32();
  if (dimensions > kMaxDimensions || dimensions > reader.remaining() / 8) return false;
  shape.clear();
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto dimension = static_cast<int64_t>(reader.U64());
    if (dimension < 0) return false;
    shape.push_back(dimension);
  }
  return true;
}

}  // namespace

bool ReadRequest(WireReader& reader, Request& request) {
  if (!ReadEnum(reader, kNumOpKinds, request.kind) ||
      !ReadEnum(reader, kNumElementTypes, request.type) ||
      !ReadEnum(reader, kNumReduceOps, request.op) ||
      !ReadEnum(reader, kNumCompressions, request.compression)) {
    return false;
  }
  request.root = static_cast<int32_t>(reader.U32());
  request.device = static_cast<int32_t>(reader.U32());
  request.prescale = std::bit_cast<double>(reader.U64());
  request.postscale = std::bit_cast<double>(reader.U64());
  if (!ReadShape(reader, request.shape)) return false;
  if (!ReadName(reader, request.group)) return false;
  request.group_size = reader.U32();
  return !reader.failed();
}

}  // namespace tutti::coordinator
