#include "cli/vswitchctl/attach.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>

#include "cli/vswitchctl/client.h"

namespace vswitch::ctl {
namespace {

constexpr char kNextLine[] = " \\\n    ";

std::string shell_quote(const std::string& text) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("/.,_-=:@+%").find(c) != std::string_view::npos;
  });
  if (is_plain) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// In QEMU's option lists a comma is written twice.
std::string qemu_escape(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == ',' ? std::string(",,") : std::string(1, c);
  return out;
}

std::string socket_path(const v1::Port& port) { return port.vhost_user().resolved_socket_path(); }

}  // namespace

std::string suggested_mac(const std::string& port_name) {
  std::uint64_t hash = 14695981039346656037ull;  // FNV-1a
  for (const char c : port_name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  }
  char text[18];
  std::snprintf(text, sizeof text, "02:%02x:%02x:%02x:%02x:%02x",
                static_cast<unsigned>(hash >> 56 & 0xff), static_cast<unsigned>(hash >> 48 & 0xff),
                static_cast<unsigned>(hash >> 40 & 0xff), static_cast<unsigned>(hash >> 32 & 0xff),
                static_cast<unsigned>(hash >> 24 & 0xff));
  return text;
}

std::string qemu_arguments(const v1::Port& port, const std::string& size) {
  const std::string id = short_name(port.name());
  return "-m " + size + " -machine q35,memory-backend=mem" + kNextLine +
         "-object memory-backend-memfd,id=mem,size=" + size + ",share=on" + kNextLine +
         "-chardev " +
         shell_quote("socket,id=chr-" + id + ",path=" + qemu_escape(socket_path(port)) +
                     ",reconnect=1") +
         kNextLine + "-netdev vhost-user,id=net-" + id + ",chardev=chr-" + id + ",queues=1" +
         kNextLine + "-device virtio-net-pci,netdev=net-" + id + ",mac=" + suggested_mac(id) +
         ",romfile=,mrg_rxbuf=on";
}

std::string testpmd_command(const v1::Port& port) {
  const std::string id = short_name(port.name());
  return std::string("dpdk-testpmd -l 0,1 --no-huge -m 256 --no-shconf --no-pci --file-prefix ") +
         id + kNextLine + "--vdev " +
         shell_quote("net_virtio_user0,path=" + socket_path(port) + ",mac=" + suggested_mac(id) +
                     ",queue_size=256") +
         kNextLine + "-- -i --nb-cores=1 --total-num-mbufs=4096 --txd=256 --rxd=256 --no-mlockall";
}

}  // namespace vswitch::ctl
