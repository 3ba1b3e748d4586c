#include "cli/guest/report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace vswitch::guest {
namespace {

double per(double amount, double base) { return base > 0 ? amount / base : 0; }
double per(std::uint64_t amount, double base) { return per(static_cast<double>(amount), base); }

// Members of one JSON object. Names and values come from this program: nothing needs escaping.
class JsonObject {
 public:
  explicit JsonObject(int indent) : indent_(static_cast<std::size_t>(indent), ' ') {}

  void raw(const char* name, const std::string& value) {
    absl::StrAppend(&text_, text_.empty() ? "" : ",\n", indent_, "  \"", name, "\": ", value);
  }
  void add(const char* name, const std::string& value) { raw(name, "\"" + value + "\""); }
  void add(const char* name, std::uint64_t value) { raw(name, absl::StrCat(value)); }
  void add(const char* name, double value) { raw(name, absl::StrFormat("%.6f", value)); }

  std::string str() const { return absl::StrCat("{\n", text_, "\n", indent_, "}"); }

 private:
  std::string indent_;
  std::string text_;
};

std::string latency_json(const Histogram& latency) {
  JsonObject json(2);
  json.add("count", latency.count());
  json.add("min", latency.min());
  json.add("mean", latency.mean());
  json.add("p50", latency.quantile(0.5));
  json.add("p90", latency.quantile(0.9));
  json.add("p99", latency.quantile(0.99));
  json.add("p99_9", latency.quantile(0.999));
  json.add("max", latency.max());
  return json.str();
}

const char* latency_name(Command command) {
  return command == Command::kPing ? "round_trip_ns" : "one_way_ns";
}

void row(std::string& table, const char* name, const std::string& value) {
  absl::StrAppendFormat(&table, "  %-14s %s\n", name, value);
}

std::string traffic(std::uint64_t frames, std::uint64_t bytes, double seconds,
                    std::uint64_t spent_cycles) {
  return absl::StrFormat("%12d frames   %8spps   %8sbit/s   %6.0f cycles/frame", frames,
                         format_quantity(per(frames, seconds)),
                         format_quantity(per(8.0 * static_cast<double>(bytes), seconds)),
                         per(spent_cycles, static_cast<double>(frames)));
}

}  // namespace

std::string to_json(const Report& report) {
  const Totals& totals = report.totals;
  JsonObject json(0);
  json.add("command", std::string(command_name(report.command)));
  json.add("mac", format_mac(report.mac));
  json.raw("features", report.features.empty()
                           ? "[]"
                           : absl::StrCat("[\"", absl::StrJoin(report.features, "\", \""), "\"]"));
  json.add("tx_layout", report.tx_layout);
  json.add("duration_seconds", report.elapsed_seconds);
  json.add("sent", totals.sent);
  json.add("sent_bytes", totals.sent_bytes);
  json.add("send_seconds", report.send_seconds);
  json.add("sent_frames_per_second", per(totals.sent, report.send_seconds));
  json.add("sent_bits_per_second",
           per(8.0 * static_cast<double>(totals.sent_bytes), report.send_seconds));
  json.add("sent_cycles_per_frame", per(totals.send_cycles, static_cast<double>(totals.sent)));
  json.add("tx_full", totals.tx_full);
  json.add("received", totals.received);
  json.add("received_bytes", totals.received_bytes);
  json.add("receive_seconds", report.receive_seconds);
  json.add("received_frames_per_second", per(totals.received, report.receive_seconds));
  json.add("received_bits_per_second",
           per(8.0 * static_cast<double>(totals.received_bytes), report.receive_seconds));
  json.add("received_cycles_per_frame",
           per(totals.receive_cycles, static_cast<double>(totals.received)));
  json.add("lost", report.lost);
  json.add("duplicates", report.duplicates);
  json.add("reordered", report.reordered);
  json.add("damaged", totals.damaged);
  json.add("foreign", totals.foreign);
  json.add("not_for_us", totals.not_for_us);
  json.add("control_sent", totals.control_sent);
  json.add("control_received", totals.control_received);
  json.add("reconnects", report.reconnects);
  json.add("bad_used_elements", report.bad_used_elements);
  std::vector<std::string> streams;
  for (const Stream& stream : report.streams) {
    JsonObject entry(4);
    entry.add("id", absl::StrFormat("%016x", stream.id));
    entry.add("source", format_mac(stream.source));
    entry.add("received", stream.frames);
    entry.add("received_bytes", stream.bytes);
    if (stream.total) entry.add("sent", *stream.total);
    entry.add("lost", stream.lost());
    entry.add("duplicates", stream.sequence.duplicates());
    entry.add("reordered", stream.sequence.reordered());
    streams.push_back("    " + entry.str());
  }
  json.raw("streams",
           streams.empty() ? "[]" : absl::StrCat("[\n", absl::StrJoin(streams, ",\n"), "\n  ]"));
  json.raw(latency_name(report.command), latency_json(report.latency));
  return json.str() + "\n";
}

