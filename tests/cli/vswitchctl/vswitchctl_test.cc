#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <memory>

#include "absl/synchronization/notification.h"
#include "tests/cli/vswitchctl/ctl_fixture.h"
#include "vswitch/v1/bridge.grpc.pb.h"

namespace vswitch::ctl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using vswitch::testing::ProcessResult;
using vswitch::testing::run_process;

TEST_F(CtlTest, CreatesAndDeletes) {
  EXPECT_EQ(output({"create", "bridge", "br0"}), "bridge \"br0\" created\n");
  EXPECT_EQ(output({"create", "port", "web", "--bridge", "br0", "--vhost-user", "web.sock", "--mtu",
                    "9000", "--queue-pairs", "4"}),
            "port \"web\" created\n");
  EXPECT_EQ(switch_.controller().port("web", absl::InfiniteFuture())->spec.mtu, 9000u);
  EXPECT_EQ(switch_.controller().port("web", absl::InfiniteFuture())->spec.queue_pairs, 4u);
  EXPECT_THAT(output({"get", "port", "web", "-o", "json"}), HasSubstr("\"queuePairs\": 4"));
  EXPECT_EQ(output({"delete", "port", "web"}), "port \"web\" deleted\n");
  EXPECT_EQ(output({"delete", "bridge", "bridges/br0"}), "bridge \"br0\" deleted\n");
  EXPECT_EQ(output({"get", "bridges", "-o", "name"}), "");
}

TEST_F(CtlTest, NamesAreOneALineAndNothingElse) {
  make_ports();
  EXPECT_EQ(output({"get", "ports", "-o", "name"}), "db\nweb\n");
  EXPECT_EQ(output({"get", "port", "web", "-o", "name"}), "web\n");
  EXPECT_EQ(output({"get", "bridge", "-o", "name"}), "br0\n");
  EXPECT_EQ(output({"get", "workers", "-o", "name"}), "0\n");
  EXPECT_EQ(output({"create", "bridge", "br1", "-o", "name"}), "br1\n");
}

TEST_F(CtlTest, TablesAreAligned) {
  make_ports();
  switch_.fake().set_status("web", [](dataplane::PortStatus& status) {
    status.state = dataplane::PortState::kUp;
    status.receive.packets = 123456;
    status.transmit.dropped[0] = 7;
  });
  const std::string dir = switch_.dir().path();
  EXPECT_EQ(
      output({"get", "ports"}),
      "NAME  BRIDGE  KIND        STATE      MTU   RX-PACKETS  RX-DROPS  TX-PACKETS  TX-DROPS  "
      "SOCKET\n"
      "db    br0     vhost-user  Listening  1500  0           0         0           0         " +
          dir + "/db.sock\n" +
          "web   br0     vhost-user  Up         1500  123456      0         0           7        "
          " " +
          dir + "/web.sock\n");
  EXPECT_THAT(output({"get", "ports", "--no-headers"}), StartsWith("db "));
  EXPECT_THAT(output({"get", "ports", "-o", "wide"}), HasSubstr("CONNECTIONS"));
  EXPECT_THAT(output({"get", "ports", "-o", "wide"}), HasSubstr("QUEUE-PAIRS"));
  EXPECT_EQ(output({"get", "bridges"}), "NAME  PORTS  FDB-ENTRIES\nbr0   2      0\n");
}

TEST_F(CtlTest, WorkersShowTheirLoad) {
  EXPECT_EQ(output({"get", "workers"}),
            "NAME  CPU  QUEUES  PACKETS  CYCLES/FRAME  BUSY\n"
            "0     1    0       100      120.0         50.0%\n");
}

TEST_F(CtlTest, FdbAndSystem) {
  make_ports();
  switch_.fake().set_fdb({{"br0", 0, {2, 0, 0, 0, 0, 1}, "web", absl::Seconds(3)}});
  EXPECT_EQ(output({"get", "fdb"}),
            "BRIDGE  VLAN  MAC                PORT  AGE\n"
            "br0     0     02:00:00:00:00:01  web   3s\n");
  EXPECT_EQ(output({"get", "fdb", "br0", "-o", "name"}), "02:00:00:00:00:01\n");
  EXPECT_EQ(ctl({"get", "fdb", "br9"}).exit_code, 3);
  EXPECT_THAT(output({"get", "system"}), AllOf(HasSubstr("64 MiB"), HasSubstr("ordinary-pages")));
}

