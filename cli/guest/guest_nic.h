// The guest's network card: memory, one receive and one transmit queue, and the vhost-user
// connection that gives them to a switch. Comes back by itself when the switch was restarted.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/guest/nic_queues.h"
#include "cli/guest/shared_memory.h"
#include "dataplane/os/unique_fd.h"
#include "dataplane/vhost_user/frontend_session.h"
#include "dataplane/virtq/driver_queue.h"

namespace vswitch::guest {

struct NicOptions {
  std::string socket;                   // where the switch listens
  std::uint32_t queue_size = 256;       // descriptors; a power of two, or any size if packed
  std::uint32_t receive_buffer = 2048;  // bytes, virtio-net header included
  std::uint32_t max_frame = 1518;       // bytes a transmit buffer must hold
  bool mergeable = true;
  bool version_1 = true;  // false: a legacy driver (with a 10-byte header if not mergeable)
  // Features the switch must offer then.
  bool packed = false;
  bool in_order = false;
  bool event_index = false;
  virtq::TxLayout tx_layout = virtq::TxLayout::kAuto;
  virtq::Reclaim reclaim = virtq::Reclaim::kLazy;
  absl::Duration connect_timeout = absl::Seconds(10);
  bool reconnect = true;
};

class GuestNic {
 public:
  // Connects (trying again until the timeout), negotiates and starts both rings. `stop` ends the
  // waiting early (CANCELLED).
  static absl::StatusOr<std::unique_ptr<GuestNic>> open(const NicOptions& options,
                                                        const std::atomic<bool>& stop);
  // Stops the rings in an orderly way, if the switch still answers.
  ~GuestNic();
  GuestNic(const GuestNic&) = delete;
  GuestNic& operator=(const GuestNic&) = delete;

  NicQueues& queues() { return *queues_; }
  const NicQueues& queues() const { return *queues_; }
  void kick_receive();
  void kick_transmit();

  // Looks after the connection; call about every millisecond, it does not block. With reconnect,
  // a lost connection is not an error: the card is down until the switch is back. DATA_LOSS: the
  // switch broke a ring.
  absl::Status check();
  bool up() const { return session_ != nullptr; }
  std::uint64_t reconnects() const { return reconnects_; }

  // Sleeps until the switch calls, the connection changes, or the time is over.
  void wait_for_call(absl::Duration longest);

  std::uint64_t features() const { return features_; }

 private:
  GuestNic(const NicOptions& options, SharedMemory memory);

  absl::Status make_queues();
  absl::Status start(vhost_user::FrontendSession& session, const NicQueues::Bases& bases,
                     absl::Duration timeout);
  absl::Status resume();
  RingPlace ring_at(std::size_t offset) const;
  vhost_user::VringSetup vring(std::uint32_t index, const RingPlace& ring,
                               std::uint32_t base) const;

  NicOptions options_;
  SharedMemory memory_;
  UniqueFd receive_kick_, receive_call_, transmit_kick_, transmit_call_;
  RingPlace receive_ring_, transmit_ring_;
  std::unique_ptr<NicQueues> queues_;
  std::unique_ptr<vhost_user::FrontendSession> session_;
  std::uint64_t features_ = 0;
  std::uint64_t reconnects_ = 0;
  absl::Time next_attempt_ = absl::InfinitePast();
};

}  // namespace vswitch::guest
