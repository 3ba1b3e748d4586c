// What goes where, what is dropped, and under which name.
#include "dataplane/forwarding/forwarder.h"

#include <algorithm>

#include "tests/dataplane/forwarding/switch_fixture.h"

namespace vswitch::test {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::IsEmpty;

constexpr Mac kA = 0x020000000001;
constexpr Mac kB = 0x020000000002;
constexpr Mac kC = 0x020000000003;
constexpr std::string_view kTagged("\x81\x00\x00\x05\x08\x00", 6);
constexpr std::string_view kDoubleTagged("\x88\xa8\x00\x05\x81\x00\x00\x06\x08\x00", 10);

class Switch : public SwitchFixture {
 protected:
  // Ports 0 to count - 1, each with `buffers` receive buffers.
  void make_ports(int count, std::size_t buffers = 64) {
    for (int i = 0; i < count; ++i) add_port().guest.post(buffers);
  }
  std::vector<std::string> deliver(const std::string& frame, std::size_t to = 1) {
    EXPECT_TRUE(guest(0).send(frame));
    run();
    EXPECT_EQ(guest(0).reclaim(), 0u) << "whatever became of it, it is returned at once";
    return guest(to).receive();
  }
};

TEST_F(Switch, UnknownUnicastGoesToAllButItsSource) {
  make_ports(3);
  const std::string frame = make_frame(kB, kA, 64, 7);
  EXPECT_THAT(deliver(frame, 1), ElementsAre(frame));
  EXPECT_THAT(guest(2).receive(), ElementsAre(frame));
  EXPECT_THAT(guest(0).receive(), IsEmpty());
  EXPECT_EQ(ports[0]->all_dropped(), 0u);
}

TEST_F(Switch, LearnsAndAnswersToOnePort) {
  make_ports(3);
  deliver(make_frame(kB, kA, 64));
  guest(2).receive();
  const std::string answer = make_frame(kA, kB, 64, 9);
  ASSERT_TRUE(guest(1).send(answer));
  run();
  EXPECT_THAT(guest(0).receive(), ElementsAre(answer));
  EXPECT_THAT(guest(2).receive(), IsEmpty());
  forwarding::Location found;
  ASSERT_TRUE(fdb->lookup(kB, found));
  EXPECT_EQ(found, (forwarding::Location{1, 1}));
}

// A16: several segments' worth, three identical copies.
TEST_F(Switch, BroadcastIsTheSameEverywhere) {
  for (int i = 0; i < 4; ++i) add_port(9000, 16384).guest.post(8);
  const std::string frame = make_frame(kBroadcast, kA, 9014, 5);
  EXPECT_THAT(deliver(frame, 1), ElementsAre(frame));
  EXPECT_THAT(guest(2).receive(), ElementsAre(frame));
  EXPECT_THAT(guest(3).receive(), ElementsAre(frame));
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(ports[i]->transmit[0].packets.value(), 1u);
    EXPECT_EQ(ports[i]->transmit[0].bytes.value(), 9014u);
  }
  EXPECT_EQ(ports[0]->receive[0].packets.value(), 1u) << "one frame came in, however many went out";
  EXPECT_EQ(ports[0]->receive[0].bytes.value(), 9014u);
}

