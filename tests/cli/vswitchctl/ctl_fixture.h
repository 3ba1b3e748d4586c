// Runs vswitchctl against a switch with a fake data plane.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/process.h"
#include "tests/server/test_switch.h"

namespace vswitch::ctl {

class CtlTest : public ::testing::Test {
 protected:
  CtlTest() { switch_.make_ready(); }

  // With the test switch as VSWITCH_SERVER.
  testing::ProcessResult ctl(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), VSWITCHCTL);
    return testing::run_process(std::move(arguments), {"VSWITCH_SERVER=" + switch_.api_path()});
  }

  // The output of a command that must succeed, and write nothing on standard error.
  std::string output(std::vector<std::string> arguments) const {
    const testing::ProcessResult result = ctl(std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return result.out;
  }

  void make_ports() {
    ASSERT_TRUE(switch_.create_bridge("br0").ok());
    ASSERT_TRUE(switch_.create_port("web").ok());
    ASSERT_TRUE(switch_.create_port("db").ok());
  }

  testing::TestSwitch switch_;
};

}  // namespace vswitch::ctl