TEST_F(CtlTest, JsonIsProto3Json) {
  make_ports();
  // JSON is YAML, so one parser does.
  const YAML::Node list = YAML::Load(output({"get", "ports", "-o", "json"}));
  ASSERT_EQ(list.size(), 1u);
  ASSERT_EQ(list["ports"].size(), 2u);
  EXPECT_EQ(list["ports"][1]["name"].as<std::string>(), "ports/web");
  EXPECT_EQ(list["ports"][1]["vhostUser"]["socketPath"].as<std::string>(), "web.sock");
  EXPECT_EQ(list["ports"][1]["receive"]["packets"].as<std::string>(), "0");
  const YAML::Node one = YAML::Load(output({"get", "port", "web", "-o", "json"}));
  EXPECT_EQ(one["name"].as<std::string>(), "ports/web");
  EXPECT_EQ(one["state"].as<std::string>(), "LISTENING");
  EXPECT_EQ(output({"get", "fdb", "-o", "json"}), "{\n \"fdbEntries\": []\n}\n");
  EXPECT_THAT(output({"get", "bridge", "br0", "-o", "json"}), StartsWith("{\n \"name\""));
}

TEST_F(CtlTest, YamlHasTheSameStructure) {
  ASSERT_TRUE(switch_.create_bridge("true").ok());
  ASSERT_TRUE(switch_.create_port("null", "bridges/true").ok());
  const std::string yaml = output({"get", "ports", "-o", "yaml"});
  EXPECT_THAT(yaml, AllOf(StartsWith("ports:\n"), Not(HasSubstr("{\n"))));
  const YAML::Node from_yaml = YAML::Load(yaml);
  const YAML::Node from_json = YAML::Load(output({"get", "ports", "-o", "json"}));
  EXPECT_EQ(YAML::Dump(from_yaml["ports"][0]["vhostUser"]["socketPath"]),
            YAML::Dump(from_json["ports"][0]["vhostUser"]["socketPath"]));
  EXPECT_EQ(from_yaml["ports"][0].size(), from_json["ports"][0].size());
  EXPECT_EQ(from_yaml["ports"][0]["receive"]["packets"].Tag(), "!") << "a string, as in JSON";
}

TEST_F(CtlTest, GlobalFlagsStandAnywhere) {
  make_ports();
  const std::string path = switch_.api_path();
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {VSWITCHCTL, "--server", path, "-o", "name", "get", "ports"},
           {VSWITCHCTL, "get", "--server", path, "-o", "name", "ports"},
           {VSWITCHCTL, "get", "ports", "--server", path, "-o", "name"},
           {VSWITCHCTL, "get", "ports", "-o", "name", "--server", "unix://" + path},
           {VSWITCHCTL, "get", "ports", "--output=name", "--server=" + path},
       }) {
    const ProcessResult result = run_process(arguments, {"VSWITCH_SERVER=/nonexistent/x"});
    EXPECT_EQ(result.out, "db\nweb\n") << result.err;
  }
}

