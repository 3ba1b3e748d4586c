#include "dataplane/vhost_user/message.h"

#include <array>

namespace vswitch::vhost_user {
namespace {

// "Front-end message types", in the order of their ids, which start at 1. Requests we do not
// implement are named too: the log should say what a peer asked for.
constexpr std::array<std::string_view, 41> kRequestNames = {
    "GET_FEATURES",
    "SET_FEATURES",
    "SET_OWNER",
    "RESET_OWNER",
    "SET_MEM_TABLE",
    "SET_LOG_BASE",
    "SET_LOG_FD",
    "SET_VRING_NUM",
    "SET_VRING_ADDR",
    "SET_VRING_BASE",
    "GET_VRING_BASE",
    "SET_VRING_KICK",
    "SET_VRING_CALL",
    "SET_VRING_ERR",
    "GET_PROTOCOL_FEATURES",
    "SET_PROTOCOL_FEATURES",
    "GET_QUEUE_NUM",
    "SET_VRING_ENABLE",
    "SEND_RARP",
    "NET_SET_MTU",
    "SET_BACKEND_REQ_FD",
    "IOTLB_MSG",
    "SET_VRING_ENDIAN",
    "GET_CONFIG",
    "SET_CONFIG",
    "CREATE_CRYPTO_SESSION",
    "CLOSE_CRYPTO_SESSION",
    "POSTCOPY_ADVISE",
    "POSTCOPY_LISTEN",
    "POSTCOPY_END",
    "GET_INFLIGHT_FD",
    "SET_INFLIGHT_FD",
    "GPU_SET_SOCKET",
    "RESET_DEVICE",
    "VRING_KICK",
    "GET_MAX_MEM_SLOTS",
    "ADD_MEM_REG",
    "REM_MEM_REG",
    "SET_STATUS",
    "GET_STATUS",
    "GET_SHARED_OBJECT",
};

// "Protocol features", in the order of their bits.
constexpr std::array<std::string_view, 17> kProtocolFeatureNames = {
    "MQ",
    "LOG_SHMFD",
    "RARP",
    "REPLY_ACK",
    "NET_MTU",
    "BACKEND_REQ",
    "CROSS_ENDIAN",
    "CRYPTO_SESSION",
    "PAGEFAULT",
    "CONFIG",
    "BACKEND_SEND_FD",
    "HOST_NOTIFIER",
    "INFLIGHT_SHMFD",
    "RESET_DEVICE",
    "INBAND_NOTIFICATIONS",
    "CONFIGURE_MEM_SLOTS",
    "STATUS",
};

}  // namespace

std::string request_name(Request request) {
  const auto number = static_cast<std::uint32_t>(request);
  if (number >= 1 && number <= kRequestNames.size()) {
    return std::string(kRequestNames[number - 1]);
  }
  return "request " + std::to_string(number);
}

std::vector<std::string> protocol_feature_names(std::uint64_t features) {
  std::vector<std::string> names;
  for (unsigned bit = 0; bit < 64; ++bit) {
    if ((features >> bit & 1) == 0) continue;
    if (bit < kProtocolFeatureNames.size()) {
      names.push_back("VHOST_USER_PROTOCOL_F_" + std::string(kProtocolFeatureNames[bit]));
    } else {
      names.push_back("BIT_" + std::to_string(bit));
    }
  }
  return names;
}

}  // namespace vswitch::vhost_user
