// vswitchd as a program: starts that must fail, and clean stops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>

#include "tests/control/temp_dir.h"
#include "tests/server/process.h"

namespace vswitch::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using vswitch::testing::Process;
using vswitch::testing::ProcessResult;
using vswitch::testing::read_file;
using vswitch::testing::run_process;
using vswitch::testing::TempDir;
using vswitch::testing::wait_until;
using vswitch::testing::write_file;

class Vswitchd : public ::testing::Test {
 protected:
  std::vector<std::string> arguments(const std::vector<std::string>& more = {}) const {
    const std::vector<std::pair<std::string, std::string>> defaults = {
        {"--listen", socket_},  {"--run-dir", dir_ / "run"}, {"--state-dir", dir_ / "state"},
        {"--hugepages", "off"}, {"--log-level", "error"},    {"--metrics-listen", "off"}};
    std::vector<std::string> all = {VSWITCHD};
    for (const auto& [flag, value] : defaults) {
      if (std::find(more.begin(), more.end(), flag) != more.end()) continue;
      all.insert(all.end(), {flag, value});
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  // Non-zero, and one sentence for the operator.
  void expect_refused(const std::vector<std::string>& more, const std::string& text) {
    const ProcessResult result = run_process(arguments(more));
    EXPECT_NE(result.exit_code, 0);
    EXPECT_LT(result.exit_code, 128) << result.err;
    EXPECT_THAT(result.err, AllOf(StartsWith("vswitchd: "), HasSubstr(text)));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }

  TempDir dir_;
  const std::string socket_ = dir_ / "api.sock";
};

TEST_F(Vswitchd, StopsCleanlyOnEitherSignal) {
  for (const int number : {SIGTERM, SIGINT}) {
    Process process(arguments());
    ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(socket_); }));
    process.signal(number);
    const ProcessResult result = process.wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    EXPECT_FALSE(std::filesystem::exists(socket_));
  }
}

TEST_F(Vswitchd, LiveSocketRefusesTheStart) {
  Process first(arguments());
  ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(socket_); }));
  expect_refused({"--state-dir", dir_ / "other"}, socket_);
  EXPECT_TRUE(std::filesystem::exists(socket_));
  first.signal(SIGTERM);
  EXPECT_EQ(first.wait().exit_code, 0);
}

TEST_F(Vswitchd, StaleSocketIsReplaced) {
  {
    Process killed(arguments());
    ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(socket_); }));
    killed.signal(SIGKILL);
    killed.wait();
  }
  ASSERT_TRUE(std::filesystem::exists(socket_));
  const auto before = std::filesystem::last_write_time(socket_);
  Process second(arguments());
  ASSERT_TRUE(wait_until([&] {
    std::error_code error;
    return std::filesystem::last_write_time(socket_, error) != before && !error;
  }));
  second.signal(SIGTERM);
  EXPECT_EQ(second.wait().exit_code, 0);
}

TEST_F(Vswitchd, OtherFileInTheSocketsPlaceIsLeftAlone) {
  write_file(socket_, "precious");
  expect_refused({}, socket_);
  EXPECT_EQ(read_file(socket_), "precious");
}

TEST_F(Vswitchd, SharedStateDirectoryIsRefused) {
  Process first(arguments());
  ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(socket_); }));
  expect_refused({"--listen", dir_ / "second.sock"}, "state directory");
  EXPECT_FALSE(std::filesystem::exists(dir_ / "second.sock"));
}

TEST_F(Vswitchd, DamagedStateIsRefusedAndKept) {
  std::filesystem::create_directory(dir_ / "state");
  write_file(dir_ / "state/state.yaml", "garbage");
  expect_refused({}, "damaged");
  EXPECT_EQ(read_file(dir_ / "state/state.yaml"), "garbage");
}

TEST_F(Vswitchd, ImpossibleStartsSayWhy) {
  UniqueFd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(taken.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(taken.get(), 1), 0);
  socklen_t size = sizeof address;
  ASSERT_EQ(::getsockname(taken.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  std::string in_use = "127.0.0.1:";
  in_use += std::to_string(ntohs(address.sin_port));

  expect_refused({"--metrics-listen", in_use}, in_use);
  expect_refused({"--listen", in_use}, in_use);
  expect_refused({"--listen", "0.0.0.0:0"}, "TLS");
  expect_refused({"--worker-cpus", "1000"}, "1000");
  expect_refused({"--workers", "1000"}, "workers");
  expect_refused({"--memory", "4K"}, "memory");
  expect_refused({"--no-such-flag"}, "--no-such-flag");
  EXPECT_FALSE(std::filesystem::exists(socket_)) << "a refused start leaves no socket";
}

}  // namespace
}  // namespace vswitch::server
