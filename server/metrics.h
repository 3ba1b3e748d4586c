// The Prometheus families, read from the data plane at the moment of the scrape.
#pragma once

#include <prometheus/collectable.h>

#include <vector>

#include "dataplane/dataplane.h"

namespace vswitch::server {

class SwitchMetrics final : public prometheus::Collectable {
 public:
  // The data plane must outlive this object.
  explicit SwitchMetrics(dataplane::Dataplane& dataplane) : dataplane_(dataplane) {}

  // Any thread, at any moment. Never touches a worker. What the data plane does not answer in time
  // is left out of the scrape.
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  dataplane::Dataplane& dataplane_;
};

}  // namespace vswitch::server
