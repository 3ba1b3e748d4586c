#include "cli/vswitchctl/structured.h"

#include <google/protobuf/util/json_util.h>
#include <yaml-cpp/yaml.h>

#include <cctype>
#include <set>
#include <sstream>

namespace vswitch::ctl {
namespace {

std::string render(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  std::string out;
  const auto status = google::protobuf::util::MessageToJsonString(message, &out, options);
  // Fails only for messages that hold an Any, and ours hold none.
  return status.ok() ? out : "{}\n";
}

// Strings that a reader could take for something else, without quotes.
bool needs_quotes(const std::string& text) {
  static const std::set<std::string> kWords = {"true", "false", "null", "yes", "no",
                                               "on",   "off",   "y",    "n"};
  if (text.empty()) return true;
  std::string lower;
  for (const char c : text) {
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  const bool is_word_start = std::isalpha(static_cast<unsigned char>(text.front())) != 0;
  return kWords.count(lower) != 0 || (!is_word_start && text.front() != '/');
}

void emit(YAML::Emitter& out, const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Map:
      if (node.size() == 0) out << YAML::Flow;
      out << YAML::BeginMap;
      for (const auto& entry : node) {
        out << YAML::Key << entry.first.Scalar() << YAML::Value;
        emit(out, entry.second);
      }
      out << YAML::EndMap;
      break;
    case YAML::NodeType::Sequence:
      if (node.size() == 0) out << YAML::Flow;
      out << YAML::BeginSeq;
      for (const YAML::Node& item : node) emit(out, item);
      out << YAML::EndSeq;
      break;
    case YAML::NodeType::Scalar:
      // yaml-cpp tags a scalar that stood in quotes with "!": in JSON, a string.
      if (node.Tag() == "!" && needs_quotes(node.Scalar())) out << YAML::DoubleQuoted;
      out << node.Scalar();
      break;
    default:
      out << YAML::Null;
  }
}

}  // namespace

std::string to_json(const google::protobuf::Message& message) { return render(message); }

std::string to_json(const std::string& key,
                    const std::vector<const google::protobuf::Message*>& messages) {
  if (messages.empty()) return "{\n \"" + key + "\": []\n}\n";
  std::string out = "{\n \"" + key + "\": [\n";
  for (std::size_t i = 0; i < messages.size(); ++i) {
    std::istringstream lines(render(*messages[i]));
    std::string item;
    std::string line;
    while (std::getline(lines, line)) item += (item.empty() ? "  " : "\n  ") + line;
    out += item + (i + 1 < messages.size() ? ",\n" : "\n");
  }
  return out + " ]\n}\n";
}

std::string json_to_yaml(const std::string& json) {
  YAML::Emitter out;
  emit(out, YAML::Load(json));
  return std::string(out.c_str(), out.size()) + "\n";
}

}  // namespace vswitch::ctl
