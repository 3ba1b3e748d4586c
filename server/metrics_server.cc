#include "server/metrics_server.h"

#include <prometheus/exposer.h>

#include <exception>
#include <utility>
#include <vector>

#include "server/metrics.h"

namespace vswitch::server {
namespace {

class HttpServer final : public MetricsServer {
 public:
  HttpServer(std::unique_ptr<prometheus::Exposer> exposer, std::shared_ptr<SwitchMetrics> metrics)
      : metrics_(std::move(metrics)), exposer_(std::move(exposer)) {
    exposer_->RegisterCollectable(metrics_);
  }

  int port() const override {
    const std::vector<int> ports = exposer_->GetListeningPorts();
    return ports.empty() ? 0 : ports.front();
  }

 private:
  std::shared_ptr<SwitchMetrics> metrics_;
  std::unique_ptr<prometheus::Exposer> exposer_;  // goes first: it ends the scrapes
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::start(dataplane::Dataplane& dataplane,
                                                                    const api::Endpoint& endpoint) {
  if (endpoint.kind != api::Endpoint::Kind::kTcp) {
    return absl::InvalidArgumentError("cannot serve metrics on " + endpoint.to_string() +
                                      ": write HOST:PORT for --metrics-listen");
  }
  api::Endpoint numeric = endpoint;
  if (numeric.host == "localhost") numeric.host = "127.0.0.1";  // civetweb takes no names
  // The library reports by exceptions; they end here.
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(
        std::vector<std::string>{"listening_ports", numeric.to_string(), "num_threads", "2"});
    return std::unique_ptr<MetricsServer>(std::make_unique<HttpServer>(
        std::move(exposer), std::make_shared<SwitchMetrics>(dataplane)));
  } catch (const std::exception&) {
    return absl::FailedPreconditionError(
        "cannot serve metrics on " + endpoint.to_string() +
        ": the address is in use or not on this machine, choose another --metrics-listen, or off");
  }
}

}  // namespace vswitch::server
