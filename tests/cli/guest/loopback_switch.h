// A switch that sends every frame straight back to its guest, for tests of the guest.
//
// Minimal and independent of the product's own device side: one connection at a time, split rings,
// mergeable buffers, one thread. It can misbehave on request.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "dataplane/os/unique_fd.h"
#include "dataplane/vhost_user/message_channel.h"
#include "dataplane/virtq/split_layout.h"

namespace vswitch::guest {

class LoopbackSwitch {
 public:
  struct Faults {
    // Every n-th frame; 0: none.
    unsigned drop = 0;
    unsigned duplicate = 0;
    unsigned damage = 0;
  };

  // Listens on `path` at once.
  LoopbackSwitch(const std::string& path, const Faults& faults, std::uint64_t features);
  ~LoopbackSwitch();

  // Hangs up; the guest may connect again.
  void hang_up() { hang_up_ = true; }
  unsigned connections() const { return connections_; }
  std::uint64_t calls() const { return calls_; }

 private:
  struct Ring {
    virtq::SplitRing memory;
    std::uint16_t next = 0;  // next available and used index: all is done in order
    bool enabled = false;
    UniqueFd call;
  };

  void run();
  void serve(UniqueFd socket);
  void handle(vhost_user::MessageChannel& channel, vhost_user::Message& message);
  void map(const vhost_user::Message& message);
  void unmap();
  template <typename T>
  T* user_pointer(std::uint64_t address) const;
  std::byte* guest_pointer(std::uint64_t address) const;
  void forward();
  bool deliver(const std::vector<std::byte>& frame);
  std::uint32_t header_bytes() const;

  std::string path_;
  Faults faults_;
  std::uint64_t offered_;
  std::uint64_t features_ = 0;
  UniqueFd listener_;
  vhost_user::MemoryRegion region_{};
  std::byte* mapping_ = nullptr;
  Ring rings_[2];
  std::uint64_t frames_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<bool> hang_up_{false};
  std::atomic<unsigned> connections_{0};
  std::atomic<std::uint64_t> calls_{0};
  std::thread thread_;
};

}  // namespace vswitch::guest