std::string to_table(const Report& report) {
  const Totals& totals = report.totals;
  std::string table = absl::StrFormat("%s of %s, %.2f s\n", command_name(report.command),
                                      format_mac(report.mac), report.elapsed_seconds);
  if (report.command != Command::kSink) {
    row(table, "sent",
        traffic(totals.sent, totals.sent_bytes, report.send_seconds, totals.send_cycles));
  }
  row(table, "received",
      traffic(totals.received, totals.received_bytes, report.receive_seconds,
              totals.receive_cycles));
  const auto count = [&](const char* name, std::uint64_t value) {
    row(table, name, absl::StrFormat("%12d", value));
  };
  if (report.command != Command::kReflect) {
    count("lost", report.lost);
    count("duplicates", report.duplicates);
    count("reordered", report.reordered);
    count("damaged", totals.damaged);
  }
  // What is usually zero is only worth a line when it is not.
  if (totals.tx_full > 0) count("tx ring full", totals.tx_full);
  if (totals.foreign > 0) count("foreign", totals.foreign);
  if (totals.not_for_us > 0) count("not for us", totals.not_for_us);
  if (report.reconnects > 0) count("reconnects", report.reconnects);
  if (report.bad_used_elements > 0) count("bad used", report.bad_used_elements);

  if (report.latency.count() > 0) {
    const auto value = [&](double fraction) {
      return format_nanoseconds(static_cast<double>(report.latency.quantile(fraction)));
    };
    row(table, report.command == Command::kPing ? "round trip" : "one way",
        absl::StrFormat("min %s   p50 %s   p90 %s   p99 %s   p99.9 %s   max %s",
                        format_nanoseconds(static_cast<double>(report.latency.min())), value(0.5),
                        value(0.9), value(0.99), value(0.999),
                        format_nanoseconds(static_cast<double>(report.latency.max()))));
  }
  if (report.streams.size() > 1) {
    absl::StrAppendFormat(&table, "  %-18s %12s %12s %12s %12s\n", "from", "received", "lost",
                          "duplicates", "reordered");
    for (const Stream& stream : report.streams) {
      absl::StrAppendFormat(&table, "  %-18s %12d %12d %12d %12d\n", format_mac(stream.source),
                            stream.frames, stream.lost(), stream.sequence.duplicates(),
                            stream.sequence.reordered());
    }
  }
  return table;
}

std::string to_line(const Progress& progress) {
  const auto rate = [&](std::uint64_t frames, std::uint64_t bytes) {
    return absl::StrFormat(
        "%7spps %7sbit/s", format_quantity(per(frames, progress.interval_seconds)),
        format_quantity(per(8.0 * static_cast<double>(bytes), progress.interval_seconds)));
  };
  return absl::StrFormat("%6.1fs  sent %s  received %s  lost %d  damaged %d\n", progress.seconds,
                         rate(progress.sent, progress.sent_bytes),
                         rate(progress.received, progress.received_bytes), progress.lost,
                         progress.damaged);
}

}  // namespace vswitch::guest
