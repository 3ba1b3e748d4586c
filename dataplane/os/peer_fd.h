// Descriptors that an untrusted peer sent, and connections to it.
//
// The last close of a descriptor may block: a TCP socket lingers, a file of a user-space file
// system waits for its server. A peer can send either, and the kernel closes what it still finds
// queued in a connection's buffer in the context of whoever closes that connection. Nothing here
// blocks.
#pragma once

#include <utility>

#include "dataplane/os/unique_fd.h"

namespace vswitch {

// An eventfd, or a memory file (memfd, tmpfs, hugetlbfs): what this protocol has a use for, and
// what is closed at once. Asks the kernel only, never a file system. `fd` may be -1: false.
bool is_eventfd(int fd);
bool is_memory_file(int fd);

// Closes a descriptor of any kind; one that could block is closed on a thread of its own.
void close_peer_fd(UniqueFd fd);

// A stream connection to a peer. Closing it first takes out what is still queued in it.
class PeerSocket {
 public:
  explicit PeerSocket(UniqueFd socket) : socket_(std::move(socket)) {}
  PeerSocket(PeerSocket&&) = default;
  PeerSocket& operator=(PeerSocket&& other) noexcept {
    if (this != &other) {
      close();
      socket_ = std::move(other.socket_);
    }
    return *this;
  }
  ~PeerSocket() { close(); }

  int get() const { return socket_.get(); }

 private:
  void close();

  UniqueFd socket_;
};

}  // namespace vswitch
