// Payload-exact transfers from a transmit ring into receive rings, over sizes, segmentations, ring
// sizes and index wraps.
#include "tests/dataplane/virtq/device_queue_fixture.h"

namespace vswitch::testing {
namespace {

using ::testing::ElementsAre;

class PayloadTest : public DeviceQueueTest {
 protected:
  // Cuts `total` bytes at `address` into a chain that begins at descriptor `head`: pieces of the
  // given lengths, the last one repeated.
  static void chain(GuestRing& ring, std::uint16_t head, std::uint64_t address, std::uint32_t total,
                    const std::vector<std::uint32_t>& pieces, std::uint16_t flags) {
    std::uint16_t index = head;
    std::size_t piece = 0;
    while (true) {
      const std::uint32_t length = std::min(pieces[piece], total);
      total -= length;
      if (piece + 1 < pieces.size()) ++piece;
      const auto next = static_cast<std::uint16_t>((index + 1u) % ring.size());
      ring.describe(index, address, length,
                    static_cast<std::uint16_t>(total ? flags | kNextFlag : flags), next);
      if (total == 0) return;
      address += length;
      index = next;
    }
  }

  // One frame from `from` (cut as `out`) into `to` (cut as `in`), compared byte by byte, together
  // with the bytes around it.
  void transfer(DeviceUnderTest& from, GuestRing& tx, DeviceUnderTest& to, GuestRing& rx,
                const Bytes& frame, const std::vector<std::uint32_t>& out,
                const std::vector<std::uint32_t>& in, std::uint32_t room) {
    const auto bytes = static_cast<std::uint32_t>(frame.size());
    std::memset(guest_.at(kTxBuffers), 0x33, 12);
    std::memcpy(guest_.at(kTxBuffers + 12), frame.data(), bytes);
    chain(tx, 0, kTxBuffers, bytes + 12, out, 0);
    guest_.fill(kRxBuffers - 64, room + 128, 0xaa);
    chain(rx, 0, kRxBuffers, room, in, kWriteFlag);
    const std::uint16_t first = rx.used_index();
    tx.offer(0);
    rx.offer(0);
    ASSERT_EQ(from.read(burst_, counters_), 1U);
    ASSERT_EQ(burst_.count, 1U);
    ASSERT_EQ(burst_.frames[0].bytes(), bytes);
    receive(to, burst_.frames[0]);
    from.release();
    ASSERT_EQ(rx.used_index(), static_cast<std::uint16_t>(first + 1));
    ASSERT_EQ(rx.used(first), (Used{0, bytes + 12}));
    const Bytes header{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0};
    ASSERT_EQ(guest_.read(kRxBuffers, bytes + 12), concat(header, frame));
    ASSERT_EQ(guest_.read(kRxBuffers - 64, 64), Bytes(64, 0xaa));
    const std::uint32_t rest = room + 64 - (bytes + 12);
    ASSERT_EQ(guest_.read(kRxBuffers + 12 + bytes, rest), Bytes(rest, 0xaa));
  }

