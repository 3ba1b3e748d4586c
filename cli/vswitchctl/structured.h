// Messages as JSON and YAML. Both have the same structure: proto3 JSON.
#pragma once

#include <google/protobuf/message.h>

#include <string>
#include <vector>

namespace vswitch::ctl {

// One message, with fields that have their default value too, and a line end.
std::string to_json(const google::protobuf::Message& message);
// {"KEY": [ … ]}.
std::string to_json(const std::string& key,
                    const std::vector<const google::protobuf::Message*>& messages);

// The same as YAML.
std::string json_to_yaml(const std::string& json);

}  // namespace vswitch::ctl
