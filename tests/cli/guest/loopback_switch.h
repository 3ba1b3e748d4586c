// A switch that sends every frame straight back to its guest, for tests of the guest.
//
// Minimal and independent of the product's own device side: one connection at a time, split and
// packed rings, mergeable buffers, one thread. With VIRTIO_F_IN_ORDER it returns sent frames in
// batches, by their last one. It can misbehave on request.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "dataplane/os/unique_fd.h"
#include "dataplane/vhost_user/message_channel.h"
#include "dataplane/virtq/packed_layout.h"
#include "dataplane/virtq/split_layout.h"

namespace vswitch::guest {

class LoopbackSwitch {
 public:
  struct Faults {
    // Every n-th frame of those with at least this many bytes; 0: none.
    std::size_t from_bytes = 0;
    unsigned drop = 0;
    unsigned duplicate = 0;
    unsigned damage = 0;
    unsigned bad_id = 0;          // returned with an id that was never posted
    bool wait_for_sleep = false;  // no frame is sent back before the guest wants to be called
  };

  // Listens on `path` at once.
  LoopbackSwitch(const std::string& path, const Faults& faults, std::uint64_t features);
  ~LoopbackSwitch();

  // Hangs up; the guest may connect again.
  void hang_up() { hang_up_ = true; }
  unsigned connections() const { return connections_; }
  std::uint64_t frames() const { return frames_; }  // sent back, or what a fault made of them
  std::uint64_t calls() const { return calls_; }

 private:
  // Split: the free-running index. Packed: offset and wrap counter.
  struct Place {
    std::uint16_t index = 0;
    bool wrap = true;
  };
  struct Ring {
    virtq::SplitRing split;
    virtq::PackedRing packed;
    std::uint32_t size = 0;
    Place next;  // next available and used one: all is done in order
    bool enabled = false;
    UniqueFd call;
  };
  struct Part {
    std::byte* data;
    std::uint32_t length;
    bool writable;
  };
  struct Chain {
    std::uint16_t id = 0;
    std::uint32_t slots = 0;
    std::vector<Part> parts;
  };

  void run();
  void serve(UniqueFd socket);
  void handle(vhost_user::MessageChannel& channel, vhost_user::Message& message);
  void map(const vhost_user::Message& message);
  void unmap();
  template <typename T>
  T* user_pointer(std::uint64_t address) const;
  std::byte* guest_pointer(std::uint64_t address) const;
  bool packed() const;
  // The chain at `place`, which moves on; false: none is available.
  bool take(const Ring& ring, Place& place, Chain& chain) const;
  void take_part(Chain& chain, std::uint64_t address, std::uint32_t length,
                 std::uint16_t flags) const;
  // Returns `chains` chains of together `slots` descriptors, the last of them `id`.
  void use(Ring& ring, std::uint32_t id, std::uint32_t length, std::uint32_t slots,
           std::uint32_t chains);
  bool calls_wanted(const Ring& ring) const;  // for the next frame
  bool wants_call(const Ring& ring, const Place& before) const;
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
  std::atomic<std::uint64_t> frames_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> hang_up_{false};
  std::atomic<unsigned> connections_{0};
  std::atomic<std::uint64_t> calls_{0};
  std::thread thread_;
};

}  // namespace vswitch::guest