  GuestRing tx_large_{layout_, guest_, kTxRing, 1024};
  GuestRing rx_large_{layout_, guest_, kRxRing, 1024};
};

// Ways to cut a buffer: whole, header alone, header straddling, odd sizes, tiny beginnings.
const std::vector<std::vector<std::uint32_t>> kCuts = {
    {0xffffffff},       {12, 0xffffffff},     {10, 0xffffffff},  {13, 0xffffffff},
    {1, 0xffffffff},    {4, 4, 4, 60, 1000},  {140, 0xffffffff}, {139, 1, 0xffffffff},
    {12, 128, 1, 4096}, {7, 11, 13, 127},     {64, 65, 257},     {12, 14, 20, 20, 1460},
    {141, 0xffffffff},  {12, 127, 0xffffffff}};

TEST_P(PayloadTest, EverySizeOfAnEthernetFrame) {
  DeviceUnderTest from = device(tx_large_, kVersion1);
  DeviceUnderTest to = device(rx_large_, kVersion1 | kMergeable);
  for (std::uint32_t size = 60; size <= 1518; ++size) {
    const std::uint32_t way = size * 5;
    transfer(from, tx_large_, to, rx_large_, pattern(size, size), kCuts[way % kCuts.size()],
             kCuts[way / kCuts.size() % kCuts.size()], size + 12 + size % 3);
    if (HasFatalFailure()) FAIL() << "size " << size;
  }
  EXPECT_EQ(counters_.packets.value(), 1459U);
  EXPECT_EQ(drops(), 0U);
}

TEST_P(PayloadTest, FromOneByteToJumboInOddSteps) {
  DeviceUnderTest from = device(tx_large_, kVersion1);
  DeviceUnderTest to = device(rx_large_, kVersion1);
  std::vector<std::uint32_t> sizes{127, 128, 129, 255, 256, 257, 511, 512, 513, 9000};
  for (std::uint32_t size = 1; size < 9000; size += 37) sizes.push_back(size);
  for (const std::uint32_t size : sizes) {
    for (std::size_t way = 0; way < kCuts.size(); way += 3) {
      transfer(from, tx_large_, to, rx_large_, pattern(size, size),
               kCuts[(size + way) % kCuts.size()], kCuts[(size / 7 + way) % kCuts.size()],
               size + 12 + size % 5);
      if (HasFatalFailure()) FAIL() << "size " << size << " way " << way;
    }
  }
}

TEST_P(PayloadTest, AllCutsAgainstAllCutsAtTheEdges) {
  DeviceUnderTest from = device(tx_large_, kVersion1);
  DeviceUnderTest to = device(rx_large_, kVersion1 | kMergeable);
  for (const std::uint32_t size : {1, 2, 14, 60, 116, 127, 128, 129, 140, 255, 256, 257, 1514}) {
    for (std::size_t out = 0; out < kCuts.size(); ++out) {
      for (std::size_t in = 0; in < kCuts.size(); ++in) {
        transfer(from, tx_large_, to, rx_large_, pattern(size, size), kCuts[out], kCuts[in],
                 size + 12);
        if (HasFatalFailure()) FAIL() << "size " << size << " out " << out << " in " << in;
      }
    }
  }
}

TEST_P(PayloadTest, OneByteDescriptorsOnBothSides) {
  DeviceUnderTest from = device(tx_large_, kVersion1);
  DeviceUnderTest to = device(rx_large_, kVersion1 | kMergeable);
  for (const std::uint32_t size : {1, 60, 127, 128, 129, 500, 1012}) {
    transfer(from, tx_large_, to, rx_large_, pattern(size, size), {1}, {1}, size + 12);
    if (HasFatalFailure()) FAIL() << "size " << size;
  }
}

// A header in three descriptors of four bytes, then in twelve of one.
TEST_P(PayloadTest, HeaderOverSeveralDescriptors) {
  DeviceUnderTest queue = device(tx_, kVersion1);
  const Bytes first = pattern(60, 1);
  const Bytes second = pattern(60, 2);
  guest_.write(kTxBuffers, concat(Bytes(12, 0xee), first));
  guest_.write(kTxBuffers + 4096, concat(Bytes(12, 0xee), second));
  chain(tx_, 0, kTxBuffers, 72, {4, 4, 4, 60}, 0);
  std::vector<std::uint32_t> twelve(12, 1);
  twelve.push_back(60);
  chain(tx_, 10, kTxBuffers + 4096, 72, twelve, 0);
  tx_.offer(0);
  tx_.offer(10);
  EXPECT_THAT(transmit(queue), ElementsAre(first, second));
  EXPECT_THAT(tx_.used_since(0), ElementsAre(Used{0, 0}, Used{10, 0}));
}

TEST_P(PayloadTest, EmptyDescriptorsInAChain) {
  DeviceUnderTest queue = device(tx_, kVersion1);
  const Bytes frame = pattern(200, 3);
  guest_.write(kTxBuffers, concat(Bytes(12, 0), frame));
  tx_.describe(0, kTxBuffers, 0, kNextFlag, 1);
  tx_.describe(1, kTxBuffers, 12, kNextFlag, 2);
  tx_.describe(2, 0, 0, kNextFlag, 3);
  tx_.describe(3, kTxBuffers + 12, 200, kNextFlag, 4);
  tx_.describe(4, 0xffffffffffffffff, 0);
  tx_.offer(0);
  EXPECT_THAT(transmit(queue), ElementsAre(frame));
}

// A buffer that goes on in the next region of the guest's addresses, mapped elsewhere by us.
TEST_P(PayloadTest, BufferOverTwoRegionsOnBothSides) {
  constexpr std::uint64_t kBoundary = 0x20010000;
  const FakeGuest guest({{kBoundary, 0x10000}, {0x20000000, 0x10000}});
  GuestRing tx(layout_, guest, 0x20000000, 16);
  GuestRing rx(layout_, guest, 0x20001000, 16);
  DeviceUnderTest from = make_device(guest, tx, kVersion1);
  DeviceUnderTest to = make_device(guest, rx, kVersion1);
  for (std::uint64_t before = 1; before < 400; before += 3) {
    const Bytes frame = pattern(388, static_cast<std::uint32_t>(before));
    guest.write(kBoundary - before, concat(Bytes(12, 0), frame));
    tx.describe(0, kBoundary - before, 400);
    tx.offer(0);
    ASSERT_EQ(from.read(burst_, counters_), 1U);
    ASSERT_EQ(burst_.count, 1U);
    ASSERT_EQ(bytes_of(burst_.frames[0]), frame);
    const Bytes sent = bytes_of(burst_.frames[0]);
    from.release();
    rx.describe(0, kBoundary - before, 400, kWriteFlag);
    rx.offer(0);
    receive(to, sent);
    ASSERT_EQ(guest.read(kBoundary - before + 12, 388), frame) << before;
  }
}

// The header in front of a transmitted frame is negotiated to say nothing, and is not looked at.
TEST_P(PayloadTest, TransmitHeaderIsIgnored) {
  DeviceUnderTest queue = device(tx_, kVersion1);
  const Bytes frame = pattern(100, 3);
  for (std::uint32_t byte = 0; byte < 12; ++byte) {
    for (const int value : {1, 2, 4, 0x80, 0xff}) {
      Bytes header(12, 0);
      header[byte] = static_cast<std::uint8_t>(value);
      guest_.write(kTxBuffers, concat(header, frame));
      tx_.describe(0, kTxBuffers, 112);
      tx_.offer(0);
      ASSERT_THAT(transmit(queue), ElementsAre(frame)) << byte << " is " << value;
    }
  }
  EXPECT_EQ(drops(), 0U);
}

// Not even read: here it ends a page that cannot be.
TEST_P(PayloadTest, TransmitHeaderIsNotRead) {
  constexpr std::uint64_t kPage = kTxBuffers + 0x1000;
  DeviceUnderTest queue = device(tx_, kVersion1);
  const Bytes frame = pattern(300, 3);
  guest_.write(kPage, frame);
  tx_.describe(0, kPage - 12, 312);
  tx_.describe(1, kPage - 12, 12, kNextFlag, 2);
  tx_.describe(2, kPage, 300);
  tx_.offer(0);
  tx_.offer(1);
  ASSERT_EQ(mprotect(guest_.at(kTxBuffers), 0x1000, PROT_NONE), 0);
  const std::vector<Bytes> frames = transmit(queue);
  ASSERT_EQ(mprotect(guest_.at(kTxBuffers), 0x1000, PROT_READ | PROT_WRITE), 0);
  EXPECT_THAT(frames, ElementsAre(frame, frame));
}

// Nothing is kept back: whatever a poll read, a release returns all of it, refused or not, and
// once.
TEST_P(PayloadTest, EveryPollReturnsAllItRead) {
  DeviceUnderTest queue = device(tx_, kVersion1);
  std::vector<Used> expected;
  for (std::uint32_t round = 0; round < 500; ++round) {
    const std::uint32_t batch = 1 + round % 40;
    for (std::uint32_t i = 0; i < batch; ++i) {
      const auto head = static_cast<std::uint16_t>(expected.size() % 100 * 2);
      const std::uint64_t address = (round + i) % 5 == 0 ? 0xdead0000 : kTxBuffers + 512ull * head;
      tx_.describe(head, address, 20, kNextFlag, static_cast<std::uint16_t>(head + 1));
      tx_.describe(head + 1u, kTxBuffers, 60);
      tx_.put_head(head);
      expected.push_back({head, 0});
    }
    tx_.show();
    std::uint32_t left = batch;
    while (left != 0) {
      const std::uint16_t before = tx_.used_index();
      const std::uint32_t taken = queue.read(burst_, counters_);
      ASSERT_EQ(taken, std::min(left, 32u));
      ASSERT_EQ(tx_.used_index(), before);
      queue.release();
      const std::vector<Used> batch_due(expected.begin() + before,
                                        expected.begin() + before + taken);
      ASSERT_EQ(tx_.used_since(before), batch_due);
      queue.release();
      ASSERT_EQ(tx_.used_index(), before + taken);
      left -= taken;
    }
    ASSERT_EQ(queue.position(), tx_.device_end());
  }
  EXPECT_EQ(expected.size(), 10'050U);
  EXPECT_GT(drops(), 1000U);
  EXPECT_EQ(drops(), drops(DropReason::kUnmappedAddress));
}

// The same views written to three guests, and only then given back.
TEST_P(PayloadTest, SameFrameToThreeQueues) {
  DeviceUnderTest from = device(tx_, kVersion1);
  const Bytes frame = pattern(9000, 8);
  guest_.write(kTxBuffers, concat(Bytes(12, 0), frame));
  chain(tx_, 0, kTxBuffers, 9012, {700}, 0);
  tx_.offer(0);
  ASSERT_EQ(from.read(burst_, counters_), 1U);
  for (std::uint64_t port = 0; port < 3; ++port) {
    GuestRing rx = ring(kRxRing + 0x10000 * port, 64);
    DeviceUnderTest to = device(rx, kVersion1 | kMergeable);
    const std::uint64_t buffers = kRxBuffers + 0x10000 * port;
    const std::uint32_t length = 1500 + 500 * static_cast<std::uint32_t>(port);
    for (std::uint16_t i = 0; i < 8; ++i) {
      rx.describe(i, buffers + i * std::uint64_t{length}, length, kWriteFlag);
      rx.offer(i);
    }
    receive(to, burst_.frames[0]);
    EXPECT_EQ(guest_.read(buffers + 12, 9000), frame) << port;
    EXPECT_EQ(rx.used_index(), (9012 + length - 1) / length);
    EXPECT_EQ(tx_.used_index(), 0);
  }
  from.release();
  EXPECT_THAT(tx_.used_since(0), ElementsAre(Used{0, 0}));
}

// What is delivered is the private copy of the headers, whatever the guest writes meanwhile.
TEST_P(PayloadTest, HeadersAreFrozenWhenRead) {
  DeviceUnderTest from = device(tx_, kVersion1);
  DeviceUnderTest to = device(rx_, kVersion1 | kMergeable);
  const Bytes frame = pattern(300, 6);
  put_frame(tx_, 0, kTxBuffers, frame);
  tx_.offer(0);
  ASSERT_EQ(from.read(burst_, counters_), 1U);
  guest_.fill(kTxBuffers, 12 + 128, 0xff);
  rx_.describe(0, kRxBuffers, 2048, kWriteFlag);
  rx_.offer(0);
  receive(to, burst_.frames[0]);
  EXPECT_EQ(guest_.read(kRxBuffers + 12, 300), frame);
}

// Chains of 19 descriptors, as drivers build them for large unmerged frames.
TEST_P(PayloadTest, ChainsOfNineteen) {
  for (const std::uint32_t size : {64u, 256u, 1024u}) {
    GuestRing tx = ring(kTxRing, size);
    GuestRing rx = ring(kRxRing, size);
    DeviceUnderTest from = device(tx, kVersion1);
    DeviceUnderTest to = device(rx, kVersion1);
    const std::uint32_t fitting = std::min(size / 19, 32u);
    const Bytes frame = pattern(1514, size);
    guest_.write(kTxBuffers, concat(Bytes(12, 0), frame));
    std::uint64_t received = 0;
    std::uint32_t bursts = 0;
    std::uint32_t calls = 0;
    for (int round = 0; round < 20; ++round) {
      for (std::uint32_t i = 0; i < fitting; ++i) {
        const auto head = static_cast<std::uint16_t>(19 * i);
        chain(tx, head, kTxBuffers, 1526, {12, 14, 20, 80, 94}, 0);
        tx.offer(head);
        // Receive chains too, through tables, so that every slot of the ring holds one.
        const std::uint64_t table = kTables + 0x200ull * i;
        for (std::uint16_t d = 0; d < 19; ++d) {
          rx.put_entry(table, d, 19, kRxBuffers + 4096ull * i + 90ull * d, 90, kWriteFlag);
        }
        rx.describe(i, table, 19 * 16, kIndirectFlag);
        rx.offer(static_cast<std::uint16_t>(i));
      }
      do {
        taken_ = from.read(burst_, counters_);
        std::vector<const Frame*> frames;
        for (std::uint32_t i = 0; i < burst_.count; ++i) frames.push_back(&burst_.frames[i]);
        if (taken_ == 0) break;
        to.write(frames.data(), burst_.count, counters_);
        received += burst_.count;
        from.release();
        ++bursts;
        calls += to.wants_event();
      } while (true);
      for (std::uint32_t i = 0; i < fitting; ++i) {
        ASSERT_EQ(guest_.read(kRxBuffers + 4096ull * i + 12, 1514), frame);
      }
    }
    EXPECT_EQ(received, 20u * fitting);
    EXPECT_EQ(bursts, size == 1024 ? 40U : 20U);  // 32 x 19 descriptors are more than a poll walks
    EXPECT_LE(calls, bursts);
    EXPECT_EQ(rx.used_index(), 20 * fitting);
    EXPECT_EQ(tx.used_index(), 20 * fitting);
  }
  EXPECT_EQ(drops(), 0U);
}

// Direct receive chains of 19: what a ring holds is delivered, the rest of the burst is counted.
TEST_P(PayloadTest, BurstsOf32IntoDirectChainsOfNineteen) {
  for (const std::uint32_t size : {64u, 256u, 1024u}) {
    GuestRing rx = ring(kRxRing, size);
    DeviceUnderTest to = device(rx, kVersion1);
    QueueCounters counters;
    for (std::uint32_t i = 0; i < size / 19; ++i) {
      const auto head = static_cast<std::uint16_t>(19 * i);
      chain(rx, head, kRxBuffers + 4096ull * i, 19 * 90, {90}, kWriteFlag);
      rx.offer(head);
    }
    const OwnFrame own(pattern(1514, size), {333, 1, 2, 65});
    const std::vector<const Frame*> burst(32, &own.frame());
    to.write(burst.data(), 32, counters);
    const std::uint32_t delivered = std::min(size / 19, 32u);  // 3, 13, 32
    EXPECT_EQ(counters.packets.value(), delivered);
    EXPECT_EQ(counters.dropped[static_cast<std::size_t>(DropReason::kNoRxBuffer)].value(),
              32 - delivered);
    for (std::uint32_t i = 0; i < delivered; ++i) {
      EXPECT_EQ(guest_.read(kRxBuffers + 4096ull * i + 12, 1514), own.bytes());
    }
  }
}

// A ring full of 256 frames, taken burst by burst, is returned whole, and the guest is told.
TEST_P(PayloadTest, FullTransmitRingIsReturned) {
  DeviceUnderTest queue = device(tx_, kVersion1);
  for (std::uint16_t i = 0; i < 256; ++i) {
    put_frame(tx_, i, kTxBuffers + 2048ull * i, pattern(100, i));
    tx_.put_head(i);
  }
  tx_.show();
  const std::vector<Bytes> frames = transmit_all(queue);
  ASSERT_EQ(frames.size(), 256U);
  for (std::uint32_t i = 0; i < 256; ++i) EXPECT_EQ(frames[i], pattern(100, i));
  EXPECT_EQ(tx_.used_index(), 256);
  for (std::uint16_t i = 0; i < 256; ++i) EXPECT_EQ(tx_.used(i), (Used{i, 0}));
  EXPECT_TRUE(queue.wants_event());
}

// 64 KiB frames: a poll stops at its share of bytes, the next goes on.
TEST_P(PayloadTest, PollIsBoundedInBytes) {
  DeviceUnderTest queue = device(tx_, kVersion1);
  tx_.describe(0, kTxBuffers, 65536 + 12);
  for (int i = 0; i < 32; ++i) tx_.put_head(0);
  tx_.show();
  std::uint32_t taken = 0;
  std::uint32_t polls = 0;
  while (const std::uint32_t chains = queue.read(burst_, counters_)) {
    EXPECT_EQ(chains, 8U);  // 512 KiB
    queue.release();
    taken += chains;
    ++polls;
  }
  EXPECT_EQ(taken, 32U);
  EXPECT_EQ(polls, 4U);
}

VSWITCH_FOR_BOTH_LAYOUTS(PayloadTest);

}  // namespace
}  // namespace vswitch::testing
