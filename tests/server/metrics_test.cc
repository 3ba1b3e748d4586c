#include "server/metrics.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <future>

#include "control/error.h"
#include "dataplane/os/unique_fd.h"
#include "server/metrics_server.h"
#include "server/version.h"
#include "tests/control/temp_dir.h"
#include "tests/server/fake_dataplane.h"

namespace vswitch::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using vswitch::testing::FakeDataplane;
using vswitch::testing::TempDir;
using vswitch::testing::write_file;

class MetricsTest : public ::testing::Test {
 protected:
  MetricsTest() {
    run([&](auto done) { dataplane_.create_bridge({"br0"}, done); });
    dataplane::PortConfig config;
    config.id = "web";
    config.bridge = "br0";
    config.kind = dataplane::VhostUserServerConfig{dir_ / "web.sock"};
    run([&](auto done) { dataplane_.create_port(config, done); });
    dataplane_.set_status("web", [](dataplane::PortStatus& status) {
      status.state = dataplane::PortState::kUp;
      status.receive.packets = 11;
      status.receive.bytes = 704;
      status.transmit.packets = 22;
      status.transmit.bytes = 33000;
      status.transmit.dropped[static_cast<std::size_t>(DropReason::kNoRxBuffer)] = 5;
      status.connections = 3;
      status.protocol_violations = 1;
      dataplane::QueueStatus queue;
      queue.available = 200;
      queue.notifications_sent = 7;
      queue.notifications_suppressed = 8;
      queue.notifications_full = 9;
      status.queues = {queue};
    });
  }

  template <typename Operation>
  static void run(Operation operation) {
    std::promise<absl::Status> done;
    operation([&](absl::Status status) { done.set_value(status); });
    ASSERT_TRUE(done.get_future().get().ok());
  }

  std::string scrape() {
    return prometheus::TextSerializer().Serialize(SwitchMetrics(dataplane_).Collect());
  }

  TempDir dir_;
  FakeDataplane dataplane_;
};

TEST_F(MetricsTest, CountsWhatTheDataPlaneCounts) {
  const std::string text = scrape();
  for (const std::string& line : std::vector<std::string>{
           "vswitch_port_receive_packets_total{port=\"web\"} 11\n",
           "vswitch_port_receive_bytes_total{port=\"web\"} 704\n",
           "vswitch_port_transmit_packets_total{port=\"web\"} 22\n",
           "vswitch_port_transmit_bytes_total{port=\"web\"} 33000\n",
           "vswitch_dropped_packets_total{port=\"web\",direction=\"transmit\","
           "reason=\"no-rx-buffer\"} 5\n",
           "vswitch_port_info{port=\"web\",bridge=\"br0\",kind=\"vhost-user\"} 1\n",
           "vswitch_port_state{port=\"web\",state=\"up\"} 1\n",
           "vswitch_port_state{port=\"web\",state=\"listening\"} 0\n",
           "vswitch_port_connections_total{port=\"web\"} 3\n",
           "vswitch_port_protocol_violations_total{port=\"web\"} 1\n",
           "vswitch_virtqueue_available_descriptors{port=\"web\",queue=\"0\"} 200\n",
           "vswitch_guest_notifications_total{port=\"web\",queue=\"0\",result=\"sent\"} 7\n",
           "vswitch_guest_notifications_total{port=\"web\",queue=\"0\",result=\"suppressed\"} 8\n",
           "vswitch_guest_notifications_total{port=\"web\",queue=\"0\",result=\"full\"} 9\n",
           "vswitch_worker_cpu_seconds_total{worker=\"0\",state=\"busy\"} 6",
           "vswitch_worker_cpu_seconds_total{worker=\"0\",state=\"idle\"} 6",
           "vswitch_worker_packets_total{worker=\"0\"} 100\n",
           "vswitch_worker_polls_total{worker=\"0\"} 1000\n",
           "vswitch_fdb_entries{bridge=\"br0\"} 0\n",
           "vswitch_memory_bytes{mode=\"ordinary\"} 67108864\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, HasSubstr(std::string("vswitch_build_info{version=\"") + kVersion + "\"} 1"));
}

TEST_F(MetricsTest, EveryDropReasonIsThereFromTheStart) {
  const std::string text = scrape();
  for (std::size_t i = 0; i < kDropReasonCount; ++i) {
    for (const char* direction : {"receive", "transmit"}) {
      EXPECT_THAT(text,
                  HasSubstr(std::string("vswitch_dropped_packets_total{port=\"web\","
                                        "direction=\"") +
                            direction + "\",reason=\"" +
                            std::string(drop_reason_label(static_cast<DropReason>(i))) + "\"} "));
    }
  }
}

TEST_F(MetricsTest, AreWhatPrometheusExpects) {
  write_file(dir_ / "metrics", scrape());
  const std::string command =
      std::string(PROMTOOL) + " check metrics < " + (dir_ / "metrics") + " 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char buffer[4096];
  while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) output += buffer;
  EXPECT_EQ(::pclose(pipe), 0) << output;
  EXPECT_EQ(output, "");
}

TEST_F(MetricsTest, StuckDataPlaneLeavesWhatIsKnown) {
  dataplane_.set_reads_stuck(true);
  EXPECT_THAT(scrape(), AllOf(HasSubstr("vswitch_build_info"), Not(HasSubstr("port=\"web\""))));
}

std::string http_get(int port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return "";
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  if (::write(fd.get(), request.data(), request.size()) < 0) return "";
  std::string answer;
  char buffer[4096];
  for (ssize_t count; (count = ::read(fd.get(), buffer, sizeof buffer)) > 0;) {
    answer.append(buffer, static_cast<std::size_t>(count));
  }
  return answer;
}

TEST_F(MetricsTest, AreServedCurrentAtTheScrape) {
  const auto server = MetricsServer::start(dataplane_, *api::parse_endpoint("localhost:0"));
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(http_get((*server)->port()),
              AllOf(HasSubstr("200 OK"),
                    HasSubstr("vswitch_port_receive_packets_total{port=\"web\"} 11\n")));
  dataplane_.set_status("web", [](dataplane::PortStatus& status) { status.receive.packets = 12; });
  EXPECT_THAT(http_get((*server)->port()),
              HasSubstr("vswitch_port_receive_packets_total{port=\"web\"} 12\n"));
}

TEST_F(MetricsTest, PortInUseIsNamed) {
  const auto first = MetricsServer::start(dataplane_, *api::parse_endpoint("127.0.0.1:0"));
  ASSERT_TRUE(first.ok());
  std::string address = "127.0.0.1:";
  address += std::to_string((*first)->port());
  const absl::Status second =
      MetricsServer::start(dataplane_, *api::parse_endpoint(address)).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(control::message_of(second), HasSubstr(address));
}

}  // namespace
}  // namespace vswitch::server
