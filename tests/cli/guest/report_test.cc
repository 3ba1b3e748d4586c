#include "cli/guest/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace vswitch::guest {
namespace {

using testing::HasSubstr;
using testing::Not;

Report example() {
  Report report;
  report.command = Command::kGenerate;
  report.mac = 0x020000000001;
  report.features = {"VIRTIO_F_VERSION_1", "VIRTIO_NET_F_MRG_RXBUF"};
  report.elapsed_seconds = 2.5;
  report.send_seconds = 2;
  report.receive_seconds = 2;
  report.totals.sent = 2'000'000;
  report.totals.sent_bytes = 128'000'000;
  report.totals.send_cycles = 200'000'000;
  report.totals.received = 1000;
  report.totals.damaged = 3;
  Stream stream;
  stream.id = 0xabc;
  stream.source = 0x020000000002;
  stream.frames = 1000;
  stream.total = 1004;
  report.streams = {stream, stream};
  report.lost = 4;
  report.latency.add(5000);
  return report;
}

TEST(Report, JsonHasTheNumbers) {
  const std::string json = to_json(example());
  for (const char* member :
       {"\"command\": \"generate\"", "\"mac\": \"02:00:00:00:00:01\"", "\"sent\": 2000000",
        "\"sent_bytes\": 128000000", "\"sent_frames_per_second\": 1000000.000000",
        "\"sent_bits_per_second\": 512000000.000000", "\"sent_cycles_per_frame\": 100.000000",
        "\"received\": 1000", "\"lost\": 4", "\"damaged\": 3", "\"duration_seconds\": 2.500000",
        "\"source\": \"02:00:00:00:00:02\"", "\"id\": \"0000000000000abc\"", "\"one_way_ns\": {",
        "\"p99_9\": 5000", "\"features\": [\"VIRTIO_F_VERSION_1\", \"VIRTIO_NET_F_MRG_RXBUF\"]"}) {
    EXPECT_THAT(json, HasSubstr(member));
  }
}

TEST(Report, AnEmptyRunDividesByNothing) {
  Report report;
  report.command = Command::kPing;
  const std::string json = to_json(report);
  EXPECT_THAT(json, Not(HasSubstr("nan")));
  EXPECT_THAT(json, Not(HasSubstr("inf")));
  EXPECT_THAT(json, HasSubstr("\"streams\": []"));
  EXPECT_THAT(json, HasSubstr("\"features\": []"));
  EXPECT_THAT(json, HasSubstr("\"round_trip_ns\": {"));
}

TEST(Report, TableShowsRatesAndWhatWentWrong) {
  const std::string table = to_table(example());
  EXPECT_THAT(table, HasSubstr("1.00Mpps"));
  EXPECT_THAT(table, HasSubstr("512Mbit/s"));
  EXPECT_THAT(table, HasSubstr("100 cycles/frame"));
  EXPECT_THAT(table, HasSubstr("damaged                   3"));
  EXPECT_THAT(table, HasSubstr("02:00:00:00:00:02"));
  // Zero and unusual: no line.
  EXPECT_THAT(table, Not(HasSubstr("reconnects")));
  EXPECT_THAT(table, Not(HasSubstr("foreign")));
}

TEST(Report, ASinkDoesNotTalkOfSending) {
  Report report = example();
  report.command = Command::kSink;
  EXPECT_THAT(to_table(report), Not(HasSubstr("sent")));
}

TEST(Report, ProgressIsOneLine) {
  Progress progress;
  progress.seconds = 3;
  progress.interval_seconds = 1;
  progress.sent = 1'500'000;
  progress.sent_bytes = 96'000'000;
  progress.lost = 2;
  const std::string line = to_line(progress);
  EXPECT_THAT(line, HasSubstr("1.50Mpps"));
  EXPECT_THAT(line, HasSubstr("768Mbit/s"));
  EXPECT_THAT(line, HasSubstr("lost 2"));
  EXPECT_EQ(line.find('\n'), line.size() - 1);
}

}  // namespace
}  // namespace vswitch::guest
