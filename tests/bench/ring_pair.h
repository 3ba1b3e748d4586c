// Both ends of a transmit and a receive ring in one process, for the ring benchmarks: the driver's
// queues and the device's queues over the same guest memory.
#pragma once

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "dataplane/guest_memory/guest_memory.h"
#include "dataplane/virtq/device_queue.h"
#include "dataplane/virtq/driver_queue.h"
#include "dataplane/virtq/packed_driver.h"
#include "dataplane/virtq/split_driver.h"

namespace vswitch::bench {

inline constexpr std::uint32_t kQueueSize = 256;
inline constexpr std::uint32_t kBufferBytes = 2048;
// What a guest negotiates with the switch today.
inline constexpr std::uint64_t kFeatures =
    virtq::kFeatureVersion1 | virtq::kFeatureMrgRxbuf | virtq::kFeatureIndirectDesc;

inline std::uint64_t cycles() { return __builtin_ia32_rdtsc(); }

inline void pin_to(unsigned cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (pthread_setaffinity_np(pthread_self(), sizeof(set), &set) != 0) {
    throw std::runtime_error("cannot pin to CPU " + std::to_string(cpu));
  }
}

// One memfd, mapped once, handed out front to back.
class BenchMemory {
 public:
  static constexpr std::uint64_t kBytes = 8 << 20;
  static constexpr std::uint64_t kGuestBase = 1 << 20;

  BenchMemory() {
    UniqueFd file(memfd_create("ring-bench", MFD_CLOEXEC));
    if (!file.valid() || ftruncate(file.get(), kBytes) != 0) throw std::runtime_error("memfd");
    std::vector<RegionDescription> regions;
    regions.push_back({kGuestBase, kBytes, kGuestBase, 0, std::move(file)});
    memory_ = GuestMemory::map(std::move(regions)).value();
  }

  std::byte* take(std::size_t bytes) {
    bytes = (bytes + 4095) / 4096 * 4096;
    if (taken_ + bytes > kBytes) throw std::runtime_error("the benchmark's memory is used up");
    std::byte* const place = base() + taken_;
    taken_ += bytes;
    return place;
  }
  std::uint64_t guest_address(const std::byte* host) const {
    return kGuestBase + static_cast<std::uint64_t>(host - base());
  }
  const std::shared_ptr<const GuestMemory>& memory() const { return memory_; }

 private:
  std::byte* base() const { return memory_->regions()[0].host; }

  std::shared_ptr<const GuestMemory> memory_;
  std::size_t taken_ = 0;
};

struct Split {
  static constexpr std::uint64_t kFeature = 0;
  static constexpr std::uint16_t kStart = 0;
  using Device = virtq::SplitDevice;
  using Driver = virtq::SplitDriver;
  static virtq::SplitRing ring(BenchMemory& memory) {
    return {reinterpret_cast<virtq::Descriptor*>(
                memory.take(virtq::descriptor_table_bytes(kQueueSize))),
            reinterpret_cast<virtq::RingHeader*>(memory.take(virtq::avail_ring_bytes(kQueueSize))),
            reinterpret_cast<virtq::RingHeader*>(memory.take(virtq::used_ring_bytes(kQueueSize))),
            kQueueSize};
  }
};

struct Packed {
  static constexpr std::uint64_t kFeature = virtq::kFeatureRingPacked;
  static constexpr std::uint16_t kStart = 0x8000;
  using Device = virtq::PackedDevice;
  using Driver = virtq::PackedDriver;
  static virtq::PackedRing ring(BenchMemory& memory) {
    return {reinterpret_cast<virtq::PackedDescriptor*>(
                memory.take(virtq::packed_ring_bytes(kQueueSize))),
            reinterpret_cast<virtq::EventSuppression*>(memory.take(4)),
            reinterpret_cast<virtq::EventSuppression*>(memory.take(4)), kQueueSize};
  }
};

// A guest's pair of queues, each with its driver and its device end.
template <typename Layout>
class RingPair {
 public:
  using DriverTransmit = virtq::DriverTransmitQueue<typename Layout::Driver>;
  using DriverReceive = virtq::DriverReceiveQueue<typename Layout::Driver>;
  using DeviceQueue = virtq::BasicDeviceQueue<typename Layout::Device>;

