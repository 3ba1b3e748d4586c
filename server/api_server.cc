#include "server/api_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "server/api_socket.h"
#include "server/services.h"

namespace vswitch::server {
namespace {

constexpr mode_t kSocketMode = 0660;
constexpr std::size_t kMaxUnixPath = 107;

class GrpcServer final : public ApiServer {
 public:
  explicit GrpcServer(control::Controller& controller) {
    services_.push_back(make_bridge_service(controller));
    services_.push_back(make_port_service(controller));
    services_.push_back(make_fdb_service(controller));
    services_.push_back(make_system_service(controller));
  }
  ~GrpcServer() override { stop(absl::ZeroDuration()); }

  absl::Status listen(const std::vector<api::Endpoint>& endpoints) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    // Two daemons on one port would each get some of the calls.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    for (const auto& service : services_) builder.RegisterService(service.get());

    endpoints_ = endpoints;
    std::vector<std::string> bound(endpoints.size());
    std::vector<int> ports(endpoints.size(), 0);
    for (std::size_t i = 0; i < endpoints.size(); ++i) {
      bound[i] = bind_address(endpoints[i], i);
      builder.AddListeningPort(bound[i], grpc::InsecureServerCredentials(), &ports[i]);
    }
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return bind_error(ports);
    set_serving(false);

    for (std::size_t i = 0; i < endpoints.size(); ++i) {
      if (ports[i] == 0) return bind_error(ports);
      if (endpoints[i].kind == api::Endpoint::Kind::kTcp) {
        endpoints_[i].port = ports[i];
        continue;
      }
      const std::string from = bound[i].substr(5);  // without "unix:"
      if (from != endpoints[i].path) {
        absl::Status status = publish_socket(from, endpoints[i].path, kSocketMode);
        if (!status.ok()) return status;
      } else {
        ::chmod(from.c_str(), kSocketMode);
      }
      struct stat info {};
      if (::lstat(endpoints[i].path.c_str(), &info) == 0) {
        published_.push_back({endpoints[i].path, info.st_dev, info.st_ino});
      }
    }
    return absl::OkStatus();
  }

  void set_serving(bool serving) override {
    if (server_ == nullptr) return;
    grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
    health->SetServingStatus(serving);
    health->SetServingStatus(api::kDomain, serving);
  }

  void stop(absl::Duration grace) override {
    if (server_ == nullptr) return;
    server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
    server_->Wait();
    server_.reset();
    for (const Published& socket : published_) {
      struct stat info {};
      const bool is_ours = ::lstat(socket.path.c_str(), &info) == 0 &&
                           info.st_dev == socket.device && info.st_ino == socket.inode;
      if (is_ours) ::unlink(socket.path.c_str());
    }
    published_.clear();
  }

  const std::vector<api::Endpoint>& endpoints() const override { return endpoints_; }

 private:
  struct Published {
    std::string path;
    dev_t device;
    ino_t inode;
  };

  // A unix socket is bound under another name and published when health is set: gRPC's health
  // service says SERVING at first.
  static std::string bind_address(const api::Endpoint& endpoint, std::size_t index) {
    if (endpoint.kind == api::Endpoint::Kind::kTcp) return endpoint.to_string();
    const std::string hidden = unpublished_path(endpoint.path) + "-" + std::to_string(index);
    return "unix:" + (hidden.size() <= kMaxUnixPath ? hidden : endpoint.path);
  }

  absl::Status bind_error(const std::vector<int>& ports) const {
    for (std::size_t i = 0; i < ports.size(); ++i) {
      if (ports[i] != 0) continue;
      return absl::FailedPreconditionError(
          "cannot listen on " + endpoints_[i].to_string() +
          ": the address is in use or not on this machine, choose another --listen");
    }
    return absl::InternalError("cannot start the API server");
  }

  std::vector<std::unique_ptr<grpc::Service>> services_;
  std::unique_ptr<grpc::Server> server_;  // after the services it uses
  std::vector<api::Endpoint> endpoints_;
  std::vector<Published> published_;
};

}  // namespace

absl::Status ApiServer::check(const std::vector<api::Endpoint>& endpoints) {
  for (const api::Endpoint& endpoint : endpoints) {
    if (endpoint.kind == api::Endpoint::Kind::kUnix) {
      if (absl::Status status = check_socket_path(endpoint.path); !status.ok()) return status;
    } else if (!endpoint.is_loopback()) {
      return absl::InvalidArgumentError(
          "cannot listen on " + endpoint.to_string() +
          ": TCP is for loopback addresses only, because the API has no TLS yet");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ApiServer>> ApiServer::start(
    control::Controller& controller, const std::vector<api::Endpoint>& endpoints) {
  if (absl::Status status = check(endpoints); !status.ok()) return status;
  auto server = std::make_unique<GrpcServer>(controller);
  if (absl::Status status = server->listen(endpoints); !status.ok()) return status;
  return std::unique_ptr<ApiServer>(std::move(server));
}

}  // namespace vswitch::server
