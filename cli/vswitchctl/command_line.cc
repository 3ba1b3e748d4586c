#include "cli/vswitchctl/command_line.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <map>
#include <sstream>
#include <vector>

#include "cli/vswitchctl/version.h"

namespace vswitch::ctl {
namespace {

struct Raw {
  std::string server;
  std::string timeout = "10s";
  std::string format;
  bool no_headers = false;
};

const std::map<std::string, Format> kFormats = {{"table", Format::kTable},
                                                {"wide", Format::kWide},
                                                {"json", Format::kJson},
                                                {"yaml", Format::kYaml},
                                                {"name", Format::kName}};

class Grammar {
 public:
  Grammar() : app_("Manages vswitchd, the virtual switch.", "vswitchctl") {
    app_.require_subcommand(1);
    app_.add_option("-o,--output", raw_.format, "Output: table, wide, json, yaml or name")
        ->type_name("FORMAT")
        ->check(CLI::IsMember({"table", "wide", "json", "yaml", "name"}));
    server_ = app_.add_option("--server", raw_.server,
                              "Address of vswitchd: unix:///path, a path, or HOST:PORT (default: "
                              "the environment's VSWITCH_SERVER, or " +
                                  api::default_server() + ")")
                  ->type_name("ADDR");
    app_.add_option("--timeout", raw_.timeout, "How long to wait for the answer, e.g. 500ms or 1m")
        ->type_name("DURATION")
        ->capture_default_str();
    app_.add_flag("--no-headers", raw_.no_headers, "Tables without their first line");
    app_.set_version_flag("--version", std::string("vswitchctl ") + kVersion);
    app_.footer(
        "Exit codes: 0 done, 1 the call failed, 2 bad usage, 3 not found.\n"
        "Examples:\n"
        "  vswitchctl create bridge br0\n"
        "  vswitchctl create port web --bridge br0 --vhost-user web.sock\n"
        "  vswitchctl get ports -o wide\n"
        "  vswitchctl describe port web");
    add_create();
    add_get();
    add_describe();
    add_delete();
  }

  ParsedCommandLine parse(int argc, const char* const* argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      std::ostringstream output;
      if (error.get_exit_code() == 0) {
        app_.exit(error, output, output);
        return {true, kExitOk, output.str(), {}};
      }
      return usage(what_is_wrong(error));
    }
    if (!raw_.format.empty()) command_.format = kFormats.at(raw_.format);
    command_.has_headers = !raw_.no_headers;
    absl::Duration timeout;
    if (!absl::ParseDuration(raw_.timeout, &timeout) || timeout <= absl::ZeroDuration()) {
      return usage("--timeout: \"" + raw_.timeout + "\" is not a duration like 500ms, 10s or 1m");
    }
    command_.timeout = timeout;
    // Read here and not by the parser, so that a bad one is reported under its name.
    const char* variable = std::getenv("VSWITCH_SERVER");
    std::string origin = "--server";
    if (server_->count() == 0) {
      const bool is_set = variable != nullptr && variable[0] != '\0';
      raw_.server = is_set ? variable : api::default_server();
      origin = is_set ? "VSWITCH_SERVER" : "the default address";
    }
    absl::StatusOr<api::Endpoint> server = api::parse_endpoint(raw_.server);
    if (!server.ok()) return usage(origin + ": " + std::string(server.status().message()));
    command_.server = *std::move(server);
    return {false, kExitOk, "", command_};
  }

 private:
  static ParsedCommandLine usage(const std::string& what) {
    return {true, kExitUsage, "vswitchctl: " + what + "; see vswitchctl --help\n", {}};
  }

  // A missing or unknown verb or noun is only "required" to the parser.
  std::string what_is_wrong(const CLI::ParseError& error) const {
    const CLI::App* app = &app_;
    std::string written;
    while (!app->get_subcommands().empty()) {
      app = app->get_subcommands().front();
      written += (written.empty() ? "" : " ") + app->get_name();
    }
    const std::vector<const CLI::App*> choices = app->get_subcommands(nullptr);
    if (dynamic_cast<const CLI::RequiredError*>(&error) == nullptr || choices.empty()) {
      return error.what();
    }
    std::string list;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      if (i > 0) list += i + 1 == choices.size() ? " or " : ", ";
      list += choices[i]->get_name();
    }
    const std::vector<std::string> unknown = app_.remaining(true);
    const std::string expected = "expected " + list + (written.empty() ? "" : " after " + written);
    if (unknown.empty()) return expected;
    return "\"" + unknown.front() + "\" is unknown: " + expected;
  }

