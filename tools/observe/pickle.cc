#include "observe/pickle.h"

#include <bit>
#include <cstdint>

namespace tutti::tools {
namespace {

void AppendLittleEndian(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

void AppendText(std::string& out, const std::string& text) {
  out += 'X';
  AppendLittleEndian(out, text.size(), 4);
  out += text;
}

void Append(std::string& out, const nlohmann::json& value) {
  using Type = nlohmann::json::value_t;
  switch (value.type()) {
    case Type::object:
      out += "}(";
      for (const auto& [key, one] : value.items()) {
        AppendText(out, key);
        Append(out, one);
      }
      out += 'u';
      break;
    case Type::array:
      out += "](";
      for (const nlohmann::json& one : value) Append(out, one);
      out += 'e';
      break;
    case Type::string:
      AppendText(out, value.get_ref<const std::string&>());
      break;
    case Type::boolean:
      out += value.get<bool>() ? '\x88' : '\x89';
      break;
    case Type::number_integer:
    case Type::number_unsigned:
      out += "\x8a\x08";  // a number of eight bytes
      AppendLittleEndian(out, static_cast<uint64_t>(value.get<int64_t>()), 8);
      break;
    case Type::number_float:
      out += 'G';  // big-endian
      AppendLittleEndian(out, __builtin_bswap64(std::bit_cast<uint64_t>(value.get<double>())), 8);
      break;
    case Type::null:
    case Type::binary:
    case Type::discarded:
      out += 'N';
      break;
  }
}

}  // namespace

std::string Pickle(const nlohmann::json& value) {
  std::string out = "\x80\x02";
  Append(out, value);
  out += '.';
  return out;
}

}  // namespace tutti::tools
