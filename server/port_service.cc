#include <grpcpp/server_context.h>

#include "server/pagination.h"
#include "server/services.h"
#include "server/status.h"
#include "server/translate.h"
#include "vswitch/v1/port.grpc.pb.h"

namespace vswitch::server {
namespace {

class PortService final : public v1::PortService::Service {
 public:
  explicit PortService(control::Controller& controller) : controller_(controller) {}

  grpc::Status CreatePort(grpc::ServerContext* context, const v1::CreatePortRequest* request,
                          v1::Port* response) override {
    if (absl::Status status = controller_.check_ready(); !status.ok()) return to_grpc(status);
    const auto spec = port_spec(*request);
    if (!spec.ok()) return to_grpc(spec.status());
    const absl::Status created =
        controller_.create_port(*spec, change_deadline(context->deadline()));
    if (!created.ok()) return to_grpc(created);
    const auto port = controller_.port(spec->id, read_deadline(context->deadline()));
    if (port.ok()) {
      *response = to_proto(*port);
      return grpc::Status::OK;
    }
    // The change is made and durable: a reading that comes too late must not turn OK into an error.
    control::PortView view{*spec, {}};
    view.status.state_since = absl::Now();
    *response = to_proto(view);
    return grpc::Status::OK;
  }

  grpc::Status GetPort(grpc::ServerContext* context, const v1::GetPortRequest* request,
                       v1::Port* response) override {
    if (absl::Status status = controller_.check_ready(); !status.ok()) return to_grpc(status);
    const auto id = parse_resource_name(kPorts, request->name(), "name");
    if (!id.ok()) return to_grpc(id.status());
    const auto port = controller_.port(*id, read_deadline(context->deadline()));
    if (port.ok()) *response = to_proto(*port);
    return to_grpc(port.status());
  }

  grpc::Status ListPorts(grpc::ServerContext* context, const v1::ListPortsRequest* request,
                         v1::ListPortsResponse* response) override {
    auto ports = controller_.ports(read_deadline(context->deadline()));
    if (!ports.ok()) return to_grpc(ports.status());
    auto page = make_page("ports", *std::move(ports), request->page_size(), request->page_token(),
                          [](const control::PortView& view) { return view.spec.id; });
    if (!page.ok()) return to_grpc(page.status());
    for (const auto& port : page->items) *response->add_ports() = to_proto(port);
    response->set_next_page_token(page->next_page_token);
    return grpc::Status::OK;
  }

  grpc::Status DeletePort(grpc::ServerContext* context, const v1::DeletePortRequest* request,
                          google::protobuf::Empty*) override {
    if (absl::Status status = controller_.check_ready(); !status.ok()) return to_grpc(status);
    const auto id = parse_resource_name(kPorts, request->name(), "name");
    if (!id.ok()) return to_grpc(id.status());
    return to_grpc(controller_.delete_port(*id, change_deadline(context->deadline())));
  }

 private:
  control::Controller& controller_;
};

}  // namespace

std::unique_ptr<grpc::Service> make_port_service(control::Controller& controller) {
  return std::make_unique<PortService>(controller);
}

}  // namespace vswitch::server
