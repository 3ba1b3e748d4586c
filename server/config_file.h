// The configuration file: a YAML mapping whose keys are the names of the flags without their
// dashes. A list is allowed for what is one: listen and worker-cpus. The command line wins.
#pragma once

#include <CLI/CLI.hpp>

namespace vswitch::server {

// For CLI::App::config_formatter. `app` must outlive it; unknown keys and keys that are no flag of
// `app` are errors. A key is dropped when the command line has the flag itself, or another flag
// that excludes it.
std::shared_ptr<CLI::Config> make_yaml_config(CLI::App& app);

}  // namespace vswitch::server
