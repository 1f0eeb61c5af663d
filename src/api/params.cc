// The settings in force, by name.

#include <cstring>
#include <limits>
#include <vector>

#include "api/context.h"
#include "base/log.h"
#include "base/text.h"
#include "config/settings.h"
#include "nccl.h"

// The object to which an ncclParamHandle_t points: a row of the settings table, which lives as long
// as the library.
struct ncclParamHandle {
  tutti::SettingInfo info;
};

namespace tutti::api {
namespace {

const std::vector<ncclParamHandle>& Handles() {
  static const auto* const handles = [] {
    auto* all = new std::vector<ncclParamHandle>;
    for (const SettingInfo& info : AllSettings()) all->push_back({info});
    return all;
  }();
  return *handles;
}

Result<const ncclParamHandle*> FindHandle(const char* key) {
  if (key == nullptr) return InvalidArgument("key is null");
  for (const ncclParamHandle& handle : Handles())
    if (handle.info.variable == key) return &handle;
  return InvalidArgument("{} is no setting of this library", key);
}

Status CheckParam(ncclParamHandle_t handle) {
  for (const ncclParamHandle& known : Handles())
    if (&known == handle) return Status::Ok();
  return InvalidArgument("the handle did not come from ncclParamBind");
}

Status Bind(ncclParamHandle_t* out, const char* key) {
  if (out == nullptr) return InvalidArgument("out is null");
  TUTTI_ASSIGN(const ncclParamHandle* const handle, FindHandle(key));
  *out = const_cast<ncclParamHandle_t>(handle);
  return Status::Ok();
}

Result<std::string> Text(ncclParamHandle_t handle) {
  TUTTI_TRY(CheckParam(handle));
  TUTTI_ASSIGN(const Settings settings, ReadProcessSettings());
  return handle->info.format(settings);
}

template <class Int>
Status GetInteger(ncclParamHandle_t handle, Int* out) {
  if (out == nullptr) return InvalidArgument("out is null");
  TUTTI_ASSIGN(const std::string text, Text(handle));
  const std::optional<Int> value = WholeNumber<Int>(text);
  if (!value)
    return InvalidArgument("{} is \"{}\", which is no integer between {} and {}",
                           handle->info.variable, text, std::numeric_limits<Int>::min(),
                           std::numeric_limits<Int>::max());
  *out = *value;
  return Status::Ok();
}

Status GetText(ncclParamHandle_t handle, const char** out) {
  thread_local std::string kept;
  if (out == nullptr) return InvalidArgument("out is null");
  TUTTI_ASSIGN(kept, Text(handle));
  *out = kept.c_str();
  return Status::Ok();
}

Status GetBytes(ncclParamHandle_t handle, void* out, int capacity, int* length) {
  if (out == nullptr || length == nullptr) return InvalidArgument("out or len is null");
  TUTTI_ASSIGN(const std::string text, Text(handle));
  if (capacity < 0 || text.size() > static_cast<size_t>(capacity))
    return InvalidArgument("{} bytes are too few for the {} of {}", capacity, text.size(),
                           handle->info.variable);
  std::memcpy(out, text.data(), text.size());
  *length = static_cast<int>(text.size());
  return Status::Ok();
}

Status GetByKey(const char* key, const char** value, int* length) {
  thread_local std::string kept;
  if (value == nullptr || length == nullptr) return InvalidArgument("value or valueLen is null");
  TUTTI_ASSIGN(const ncclParamHandle* const handle, FindHandle(key));
  TUTTI_ASSIGN(kept, Text(const_cast<ncclParamHandle_t>(handle)));
  *value = kept.c_str();
  *length = static_cast<int>(kept.size());
  return Status::Ok();
}

Status AllKeys(const char*** table, int* length) {
  thread_local std::vector<const char*> keys;
  if (table == nullptr || length == nullptr) return InvalidArgument("table or tableLen is null");
  keys.clear();
  // The variables' names are string literals of the settings table.
  for (const ncclParamHandle& handle : Handles()) keys.push_back(handle.info.variable.data());
  *table = keys.data();
  *length = static_cast<int>(keys.size());
  return Status::Ok();
}

}  // namespace
}  // namespace tutti::api

using tutti::api::Return;

ncclResult_t ncclParamBind(ncclParamHandle_t* out, const char* key) {
  return Return(__func__, [&] { return tutti::api::Bind(out, key); });
}
ncclResult_t ncclParamGetI8(ncclParamHandle_t h, int8_t* out) {
  return Return(__func__, [&] { return tutti::api::GetInteger(h, out); });
}
ncclResult_t ncclParamGetI16(ncclParamHandle_t h, int16_t* out) {
  return Return(__func__, [&] { return tutti::api::GetInteger(h, out); });
}
ncclResult_t ncclParamGetI32(ncclParamHandle_t h, int32_t* out) {
  return Return(__func__, [&] { return tutti::api::GetInteger(h, out); });
}
ncclResult_t ncclParamGetI64(ncclParamHandle_t h, int64_t* out) {
  return Return(__func__, [&] { return tutti::api::GetInteger(h, out); });
}
ncclResult_t ncclParamGetU8(ncclParamHandle_t h, uint8_t* out) {
  return Return(__func__, [&] { return tutti::api::GetInteger(h, out); });
}
ncclResult_t ncclParamGetU16(ncclParamHandle_t h, uint16_t* out) {
  return Return(__func__, [&] { return tutti::api::GetInteger(h, out); });
}
ncclResult_t ncclParamGetU32(ncclParamHandle_t h, uint32_t* out) {
  return Return(__func__, [&] { return tutti::api::GetInteger(h, out); });
}
ncclResult_t ncclParamGetU64(ncclParamHandle_t h, uint64_t* out) {
  return Return(__func__, [&] { return tutti::api::GetInteger(h, out); });
}
ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char** out) {
  return Return(__func__, [&] { return tutti::api::GetText(h, out); });
}
ncclResult_t ncclParamGet(ncclParamHandle_t h, void* out, int maxLen, int* len) {
  return Return(__func__, [&] { return tutti::api::GetBytes(h, out, maxLen, len); });
}
ncclResult_t ncclParamGetParameter(const char* key, const char** value, int* valueLen) {
  return Return(__func__, [&] { return tutti::api::GetByKey(key, value, valueLen); });
}
ncclResult_t ncclParamGetAllParameterKeys(const char*** table, int* tableLen) {
  return Return(__func__, [&] { return tutti::api::AllKeys(table, tableLen); });
}

void ncclParamDumpAll() {
  Return(__func__, []() -> tutti::Status {
    TUTTI_ASSIGN(const tutti::Settings settings, tutti::ReadProcessSettings());
    for (const tutti::SettingInfo& info : tutti::AllSettings())
      tutti::log::Write(tutti::LogLevel::kInfo,
                        fmt::format("{} = {}", info.variable, info.format(settings)));
    return tutti::Status::Ok();
  });
}

TUTTI_PNCCL(ParamBind);
TUTTI_PNCCL(ParamGetI8);
TUTTI_PNCCL(ParamGetI16);
TUTTI_PNCCL(ParamGetI32);
TUTTI_PNCCL(ParamGetI64);
TUTTI_PNCCL(ParamGetU8);
TUTTI_PNCCL(ParamGetU16);
TUTTI_PNCCL(ParamGetU32);
TUTTI_PNCCL(ParamGetU64);
TUTTI_PNCCL(ParamGetStr);
TUTTI_PNCCL(ParamGet);
TUTTI_PNCCL(ParamGetParameter);
TUTTI_PNCCL(ParamGetAllParameterKeys);
TUTTI_PNCCL(ParamDumpAll);
