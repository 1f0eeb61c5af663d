#pragma once

// The store's messages (store.h has the format) as values. Pure functions.

#include <span>
#include <string>
#include <string_view>

#include "bootstrap/wire.h"
#include "elastic/store.h"

namespace tutti::elastic {

enum class Op : uint8_t { kSet = 1, kGet = 2 };
enum class Outcome : uint8_t { kDone = 0, kNotYet = 1, kRefused = 2 };

struct Request {
  Op op = Op::kGet;
  uint64_t newer_than = 0;
  uint32_t wait_ms = 0;
  std::string key;
  std::string value;
};

struct Answer {
  Outcome outcome = Outcome::kDone;
  uint64_t version = 0;
  std::string value;
};

// The size of everything before the value, and of the largest value.
inline constexpr size_t kMaxMessageBytes = 14 + kMaxKeyBytes + kMaxValueBytes;

// Read the message without its size.
Bytes EncodeRequest(const Request& request);
Bytes EncodeAnswer(const Answer& answer);
Result<Request> ParseRequest(std::span<const std::byte> message);
Result<Answer> ParseAnswer(std::span<const std::byte> message);

// Return the size, then the message.
Bytes WithSize(const Bytes& message);

}  // namespace tutti::elastic