TEST_F(CtlTest, MissingOnesAreExitCode3) {
  make_ports();
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"get", "port", "nobody"},
           {"get", "bridge", "nobody"},
           {"get", "worker", "9"},
           {"describe", "port", "nobody"},
           {"describe", "bridge", "nobody"},
           {"delete", "port", "nobody"},
           {"delete", "bridge", "nobody"},
           {"create", "port", "p", "--bridge", "nobody", "--vhost-user", "p.sock"},
       }) {
    const ProcessResult result = ctl(arguments);
    EXPECT_EQ(result.exit_code, 3) << arguments[0] << " " << arguments[1];
    EXPECT_THAT(result.err, StartsWith("vswitchctl: no such "));
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(CtlTest, FailedCallsAreExitCode1) {
  make_ports();
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"create", "bridge", "br0"},
           {"create", "bridge", "Bad_Name"},
           {"create", "port", "p", "--bridge", "br0", "--vhost-user", "web.sock"},
           {"delete", "bridge", "br0"},
       }) {
    const ProcessResult result = ctl(arguments);
    EXPECT_EQ(result.exit_code, 1) << arguments[2];
    EXPECT_THAT(result.err, StartsWith("vswitchctl: "));
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(CtlTest, BadUsageIsExitCode2) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {},
           {"frobnicate"},
           {"get"},
           {"get", "things"},
           {"create", "bridge"},
           {"create", "port", "web"},
           {"create", "port", "web", "--bridge", "br0"},
           {"create", "port", "web", "--bridge", "br0", "--vhost-user", "w", "--mtu", "67"},
           {"create", "port", "web", "--bridge", "br0", "--vhost-user", "w", "--queue-pairs", "0"},
           {"create", "port", "web", "--bridge", "br0", "--vhost-user", "w", "--queue-pairs", "17"},
           {"describe", "port"},
           {"delete", "port"},
           {"get", "ports", "-o", "xml"},
           {"get", "ports", "--timeout", "soon"},
           {"get", "ports", "--timeout", "-1s"},
           {"get", "ports", "--server", "host:port"},
           {"get", "ports", "a", "b"},
       }) {
    const ProcessResult result = ctl(arguments);
    EXPECT_EQ(result.exit_code, 2) << ::testing::PrintToString(arguments);
    EXPECT_THAT(result.err, StartsWith("vswitchctl: "));
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(CtlTest, UnknownWordsAreNamedWithTheChoices) {
  EXPECT_THAT(ctl({"frob"}).err,
              HasSubstr("\"frob\" is unknown: expected create, get, describe or delete;"));
  EXPECT_THAT(ctl({"get", "things", "x"}).err,
              HasSubstr("\"things\" is unknown: expected bridges, ports, fdb, workers or system "
                        "after get;"));
  EXPECT_THAT(ctl({"delete"}).err, HasSubstr("expected bridge or port after delete;"));
  EXPECT_THAT(ctl({"create", "bridge"}).err, HasSubstr("NAME"));
}

TEST_F(CtlTest, BadAddressIsReportedWhereItStands) {
  const std::vector<std::string> arguments = {VSWITCHCTL, "get", "ports"};
  const ProcessResult result = run_process(arguments, {"VSWITCH_SERVER=host:port"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, StartsWith("vswitchctl: VSWITCH_SERVER: bad address \"host:port\""));
  EXPECT_THAT(ctl({"get", "ports", "--server", "host:port"}).err,
              StartsWith("vswitchctl: --server: bad address"));
  EXPECT_THAT(ctl({"get", "ports", "--server", ""}).err, StartsWith("vswitchctl: --server: "));
}

TEST_F(CtlTest, UnreachableServerSaysWhereAndWhatToDo) {
  const ProcessResult result =
      ctl({"get", "ports", "--server", switch_.dir() / "nobody.sock", "--timeout", "5s"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("cannot reach vswitchd at unix://"), HasSubstr("nobody.sock"),
                    HasSubstr("vswitchd --listen"), HasSubstr("VSWITCH_SERVER")));
}

// A switch that says, or never gets to say, that it could not do it in time.
class LateSwitch final : public v1::BridgeService::Service {
 public:
  explicit LateSwitch(const std::string& path) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~LateSwitch() override {
    end_.Notify();
    server_->Shutdown();
    server_->Wait();
  }

 private:
  grpc::Status CreateBridge(grpc::ServerContext*, const v1::CreateBridgeRequest*,
                            v1::Bridge*) override {
    return {grpc::StatusCode::DEADLINE_EXCEEDED, "the data plane is late", "details"};
  }
  grpc::Status GetBridge(grpc::ServerContext*, const v1::GetBridgeRequest*, v1::Bridge*) override {
    end_.WaitForNotification();
    return grpc::Status::OK;
  }

  absl::Notification end_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(CtlTest, TimeoutEndsTheWait) {
  const LateSwitch late(switch_.dir() / "late.sock");
  const ProcessResult result =
      ctl({"get", "bridge", "br0", "--server", switch_.dir() / "late.sock", "--timeout", "200ms"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("within 200ms"), HasSubstr("--timeout")));
}

TEST_F(CtlTest, TheSwitchSpeaksForItsOwnDeadline) {
  const LateSwitch late(switch_.dir() / "late.sock");
  const ProcessResult result =
      ctl({"create", "bridge", "br0", "--server", switch_.dir() / "late.sock"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, "vswitchctl: the data plane is late\n");
}

TEST_F(CtlTest, ListsOfMoreThanOnePageAreWhole) {
  ASSERT_TRUE(switch_.create_bridge("br0").ok());
  constexpr std::size_t kCount = 1001;
  for (std::size_t i = 1; i < kCount; ++i) {
    ASSERT_TRUE(switch_.create_bridge(std::string("b").append(std::to_string(i))).ok());
  }
  const std::string names = output({"get", "bridges", "-o", "name"});
  EXPECT_EQ(static_cast<std::size_t>(std::count(names.begin(), names.end(), '\n')), kCount);
}

TEST_F(CtlTest, HelpAndVersionSucceed) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"--help"}, {"--version"}, {"get", "--help"}, {"create", "port", "--help"}}) {
    EXPECT_THAT(output(arguments), Not(HasSubstr("\x1b")));
  }
  EXPECT_THAT(output({"--help"}), HasSubstr("Exit codes"));
}

}  // namespace
}  // namespace vswitch::ctl
