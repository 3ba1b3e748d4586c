#include <grpcpp/server_context.h>

#include "server/pagination.h"
#include "server/services.h"
#include "server/status.h"
#include "server/translate.h"
#include "vswitch/v1/bridge.grpc.pb.h"

namespace vswitch::server {
namespace {

class BridgeService final : public v1::BridgeService::Service {
 public:
  explicit BridgeService(control::Controller& controller) : controller_(controller) {}

  grpc::Status CreateBridge(grpc::ServerContext* context, const v1::CreateBridgeRequest* request,
                            v1::Bridge* response) override {
    const control::BridgeSpec spec = bridge_spec(*request);
    const absl::Status created =
        controller_.create_bridge(spec, change_deadline(context->deadline()));
    // A new bridge has nothing yet; asking the data plane could fail after the change was made.
    if (created.ok()) *response = to_proto(control::BridgeView{spec, {}});
    return to_grpc(created);
  }

  grpc::Status GetBridge(grpc::ServerContext* context, const v1::GetBridgeRequest* request,
                         v1::Bridge* response) override {
    if (absl::Status status = controller_.check_ready(); !status.ok()) return to_grpc(status);
    const auto id = parse_resource_name(kBridges, request->name(), "name");
    if (!id.ok()) return to_grpc(id.status());
    const auto bridge = controller_.bridge(*id, read_deadline(context->deadline()));
    if (bridge.ok()) *response = to_proto(*bridge);
    return to_grpc(bridge.status());
  }

  grpc::Status ListBridges(grpc::ServerContext* context, const v1::ListBridgesRequest* request,
                           v1::ListBridgesResponse* response) override {
    auto bridges = controller_.bridges(read_deadline(context->deadline()));
    if (!bridges.ok()) return to_grpc(bridges.status());
    auto page =
        make_page("bridges", *std::move(bridges), request->page_size(), request->page_token(),
                  [](const control::BridgeView& view) { return view.spec.id; });
    if (!page.ok()) return to_grpc(page.status());
    for (const auto& bridge : page->items) *response->add_bridges() = to_proto(bridge);
    response->set_next_page_token(page->next_page_token);
    return grpc::Status::OK;
  }

  grpc::Status DeleteBridge(grpc::ServerContext* context, const v1::DeleteBridgeRequest* request,
                            google::protobuf::Empty*) override {
    if (absl::Status status = controller_.check_ready(); !status.ok()) return to_grpc(status);
    const auto id = parse_resource_name(kBridges, request->name(), "name");
    if (!id.ok()) return to_grpc(id.status());
    return to_grpc(controller_.delete_bridge(*id, change_deadline(context->deadline())));
  }

 private:
  control::Controller& controller_;
};

}  // namespace

std::unique_ptr<grpc::Service> make_bridge_service(control::Controller& controller) {
  return std::make_unique<BridgeService>(controller);
}

}  // namespace vswitch::server
