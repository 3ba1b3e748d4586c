// Virtio feature bits by number and name (virtio 1.2, 5.1.3 and 6), and the ones we implement.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vswitch::virtq {

constexpr std::uint64_t feature_bit(unsigned number) { return std::uint64_t{1} << number; }

inline constexpr std::uint64_t kFeatureMtu = feature_bit(3);            // VIRTIO_NET_F_MTU
inline constexpr std::uint64_t kFeatureMrgRxbuf = feature_bit(15);      // VIRTIO_NET_F_MRG_RXBUF
inline constexpr std::uint64_t kFeatureStatus = feature_bit(16);        // VIRTIO_NET_F_STATUS
inline constexpr std::uint64_t kFeatureMq = feature_bit(22);            // VIRTIO_NET_F_MQ
inline constexpr std::uint64_t kFeatureLogAll = feature_bit(26);        // VHOST_F_LOG_ALL
inline constexpr std::uint64_t kFeatureAnyLayout = feature_bit(27);     // VIRTIO_F_ANY_LAYOUT
inline constexpr std::uint64_t kFeatureIndirectDesc = feature_bit(28);  // VIRTIO_F_INDIRECT_DESC
inline constexpr std::uint64_t kFeatureEventIdx = feature_bit(29);      // VIRTIO_F_EVENT_IDX
// VHOST_USER_F_PROTOCOL_FEATURES: between front-end and back-end only, never seen by the guest.
inline constexpr std::uint64_t kFeatureProtocolFeatures = feature_bit(30);
inline constexpr std::uint64_t kFeatureVersion1 = feature_bit(32);    // VIRTIO_F_VERSION_1
inline constexpr std::uint64_t kFeatureRingPacked = feature_bit(34);  // VIRTIO_F_RING_PACKED
inline constexpr std::uint64_t kFeatureInOrder = feature_bit(35);     // VIRTIO_F_IN_ORDER

// What a vhost-user port of ours offers. Nothing is offered that is not implemented. MTU and STATUS
// are about the config space and MQ needs a control queue: the front-end has both.
inline constexpr std::uint64_t kDeviceFeatures =
    kFeatureMtu | kFeatureMrgRxbuf | kFeatureStatus | kFeatureMq | kFeatureAnyLayout |
    kFeatureIndirectDesc | kFeatureEventIdx | kFeatureProtocolFeatures | kFeatureVersion1 |
    kFeatureRingPacked | kFeatureInOrder;

// Bytes of the virtio-net header in front of every frame (5.1.6): 12 with VERSION_1 or MRG_RXBUF
// (the num_buffers field), else the 10 of legacy devices.
constexpr std::uint32_t net_header_bytes(std::uint64_t features) {
  return (features & (kFeatureVersion1 | kFeatureMrgRxbuf)) != 0 ? 12 : 10;
}

// What the features say to a ring end of either layout and side.
struct RingFeatures {
  bool indirect = false;     // VIRTIO_F_INDIRECT_DESC
  bool event_index = false;  // VIRTIO_F_EVENT_IDX
  bool in_order = false;     // VIRTIO_F_IN_ORDER
};
constexpr RingFeatures ring_features(std::uint64_t features) {
  return {.indirect = (features & kFeatureIndirectDesc) != 0,
          .event_index = (features & kFeatureEventIdx) != 0,
          .in_order = (features & kFeatureInOrder) != 0};
}

// Name of one bit, e.g. 15 -> "VIRTIO_NET_F_MRG_RXBUF"; "BIT_n" for one without a name.
std::string feature_name(unsigned number);
// Names of all set bits, lowest first.
std::vector<std::string> feature_names(std::uint64_t features);

}  // namespace vswitch::virtq
