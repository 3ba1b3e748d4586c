#include "cli/guest/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace vswitch::guest {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ParsedCommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "vswitch-guest");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

// Expects wrong usage; returns what was printed about it.
std::string error(const std::vector<const char*>& arguments) {
  testing::internal::CaptureStderr();
  const ParsedCommandLine parsed = parse(arguments);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_FALSE(parsed.options.has_value());
  EXPECT_EQ(parsed.exit_code, 2);
  return text;
}

TEST(Options, ReadsAWholeGenerate) {
  const auto parsed = parse({"generate",
                             "--socket",
                             "/run/a.sock",
                             "--mac",
                             "02:00:00:00:00:01",
                             "--dst-mac",
                             "02:00:00:00:00:02",
                             "--size",
                             "64-66",
                             "--rate",
                             "1Mpps",
                             "--count",
                             "1000",
                             "--duration",
                             "5s",
                             "--wait-peer",
                             "3s",
                             "--queue-size",
                             "512",
                             "-o",
                             "json",
                             "--verify",
                             "header",
                             "--fail-on-loss",
                             "--cpu",
                             "1",
                             "--linger",
                             "200ms"});
  ASSERT_TRUE(parsed.options.has_value());
  const Options& options = *parsed.options;
  EXPECT_EQ(options.command, Command::kGenerate);
  EXPECT_EQ(options.nic.socket, "/run/a.sock");
  EXPECT_EQ(options.mac, 0x020000000001U);
  EXPECT_EQ(options.destination, 0x020000000002U);
  EXPECT_THAT(options.sizes, ElementsAre(60, 61, 62));
  EXPECT_DOUBLE_EQ(options.rate.frames_per_second, 1e6);
  EXPECT_EQ(options.count, 1000U);
  EXPECT_EQ(options.duration, absl::Seconds(5));
  EXPECT_EQ(options.wait_peer, absl::Seconds(3));
  EXPECT_EQ(options.linger, absl::Milliseconds(200));
  EXPECT_EQ(options.nic.queue_size, 512U);
  EXPECT_TRUE(options.json);
  EXPECT_EQ(options.verify, Verify::kHeader);
  EXPECT_TRUE(options.fail_on_loss);
  EXPECT_EQ(options.cpu, 1);
}

TEST(Options, Defaults) {
  const auto parsed = parse({"sink", "--socket", "s"});
  ASSERT_TRUE(parsed.options.has_value());
  const Options& options = *parsed.options;
  EXPECT_EQ(options.command, Command::kSink);
  EXPECT_EQ(options.duration, absl::InfiniteDuration());
  EXPECT_EQ(options.nic.queue_size, 256U);
  EXPECT_EQ(options.nic.receive_buffer, 2048U);
  EXPECT_EQ(options.nic.max_frame, 1518U);
  EXPECT_TRUE(options.nic.mergeable);
  EXPECT_TRUE(options.nic.version_1);
  EXPECT_TRUE(options.nic.reconnect);
  EXPECT_EQ(options.verify, Verify::kFull);
  EXPECT_FALSE(options.json);
  // Random, but of one station and not of a vendor.
  EXPECT_NE(options.mac, 0U);
  EXPECT_EQ(options.mac >> 40, 0x02U);
}

TEST(Options, PingHasOneFrameOnItsWayUnlessARateIsGiven) {
  const std::vector<const char*> ping = {"ping", "--socket", "s", "--dst-mac", "02:00:00:00:00:02"};
  const auto with = [&](std::vector<const char*> more) {
    more.insert(more.begin(), ping.begin(), ping.end());
    return parse(more).options->window;
  };
  EXPECT_EQ(with({}), 1U);
  EXPECT_EQ(with({"--rate", "10pps"}), 0U);
  EXPECT_EQ(with({"--rate", "10pps", "--window", "8"}), 8U);
  EXPECT_EQ(with({"--window", "0"}), 0U);
}

TEST(Options, FeatureSwitches) {
  const auto parsed = parse({"reflect", "--socket", "s", "--legacy", "--no-mergeable", "--mtu",
                             "9000", "--no-reconnect"});
  ASSERT_TRUE(parsed.options.has_value());
  EXPECT_FALSE(parsed.options->nic.version_1);
  EXPECT_FALSE(parsed.options->nic.mergeable);
  EXPECT_FALSE(parsed.options->nic.reconnect);
  // Without mergeable buffers one must hold the largest frame and the header.
  EXPECT_GE(parsed.options->nic.receive_buffer, 9030U);
}

