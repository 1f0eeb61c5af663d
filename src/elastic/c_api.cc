// The C functions: check, translate, call the client.

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/last_error.h"
#include "base/text.h"
#include "elastic/store.h"
#include "tutti/elastic_c.h"

struct tuttiElastic {
  std::unique_ptr<tutti::elastic::StoreClient> client;
};

namespace {

using namespace tutti;
using namespace tutti::elastic;

static_assert(TUTTI_ELASTIC_MAX_VALUE_BYTES == kMaxValueBytes);

thread_local LastError last_error;

// Returns the outcome of `call`, also when `call` throws.
template <class F>
ncclResult_t Answer(const char* function, F call) noexcept {
  return static_cast<ncclResult_t>(last_error.Keep(function, call));
}

Status Connect(tuttiElastic_t* elastic, const char* addresses, const char* key, double timeout_s) {
  if (!elastic || !addresses || !key) return InvalidArgument("an argument is null");
  if (*key == '\0') {
    return InvalidUsage(
        "the secret of the elastic store is empty, and everybody has an empty secret: the launcher "
        "sets TUTTI_COMM_KEY for its workers, and the variable must stay in their environment");
  }
  std::vector<SocketAddress> found;
  Status unknown;
  for (std::string_view rest = addresses; !rest.empty();) {
    Result<SocketAddress> address = ParseSocketAddress(NextItem(rest, ','));
    // A launcher names every address of its own; some may mean nothing here.
    if (address.ok()) {
      found.push_back(*address);
    } else {
      unknown = std::move(address).status();
    }
  }
  if (found.empty() && !unknown.ok()) return unknown;
  TUTTI_ASSIGN(auto client,
               StoreClient::Connect(found, StoreKey(key), {Deadline::AfterSeconds(timeout_s)}));
  *elastic = new tuttiElastic{std::move(client)};
  return Status::Ok();
}

// Size and version are set even when the value does not fit, so the caller can try again with more
// room.
Status Get(tuttiElastic_t elastic, const char* key, uint64_t newer_than, double wait_s, void* value,
           size_t capacity, size_t* size, uint64_t* version) {
  if (!elastic || !key || !size || !version || (!value && capacity)) {
    return InvalidArgument("an argument is null");
  }
  TUTTI_ASSIGN(const Entry entry, elastic->client->Get(key, newer_than, wait_s));
  *size = entry.value.size();
  *version = entry.version;
  if (entry.value.size() > capacity) {
    return InvalidArgument("the value of \"{}\" has {} bytes, and there is room for {}", key,
                           entry.value.size(), capacity);
  }
  if (!entry.value.empty()) std::memcpy(value, entry.value.data(), entry.value.size());
  return Status::Ok();
}

Status Set(tuttiElastic_t elastic, const char* key, const void* value, size_t size) {
  if (!elastic || !key || (!value && size)) return InvalidArgument("an argument is null");
  TUTTI_ASSIGN([[maybe_unused]] const uint64_t version,
               elastic->client->Set(key, {static_cast<const char*>(value), size}));
  return Status::Ok();
}

}  // namespace

ncclResult_t tuttiElasticConnect(tuttiElastic_t* elastic, const char* addresses, const char* key,
                                 double timeout_s) {
  return Answer(__func__, [&] { return Connect(elastic, addresses, key, timeout_s); });
}

ncclResult_t tuttiElasticSet(tuttiElastic_t elastic, const char* key, const void* value,
                             size_t size) {
  return Answer(__func__, [&] { return Set(elastic, key, value, size); });
}

ncclResult_t tuttiElasticGet(tuttiElastic_t elastic, const char* key, uint64_t newer_than,
                             double wait_s, void* value, size_t capacity, size_t* size,
                             uint64_t* version) {
  return Answer(__func__, [&] {
    return Get(elastic, key, newer_than, wait_s, value, capacity, size, version);
  });
}

ncclResult_t tuttiElasticInterrupt(tuttiElastic_t elastic) {
  return Answer(__func__, [&] {
    if (!elastic) return InvalidArgument("the handle is null");
    elastic->client->Interrupt();
    return Status::Ok();
  });
}

ncclResult_t tuttiElasticClose(tuttiElastic_t elastic) {
  return Answer(__func__, [&] {
    delete elastic;
    return Status::Ok();
  });
}

const char* tuttiElasticLastError(void) { return last_error.sentence(); }