  explicit RingPair(virtq::TransmitOptions options = {}, std::uint64_t features = kFeatures)
      : features_(features | Layout::kFeature) {
    const auto transmit_ring = Layout::ring(memory_);
    const auto receive_ring = Layout::ring(memory_);
    const virtq::RingFeatures ring_features = virtq::ring_features(features_);
    driver_transmit_ = std::make_unique<DriverTransmit>(
        std::make_unique<typename Layout::Driver>(transmit_ring, ring_features), area(), features_,
        options);
    driver_receive_ = std::make_unique<DriverReceive>(
        std::make_unique<typename Layout::Driver>(receive_ring, ring_features), area(), features_);
    driver_transmit_->ring().suppress_calls(true);
    driver_receive_->ring().suppress_calls(true);
    device_transmit_ = make_device(transmit_ring);
    device_receive_ = make_device(receive_ring);
  }

  DriverTransmit& driver_transmit() { return *driver_transmit_; }
  DriverReceive& driver_receive() { return *driver_receive_; }
  DeviceQueue& device_transmit() { return *device_transmit_; }
  DeviceQueue& device_receive() { return *device_receive_; }

  // Sends up to `wanted` frames (at most 32) of `bytes`; how many.
  std::uint32_t send(std::uint32_t wanted, std::uint32_t bytes) {
    std::array<typename DriverTransmit::Slot, kBurstFrames> slots;
    const std::uint32_t count = driver_transmit_->reserve(std::span(slots).first(wanted));
    if (count == 0) return 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      slots[i].length = bytes;
      // What a stack does at the least: it writes the addresses.
      std::memset(slots[i].data, 0x22, 14);
    }
    driver_transmit_->commit(std::span(slots).first(count));
    return count;
  }
  // Takes up to 32 received frames, calls `each(bytes)` for them and posts their buffers anew; how
  // many.
  template <typename Each>
  std::uint32_t receive(Each each) {
    std::array<typename DriverReceive::Frame, kBurstFrames> frames;
    const std::uint32_t count = driver_receive_->read(frames);
    for (std::uint32_t i = 0; i < count; ++i) {
      // What a stack does at the least: it looks at the addresses.
      checksum_ += static_cast<unsigned>(driver_receive_->pieces(frames[i])[0].data[12]);
      each(frames[i].length);
    }
    driver_receive_->release();
    return count;
  }
  std::uint32_t receive() {
    return receive([](std::uint32_t) {});
  }

  const GuestMemory& memory() const { return *memory_.memory(); }

 private:
  virtq::BufferArea area() {
    std::byte* const buffers = memory_.take(std::size_t{kQueueSize} * kBufferBytes);
    std::byte* const tables = memory_.take(std::size_t{kQueueSize} * virtq::kTransmitTableBytes);
    return {buffers,
            memory_.guest_address(buffers),
            kBufferBytes,
            kQueueSize,
            {tables, memory_.guest_address(tables)}};
  }
  template <typename Ring>
  std::unique_ptr<DeviceQueue> make_device(const Ring& ring) {
    return std::make_unique<DeviceQueue>(
        typename Layout::Device(ring, Layout::kStart, virtq::ring_features(features_)),
        memory_.memory(), features_, kQueueSize);
  }

  BenchMemory memory_;
  std::uint64_t features_;
  std::unique_ptr<DriverTransmit> driver_transmit_;
  std::unique_ptr<DriverReceive> driver_receive_;
  std::unique_ptr<DeviceQueue> device_transmit_;
  std::unique_ptr<DeviceQueue> device_receive_;
  unsigned checksum_ = 0;
};

}  // namespace vswitch::bench