// F48.
TEST_F(Switch, FrameBounds) {
  make_ports(2);
  learn(1, kB);
  EXPECT_EQ(deliver(make_frame(kB, kA, 1514)).size(), 1u);
  EXPECT_EQ(deliver(make_frame(kB, kA, 1518, 0, kTagged)).size(), 1u);
  EXPECT_EQ(deliver(make_frame(kB, kA, 1522, 0, kDoubleTagged)).size(), 1u);
  EXPECT_EQ(deliver(make_frame(kB, kA, 14)).size(), 1u) << "a header alone is no runt";
  EXPECT_EQ(ports[0]->all_dropped(), 0u);

  EXPECT_THAT(deliver(make_frame(kB, kA, 1515)), IsEmpty());
  EXPECT_EQ(ports[0]->dropped_in(DropReason::kOversize), 1u);
  EXPECT_THAT(deliver(make_frame(kB, kA, 1518)), IsEmpty());
  EXPECT_EQ(ports[0]->dropped_in(DropReason::kOversize), 2u);
  EXPECT_THAT(deliver(make_frame(kB, kA, 1519, 0, kTagged)), IsEmpty());
  EXPECT_EQ(ports[0]->dropped_in(DropReason::kOversize), 3u);
  EXPECT_THAT(deliver(make_frame(kB, kA, 1523, 0, kDoubleTagged)), IsEmpty());
  EXPECT_EQ(ports[0]->dropped_in(DropReason::kOversize), 4u);
  EXPECT_THAT(deliver(make_frame(kB, kA, 13)), IsEmpty());
  EXPECT_EQ(ports[0]->dropped_in(DropReason::kRunt), 1u);
  EXPECT_THAT(deliver(make_frame(kB, kA, 1)), IsEmpty());
  EXPECT_EQ(ports[0]->dropped_in(DropReason::kRunt), 2u);

  EXPECT_EQ(ports[0]->all_dropped(), 6u);
  EXPECT_EQ(ports[1]->all_dropped(), 0u);
  EXPECT_EQ(ports[0]->receive[0].packets.value(), 4u);
  EXPECT_EQ(ports[0]->receive[0].bytes.value(), 1514u + 1518 + 1522 + 14);
  EXPECT_EQ(ports[1]->transmit[0].packets.value(), 4u);
  EXPECT_EQ(ports[1]->transmit[0].bytes.value(), 1514u + 1518 + 1522 + 14);
}

TEST_F(Switch, TheDestinationsMtuIsSmaller) {
  add_port(9000, 16384);
  add_port(1500).guest.post(8);
  learn(1, kB);
  EXPECT_THAT(deliver(make_frame(kB, kA, 1515)), IsEmpty());
  EXPECT_EQ(ports[1]->dropped_out(DropReason::kOversize), 1u);
  EXPECT_EQ(ports[0]->all_dropped(), 0u);
  EXPECT_EQ(deliver(make_frame(kB, kA, 1518, 0, kTagged)).size(), 1u);
  EXPECT_EQ(ports[1]->dropped_out(DropReason::kOversize), 1u);
  // Flooded: the port that can takes it.
  add_port(9000, 16384).guest.post(8);
  EXPECT_THAT(deliver(make_frame(kBroadcast, kA, 9014)), IsEmpty());
  EXPECT_EQ(guest(2).receive().size(), 1u);
  EXPECT_EQ(ports[1]->dropped_out(DropReason::kOversize), 2u);
}

// F47, the sources: neither is learned, neither goes anywhere.
TEST_F(Switch, InvalidSources) {
  make_ports(2);
  learn(1, kB);
  for (const Mac source :
       {Mac{0}, kBroadcast, Mac{0x010000000000}, Mac{0x01005e000001}, Mac{0x030000000001}}) {
    EXPECT_THAT(deliver(make_frame(kB, source, 64)), IsEmpty());
    forwarding::Location found;
    EXPECT_FALSE(fdb->lookup(source, found));
  }
  EXPECT_EQ(ports[0]->dropped_in(DropReason::kInvalidSource), 5u);
  EXPECT_EQ(ports[0]->all_dropped(), 5u);
  EXPECT_EQ(ports[0]->receive[0].packets.value(), 0u);
  EXPECT_EQ(fdb->entries(), 1u);
}

// A bad source between good ones of one burst, and in front of them.
TEST_F(Switch, InvalidSourcesInABurst) {
  make_ports(2);
  learn(1, kB);
  std::vector<std::string> good;
  for (std::uint32_t i = 0; i < 30; ++i) {
    const Mac source = i % 3 == 0 ? Mac{0} : i % 3 == 1 ? kA : kBroadcast;
    const std::string frame = make_frame(kB, source, 64, i);
    if (source == kA) good.push_back(frame);
    ASSERT_TRUE(guest(0).send(frame));
  }
  run();
  EXPECT_THAT(guest(1).receive(), ElementsAreArray(good));
  EXPECT_EQ(ports[0]->dropped_in(DropReason::kInvalidSource), 20u);
  EXPECT_EQ(ports[0]->receive[0].packets.value(), 10u);
}

TEST_F(Switch, ReservedGroupAddressesAreNeverBridged) {
  make_ports(2);
  for (Mac last = 0; last <= 0xf; ++last) {
    EXPECT_THAT(deliver(make_frame(0x0180c2000000 + last, kA, 64)), IsEmpty());
  }
  EXPECT_EQ(ports[0]->dropped_in(DropReason::kReservedDestination), 16u);
  EXPECT_EQ(ports[0]->all_dropped(), 16u);
  EXPECT_EQ(deliver(make_frame(0x0180c2000010, kA, 64)).size(), 1u);
  EXPECT_EQ(deliver(make_frame(0x0180c1ffffff, kA, 64)).size(), 1u);
  EXPECT_EQ(deliver(make_frame(0x01005e000001, kA, 64)).size(), 1u);
  EXPECT_EQ(ports[0]->all_dropped(), 16u);
}

