// Memory that is taken away while it is mapped: contained to its mapping.
#include "dataplane/guest_memory/memory_fault.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>
#include <vector>

#include "dataplane/guest_memory/guest_memory.h"

namespace vswitch {
namespace {

constexpr std::uint64_t kPage = 4096;

class MemoryFaultTest : public testing::Test {
 protected:
  MemoryFaultTest() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_TRUE(install_memory_fault_handler().ok());
    drain();
  }

  struct Guest {
    UniqueFd file;
    std::shared_ptr<const GuestMemory> memory;
    volatile std::uint8_t* bytes() const {
      return reinterpret_cast<volatile std::uint8_t*>(memory->regions()[0].host);
    }
  };
  static Guest make_guest(std::uint64_t pages) {
    Guest guest;
    guest.file.reset(memfd_create("guest", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(guest.file.get(), static_cast<off_t>(pages * kPage)), 0);
    std::vector<RegionDescription> descriptions;
    descriptions.push_back({0, pages * kPage, 0, 0, UniqueFd(dup(guest.file.get()))});
    guest.memory = GuestMemory::map(std::move(descriptions)).value();
    return guest;
  }

  static bool event_is_readable() {
    pollfd watched{memory_fault_event(), POLLIN, 0};
    return poll(&watched, 1, 0) == 1;
  }
  static void drain() {
    std::uint64_t count = 0;
    const ssize_t bytes = read(memory_fault_event(), &count, sizeof(count));
    (void)bytes;
  }
};

TEST_F(MemoryFaultTest, InstallingTwiceKeepsTheEvent) {
  const int event = memory_fault_event();
  EXPECT_GE(event, 0);
  EXPECT_TRUE(install_memory_fault_handler().ok());
  EXPECT_EQ(memory_fault_event(), event);
}

TEST_F(MemoryFaultTest, TruncatedMemoryReadsAsZeros) {
  const Guest lost = make_guest(4);
  const Guest other = make_guest(4);
  for (std::uint64_t i = 0; i < 4; ++i) {
    lost.bytes()[i * kPage] = 0x11;
    other.bytes()[i * kPage] = 0x22;
  }
  ASSERT_EQ(ftruncate(lost.file.get(), 0), 0);
  EXPECT_FALSE(lost.memory->vanished());  // nobody has noticed yet
  std::thread worker([&] {
    for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(lost.bytes()[i * kPage], 0);
    lost.bytes()[0] = 0x33;  // and can be written
    EXPECT_EQ(lost.bytes()[0], 0x33);
  });
  worker.join();
  EXPECT_TRUE(lost.memory->vanished());
  EXPECT_FALSE(other.memory->vanished());
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(other.bytes()[i * kPage], 0x22);
  EXPECT_TRUE(event_is_readable());
  drain();
  EXPECT_FALSE(event_is_readable());
}

TEST_F(MemoryFaultTest, FaultOfAStore) {
  const Guest lost = make_guest(1);
  ASSERT_EQ(ftruncate(lost.file.get(), 0), 0);
  lost.bytes()[100] = 7;
  EXPECT_EQ(lost.bytes()[100], 7);
  EXPECT_TRUE(lost.memory->vanished());
}

// What is left of the file is not the guest's any more either: the whole mapping is replaced.
TEST_F(MemoryFaultTest, PartlyTruncatedMemory) {
  const Guest lost = make_guest(4);
  lost.bytes()[0] = 0x11;
  ASSERT_EQ(ftruncate(lost.file.get(), kPage), 0);
  EXPECT_EQ(lost.bytes()[0], 0x11);
  EXPECT_FALSE(lost.memory->vanished());
  EXPECT_EQ(lost.bytes()[3 * kPage], 0);
  EXPECT_TRUE(lost.memory->vanished());
  EXPECT_EQ(lost.bytes()[0], 0);
}

TEST_F(MemoryFaultTest, NewMappingInTheSamePlaceIsNotVanished) {
  for (int i = 0; i < 20; ++i) {
    const Guest guest = make_guest(2);
    EXPECT_FALSE(guest.memory->vanished());
    guest.bytes()[0] = 1;
    ASSERT_EQ(ftruncate(guest.file.get(), 0), 0);
    EXPECT_EQ(guest.bytes()[kPage], 0);
    EXPECT_TRUE(guest.memory->vanished());
  }
}

// Guests that lose their memory while others come and go: each loss stays where it was.
TEST_F(MemoryFaultTest, LossesWhileMappingsComeAndGo) {
  const Guest bystander = make_guest(1);
  bystander.bytes()[0] = 0x77;
  std::atomic<bool> stop{false};
  std::vector<std::thread> churn;
  for (int i = 0; i < 2; ++i) {
    churn.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        const Guest one = make_guest(1);
        const Guest two = make_guest(3);
        one.bytes()[0] = 0x44;
        two.bytes()[2 * kPage] = 0x55;
        EXPECT_EQ(one.bytes()[0], 0x44);
        EXPECT_EQ(two.bytes()[2 * kPage], 0x55);
        EXPECT_FALSE(one.memory->vanished());
        EXPECT_FALSE(two.memory->vanished());
      }
    });
  }
  for (int i = 0; i < 500; ++i) {
    const Guest lost = make_guest(2);
    lost.bytes()[kPage] = 1;
    ASSERT_EQ(ftruncate(lost.file.get(), 0), 0);
    EXPECT_EQ(lost.bytes()[kPage], 0);
    EXPECT_TRUE(lost.memory->vanished());
  }
  stop = true;
  for (std::thread& thread : churn) thread.join();
  EXPECT_EQ(bystander.bytes()[0], 0x77);
  EXPECT_FALSE(bystander.memory->vanished());
}

using MemoryFaultDeathTest = MemoryFaultTest;

// Nothing but registered mappings is papered over.
TEST_F(MemoryFaultDeathTest, UnregisteredMappingStillEndsTheProcess) {
  EXPECT_DEATH(
      {
        UniqueFd file(memfd_create("other", MFD_CLOEXEC));
        if (ftruncate(file.get(), kPage) != 0) _exit(0);
        auto* bytes = static_cast<volatile std::uint8_t*>(
            mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
        if (ftruncate(file.get(), 0) != 0) _exit(0);
        bytes[0] = 1;
        _exit(0);
      },
      "");
}

TEST_F(MemoryFaultDeathTest, MappingThatWasGivenUpIsNoLongerProtected) {
  EXPECT_DEATH(
      {
        UniqueFd file(memfd_create("other", MFD_CLOEXEC));
        if (ftruncate(file.get(), kPage) != 0) _exit(0);
        void* base = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
        unprotect_mapping(protect_mapping(base, kPage));
        if (ftruncate(file.get(), 0) != 0) _exit(0);
        *static_cast<volatile std::uint8_t*>(base) = 1;
        _exit(0);
      },
      "");
}

// A SIGBUS that somebody sends has no access that would be repeated; it ends the process as it did
// before there was a handler.
TEST_F(MemoryFaultDeathTest, SentSignalEndsTheProcess) {
  EXPECT_DEATH(
      {
        kill(getpid(), SIGBUS);
        usleep(100'000);
        _exit(0);
      },
      "");
}

}  // namespace
}  // namespace vswitch
