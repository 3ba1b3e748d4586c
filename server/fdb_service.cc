#include <grpcpp/server_context.h>

#include <cstdio>

#include "server/pagination.h"
#include "server/services.h"
#include "server/status.h"
#include "server/translate.h"
#include "vswitch/v1/fdb.grpc.pb.h"

namespace vswitch::server {
namespace {

// Sorts as (bridge, VLAN, address) does: a space is below every character an id can hold.
std::string key_of(const dataplane::FdbEntry& entry) {
  char key[32];
  std::snprintf(key, sizeof key, " %04x/%02x%02x%02x%02x%02x%02x", entry.vlan, entry.mac[0],
                entry.mac[1], entry.mac[2], entry.mac[3], entry.mac[4], entry.mac[5]);
  return entry.bridge + key;
}

class FdbService final : public v1::FdbService::Service {
 public:
  explicit FdbService(control::Controller& controller) : controller_(controller) {}

  grpc::Status ListFdbEntries(grpc::ServerContext* context,
                              const v1::ListFdbEntriesRequest* request,
                              v1::ListFdbEntriesResponse* response) override {
    if (absl::Status status = controller_.check_ready(); !status.ok()) return to_grpc(status);
    std::string bridge;  // empty: all
    if (request->parent() != "bridges/-") {
      auto id = parse_resource_name(kBridges, request->parent(), "parent");
      if (!id.ok()) return to_grpc(id.status());
      bridge = *std::move(id);
    }
    auto entries = controller_.fdb(bridge, read_deadline(context->deadline()));
    if (!entries.ok()) return to_grpc(entries.status());
    auto page =
        make_page("fdb", *std::move(entries), request->page_size(), request->page_token(), key_of);
    if (!page.ok()) return to_grpc(page.status());
    for (const auto& entry : page->items) *response->add_fdb_entries() = to_proto(entry);
    response->set_next_page_token(page->next_page_token);
    return grpc::Status::OK;
  }

 private:
  control::Controller& controller_;
};

}  // namespace

std::unique_ptr<grpc::Service> make_fdb_service(control::Controller& controller) {
  return std::make_unique<FdbService>(controller);
}

}  // namespace vswitch::server