TEST(Options, RingSwitches) {
  const auto plain = parse({"sink", "--socket", "s"});
  ASSERT_TRUE(plain.options.has_value());
  EXPECT_FALSE(plain.options->nic.packed);
  EXPECT_FALSE(plain.options->nic.in_order);
  EXPECT_FALSE(plain.options->nic.event_index);
  EXPECT_EQ(plain.options->nic.tx_layout, virtq::TxLayout::kAuto);
  EXPECT_EQ(plain.options->nic.reclaim, virtq::Reclaim::kLazy);
  const auto parsed = parse({"sink", "--socket", "s", "--packed", "--in-order", "--event-idx",
                             "--tx-layout", "indirect", "--reclaim", "eager", "--queue-size", "3"});
  ASSERT_TRUE(parsed.options.has_value());
  EXPECT_TRUE(parsed.options->nic.packed);
  EXPECT_TRUE(parsed.options->nic.in_order);
  EXPECT_TRUE(parsed.options->nic.event_index);
  EXPECT_EQ(parsed.options->nic.tx_layout, virtq::TxLayout::kIndirect);
  EXPECT_EQ(parsed.options->nic.reclaim, virtq::Reclaim::kEager);
  EXPECT_EQ(parsed.options->nic.queue_size, 3U);
  using virtq::TxLayout;
  for (const auto& [name, layout] : {std::pair("auto", TxLayout::kAuto),
                                     {"push", TxLayout::kPush},
                                     {"chain", TxLayout::kChain}}) {
    EXPECT_EQ(parse({"sink", "--socket", "s", "--tx-layout", name}).options->nic.tx_layout, layout);
  }
}

TEST(Options, WrongUsage) {
  EXPECT_THAT(error({}), HasSubstr("generate, sink, reflect and ping"));
  EXPECT_THAT(error({"dance"}), HasSubstr("\"dance\" is no command"));
  EXPECT_THAT(error({"sink"}), HasSubstr("--socket"));
  EXPECT_THAT(error({"generate", "--socket", "s"}), HasSubstr("--dst-mac"));
  const std::vector<const char*> generate = {"generate", "--socket", "s", "--dst-mac",
                                             "02:00:00:00:00:02"};
  const auto with = [&](std::vector<const char*> more) {
    more.insert(more.begin(), generate.begin(), generate.end());
    return error(more);
  };
  EXPECT_THAT(with({"--size", "12"}), HasSubstr("64 to 65539"));
  EXPECT_THAT(with({"--size", "64-9018"}), HasSubstr("--mtu 9000"));
  EXPECT_THAT(with({"--rate", "fast"}), HasSubstr("1.5Mpps"));
  EXPECT_THAT(with({"--duration", "-1s"}), HasSubstr("negative"));
  EXPECT_THAT(with({"--queue-size", "100"}), HasSubstr("power of two"));
  EXPECT_THAT(with({"--queue-size", "65536"}), HasSubstr("from 1 to 32768"));
  EXPECT_THAT(with({"--queue-size", "0"}), HasSubstr("from 1 to 32768"));
  EXPECT_THAT(with({"--queue-size", "32769", "--packed"}), HasSubstr("from 1 to 32768"));
  EXPECT_THAT(with({"--packed", "--legacy"}), HasSubstr("--packed needs VIRTIO_F_VERSION_1"));
  EXPECT_THAT(with({"--in-order", "--legacy"}), HasSubstr("--in-order needs VIRTIO_F_VERSION_1"));
  EXPECT_THAT(with({"--tx-layout", "chain", "--queue-size", "1"}), HasSubstr("at least 2"));
  EXPECT_THAT(with({"--tx-layout", "sideways"}), HasSubstr("sideways"));
  EXPECT_THAT(with({"--reclaim", "never"}), HasSubstr("never"));
  EXPECT_THAT(with({"--mac", "01:00:5e:00:00:01"}), HasSubstr("group"));
  EXPECT_THAT(with({"--reconnect", "--no-reconnect"}), HasSubstr("exclude"));
  EXPECT_THAT(with({"-o", "xml"}), HasSubstr("xml"));
  EXPECT_THAT(with({"--interval", "0"}), HasSubstr("--interval"));
}

TEST(Options, HelpAndVersionExitWithZero) {
  testing::internal::CaptureStdout();
  const ParsedCommandLine version = parse({"--version"});
  const ParsedCommandLine help = parse({"ping", "--help"});
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_FALSE(version.options.has_value());
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(text, HasSubstr("vswitch-guest "));
  EXPECT_THAT(text, HasSubstr("--window"));
}

}  // namespace
}  // namespace vswitch::guest