TEST_F(Switch, NothingGoesBackToItsPort) {
  make_ports(3);
  deliver(make_frame(kB, kA, 64));
  guest(2).receive();
  EXPECT_THAT(deliver(make_frame(kA, kC, 64)), IsEmpty());
  EXPECT_THAT(guest(0).receive(), IsEmpty());
  EXPECT_THAT(guest(2).receive(), IsEmpty());
  EXPECT_EQ(ports[0]->dropped_in(DropReason::kSamePort), 1u);
  // Every frame of a burst of them counts.
  for (std::uint32_t i = 0; i < 5; ++i) ASSERT_TRUE(guest(0).send(make_frame(kA, kC, 64, i)));
  run();
  EXPECT_EQ(ports[0]->dropped_in(DropReason::kSamePort), 6u);
  EXPECT_EQ(ports[0]->all_dropped(), 6u);
}

TEST_F(Switch, NoOtherPort) {
  make_ports(1);
  EXPECT_THAT(deliver(make_frame(kB, kA, 64), 0), IsEmpty());
  deliver(make_frame(kBroadcast, kA, 64), 0);
  EXPECT_EQ(ports[0]->dropped_in(DropReason::kNoDestination), 2u);
  EXPECT_EQ(ports[0]->all_dropped(), 2u);
}

TEST_F(Switch, ADestinationThatIsDown) {
  make_ports(3);
  learn(1, kB);
  ports[1]->up = false;
  connect();
  EXPECT_THAT(deliver(make_frame(kB, kA, 64)), IsEmpty());
  EXPECT_EQ(ports[1]->dropped_out(DropReason::kPortDown), 1u);
  EXPECT_EQ(ports[1]->all_dropped() + ports[0]->all_dropped(), 1u);
  EXPECT_THAT(guest(2).receive(), IsEmpty()) << "a known destination is not flooded";
}

// H55 in small: a guest without buffers holds up neither the sender nor a neighbour.
TEST_F(Switch, ADestinationWithoutBuffers) {
  make_ports(3);
  add_port();  // no buffers
  learn(1, kB);
  learn(3, kC);
  for (std::uint32_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(guest(0).send(make_frame(i % 2 == 0 ? kB : kC, kA, 64, i)));
    if (i % 32 != 31) continue;
    run();
    EXPECT_EQ(guest(0).reclaim(), 0u);
    EXPECT_EQ(guest(1).receive().size(), 16u);
    guest(1).post(32);
  }
  run();
  EXPECT_EQ(guest(0).reclaim(), 0u);
  EXPECT_EQ(ports[3]->dropped_out(DropReason::kNoRxBuffer), 100u);
  EXPECT_EQ(ports[1]->transmit[0].packets.value(), 100u);
  EXPECT_EQ(ports[3]->transmit[0].packets.value(), 0u);
}

// Fewer buffers than frames: the first ones are delivered, the rest counted.
TEST_F(Switch, TooFewBuffers) {
  add_port();
  add_port().guest.post(5);
  learn(1, kB);
  for (std::uint32_t i = 0; i < 20; ++i) ASSERT_TRUE(guest(0).send(make_frame(kB, kA, 64, i)));
  run();
  const auto frames = guest(1).receive();
  ASSERT_EQ(frames.size(), 5u);
  for (std::uint32_t i = 0; i < 5; ++i) EXPECT_EQ(frame_tag(frames[i]), i);
  EXPECT_EQ(ports[1]->dropped_out(DropReason::kNoRxBuffer), 15u);
  EXPECT_EQ(ports[1]->transmit[0].packets.value(), 5u);
  EXPECT_EQ(ports[1]->transmit[0].bytes.value(), 5u * 64);
}

