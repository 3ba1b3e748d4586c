// Why a frame, or a buffer a guest offered, did not become traffic.
//
// Every frame that is lost is counted under exactly one of these, on the port whose ring or policy
// was the cause, in one direction: `receive` is into the switch, `transmit` is out of it.
// A new reason is one line in VSWITCH_DROP_REASONS; metrics, API and CLI pick it up from there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace vswitch {

// X(enumerator, metric label, what an operator should read it as)
#define VSWITCH_DROP_REASONS(X)                                                                   \
  /* Chains refused by the ring engine: the guest's descriptors were wrong. */                    \
  X(kDescriptorLoop, "descriptor-loop", "descriptor chain longer than its queue or table")        \
  X(kDescriptorIndex, "descriptor-index", "descriptor 'next' out of range")                       \
  X(kUnmappedAddress, "unmapped-address", "buffer outside the guest's shared memory")             \
  X(kWrongDirection, "wrong-direction", "device-writable buffer sent, or read-only one received") \
  X(kBadIndirectTable, "bad-indirect-table", "malformed indirect descriptor table")               \
  X(kTooFragmented, "too-fragmented", "buffers in more pieces than are handled in one poll")      \
  X(kHeaderTooShort, "header-too-short", "chain holds no more than the virtio-net header")        \
  X(kBufferTooSmall, "buffer-too-small", "receive buffer cannot hold the virtio-net header")      \
  /* Frames refused by the switch. */                                                             \
  X(kRunt, "runt", "frame shorter than an Ethernet header")                                       \
  X(kOversize, "oversize", "frame longer than the port's MTU allows")                             \
  X(kInvalidSource, "invalid-source", "source MAC address is zero or a group address")            \
  X(kReservedDestination, "reserved-destination", "link-local group address, never bridged")      \
  X(kSamePort, "same-port", "destination is behind the port the frame came from")                 \
  X(kNoDestination, "no-destination", "no other port on the bridge")                              \
  /* Frames the destination could not take. */                                                    \
  X(kNoRxBuffer, "no-rx-buffer", "guest has posted no, or not enough, receive buffers")           \
  X(kPortDown, "port-down", "destination port has no running receive queue")

enum class DropReason : std::uint8_t {
#define X(name, label, text) name,
  VSWITCH_DROP_REASONS(X)
#undef X
};

inline constexpr std::size_t kDropReasonCount = 0
#define X(name, label, text) +1
    VSWITCH_DROP_REASONS(X)
#undef X
    ;

// The stable label used in metrics, the API and the CLI, e.g. "no-rx-buffer".
constexpr std::string_view drop_reason_label(DropReason reason) {
  constexpr std::string_view kLabels[] = {
#define X(name, label, text) label,
      VSWITCH_DROP_REASONS(X)
#undef X
  };
  return kLabels[static_cast<std::size_t>(reason)];
}

// One line for people.
constexpr std::string_view drop_reason_text(DropReason reason) {
  constexpr std::string_view kTexts[] = {
#define X(name, label, text) text,
      VSWITCH_DROP_REASONS(X)
#undef X
  };
  return kTexts[static_cast<std::size_t>(reason)];
}

}  // namespace vswitch
