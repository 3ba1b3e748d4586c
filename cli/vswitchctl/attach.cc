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

// An older switch says nothing of them.
std::uint32_t queue_pairs(const v1::Port& port) { return std::max(port.queue_pairs(), 1u); }

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
  const std::uint32_t pairs = queue_pairs(port);
  // An interrupt for each queue, one for changes of the configuration and one for the control
  // queue.
  const std::string multi_queue =
      pairs == 1 ? "" : ",mq=on,vectors=" + std::to_string(2 * pairs + 2);
  return "-m " + size + " -machine q35,memory-backend=mem" + kNextLine +
         "-object memory-backend-memfd,id=mem,size=" + size + ",share=on" + kNextLine +
         "-chardev " +
         shell_quote("socket,id=chr-" + id + ",path=" + qemu_escape(socket_path(port)) +
                     ",reconnect=1") +
         kNextLine + "-netdev vhost-user,id=net-" + id + ",chardev=chr-" + id +
         ",queues=" + std::to_string(pairs) + kNextLine + "-device virtio-net-pci,netdev=net-" +
         id + ",mac=" + suggested_mac(id) + ",romfile=,mrg_rxbuf=on" + multi_queue;
}

std::string testpmd_command(const v1::Port& port) {
  const std::string id = short_name(port.name());
  const std::uint32_t pairs = queue_pairs(port);
  // The driver turns several queues on through a control queue of its own.
  const std::string device = pairs == 1 ? "" : ",queues=" + std::to_string(pairs) + ",cq=1";
  const std::string queues =
      pairs == 1 ? "" : " --rxq=" + std::to_string(pairs) + " --txq=" + std::to_string(pairs);
  return std::string("dpdk-testpmd -l 0,1 --no-huge -m 256 --no-shconf --no-pci --file-prefix ") +
         id + kNextLine + "--vdev " +
         shell_quote("net_virtio_user0,path=" + socket_path(port) + ",mac=" + suggested_mac(id) +
                     ",queue_size=256" + device) +
         kNextLine + "-- -i --nb-cores=1 --total-num-mbufs=" + std::to_string(4096 * pairs) +
         " --txd=256 --rxd=256 --no-mlockall" + queues;
}

}  // namespace vswitch::ctl
