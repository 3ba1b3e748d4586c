// A real data plane on ordinary pages, with one worker unless the test wants more, and guests that
// attach to its sockets.
#pragma once

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "dataplane/dataplane.h"
#include "dataplane/os/log.h"
#include "tests/dataplane/forwarding/fake_guest.h"
#include "tests/dataplane/vhost_user/raw_frontend.h"

namespace vswitch::test {

using dataplane::PortState;
using dataplane::PortStatus;

inline int entries_of(const char* directory) {
  int count = 0;
  DIR* const open = ::opendir(directory);
  while (::readdir(open) != nullptr) ++count;
  ::closedir(open);
  return count;
}
inline int open_fds() { return entries_of("/proc/self/fd"); }
inline int threads() { return entries_of("/proc/self/task"); }

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
// Until `done`, at most `seconds`; false: not in time.
inline bool eventually(const std::function<bool()>& done, double seconds = 5) {
  const auto start = std::chrono::steady_clock::now();
  while (!done()) {
    if (seconds_since(start) > seconds) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

// A guest on a socket. Every setting asks for its acknowledgement.
class SocketGuest {
 public:
  static constexpr int kPatience = 5000;  // milliseconds

  explicit SocketGuest(Mac address, unsigned queue_pairs = 1, std::uint16_t ring_size = 256)
      : mac(address), pairs(queue_pairs), memory(ring_size, 2048, queue_pairs) {
    for (unsigned i = 0; i < 2 * pairs; ++i) {
      errors.emplace_back(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    }
  }

  bool connect(const std::string& path) {
    front = RawFrontend::connect(path);
    return front.connected();
  }
  // Sends a setting and waits until it is done.
  bool set(std::string bytes, const std::vector<int>& fds = {}) {
    bytes[4] = 9;
    if (!front.send(bytes, fds)) return false;
    const auto answer = front.receive(kPatience);
    return answer && answer->number() == 0;
  }
  bool negotiate() {
    return front.send(message(kSetOwner)) && front.send(message(kSetFeatures, u64(features))) &&
           front.send(message(kSetProtocolFeatures, u64(9)));
  }
  bool set_memory() {
    return set(
        memory_table_message({{FakeGuest::kGuestBase, memory.bytes(), FakeGuest::kUserBase}}),
        {memory.memory()});
  }
  bool set_ring(std::uint32_t index, std::uint32_t base = 0) {
    const FakeRing& ring = memory.ring(index);
    return set(vring_message(kSetVringNum, index, ring.size())) &&
           set(vring_message(kSetVringBase, index, base)) &&
           set(vring_address_message(index, memory.user_address(index, 0),
                                     memory.user_address(index, ring.used_at()),
                                     memory.user_address(index, ring.available_at()))) &&
           set(message(kSetVringErr, u64(index)), {errors[index].get()}) &&
           set(message(kSetVringCall, u64(index)), {call.get()}) && kick(index);
  }
  bool kick(std::uint32_t index) {
    return set(message(kSetVringKick, u64(index)), {kick_event.get()});
  }
  bool enable(std::uint32_t index, bool on) {
    return set(vring_message(kSetVringEnable, index, on ? 1 : 0));
  }
  // All of it: both rings of each pair run.
  bool attach(const std::string& path) {
    if (!connect(path) || !negotiate() || !set_memory()) return false;
    for (std::uint32_t i = 0; i < 2 * pairs; ++i) {
      if (!set_ring(i) || !enable(i, true)) return false;
    }
    return true;
  }
  std::optional<std::uint32_t> stop(std::uint32_t index) {
    if (!front.send(vring_message(kGetVringBase, index, 0))) return std::nullopt;
    const auto answer = front.receive(kPatience);
    if (!answer) return std::nullopt;
    return answer->vring_value();
  }
  bool error_rung(std::size_t index) const {
    std::uint64_t count = 0;
    return ::read(errors[index].get(), &count, sizeof(count)) == sizeof(count);
  }

  Mac mac;
  unsigned pairs;
  std::uint64_t features = kVersion1Bit | kProtocolFeaturesBit;
  RawFrontend front;
  FakeGuest memory;
  UniqueFd kick_event{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  UniqueFd call{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::vector<UniqueFd> errors;  // by ring
};

// Frames from one guest to another, numbered; keeps account of what became of them.
class Stream {
 public:
  Stream(SocketGuest& from, SocketGuest& to) : from_(from), to_(to) {}

  // Sends up to a burst and takes what has arrived; never more in flight than buffers are posted.
  void step() {
    to_.memory.post(256);
    for (int i = 0; i < 32; ++i) {
      if (!from_.memory.send(make_frame(to_.mac, from_.mac, 64 + sent_ % 1400, sent_))) break;
      ++sent_;
    }
    take();
  }
  void take() {
    for (const std::string& frame : to_.memory.receive()) {
      if (frame.substr(6, 6) != mac_text(from_.mac)) continue;
      const std::uint32_t tag = frame_tag(frame);
      EXPECT_EQ(frame, make_frame(to_.mac, from_.mac, 64 + tag % 1400, tag)) << "damaged";
      EXPECT_GE(tag, next_) << "twice, or out of order";
      next_ = tag + 1;
      ++received_;
    }
    to_.memory.post(256);
  }
  // Waits until the switch is done with all that was sent.
  bool settle() {
    const bool done = eventually([&] {
      take();
      return from_.memory.reclaim() == 0;
    });
    take();  // what was delivered in front of the last return
    return done;
  }
  std::uint32_t sent() const { return sent_; }
  std::uint32_t received() const { return received_; }

 private:
  SocketGuest& from_;
  SocketGuest& to_;
  std::atomic<std::uint32_t> sent_{0};  // one thread drives a stream, others may look
  std::atomic<std::uint32_t> received_{0};
  std::uint32_t next_ = 0;
};

class DataplaneFixture : public testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::kError);
    char name[] = "/tmp/vswitch-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory = name;
    dataplane::Options options;
    options.worker_count = worker_count;
    options.memory_bytes = 32ull << 20;
    options.hugepages = dataplane::HugepageMode::kOff;
    auto started = dataplane::Dataplane::start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    plane = *std::move(started);
    ASSERT_TRUE(create_bridge("br0").ok());
  }
  void TearDown() override {
    plane.reset();
    EXPECT_TRUE(std::filesystem::is_empty(directory) || keeps_files) << "a socket was left behind";
    std::filesystem::remove_all(directory);
  }

  std::string path(const std::string& id) const { return directory + "/" + id; }
  // Calls and waits for the answer, which must come within a second.
  absl::Status call(const std::function<void(dataplane::Dataplane::Done)>& method) {
    auto promise = std::make_shared<std::promise<absl::Status>>();
    auto result = promise->get_future();
    const auto start = std::chrono::steady_clock::now();
    method([promise](absl::Status status) { promise->set_value(std::move(status)); });
    if (result.wait_for(std::chrono::seconds(10)) != std::future_status::ready) {
      return absl::DeadlineExceededError("no answer");
    }
    EXPECT_LT(seconds_since(start), 1.0);
    return result.get();
  }
  absl::Status create_bridge(const std::string& id) {
    return call([&](auto done) { plane->create_bridge({id}, done); });
  }
  absl::Status delete_bridge(const std::string& id) {
    return call([&](auto done) { plane->delete_bridge(id, done); });
  }
  dataplane::PortConfig config(const std::string& id) const {
    return {.id = id, .bridge = "br0", .kind = dataplane::VhostUserServerConfig{path(id)}};
  }
  absl::Status create_port(const std::string& id, std::uint32_t queue_pairs = 1) {
    dataplane::PortConfig wanted = config(id);
    wanted.queue_pairs = queue_pairs;
    return call([&](auto done) { plane->create_port(wanted, done); });
  }
  absl::Status restore_port(const std::string& id) {
    return call([&](auto done) { plane->restore_port(config(id), done); });
  }
  absl::Status delete_port(const std::string& id) {
    return call([&](auto done) { plane->delete_port(id, done); });
  }
  PortStatus port(const std::string& id) {
    const auto ports = plane->ports(absl::Now() + absl::Seconds(5));
    EXPECT_TRUE(ports.ok()) << ports.status();
    if (ports.ok()) {
      for (const PortStatus& status : *ports) {
        if (status.config.id == id) return status;
      }
    }
    ADD_FAILURE() << "no port " << id;
    return {};
  }
  bool becomes(const std::string& id, PortState state, double seconds = 5) {
    return eventually([&] { return port(id).state == state; }, seconds);
  }
  // Until the workers use what was acknowledged before: the loop publishes a change at the end of
  // its round, and a worker picks it up in its next one.
  void workers_follow() {
    const auto polls = [&] { return plane->workers(absl::Now() + absl::Seconds(5))->at(0).polls; };
    const std::uint64_t before = polls();
    EXPECT_TRUE(eventually([&] { return polls() >= before + 2; }));
  }
  static std::uint64_t dropped(const dataplane::DirectionCounters& counters, DropReason reason) {
    return counters.dropped[static_cast<std::size_t>(reason)];
  }
  // A port with a guest whose rings run; its address is known to the switch.
  std::unique_ptr<SocketGuest> add_guest(const std::string& id, Mac mac) {
    EXPECT_TRUE(create_port(id).ok());
    auto guest = std::make_unique<SocketGuest>(mac);
    EXPECT_TRUE(guest->attach(path(id)));
    EXPECT_EQ(port(id).state, PortState::kUp) << port(id).state_reason;
    guest->memory.post(256);
    announce(*guest);
    return guest;
  }
  static void announce(SocketGuest& guest) {
    EXPECT_TRUE(guest.memory.send(make_frame(0x0180c2000000, guest.mac, 60)));
    EXPECT_TRUE(eventually([&] { return guest.memory.reclaim() == 0; }));
  }

  unsigned worker_count = 1;  // set by the fixture's constructor
  std::string directory;
  bool keeps_files = false;
  std::unique_ptr<dataplane::Dataplane> plane;
};

}  // namespace vswitch::test
