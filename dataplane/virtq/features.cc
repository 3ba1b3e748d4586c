#include "dataplane/virtq/features.h"

#include <bit>

namespace vswitch::virtq {

std::string feature_name(unsigned number) {
  switch (number) {
    case 0:
      return "VIRTIO_NET_F_CSUM";
    case 1:
      return "VIRTIO_NET_F_GUEST_CSUM";
    case 2:
      return "VIRTIO_NET_F_CTRL_GUEST_OFFLOADS";
    case 3:
      return "VIRTIO_NET_F_MTU";
    case 5:
      return "VIRTIO_NET_F_MAC";
    case 7:
      return "VIRTIO_NET_F_GUEST_TSO4";
    case 8:
      return "VIRTIO_NET_F_GUEST_TSO6";
    case 9:
      return "VIRTIO_NET_F_GUEST_ECN";
    case 10:
      return "VIRTIO_NET_F_GUEST_UFO";
    case 11:
      return "VIRTIO_NET_F_HOST_TSO4";
    case 12:
      return "VIRTIO_NET_F_HOST_TSO6";
    case 13:
      return "VIRTIO_NET_F_HOST_ECN";
    case 14:
      return "VIRTIO_NET_F_HOST_UFO";
    case 15:
      return "VIRTIO_NET_F_MRG_RXBUF";
    case 16:
      return "VIRTIO_NET_F_STATUS";
    case 17:
      return "VIRTIO_NET_F_CTRL_VQ";
    case 18:
      return "VIRTIO_NET_F_CTRL_RX";
    case 19:
      return "VIRTIO_NET_F_CTRL_VLAN";
    case 21:
      return "VIRTIO_NET_F_GUEST_ANNOUNCE";
    case 22:
      return "VIRTIO_NET_F_MQ";
    case 23:
      return "VIRTIO_NET_F_CTRL_MAC_ADDR";
    case 24:
      return "VIRTIO_F_NOTIFY_ON_EMPTY";
    case 26:
      return "VHOST_F_LOG_ALL";
    case 27:
      return "VIRTIO_F_ANY_LAYOUT";
    case 28:
      return "VIRTIO_F_INDIRECT_DESC";
    case 29:
      return "VIRTIO_F_EVENT_IDX";
    case 30:
      return "VHOST_USER_F_PROTOCOL_FEATURES";
    case 32:
      return "VIRTIO_F_VERSION_1";
    case 33:
      return "VIRTIO_F_ACCESS_PLATFORM";
    case 34:
      return "VIRTIO_F_RING_PACKED";
    case 35:
      return "VIRTIO_F_IN_ORDER";
    case 36:
      return "VIRTIO_F_ORDER_PLATFORM";
    case 40:
      return "VIRTIO_F_RING_RESET";
    default:
      return "BIT_" + std::to_string(number);
  }
}

std::vector<std::string> feature_names(std::uint64_t features) {
  std::vector<std::string> names;
  for (; features != 0; features &= features - 1) {
    names.push_back(feature_name(static_cast<unsigned>(std::countr_zero(features))));
  }
  return names;
}

}  // namespace vswitch::virtq
