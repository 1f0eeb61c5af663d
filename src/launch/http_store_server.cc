#include <map>
#include <utility>

#include "base/text.h"
#include "launch/http_store.h"

namespace tutti::launch {
namespace {

// Room of a value in the map beside the bytes of key and value.
constexpr size_t kValueOverheadBytes = 192;

struct StoreKey {
  std::string scope;
  std::string key;
  friend auto operator<=>(const StoreKey&, const StoreKey&) = default;
};

// Returns the key that the path /scope/key names; nothing for another path.
std::optional<StoreKey> KeyOf(std::string_view path) {
  path.remove_prefix(1);
  StoreKey key;
  key.scope = NextItem(path, '/');
  key.key = path;
  if (key.scope.empty() || key.key.empty() || key.key.find('/') != std::string::npos) return {};
  return key;
}

}  // namespace

// Holds the store's values, which live on the server's thread.
class HttpStoreServer::Values {
 public:
  bool Put(const StoreKey& key, std::string value) {
    const auto found = values_.find(key);
    const size_t old = found == values_.end() ? 0 : SizeOf(key, found->second);
    const size_t total = total_bytes_ - old + SizeOf(key, value);
    if (value.size() > kMaxHttpBodyBytes || total > kMaxTotalBytes) return false;
    values_[key] = std::move(value);
    total_bytes_ = total;
    return true;
  }
  size_t size() const { return values_.size(); }

  HttpResponse Serve(const HttpRequest& request) {
    const std::optional<StoreKey> key = KeyOf(request.path);
    if (!key) return {400};
    if (request.method == "PUT") return {Put(*key, request.body) ? 200 : 400};
    if (request.method == "DELETE") {
      Erase(*key);
      return {200};
    }
    if (request.method != "GET") return {400};
    const auto found = values_.find(*key);
    if (found == values_.end()) return {404};
    return {200, found->second};
  }

 private:
  static size_t SizeOf(const StoreKey& key, const std::string& value) {
    return key.scope.size() + key.key.size() + value.size() + kValueOverheadBytes;
  }

  void Erase(const StoreKey& key) {
    const auto found = values_.find(key);
    if (found == values_.end()) return;
    total_bytes_ -= SizeOf(key, found->second);
    values_.erase(found);
  }

  std::map<StoreKey, std::string> values_;
  size_t total_bytes_ = 0;  // SizeOf of all values
};

HttpStoreServer::HttpStoreServer(std::shared_ptr<Values> values, std::unique_ptr<HttpServer> server)
    : values_(std::move(values)), server_(std::move(server)) {}

HttpStoreServer::~HttpStoreServer() = default;

Result<std::unique_ptr<HttpStoreServer>> HttpStoreServer::Create(SocketAddress address) {
  auto values = std::make_shared<Values>();
  TUTTI_ASSIGN(
      auto server,
      HttpServer::Create(address, "the store of the launcher", [values](const auto& request) {
        return std::make_shared<const std::string>(EncodeHttpResponse(values->Serve(request)));
      }));
  return std::unique_ptr<HttpStoreServer>(
      new HttpStoreServer(std::move(values), std::move(server)));
}

void HttpStoreServer::Put(const std::string& scope, const std::string& key, std::string value) {
  server_->RunSync([&] { values_->Put({scope, key}, std::move(value)); });
}

size_t HttpStoreServer::size() const {
  size_t size = 0;
  server_->RunSync([&] { size = values_->size(); });
  return size;
}

}  // namespace tutti::launch
