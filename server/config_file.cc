#include "server/config_file.h"

#include <yaml-cpp/yaml.h>

#include <istream>
#include <string>
#include <vector>

namespace vswitch::server {
namespace {

class YamlConfig final : public CLI::Config {
 public:
  explicit YamlConfig(CLI::App& app) : app_(app) {}

  // No flag prints a configuration.
  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return {}; }

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    try {
      return read(YAML::Load(input));
    } catch (const YAML::Exception& error) {
      throw CLI::ConfigError(std::string("the configuration file is no valid YAML: ") +
                             error.what());
    }
  }

 private:
  std::vector<CLI::ConfigItem> read(const YAML::Node& root) const {
    std::vector<CLI::ConfigItem> found;
    if (root.IsNull()) return found;
    if (!root.IsMap()) throw CLI::ConfigError("the configuration file is not a mapping");
    for (const auto& entry : root) {
      const auto key = entry.first.as<std::string>();
      const CLI::Option* option = app_.get_option_no_throw("--" + key);
      if (option == nullptr || !option->get_configurable()) {
        throw CLI::ConfigError("unknown key \"" + key + "\" in the configuration file");
      }
      if (is_overridden(*option)) continue;
      CLI::ConfigItem item;
      item.name = key;
      if (entry.second.IsScalar()) {
        item.inputs.push_back(entry.second.as<std::string>());
      } else if (entry.second.IsSequence() && entry.second.size() > 0) {
        item.inputs = entry.second.as<std::vector<std::string>>();
      } else {
        throw CLI::ConfigError("key \"" + key + "\" in the configuration file has no value");
      }
      found.push_back(std::move(item));
    }
    return found;
  }

  static bool is_overridden(const CLI::Option& option) {
    if (option.count() != 0) return true;
    for (const CLI::Option* other : option.get_excludes()) {
      if (other->count() != 0) return true;
    }
    return false;
  }

  CLI::App& app_;
};

}  // namespace

std::shared_ptr<CLI::Config> make_yaml_config(CLI::App& app) {
  return std::make_shared<YamlConfig>(app);
}

}  // namespace vswitch::server