  CLI::App& add_verb(const std::string& name, const std::string& help, Verb verb) {
    CLI::App& app = *app_.add_subcommand(name, help);
    // Global flags may stand after the verb and after the noun as well.
    app.fallthrough();
    app.require_subcommand(1);
    app.parse_complete_callback([this, verb] { command_.verb = verb; });
    return app;
  }

  // Singular and plural mean the same everywhere.
  CLI::App& add_noun(CLI::App& verb, const std::vector<std::string>& names, const std::string& help,
                     Noun noun) {
    CLI::App& app = *verb.add_subcommand(names.front(), help);
    for (std::size_t i = 1; i < names.size(); ++i) app.alias(names[i]);
    app.fallthrough();
    app.parse_complete_callback([this, noun] { command_.noun = noun; });
    return app;
  }

  CLI::Option* add_name(CLI::App& app, const std::string& help) {
    return app.add_option("NAME", command_.name, help);
  }

  void add_create() {
    CLI::App& create = add_verb("create", "Create a bridge or a port", Verb::kCreate);
    CLI::App& bridge = add_noun(create, {"bridge", "bridges"}, "Create a bridge", Noun::kBridge);
    add_name(bridge, "Name of the new bridge")->required();
    CLI::App& port = add_noun(create, {"port", "ports"}, "Create a port", Noun::kPort);
    add_name(port, "Name of the new port")->required();
    port.add_option("--bridge", command_.bridge, "Bridge the port is attached to")
        ->type_name("BRIDGE")
        ->required();
    port.add_option("--vhost-user", command_.vhost_user,
                    "Path of the vhost-user socket to listen on; a relative one is taken from the "
                    "switch's run directory")
        ->type_name("PATH")
        ->required();
    port.add_option("--mtu", command_.mtu, "Largest L3 packet in bytes, 68 to 65521 (default 1500)")
        ->type_name("BYTES")
        ->check(CLI::Range(68u, 65521u));
    port.add_option("--queue-pairs", command_.queue_pairs,
                    "Most queue pairs the guest may use, 1 to 16 (default 1)")
        ->type_name("N")
        ->check(CLI::Range(1u, 16u));
  }

  void add_get() {
    CLI::App& get = add_verb("get", "List resources, or show one", Verb::kGet);
    add_name(add_noun(get, {"bridges", "bridge"}, "Bridges", Noun::kBridge), "Only this bridge");
    add_name(add_noun(get, {"ports", "port"}, "Ports and their counters", Noun::kPort),
             "Only this port");
    add_name(add_noun(get, {"fdb"}, "MAC tables", Noun::kFdb), "Only of this bridge");
    add_name(add_noun(get, {"workers", "worker"}, "Workers and their load", Noun::kWorker),
             "Only this worker");
    add_noun(get, {"system"}, "The switch process", Noun::kSystem);
  }

  void add_describe() {
    CLI::App& describe =
        add_verb("describe", "Show all about one resource, for people", Verb::kDescribe);
    CLI::App& port =
        add_noun(describe, {"port", "ports"},
                 "State, features, rings, counters, and how to attach a guest", Noun::kPort);
    add_name(port, "Name of the port")->required();
    CLI::App& bridge =
        add_noun(describe, {"bridge", "bridges"}, "A bridge and its ports", Noun::kBridge);
    add_name(bridge, "Name of the bridge")->required();
  }

  void add_delete() {
    CLI::App& remove = add_verb("delete", "Delete a bridge or a port", Verb::kDelete);
    CLI::App& bridge = add_noun(remove, {"bridge", "bridges"}, "Delete a bridge", Noun::kBridge);
    add_name(bridge, "Name of the bridge, which must have no ports")->required();
    CLI::App& port = add_noun(remove, {"port", "ports"}, "Delete a port", Noun::kPort);
    add_name(port, "Name of the port")->required();
  }

  CLI::App app_;
  CLI::Option* server_ = nullptr;
  Raw raw_;
  CommandLine command_;
};

}  // namespace

ParsedCommandLine parse_command_line(int argc, const char* const* argv) {
  return Grammar().parse(argc, argv);
}

}  // namespace vswitch::ctl
