#include "proto/endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>

namespace vswitch::api {
namespace {

absl::Status invalid(std::string_view text, std::string_view what) {
  return absl::InvalidArgumentError("bad address \"" + std::string(text) +
                                    "\": " + std::string(what) +
                                    "; write unix:///path, a path, or HOST:PORT");
}

absl::StatusOr<Endpoint> unix_endpoint(std::string_view text, std::string_view path) {
  constexpr std::size_t kMaxPath = 107;  // sockaddr_un without its final NUL
  if (path.empty()) return invalid(text, "the path is empty");
  Endpoint endpoint;
  endpoint.kind = Endpoint::Kind::kUnix;
  std::error_code error;
  endpoint.path = std::filesystem::absolute(std::filesystem::path(path), error).lexically_normal();
  if (error) return invalid(text, "the working directory cannot be read");
  if (endpoint.path.size() > kMaxPath) {
    return invalid(text, "the path has " + std::to_string(endpoint.path.size()) +
                             " bytes, more than the 107 a unix socket allows");
  }
  return endpoint;
}

}  // namespace

std::string Endpoint::to_string() const {
  if (kind == Kind::kUnix) return "unix://" + path;
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string Endpoint::grpc_target() const {
  return kind == Kind::kUnix ? "unix:" + path : "dns:///" + to_string();
}

bool Endpoint::is_loopback() const {
  // Parsed, not compared: "127.example.org" is a name that may lead anywhere.
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  if (::inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return host == "localhost";
}

absl::StatusOr<Endpoint> parse_endpoint(std::string_view text) {
  constexpr std::string_view kScheme = "unix:";
  if (text.substr(0, kScheme.size()) == kScheme) {
    std::string_view path = text.substr(kScheme.size());
    if (path.substr(0, 2) == "//") {
      path.remove_prefix(2);
      if (path.empty() || path.front() != '/') return invalid(text, "unix:// needs three slashes");
    }
    return unix_endpoint(text, path);
  }
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || text.find('/') != std::string_view::npos) {
    return unix_endpoint(text, text);
  }
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return invalid(text, "an IPv6 address needs brackets");
  }
  if (host.empty()) return invalid(text, "the host is empty");
  Endpoint endpoint;
  endpoint.kind = Endpoint::Kind::kTcp;
  endpoint.host = std::string(host);
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), endpoint.port);
  if (error != std::errc() || end != digits.data() + digits.size() || endpoint.port < 0 ||
      endpoint.port > 65535) {
    return invalid(text, "the port is not a number from 0 to 65535");
  }
  return endpoint;
}

std::string default_run_dir() {
  if (::geteuid() == 0) return "/run/vswitch";
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') return std::string(runtime) + "/vswitch";
  return "/tmp/vswitch-" + std::to_string(::geteuid());
}

std::string default_server() { return "unix://" + default_run_dir() + "/vswitchd.sock"; }

}  // namespace vswitch::api