// Flooded and known destinations in one burst: what reaches one guest keeps its order.
TEST_F(Switch, OrderIsKeptWithinADestination) {
  make_ports(4, 200);
  learn(1, kB);
  learn(2, kC);
  const Mac targets[] = {kB, kBroadcast, kC, 0x02000000dead, kB, kC, 0x01005e000001, kB};
  std::vector<std::uint32_t> expected[4];
  for (std::uint32_t i = 0; i < 160; ++i) {
    const Mac target = targets[(i * 5 + i / 7) % 8];
    ASSERT_TRUE(guest(0).send(make_frame(target, kA, 60 + i, i)));
    for (std::size_t port = 1; port < 4; ++port) {
      const bool flooded = target != kB && target != kC;
      if (flooded || (target == kB && port == 1) || (target == kC && port == 2)) {
        expected[port].push_back(i);
      }
    }
  }
  EXPECT_EQ(run(), 5) << "160 frames are five bursts";
  for (std::size_t port = 1; port < 4; ++port) {
    std::vector<std::uint32_t> tags;
    for (const std::string& frame : guest(port).receive()) {
      EXPECT_EQ(frame.size(), 60 + frame_tag(frame));
      tags.push_back(frame_tag(frame));
    }
    EXPECT_EQ(tags, expected[port]) << "port " << port;
  }
}

// H56: every length around the copy's seams arrives as it was.
TEST_F(Switch, EveryLengthIsExact) {
  make_ports(2, 128);
  learn(1, kB);
  for (std::size_t bytes = 14; bytes <= 1514; ++bytes) {
    const std::string frame = make_frame(kB, kA, bytes, static_cast<std::uint32_t>(bytes));
    ASSERT_THAT(deliver(frame), ElementsAre(frame)) << bytes;
    guest(1).post(1);
  }
}

// A frame for the zero address is nobody's, least of all for a station that was forgotten.
TEST_F(Switch, TheZeroDestinationIsUnknown) {
  make_ports(3);
  for (Mac station = 0; station < 448; ++station) learn(1, kB + station);
  fdb->forget_output(1);
  const std::string frame = make_frame(0, kA, 64);
  EXPECT_THAT(deliver(frame, 1), ElementsAre(frame));
  EXPECT_THAT(guest(2).receive(), ElementsAre(frame));
}

// An entry of a port that this snapshot does not know yet: learned by a worker that is ahead.
TEST_F(Switch, ALocationBeyondThisSnapshot) {
  make_ports(2);
  fdb->learn(kC, {7, 1}, 0);
  fdb->learn(kB, {4095, 1}, 0);
  EXPECT_EQ(deliver(make_frame(kC, kA, 64)).size(), 1u);
  EXPECT_EQ(deliver(make_frame(kB, kA, 64)).size(), 1u);
}

// F45: the number is used again, the station is not where it was.
TEST_F(Switch, AStaleGenerationIsUnknown) {
  make_ports(3);
  learn(1, kB);
  ports[1]->generation = 2;
  connect();
  const std::string frame = make_frame(kB, kA, 64);
  EXPECT_THAT(deliver(frame, 1), ElementsAre(frame));
  EXPECT_THAT(guest(2).receive(), ElementsAre(frame)) << "flooded";
  // The port is gone altogether.
  ports[1].reset();
  connect();
  ASSERT_TRUE(guest(0).send(frame));
  run();
  EXPECT_THAT(guest(2).receive(), ElementsAre(frame));
}

TEST_F(Switch, AStationThatMoves) {
  make_ports(3);
  learn(1, kB);
  ASSERT_TRUE(guest(2).send(make_frame(kA, kB, 64)));
  run();
  for (std::size_t i = 0; i < 3; ++i) guest(i).receive();
  EXPECT_EQ(fdb->moves(), 1u);
  EXPECT_THAT(deliver(make_frame(kB, kA, 64), 1), IsEmpty());
  EXPECT_EQ(guest(2).receive().size(), 1u);
}

// The answer to the first frame of a burst is learned from before the second one is decided.
TEST_F(Switch, LearningWithinOneBurst) {
  make_ports(3);
  ASSERT_TRUE(guest(0).send(make_frame(kBroadcast, kA, 64)));
  ASSERT_TRUE(guest(0).send(make_frame(kA, kB, 64)));
  ASSERT_TRUE(guest(0).send(make_frame(kB, kA, 64)));
  run();
  EXPECT_EQ(guest(1).receive().size(), 1u);
  EXPECT_EQ(guest(2).receive().size(), 1u);
  EXPECT_EQ(ports[0]->dropped_in(DropReason::kSamePort), 2u);
}

}  // namespace
}  // namespace vswitch::test
