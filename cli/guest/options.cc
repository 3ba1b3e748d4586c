#include "cli/guest/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <functional>
#include <iostream>
#include <map>

#include "absl/status/statusor.h"
#include "cli/guest/version.h"
#include "dataplane/virtq/split_layout.h"

namespace vswitch::guest {
namespace {

// An option whose text `parse` turns into `target`.
template <typename T>
CLI::Option* add_parsed(CLI::App* app, const std::string& name, T& target,
                        absl::StatusOr<T> (*parse)(std::string_view), const std::string& help) {
  return app
      ->add_option_function<std::string>(
          name,
          [&target, parse, name](const std::string& text) {
            auto value = parse(text);
            if (!value.ok()) {
              throw CLI::ValidationError(name, std::string(value.status().message()));
            }
            target = *std::move(value);
          },
          help)
      ->type_name("");
}

// Flags as they are given; turned into Options when all are known.
struct Raw {
  Options options;
  std::uint32_t mtu = 1500;
  bool no_mergeable = false;
  bool legacy = false;
  bool no_reconnect = false;
  bool reconnect = false;
  std::string output = "table";
  std::string verify = "full";
  std::string tx_layout = "auto";
  std::string reclaim = "lazy";
};

void add_card_options(CLI::App* app, Raw& raw) {
  NicOptions& nic = raw.options.nic;
  app->add_option("--socket", nic.socket, "Path of the switch's vhost-user socket")->required();
  add_parsed(app, "--mac", raw.options.mac, parse_mac, "This guest's address (default: random)");
  add_parsed(app, "--timeout", nic.connect_timeout, parse_duration,
             "How long to try to connect (default 10s)");
  app->add_option("--queue-size", nic.queue_size,
                  "Descriptors per ring: a power of two, or anything with --packed (default 256)");
  app->add_option("--mtu", raw.mtu, "Largest packet; frames may be 18 bytes larger (default 1500)")
      ->check(CLI::Range(68, 65'517));
  app->add_option("--buffer-size", nic.receive_buffer,
                  "Bytes of a receive buffer (default 2048, or more with --no-mergeable)")
      ->check(CLI::Range(128, 1 << 20));
  app->add_flag("--no-mergeable", raw.no_mergeable, "Do not negotiate VIRTIO_NET_F_MRG_RXBUF");
  app->add_flag("--legacy", raw.legacy, "Do not negotiate VIRTIO_F_VERSION_1");
  app->add_flag("--packed", nic.packed, "Packed rings (VIRTIO_F_RING_PACKED)");
  app->add_flag("--in-order", nic.in_order, "Negotiate VIRTIO_F_IN_ORDER");
  app->add_flag("--event-idx", nic.event_index, "Negotiate VIRTIO_F_EVENT_IDX");
  app->add_option(
         "--tx-layout", raw.tx_layout,
         "How a sent frame is described: push (one descriptor), indirect (a table of two), "
         "chain (two descriptors); auto takes the first that the switch allows (default "
         "auto)")
      ->check(CLI::IsMember({"auto", "push", "indirect", "chain"}));
  app->add_option("--reclaim", raw.reclaim,
                  "Look for sent buffers only when they run short (lazy), or each time (eager) "
                  "(default lazy)")
      ->check(CLI::IsMember({"lazy", "eager"}));
  app->add_flag("--no-reconnect", raw.no_reconnect, "End when the switch goes away");
  app->add_flag("--reconnect", raw.reconnect, "Come back when the switch does (the default)");
}

void add_run_options(CLI::App* app, Raw& raw) {
  Options& options = raw.options;
  app->add_option("-o,--output", raw.output, "table or json, on stdout (default table)")
      ->check(CLI::IsMember({"table", "json"}));
  app->add_flag("--progress", options.progress,
                "A line per interval on stderr (the default on a terminal)");
  add_parsed(app, "--interval", options.interval, parse_duration,
             "Time between those lines (default 1s)");
  app->add_option("--ready-file", options.ready_file, "A file to make as soon as frames can flow");
  app->add_option("--cpu", options.cpu, "Run on this processor only")
      ->check(CLI::NonNegativeNumber);
  app->add_flag("--wait-on-call", options.wait_on_call,
                "Sleep when idle until the switch calls, instead of polling");
}

void add_check_options(CLI::App* app, Raw& raw) {
  app->add_option("--verify", raw.verify,
                  "full: checksum each frame; header: look at length and mark only (default full)")
      ->check(CLI::IsMember({"full", "header"}));
  app->add_flag("--fail-on-loss", raw.options.fail_on_loss,
                "Exit with 4 if anything was lost or damaged");
}

void add_send_options(CLI::App* app, Raw& raw) {
  Options& options = raw.options;
  add_parsed(app, "--dst-mac", options.destination, parse_mac, "Where to send to")->required();
  add_parsed(app, "--size", options.sizes, parse_sizes,
             "Frame size as testers count it, with the 4-byte check sequence that no ring carries: "
             "64, 64-1518 (each in turn) or imix (default 64)");
  add_parsed(app, "--rate", options.rate, parse_rate,
             "100kpps, 1.5Mpps, 1Gbit (of frame bytes); 0 or none: no limit, as fast as it goes "
             "(default)");
  app->add_option("--count", options.count, "Frames to send (default: no limit)");
  add_parsed(app, "--duration", options.duration, parse_duration,
             "How long to send; 0s: no limit (default: until interrupted)");
  add_parsed(app, "--wait-peer", options.wait_peer, parse_duration,
             "Wait up to this long for the guest at --dst-mac to be there (default 0s: do not)");
}

void add_receive_options(CLI::App* app, Raw& raw) {
  Options& options = raw.options;
  app->add_option("--count", options.count, "End after this many frames (default: no limit)");
  add_parsed(app, "--duration", options.duration, parse_duration,
             "How long to run; 0s: no limit (default: until interrupted)");
  add_parsed(app, "--idle-exit", options.idle_exit, parse_duration,
             "End when nothing has come for this long (default: never)");
}

virtq::TxLayout parse_tx_layout(const std::string& name) {
  using virtq::TxLayout;
  for (const TxLayout layout : {TxLayout::kPush, TxLayout::kIndirect, TxLayout::kChain}) {
    if (name == virtq::tx_layout_name(layout)) return layout;
  }
  return TxLayout::kAuto;
}

// What no single option can check. Empty: all is well.
std::string complete(Raw& raw) {
  Options& options = raw.options;
  NicOptions& nic = options.nic;
  nic.mergeable = !raw.no_mergeable;
  nic.version_1 = !raw.legacy;
  nic.reconnect = !raw.no_reconnect;
  options.json = raw.output == "json";
  options.verify = raw.verify == "header" ? Verify::kHeader : Verify::kFull;
  if (raw.no_reconnect && raw.reconnect) return "--reconnect and --no-reconnect exclude each other";

  nic.tx_layout = parse_tx_layout(raw.tx_layout);
  nic.reclaim = raw.reclaim == "eager" ? virtq::Reclaim::kEager : virtq::Reclaim::kLazy;
  if (raw.legacy && (nic.packed || nic.in_order)) {
    return std::string(nic.packed ? "--packed" : "--in-order") +
           " needs VIRTIO_F_VERSION_1, which --legacy does not negotiate; leave out one of the two";
  }
  if (nic.queue_size < 1 || nic.queue_size > virtq::kMaxQueueSize) {
    return "--queue-size must be from 1 to 32768";
  }
  if (!nic.packed && !std::has_single_bit(nic.queue_size)) {
    return "--queue-size must be a power of two for split rings; any size does with --packed";
  }
  if ((nic.tx_layout == virtq::TxLayout::kChain || nic.tx_layout == virtq::TxLayout::kIndirect) &&
      nic.queue_size < 2) {
    return "--tx-layout chain and indirect take two descriptors a frame: --queue-size must be at "
           "least 2";
  }
  nic.max_frame = raw.mtu + 18;
  const std::uint32_t largest = *std::max_element(options.sizes.begin(), options.sizes.end());
  if (largest > nic.max_frame) {
    return "--size: a frame of " + std::to_string(largest + kCheckSequenceBytes) +
           " bytes needs --mtu " + std::to_string(largest - 14);
  }
  if (!nic.mergeable) nic.receive_buffer = std::max(nic.receive_buffer, nic.max_frame + 12);
  if (nic.receive_buffer % 64 != 0) nic.receive_buffer += 64 - nic.receive_buffer % 64;
  if (options.interval <= absl::ZeroDuration()) return "--interval must be more than 0s";
  if (is_group(options.mac)) return "--mac must not be a group address";
  if (options.mac == 0) {
    // Locally administered (IEEE 802-2014, 8.4).
    options.mac = 0x020000000000 | (random_stream() & 0xffffffffff);
  }
  return "";
}

}  // namespace

const char* command_name(Command command) {
  switch (command) {
    case Command::kGenerate:
      return "generate";
    case Command::kSink:
      return "sink";
    case Command::kReflect:
      return "reflect";
    case Command::kPing:
      return "ping";
  }
  return "";
}

ParsedCommandLine parse_command_line(int argc, const char* const* argv) {
  Raw raw;
  raw.options.progress = ::isatty(STDERR_FILENO) == 1;
  CLI::App app(
      "A guest without a machine: a virtio-net driver on a vhost-user socket that "
      "generates, receives, reflects and measures traffic.\n"
      "Exit codes: 0 ok, 1 failed, 2 wrong usage, 4 loss or damage (--fail-on-loss).");
  app.name("vswitch-guest");
  app.set_version_flag("--version", std::string("vswitch-guest ") + kVersion);
  app.require_subcommand(1);

  const std::map<Command, CLI::App*> commands = {
      {Command::kGenerate,
       app.add_subcommand("generate", "Send frames; count what comes in as well")},
      {Command::kSink, app.add_subcommand("sink", "Receive frames and account for them")},
      {Command::kReflect, app.add_subcommand("reflect", "Send every frame back to its sender")},
      {Command::kPing, app.add_subcommand("ping", "Send frames to a reflect and time the echoes")},
  };
  for (const auto& [command, sub] : commands) {
    add_card_options(sub, raw);
    add_run_options(sub, raw);
    if (command != Command::kReflect) add_check_options(sub, raw);
    if (command == Command::kGenerate || command == Command::kPing) {
      add_send_options(sub, raw);
    } else {
      add_receive_options(sub, raw);
    }
    sub->callback([&raw, which = command] { raw.options.command = which; });
  }
  add_parsed(
      commands.at(Command::kGenerate), "--linger", raw.options.linger, parse_duration,
      "After sending, receive until it has been quiet this long, at most 5s (default 500ms)");
  bool window_given = false;
  const auto set_window = [&](const std::uint32_t& value) {
    raw.options.window = value;
    window_given = true;
  };
  commands.at(Command::kPing)
      ->add_option_function<std::uint32_t>(
          "--window", set_window,
          "Frames on their way at the same time; 0: no limit (default 1, or 0 with --rate)")
      ->type_name("");
  commands.at(Command::kGenerate)
      ->add_option_function<std::uint32_t>(
          "--window", set_window,
          "Frames that may be on their way; the guest at --dst-mac acknowledges them. At most a "
          "quarter of its ring loses nothing, however busy the machine (default 0: no limit)")
      ->type_name("");
  for (const Command command : {Command::kGenerate, Command::kPing}) {
    add_parsed(commands.at(command), "--reply-timeout", raw.options.reply_timeout, parse_duration,
               "A frame of the window without an answer for this long is given up (default 1s)");
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::RequiredError& error) {
    if (!app.get_subcommands().empty()) {
      app.exit(error);
    } else {
      std::cerr << "vswitch-guest: ";
      if (argc > 1) std::cerr << "\"" << argv[1] << "\" is no command. ";
      std::cerr << "The commands are generate, sink, reflect and ping; see --help\n";
    }
    return {std::nullopt, 2};
  } catch (const CLI::ParseError& error) {
    // 0 for --help and --version; every other number of CLI11's is wrong usage to us.
    return {std::nullopt, app.exit(error) == 0 ? 0 : 2};
  }
  if (raw.options.command == Command::kPing && !window_given && raw.options.rate.unlimited()) {
    raw.options.window = 1;
  }
  if (const std::string wrong = complete(raw); !wrong.empty()) {
    std::cerr << "vswitch-guest: " << wrong << "\n";
    return {std::nullopt, 2};
  }
  return {std::move(raw.options), 0};
}

}  // namespace vswitch::guest
