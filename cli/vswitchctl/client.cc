#include "cli/vswitchctl/client.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "vswitch/v1/bridge.grpc.pb.h"
#include "vswitch/v1/fdb.grpc.pb.h"
#include "vswitch/v1/port.grpc.pb.h"
#include "vswitch/v1/system.grpc.pb.h"

namespace vswitch::ctl {
namespace {

constexpr int kPageSize = 1000;

std::shared_ptr<grpc::Channel> connect(const api::Endpoint& server) {
  grpc::ChannelArguments arguments;
  // A proxy for the web has no way to a switch on this machine.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Ports with thousands of counters a page are larger than the default of 4 MiB.
  arguments.SetMaxReceiveMessageSize(64 << 20);
  return grpc::CreateCustomChannel(server.grpc_target(), grpc::InsecureChannelCredentials(),
                                   arguments);
}

}  // namespace

struct Client::Rpc {
  Rpc(const api::Endpoint& to, absl::Duration how_long)
      : server(to),
        timeout(how_long),
        deadline(absl::Now() + how_long),
        channel(connect(to)),
        bridge_service(v1::BridgeService::NewStub(channel)),
        port_service(v1::PortService::NewStub(channel)),
        fdb_service(v1::FdbService::NewStub(channel)),
        system_service(v1::SystemService::NewStub(channel)) {}

  // Calls `method` of `stub` and turns its status into one for the user.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> call(Stub& stub,
                                grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    Response response;
    const grpc::Status status = (stub.*method)(&context, request, &response);
    if (status.ok()) return response;
    return explain(status);
  }

  // Walks the pages of a list.
  template <typename Item, typename Stub, typename Request, typename Response, typename Items>
  absl::StatusOr<std::vector<Item>> list(Stub& stub,
                                         grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                      const Request&, Response*),
                                         Request request, Items items) {
    std::vector<Item> all;
    request.set_page_size(kPageSize);
    do {
      absl::StatusOr<Response> page = call(stub, method, request);
      if (!page.ok()) return page.status();
      for (Item& item : *items(*page)) all.push_back(std::move(item));
      request.set_page_token(page->next_page_token());
    } while (!request.page_token().empty());
    return all;
  }

  absl::Status explain(const grpc::Status& status) const {
    const auto code = static_cast<absl::StatusCode>(status.error_code());
    std::string message = status.error_message();
    // Errors of the switch carry details; without them the call did not get there.
    const bool is_from_switch = !status.error_details().empty();
    if (code == absl::StatusCode::kUnavailable && !is_from_switch) {
      message = "cannot reach vswitchd at " + server.to_string() + ": " + message +
                "\nIs it running? Start it with: vswitchd --listen " + server.to_string() +
                "\nOr say where it is with --server or VSWITCH_SERVER.";
    } else if (code == absl::StatusCode::kDeadlineExceeded && !is_from_switch) {
      message = "no answer from vswitchd at " + server.to_string() + " within " +
                absl::FormatDuration(timeout) + "; wait longer with --timeout";
    }
    return absl::Status(code, message);
  }

  api::Endpoint server;
  absl::Duration timeout;
  absl::Time deadline;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::BridgeService::Stub> bridge_service;
  std::unique_ptr<v1::PortService::Stub> port_service;
  std::unique_ptr<v1::FdbService::Stub> fdb_service;
  std::unique_ptr<v1::SystemService::Stub> system_service;
};

Client::Client(const api::Endpoint& server, absl::Duration timeout)
    : rpc_(std::make_unique<Rpc>(server, timeout)) {}

Client::~Client() = default;

std::string short_name(const std::string& resource_name) {
  return resource_name.substr(resource_name.rfind('/') + 1);
}

std::string full_name(const std::string& collection, const std::string& name) {
  return name.rfind(collection + "/", 0) == 0 ? name : collection + "/" + name;
}

absl::StatusOr<v1::Bridge> Client::create_bridge(const std::string& name) {
  v1::CreateBridgeRequest request;
  request.set_bridge_id(name);
  return rpc_->call(*rpc_->bridge_service, &v1::BridgeService::Stub::CreateBridge, request);
}

absl::StatusOr<v1::Bridge> Client::bridge(const std::string& name) {
  v1::GetBridgeRequest request;
  request.set_name(full_name("bridges", name));
  return rpc_->call(*rpc_->bridge_service, &v1::BridgeService::Stub::GetBridge, request);
}

absl::StatusOr<std::vector<v1::Bridge>> Client::bridges() {
  return rpc_->list<v1::Bridge>(
      *rpc_->bridge_service, &v1::BridgeService::Stub::ListBridges, v1::ListBridgesRequest(),
      [](v1::ListBridgesResponse& page) { return page.mutable_bridges(); });
}

absl::Status Client::delete_bridge(const std::string& name) {
  v1::DeleteBridgeRequest request;
  request.set_name(full_name("bridges", name));
  return rpc_->call(*rpc_->bridge_service, &v1::BridgeService::Stub::DeleteBridge, request)
      .status();
}

absl::StatusOr<v1::Port> Client::create_port(const std::string& name, const v1::Port& port) {
  v1::CreatePortRequest request;
  request.set_port_id(name);
  *request.mutable_port() = port;
  return rpc_->call(*rpc_->port_service, &v1::PortService::Stub::CreatePort, request);
}

absl::StatusOr<v1::Port> Client::port(const std::string& name) {
  v1::GetPortRequest request;
  request.set_name(full_name("ports", name));
  return rpc_->call(*rpc_->port_service, &v1::PortService::Stub::GetPort, request);
}

absl::StatusOr<std::vector<v1::Port>> Client::ports() {
  return rpc_->list<v1::Port>(*rpc_->port_service, &v1::PortService::Stub::ListPorts,
                              v1::ListPortsRequest(),
                              [](v1::ListPortsResponse& page) { return page.mutable_ports(); });
}

absl::Status Client::delete_port(const std::string& name) {
  v1::DeletePortRequest request;
  request.set_name(full_name("ports", name));
  return rpc_->call(*rpc_->port_service, &v1::PortService::Stub::DeletePort, request).status();
}

absl::StatusOr<std::vector<v1::FdbEntry>> Client::fdb(const std::string& bridge) {
  v1::ListFdbEntriesRequest request;
  request.set_parent(full_name("bridges", bridge.empty() ? "-" : bridge));
  return rpc_->list<v1::FdbEntry>(
      *rpc_->fdb_service, &v1::FdbService::Stub::ListFdbEntries, request,
      [](v1::ListFdbEntriesResponse& page) { return page.mutable_fdb_entries(); });
}

absl::StatusOr<std::vector<v1::Worker>> Client::workers() {
  absl::StatusOr<v1::ListWorkersResponse> response = rpc_->call(
      *rpc_->system_service, &v1::SystemService::Stub::ListWorkers, v1::ListWorkersRequest());
  if (!response.ok()) return response.status();
  return std::vector<v1::Worker>(response->workers().begin(), response->workers().end());
}

absl::StatusOr<v1::SystemInfo> Client::system() {
  return rpc_->call(*rpc_->system_service, &v1::SystemService::Stub::GetSystemInfo,
                    v1::GetSystemInfoRequest());
}

}  // namespace vswitch::ctl
