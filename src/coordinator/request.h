#pragma once

// A request: the part of an operation on a tensor that the other ranks must know. Two ranks agree
// on a tensor when their requests are alike, apart from the first dimension where an operation
// allows different first dimensions. Values; one thread at a time.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/wire.h"
#include "coordinator/element_type.h"

namespace tutti::coordinator {

enum class OpKind : uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kAlltoall = 3,
  kReducescatter = 4,
  kBarrier = 5,
  kAddSet = 6,     // shape: the ranks of the new process set
  kRemoveSet = 7,  // root: the set's number
};
inline constexpr int kNumOpKinds = 8;
// Returns the name for sentences: "allreduce".
std::string_view Name(OpKind kind);
// Returns the name for the timeline: "ALLREDUCE".
std::string_view UpperName(OpKind kind);

// Horovod's numbers.
enum class ReduceOp : uint8_t {
  kAverage = 0,
  kSum = 1,
  kAdasum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
};
inline constexpr int kNumReduceOps = 6;
std::string_view Name(ReduceOp op);

// The type to which floats wider than 16 bits are rounded while they travel.
enum class Compression : uint8_t { kNone = 0, kFloat16 = 1, kBfloat16 = 2 };
inline constexpr int kNumCompressions = 3;

// The part of a request that is of fixed size.
struct RequestFields {
  OpKind kind = OpKind::kAllreduce;
  ElementType type = ElementType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Compression compression = Compression::kNone;
  int32_t root = 0;     // broadcast: a rank of the process set
  int32_t device = -1;  // -1: host memory
  double prescale = 1;
  double postscale = 1;
  uint32_t group_size = 0;

  friend bool operator==(const RequestFields&, const RequestFields&) = default;
};

struct Request : RequestFields {
  std::vector<int64_t> shape;
  std::string group;  // the same name on all members of a group; empty: none

  friend bool operator==(const Request&, const Request&) = default;

  // Return at most the largest number, whatever the shape says.
  int64_t elements() const;
  int64_t bytes() const;
  int64_t first_dim() const { return shape.empty() ? 0 : shape.front(); }
  // Returns the elements of a row, the part of the tensor at one index of the first dimension.
  int64_t row_elements() const;
  bool reduces() const { return kind == OpKind::kAllreduce || kind == OpKind::kReducescatter; }
};

// Returns a shape as text, such as "(2, 3)" or "()".
std::string ShapeText(const std::vector<int64_t>& shape);

// Bounds on bytes from another rank.
inline constexpr size_t kMaxNameBytes = 4096;
inline constexpr size_t kMaxDimensions = 4096;  // a process set's ranks are sent as a shape

void WriteText(WireWriter& writer, std::string_view text);
// Read a text of at most `limit` bytes, and return false where there is none. ReadBytes takes any
// bytes. ReadName refuses a name that no log should show (MayBeShown): the ranks compare names, so
// that a name cannot be changed. ReadSentence makes the text printable (base/text.h).
[[nodiscard]] bool ReadBytes(WireReader& reader, size_t limit, std::string& bytes);
[[nodiscard]] bool ReadName(WireReader& reader, std::string& name);
[[nodiscard]] bool ReadSentence(WireReader& reader, size_t limit, std::string& sentence);
// Returns whether a name has no control characters, neither of ASCII nor of the further range in
// Unicode (U+0080 to U+009F). Terminals take control characters for commands.
bool MayBeShown(std::string_view name);
void WriteRequest(WireWriter& writer, const Request& request);
// Reads a request. Returns false when the bytes are no request.
[[nodiscard]] bool ReadRequest(WireReader& reader, Request& request);

}  // namespace tutti::coordinator
